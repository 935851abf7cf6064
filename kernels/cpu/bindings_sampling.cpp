// Passes over logits, for cherenkov/passes.py: checks, and the operations without the GIL.
#include <algorithm>
#include <cmath>
#include <memory>

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

const Kernels& kernels_of(const std::string& isa, const char* operation) {
    const Kernels* kernels = find_kernels(isa.c_str());
    need(kernels != nullptr, operation, "this machine has no such instruction set");
    return *kernels;
}

Weighing weighing(double largest, double temperature, const char* operation) {
    need(temperature > 0, operation, "the temperature must be above 0");
    return {largest, temperature};
}

// What the floats of a row weigh together, by what.
struct FloatMass {
    Weighing by;
    double mass;
};

// A row of logits, the arrays it lies in, and what was found out about it. Not for several threads at once.
struct HeldLogits {
    Const<1> data;
    Longs ids;
    Doubles values;
    const Kernels& kernels;
    LogitRow row;
    bool is_known;
    Crest known;
    std::vector<double> known_whole;
    std::shared_ptr<FloatMass> weighed = std::make_shared<FloatMass>();  // last, by this row or another with its floats

    // `[V]` logits, and `[U]` ids and values of those that were changed.
    HeldLogits(Const<1> d, Longs i, Doubles v, const std::string& isa)
        : data(std::move(d)), ids(std::move(i)), values(std::move(v)), kernels(kernels_of(isa, "Logits")),
          row{data.data(), static_cast<int64_t>(data.shape(0)), ids.data(), values.data(),
              static_cast<int64_t>(ids.shape(0))},
          is_known(false) {
        need(row.size > 0, "Logits", "there are no logits");
        need(row.size <= std::numeric_limits<int32_t>::max(), "Logits", "there are too many logits");
        need(values.shape(0) == ids.shape(0), "Logits", "there must be a value for every id");
        need(ascend(row.ids, row.changed, row.size), "Logits", "the ids must ascend, within the vocabulary");
        need(are_numbers(row.values, row.changed), "Logits", "a changed logit is NaN");
    }

    // What was checked already.
    HeldLogits(Const<1> d, Longs i, Doubles v, const Kernels& k, const LogitRow& r, Crest crest)
        : data(std::move(d)), ids(std::move(i)), values(std::move(v)), kernels(k), row(r), is_known(true),
          known(std::move(crest)) {}

    const Crest& crest() {
        if (!is_known) {
            const nb::gil_scoped_release release;
            known = crest_of(kernels, row);
            is_known = true;
        }
        return known;
    }

    const std::vector<double>& whole() {
        const Crest& floats = crest();
        if (known_whole.empty() && !floats.empty()) {
            const nb::gil_scoped_release release;
            known_whole = whole_crest(row, floats);
        }
        return known_whole;
    }

    double mass(Weighing by) const {
        FloatMass& last = *weighed;
        const double apart = (last.by.largest - by.largest) / by.temperature;
        // So near that none of the weights was lost which count now.
        if (last.by.temperature == by.temperature && std::abs(apart) < 30) {
            last.mass *= std::exp(apart);
            last.by = by;
        } else {
            last = {by, mass_of_floats(kernels, row, by)};
        }
        return last.mass + mass_of_changed(kernels, row, by);
    }

    Token token(int64_t id, double value, const char* operation) const {
        need(id >= 0 && id < row.size, operation, "there is no such token");
        return {id, value};
    }
    void check_count(int64_t count, const char* operation) const {
        need(count > 0 && count <= row.size, operation, "count must be 1 to V");
    }
};

int64_t likeliest_of(HeldLogits& held) {
    const auto& crest = held.crest();
    const nb::gil_scoped_release release;
    return likeliest(held.row, crest);
}

int64_t count_above_of(const HeldLogits& held, double value) {
    const nb::gil_scoped_release release;
    return count_above(held.row, value);
}

