// Passes over logits, for cherenkov/passes.py: checks, and the operations without the GIL.
#include <algorithm>

#include "bindings.h"
#include "sampling.h"

namespace cherenkov::cpu {

namespace {

using Longs = Array<const int64_t, 1>;
using Doubles = Array<const double, 1>;

bool ascend(const int64_t* ids, int64_t count, int64_t size) {
    int64_t falls = 0;
    for (int64_t i = 1; i < count; i++) falls += static_cast<int64_t>(ids[i] <= ids[i - 1]);
    return falls == 0 && (count == 0 || (ids[0] >= 0 && ids[count - 1] < size));
}

bool are_numbers(const double* values, int64_t count) {
    int64_t broken = 0;
    for (int64_t i = 0; i < count; i++) broken += static_cast<int64_t>(values[i] != values[i]);
    return broken == 0;
}

// The parts of a row: `[V]` logits, and `[U]` ids and values of those that were changed.
LogitRow row_of(const Const<1>& logits, const Longs& ids, const Doubles& values, const char* operation) {
    const auto size = static_cast<int64_t>(logits.shape(0)), changed = static_cast<int64_t>(ids.shape(0));
    need(size > 0, operation, "there are no logits");
    need(size <= std::numeric_limits<int32_t>::max(), operation, "there are too many logits");
    need(values.shape(0) == ids.shape(0), operation, "there must be a value for every id");
    need(ascend(ids.data(), changed, size), operation, "the ids must ascend, within the vocabulary");
    need(are_numbers(values.data(), changed), operation, "a changed logit is NaN");
    return {logits.data(), size, ids.data(), values.data(), changed};
}

const Kernels& kernels_of(const std::string& isa, const char* operation) {
    const Kernels* kernels = find_kernels(isa.c_str());
    need(kernels != nullptr, operation, "this machine has no such instruction set");
    return *kernels;
}

Weighing weighing(double largest, double temperature, const char* operation) {
    need(temperature > 0, operation, "the temperature must be above 0");
    return {largest, temperature};
}

double mass_of(const Const<1>& logits, const Longs& ids, const Doubles& values, double largest, double temperature,
               const std::string& isa) {
    const auto row = row_of(logits, ids, values, "mass");
    const Kernels& kernels = kernels_of(isa, "mass");
    const Weighing by = weighing(largest, temperature, "mass");
    const nb::gil_scoped_release release;
    return mass(kernels, row, by);
}

nb::tuple before_tokens(const Const<1>& logits, const Longs& ids, const Doubles& values, double largest,
                        double temperature, int64_t first, double first_value, int64_t second, double second_value,
                        const std::string& isa) {
    const auto row = row_of(logits, ids, values, "before");
    const Kernels& kernels = kernels_of(isa, "before");
    const Weighing by = weighing(largest, temperature, "before");
    need(first >= 0 && first <= row.size && second >= 0 && second < row.size, "before", "there is no such token");
    need(first_value <= second_value, "before", "the second must be no less likely than the first");
    Before found{}, sooner{};
    {
        const nb::gil_scoped_release release;
        found = before(kernels, row, by, {first, first_value}, {second, second_value}, sooner);
    }
    return nb::make_tuple(found.mass, found.larger, found.equal, sooner.mass, sooner.larger, sooner.equal);
}

void largest_ids_of(const Const<1>& logits, const Longs& ids, const Doubles& values, const Array<int64_t, 1>& out,
                    const std::string& isa) {
    const auto row = row_of(logits, ids, values, "largest_ids");
    const Kernels& kernels = kernels_of(isa, "largest_ids");
    const auto count = static_cast<int64_t>(out.shape(0));
    need(count > 0 && count <= row.size, "largest_ids", "count must be 1 to V");
    std::vector<int64_t> found;
    {
        const nb::gil_scoped_release release;
        found = largest_ids(kernels, row, count);
    }
    need(!found.empty(), "largest_ids", "a logit is NaN");
    std::copy(found.begin(), found.end(), out.data());
}

int64_t nth_id_of(const Const<1>& logits, const Longs& ids, const Doubles& values, int64_t count,
                  const std::string& isa) {
    const auto row = row_of(logits, ids, values, "nth_id");
    const Kernels& kernels = kernels_of(isa, "nth_id");
    need(count > 0 && count <= row.size, "nth_id", "count must be 1 to V");
    int64_t id = -1;
    {
        const nb::gil_scoped_release release;
        id = nth_id(kernels, row, count);
    }
    need(id >= 0, "nth_id", "a logit is NaN");
    return id;
}

int64_t amend_row(const Const<1>& logits, const Longs& seen, const Longs& counts, double factor, double presence,
                  double frequency, const Longs& biased, const Doubles& biases, const Out<1>& data,
                  const Array<int64_t, 1>& ids, const Array<double, 1>& values) {
    const auto size = static_cast<int64_t>(logits.shape(0));
    const Occurred occurred{seen.data(), counts.data(), static_cast<int64_t>(seen.shape(0))};
    const Biases added{biased.data(), biases.data(), static_cast<int64_t>(biased.shape(0))};
    need(counts.shape(0) == seen.shape(0), "amend", "there must be a count for every id");
    need(biases.shape(0) == biased.shape(0), "amend", "there must be a bias for every id");
    need(ascend(occurred.ids, occurred.size, size) && ascend(added.ids, added.size, size), "amend",
         "the ids must ascend, within the vocabulary");
    need(data.shape(0) == logits.shape(0), "amend", "the result must be as long as the logits");
    const size_t room = seen.shape(0) + biased.shape(0);
    need(ids.shape(0) >= room && values.shape(0) >= room, "amend", "the lists have no room for all that changes");
    const nb::gil_scoped_release release;
    return amend(logits.data(), size, occurred, {factor, presence, frequency}, added, data.data(), ids.data(),
                 values.data());
}

// Draws, and the arrays they look into.
struct HeldDraws {
    Const<1> logits;
    Longs ids;
    Doubles values;
    Draws draws;

