// The flow as cherenkov.experts.flow calls it: terms in, what happened out.
#include "bindings_flow.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>

#include <utility>

#include "../io/bindings_io.h"

namespace cherenkov::cpu {

namespace {

constexpr const char* op = "stretch";

using Bytes = Array<uint8_t, 1>;
using Arrival = std::tuple<int64_t, int, bool, bool>;
using Foreseen = std::pair<int, std::vector<int64_t>>;

HeldFlow make_flow(const nb::object& reads, const Array<int32_t, 2>& table, const Array<int64_t, 1>& record_in,
                   const Bytes& tags, const Bytes& spared, const Bytes& unasked) {
    const int layers = side(table, 0), experts = side(table, 1), slots = side(record_in, 0);
    need(layers > 0 && experts > 0 && side(tags, 0) == slots && side(spared, 0) == slots &&
             unasked.shape(0) == static_cast<size_t>(layers) * static_cast<size_t>(experts),
         op, "the store's arrays do not fit each other");
    const Flow::Memory memory{&io::queue_of(reads), table.data(), record_in.data(), tags.data(), spared.data(),
                              unasked.data(), layers, experts, slots};
    return {Flow(memory), memory,
            {reads, nb::cast(table), nb::cast(record_in), nb::cast(tags), nb::cast(spared), nb::cast(unasked)}};
}

void lend(HeldFlow& held, const std::vector<int>& victims, const std::vector<Arrival>& coming,
          const std::vector<Foreseen>& expected, bool ahead, int most_ahead, bool lower) {
    const auto& m = held.memory;
    const int64_t records = static_cast<int64_t>(m.layers) * m.experts;
    const auto is_slot = [&](int slot) { return slot >= 0 && slot < m.slots; };
    Flow::Terms terms;
    for (const int slot : victims) need(is_slot(slot), op, "a slot lies outside the pool");
    terms.victims = victims;
    for (const auto& [record, slot, required, low] : coming) {
        need(record >= 0 && record < records && is_slot(slot), op, "there is no such record or slot");
        terms.coming.push_back({record, slot, required, low});
    }
    terms.expected.resize(static_cast<size_t>(m.layers));
    for (const auto& [layer, list] : expected) {
        need(layer >= 0 && layer < m.layers, op, "there is no such layer");
        for (const int64_t record : list) need(record >= 0 && record / m.experts == layer, op, "a record is of another layer");
        terms.expected[static_cast<size_t>(layer)] = list;
    }
    terms.ahead = ahead, terms.most_ahead = most_ahead, terms.lower = lower;
    held.flow.lend(std::move(terms));
}

std::vector<std::tuple<int, int64_t, int, int, double>> events(const HeldFlow& held) {
    std::vector<std::tuple<int, int64_t, int, int, double>> list;
    for (const FlowEvent& e : held.flow.events) list.emplace_back(e.kind, e.record, e.slot, e.status, e.seconds);
    return list;
}

std::vector<Foreseen> expected(const HeldFlow& held) {
    std::vector<Foreseen> list;
    int layer = 0;
    for (const auto& records : held.flow.expected()) {
        if (!records.empty()) list.emplace_back(layer, records);
        layer++;
    }
    return list;
}

nb::dict counts(const HeldFlow& held) {
    const FlowCounts& c = held.flow.counts;
    nb::dict d;
    d["asks"] = c.asks, d["misses"] = c.misses, d["joined"] = c.joined;
    d["predictions"] = c.predictions, d["right_predictions"] = c.right_predictions;
    d["predicted_asks"] = c.predicted_asks, d["useful_predictions"] = c.useful_predictions;
    d["lower_hits"] = c.lower_hits, d["lower_misses"] = c.lower_misses, d["stall_s"] = c.stall_s;
    return d;
}

}  // namespace

void need_flow(const HeldFlow& held, const Residency& here, const char* operation) {
    const auto& m = held.memory;
    need(m.table == here.table && m.experts == here.experts && m.slots == here.slots.count &&
             (here.slots.lower == nullptr || here.slots.tags == m.tags),
         operation, "the flow belongs to another store");
}

void bind_flow(nb::module_& m) {
    nb::class_<HeldFlow>(m, "Flow", "See cherenkov.experts.flow.")
        .def("lend", &lend)
        .def_prop_ro("events", &events)
        .def_prop_ro("expected", &expected)
        .def_prop_ro("counts", &counts)
        .def_prop_ro("missed", [](const HeldFlow& held) { return held.flow.missed; })
        .def_prop_ro("foreseen", [](const HeldFlow& held) { return held.flow.foreseen; })
        .def_prop_ro("victims_used", [](const HeldFlow& held) { return held.flow.victims_used(); });
    m.def("flow", &make_flow, nb::arg().noconvert(), nb::arg().noconvert(), nb::arg().noconvert(), nb::arg().noconvert(),
          nb::arg().noconvert(), nb::arg().noconvert());
}

}  // namespace cherenkov::cpu