bool looks_wide_of(HeldLogits& held, double largest, double temperature, int64_t count, double share,
                   double least) {
    const Weighing by = weighing(largest, temperature, "looks_wide");
    need(count > 0, "looks_wide", "count must be above 0");
    const auto& crest = held.whole();
    const nb::gil_scoped_release release;
    return looks_wide(held.kernels, held.row, crest, by, count, share, least);
}

// What a row was before it was amended: `before` are the logits that were changed.
HeldLogits before_amending(HeldLogits& held, const Doubles& before) {
    need(static_cast<int64_t>(before.shape(0)) >= held.row.changed, "Logits", "there must be a logit for every change");
    LogitRow row = held.row;
    row.values = before.data();
    HeldLogits made{held.data, held.ids, before, held.kernels, row, held.crest()};
    made.weighed = held.weighed;
    return made;
}

double mass_of(const HeldLogits& held, double largest, double temperature) {
    const Weighing by = weighing(largest, temperature, "mass");
    const nb::gil_scoped_release release;
    return held.mass(by);
}

nb::tuple as_tuple(const Before& found) { return nb::make_tuple(found.mass, found.ahead, found.equal); }

nb::tuple before_token(const HeldLogits& held, double largest, double temperature, int64_t id, double value) {
    const Weighing by = weighing(largest, temperature, "before");
    const Token token = held.token(id, value, "before");
    Before found{};
    {
        const nb::gil_scoped_release release;
        double floats = 0;
        found = before(held.kernels, held.row, by, token, floats);
        *held.weighed = {by, floats};
    }
    return as_tuple(found);
}

void largest_of_row(HeldLogits& held, const Array<int64_t, 1>& ids, const Array<double, 1>& values) {
    const auto count = static_cast<int64_t>(ids.shape(0));
    held.check_count(count, "largest");
    need(values.shape(0) == ids.shape(0), "largest", "there must be a place for every value");
    const Crest& crest = held.crest();
    std::vector<Token> found;
    {
        const nb::gil_scoped_release release;
        found = largest(held.kernels, held.row, crest, count);
    }
    need(!found.empty(), "largest", "a logit is NaN");
    for (int64_t i = 0; i < count; i++) {
        ids.data()[i] = found[static_cast<size_t>(i)].id;
        values.data()[i] = found[static_cast<size_t>(i)].value;
    }
}

HeldLogits amend_row(const Const<1>& logits, const Longs& seen, const Longs& counts, double factor, double presence,
                     double frequency, const Longs& biased, const Doubles& biases, const Out<1>& data,
                     const Array<int64_t, 1>& ids, const Array<double, 1>& values, const Array<double, 1>& before,
                     const std::string& isa) {
    const auto size = static_cast<int64_t>(logits.shape(0));
    const Kernels& kernels = kernels_of(isa, "amend");
    const Occurred occurred{seen.data(), counts.data(), static_cast<int64_t>(seen.shape(0))};
    const Biases added{biased.data(), biases.data(), static_cast<int64_t>(biased.shape(0))};
    need(size > 0 && size <= std::numeric_limits<int32_t>::max(), "amend", "there are no logits, or too many");
    need(counts.shape(0) == seen.shape(0), "amend", "there must be a count for every id");
    need(biases.shape(0) == biased.shape(0), "amend", "there must be a bias for every id");
    need(ascend(occurred.ids, occurred.size, size) && ascend(added.ids, added.size, size), "amend",
         "the ids must ascend, within the vocabulary");
    need(data.shape(0) == logits.shape(0), "amend", "the result must be as long as the logits");
    const size_t room = seen.shape(0) + biased.shape(0);
    need(ids.shape(0) >= room && values.shape(0) >= room, "amend", "the lists have no room for all that changes");
    need(before.shape(0) == 0 || before.shape(0) >= room, "amend", "the lists have no room for all that changes");
    LogitRow row{};
    Crest crest;
    {
        const nb::gil_scoped_release release;
        row = amend(kernels, logits.data(), size, occurred, {factor, presence, frequency}, added, data.data(),
                    ids.data(), values.data(), before.shape(0) > 0 ? before.data() : nullptr, crest);
    }
    return {Const<1>(data), Longs(ids), Doubles(values), kernels, row, std::move(crest)};
}

