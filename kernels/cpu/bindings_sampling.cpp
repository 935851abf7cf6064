// Passes over logits, for cherenkov/passes.py: checks, and the operations without the GIL.
#include <algorithm>

#include "bindings.h"
#include "sampling.h"

namespace cherenkov::cpu {

namespace {

using Longs = Array<const int64_t, 1>;
template <typename T>
using Logits = Array<const T, 1>;

template <typename T>
LogitRow<T> row_of(const Logits<T>& logits, const char* operation) {
    need(logits.shape(0) > 0, operation, "there are no logits");
    return {logits.data(), static_cast<int64_t>(logits.shape(0))};
}

const Kernels& kernels_of(const std::string& isa, const char* operation) {
    const Kernels* kernels = find_kernels(isa.c_str());
    need(kernels != nullptr, operation, "this machine has no such instruction set");
    return *kernels;
}

template <typename T>
double weigh_row(const Logits<T>& logits, double largest, double temperature, const Out<1>& weights,
                 const std::string& isa) {
    const auto row = row_of(logits, "weigh");
    const Kernels& kernels = kernels_of(isa, "weigh");
    need(weights.shape(0) == logits.shape(0), "weigh", "there must be as many weights as logits");
    need(temperature > 0, "weigh", "the temperature must be above 0");
    const nb::gil_scoped_release release;
    return weigh(kernels, row, largest, temperature, weights.data());
}

template <typename T>
nb::tuple before_token(const Logits<T>& logits, const Const<1>& weights, int64_t token, const std::string& isa) {
    const auto row = row_of(logits, "before");
    const Kernels& kernels = kernels_of(isa, "before");
    need(weights.shape(0) == logits.shape(0), "before", "there must be as many weights as logits");
    need(token >= 0 && token < row.size, "before", "there is no such token");
    Before found{};
    {
        const nb::gil_scoped_release release;
        found = before(kernels, row, weights.data(), token);
    }
    return nb::make_tuple(found.mass, found.equal);
}

template <typename T>
void column_maxima_of(const Logits<T>& logits, const Array<T, 1>& maxima, const std::string& isa) {
    const auto row = row_of(logits, "column_maxima");
    const Kernels& kernels = kernels_of(isa, "column_maxima");
    const auto columns = static_cast<int64_t>(maxima.shape(0));
    need(columns > 0 && columns <= row.size, "column_maxima", "there must be 1 to V columns");
    const nb::gil_scoped_release release;
    column_maxima(kernels, row, columns, maxima.data());
}

template <typename T>
void largest_ids_of(const Logits<T>& logits, const Array<int64_t, 1>& ids, const std::string& isa) {
    const auto row = row_of(logits, "largest_ids");
    const Kernels& kernels = kernels_of(isa, "largest_ids");
    const auto count = static_cast<int64_t>(ids.shape(0));
    need(count > 0 && count <= row.size, "largest_ids", "count must be 1 to V");
    const nb::gil_scoped_release release;
    const auto found = largest_ids(kernels, row, count);
    std::copy(found.begin(), found.end(), ids.data());
}

template <typename T>
int64_t nth_id_of(const Logits<T>& logits, int64_t count) {
    const auto row = row_of(logits, "nth_id");
    need(count > 0 && count <= row.size, "nth_id", "count must be 1 to V");
    need(row.size <= std::numeric_limits<int32_t>::max(), "nth_id", "there are too many logits");
    const nb::gil_scoped_release release;
    return nth_id(row, count);
}

template <typename T>
void punish_row(const Logits<T>& logits, const Longs& ids, const Longs& counts, double factor, double presence,
                double frequency, const Array<double, 1>& changed) {
    const auto row = row_of(logits, "punish");
    const auto known = static_cast<int64_t>(ids.shape(0));
    need(counts.shape(0) == ids.shape(0), "punish", "there must be a count for every id");
    need(changed.shape(0) == logits.shape(0), "punish", "the result must be as long as the logits");
    bool inside = true;
    for (int64_t i = 0; i < known; i++) inside = inside && ids.data()[i] >= 0 && ids.data()[i] < row.size;
    need(inside, "punish", "an id is beyond the vocabulary");
    const nb::gil_scoped_release release;
    punish(row, ids.data(), counts.data(), known, factor, presence, frequency, changed.data());
}

template <typename T>
void bind_for(nb::module_& m) {
    using nb::arg;
    m.def("weigh", &weigh_row<T>, arg().noconvert(), arg(), arg(), arg().noconvert(), arg());
    m.def("before", &before_token<T>, arg().noconvert(), arg().noconvert(), arg(), arg());
    m.def("column_maxima", &column_maxima_of<T>, arg().noconvert(), arg().noconvert(), arg());
    m.def("largest_ids", &largest_ids_of<T>, arg().noconvert(), arg().noconvert(), arg());
    m.def("nth_id", &nth_id_of<T>, arg().noconvert(), arg());
    m.def("punish", &punish_row<T>, arg().noconvert(), arg().noconvert(), arg().noconvert(), arg(), arg(), arg(),
          arg().noconvert());
}

}  // namespace

void bind_sampling(nb::module_& m) {
    bind_for<float>(m);
    bind_for<double>(m);
}

}  // namespace cherenkov::cpu
