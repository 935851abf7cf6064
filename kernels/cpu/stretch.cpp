// Whole layers, one after the other, for as long as the experts they choose are in memory.
#include <algorithm>

#include "flow.h"

namespace cherenkov::cpu {

namespace {

// The part of each sequence's memory that a layer works on.
template <typename State, typename F>
const std::vector<Span<State>>& parts(const std::vector<Span<const Memory*>>& spans, std::vector<Span<State>>& list, const F& part) {
    list.clear();
    for (const auto& s : spans) list.push_back({s.start, s.stop, s.position, part(*s.state)});
    return list;
}

// What reading a residual begins with.
Engine::Later before(const GatedResidual& w) {
    return {{&w.down, &w.inject}, w.norm, static_cast<size_t>(w.hidden) * static_cast<size_t>(w.streams) * sizeof(float)};
}

// What comes later is known within a stretch only; after it, the layers may be gone.
struct Forget {
    Engine& e;
    ~Forget() { e.later = {}; }
};

}  // namespace

void Stretch::mix(Engine& e, const Course& c, int index, float* wide, bool rehearsal) {
    const auto i = static_cast<size_t>(index);
    const Layer& layer = c.layers[i];
    if (layer.ple != nullptr) {
        const float* features = c.features.of(index);
        e.scratch.reset();
        ple(e, *layer.ple, wide, features, c.rows, parts(c.spans, ple_, [&](const Memory& m) { return m.layers[i].ple; }), rehearsal);
    }
    e.later = before(*layer.moe_read);
    e.scratch.reset();
    if (layer.delta != nullptr)
        cpu::mix(e, *layer.mixer_read, *layer.delta, wide, c.rows,
                 parts(c.spans, delta_, [&](const Memory& m) { return m.layers[i].delta; }), rehearsal);
    else  // what it writes lies behind all that counts, until a later call writes it again
        cpu::mix(e, *layer.mixer_read, *layer.attention, wide, c.rows,
                 parts(c.spans, attention_, [&](const Memory& m) { return m.layers[i].attention; }));
}

void Stretch::rehearse(Engine& e, const Course& c, int index, float* wide, int32_t* ids) {
    const Layer& layer = c.layers[static_cast<size_t>(index)];
    const KeepLater kept{e, e.later};
    mix(e, c, index, wide, true);
    e.later = {};
    e.scratch.reset();
    likely(e, *layer.moe_read, *layer.gate, layer.top_k, layer.normalise, wide, c.rows, ids);
}

size_t choose_experts(Engine& e, const Layer& layer, const float* wide, int rows, Mixture& m, int32_t* ids) {
    e.scratch.reset();
    m.lay_out(rows, layer.top_k, layer.moe_read->hidden, layer.moe_read->streams);
    choose(e, *layer.moe_read, *layer.gate, layer.normalise, wide, m);
    m.finished = false;
    const size_t pairs = static_cast<size_t>(rows) * static_cast<size_t>(layer.top_k);
    std::copy(m.ids, m.ids + pairs, ids);
    return pairs;
}

int Stretch::run(Engine& e, const Course& c, Flow* flow, Mixture& m, int32_t* ids) {
    const Forget forget{e};
    for (int index = c.first; index < c.last; index++) {
        const Layer& layer = c.layers[static_cast<size_t>(index)];
        mix(e, c, index, c.wide, false);
        e.later = {{&layer.shared->gate, &layer.shared->up}};
        const size_t pairs = choose_experts(e, layer, c.wide, c.rows, m, ids);
        if (index + 1 < c.last) e.later = before(*c.layers[static_cast<size_t>(index) + 1].mixer_read);
        if (flow != nullptr) {
            if (!flow->layer(e, c, index, *this, m)) return index - c.first;
            ids += pairs;
            continue;
        }
        const int32_t* slot_of = c.here.table + static_cast<size_t>(index) * static_cast<size_t>(c.here.experts);
        slots_.resize(pairs);
        std::transform(m.ids, m.ids + pairs, slots_.begin(), [&](int32_t id) { return slot_of[id]; });
        const auto absent = [&](int32_t slot) { return slot < 0 || slot >= c.here.slots.count; };
        if (std::any_of(slots_.begin(), slots_.end(), absent)) return index - c.first;
        e.scratch.reset();
        expert_wave(e, c.here.slots, {m.ids, slots_.data(), static_cast<int>(pairs)}, *layer.shared, m);
        finish_mixture(e, m, c.wide);
        ids += pairs;
    }
    return c.last - c.first;
}

}  // namespace cherenkov::cpu