std::unique_ptr<Foremost> foremost_of(HeldLogits& held, int64_t count) {
    held.check_count(count, "Foremost");
    need(!held.crest().empty(), "Foremost", "a logit is NaN");
    const nb::gil_scoped_release release;
    return std::make_unique<Foremost>(held.kernels, held.row, count);
}

struct HeldForemost {
    const HeldLogits& of;
    std::unique_ptr<Foremost> some;

    HeldForemost(HeldLogits& held, int64_t count) : of(held), some(foremost_of(held, count)) {}

    double mass(double largest, double temperature) const {
        const Weighing by = weighing(largest, temperature, "Foremost");
        const nb::gil_scoped_release release;
        return some->mass(by);
    }
    nb::tuple before(double largest, double temperature, int64_t id, double value) const {
        const Weighing by = weighing(largest, temperature, "Foremost");
        const Token token = of.token(id, value, "Foremost");
        need(value >= some->value(), "Foremost", "the token is less likely than the last");
        Before found{};
        {
            const nb::gil_scoped_release release;
            found = some->before(by, token);
        }
        return as_tuple(found);
    }
    int64_t how_many_above(double value) const {
        const nb::gil_scoped_release release;
        return count_above(some->known(), value);
    }
    bool holds(int64_t id, double value) const { return some->holds(of.token(id, value, "Foremost")); }
};

struct HeldDraws {
    Draws draws;

    HeldDraws(HeldLogits& held, double largest, double temperature, double number)
        : draws(made(held, largest, temperature, number)) {}

    static Draws made(HeldLogits& held, double largest, double temperature, double number) {
        const Weighing by = weighing(largest, temperature, "Draws");
        need(number >= 0 && number < 1, "Draws", "the number must be from 0 to below 1");
        Draws draws(held.kernels, held.row, held.whole(), by, number);
        need(draws.possible(), "Draws", "there is nothing to draw, or a logit is NaN");
        return draws;
    }
};

}  // namespace

void bind_sampling(nb::module_& m) {
    using nb::arg;
    nb::class_<HeldLogits>(m, "Logits")
        .def(nb::init<Const<1>, Longs, Doubles, const std::string&>(), arg().noconvert(), arg().noconvert(),
             arg().noconvert(), arg())
        .def_prop_ro("changed", [](const HeldLogits& held) { return held.row.changed; })
        .def("likeliest", &likeliest_of)
        .def("how_many_above", &count_above_of)
        .def("looks_wide", &looks_wide_of)
        .def("before_amending", &before_amending, arg().noconvert())
        .def("mass", &mass_of)
        .def("before", &before_token)
        .def("largest", &largest_of_row, arg().noconvert(), arg().noconvert());
    m.def("amend", &amend_row, arg().noconvert(), arg().noconvert(), arg().noconvert(), arg(), arg(), arg(),
          arg().noconvert(), arg().noconvert(), arg().noconvert(), arg().noconvert(), arg().noconvert(),
          arg().noconvert(), arg());
    nb::class_<HeldForemost>(m, "Foremost")
        .def(nb::init<HeldLogits&, int64_t>(), nb::keep_alive<1, 2>())
        .def_prop_ro("value", [](const HeldForemost& held) { return held.some->value(); })
        .def_prop_ro("ties", [](const HeldForemost& held) { return held.some->ties(); })
        .def("mass", &HeldForemost::mass)
        .def("before", &HeldForemost::before)
        .def("how_many_above", &HeldForemost::how_many_above)
        .def("holds", &HeldForemost::holds);
    nb::class_<HeldDraws>(m, "Draws")
        .def(nb::init<HeldLogits&, double, double, double>(), nb::keep_alive<1, 2>())
        .def("next", [](HeldDraws& held) { return held.draws.next(); });
}

}  // namespace cherenkov::cpu