    HeldDraws(Const<1> l, Longs i, Doubles v, double largest, double temperature, double number, const std::string& isa)
        : logits(std::move(l)), ids(std::move(i)), values(std::move(v)),
          draws(made(logits, ids, values, largest, temperature, number, isa)) {}

    static Draws made(const Const<1>& logits, const Longs& ids, const Doubles& values, double largest,
                      double temperature, double number, const std::string& isa) {
        const auto row = row_of(logits, ids, values, "Draws");
        const Kernels& kernels = kernels_of(isa, "Draws");
        const Weighing by = weighing(largest, temperature, "Draws");
        need(number >= 0 && number < 1, "Draws", "the number must be from 0 to below 1");
        Draws draws(kernels, row, by, number);
        need(draws.possible(), "Draws", "there is nothing to draw, or a logit is NaN");
        return draws;
    }
};

}  // namespace

void bind_sampling(nb::module_& m) {
    using nb::arg;
    m.def("mass", &mass_of, arg().noconvert(), arg().noconvert(), arg().noconvert(), arg(), arg(), arg());
    m.def("before", &before_tokens, arg().noconvert(), arg().noconvert(), arg().noconvert(), arg(), arg(), arg(), arg(),
          arg(), arg(), arg());
    m.def("largest_ids", &largest_ids_of, arg().noconvert(), arg().noconvert(), arg().noconvert(), arg().noconvert(),
          arg());
    m.def("nth_id", &nth_id_of, arg().noconvert(), arg().noconvert(), arg().noconvert(), arg(), arg());
    m.def("amend", &amend_row, arg().noconvert(), arg().noconvert(), arg().noconvert(), arg(), arg(), arg(),
          arg().noconvert(), arg().noconvert(), arg().noconvert(), arg().noconvert(), arg().noconvert());
    nb::class_<HeldDraws>(m, "Draws")
        .def(nb::init<Const<1>, Longs, Doubles, double, double, double, const std::string&>(), arg().noconvert(),
             arg().noconvert(), arg().noconvert(), arg(), arg(), arg(), arg())
        .def("next", [](HeldDraws& held) { return held.draws.next(); });
}

}  // namespace cherenkov::cpu
