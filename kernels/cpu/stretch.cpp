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

// What comes later is known within a stretch only; after it, the layers may be gone.
struct Forget {
    Engine& e;
    ~Forget() { e.later = {}; }
};

constexpr size_t first_bytes = size_t{8} << 20;  // a cache that threads share should hold them beside other work
constexpr size_t small_bytes = 4 * first_bytes;  // weights that stay in that cache from step to step

// The matrices with which a step begins, whatever its tokens are.
void set_first(std::vector<Weights>& first, const std::vector<Layer>& layers) {
    size_t bytes = 0;
    first.clear();
    const auto add = [&](std::initializer_list<const Weights*> matrices) {
        for (const Weights* w : matrices) {
            bytes += static_cast<size_t>(w->rows) * w->row_bytes();
            if (bytes <= first_bytes) first.push_back(*w);
        }
    };
    for (const Layer& layer : layers) {
        add({&layer.mixer_read->down, &layer.mixer_read->inject, &layer.mixer_read->up});
        if (const DeltaNet* w = layer.delta) add({&w->qkv, &w->z, &w->a, &w->b, &w->out});
        if (const SparseAttention* w = layer.attention) add({&w->q, &w->k, &w->v, &w->index, &w->o});
        add({&layer.moe_read->down, &layer.moe_read->inject, &layer.moe_read->up, layer.gate});
        add({&layer.shared->gate, &layer.shared->up, &layer.shared->down});
        if (bytes > small_bytes) return;
    }
    first.clear();
}

}  // namespace

void Stretch::mix(Engine& e, const Layer& layer, int index, const std::vector<Span<const Memory*>>& spans, float* wide,
                  int rows, const float* features) {
    const auto i = static_cast<size_t>(index);
    if (layer.ple != nullptr) {
        e.scratch.reset();
        ple(e, *layer.ple, wide, features, rows, parts(spans, ple_, [&](const Memory& m) { return m.layers[i].ple; }));
    }
    e.scratch.reset();
    if (layer.delta != nullptr)
        cpu::mix(e, *layer.mixer_read, *layer.delta, wide, rows,
                 parts(spans, delta_, [&](const Memory& m) { return m.layers[i].delta; }));
    else
        cpu::mix(e, *layer.mixer_read, *layer.attention, wide, rows,
                 parts(spans, attention_, [&](const Memory& m) { return m.layers[i].attention; }));
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

int Stretch::run(Engine& e, const std::vector<Layer>& layers, int first, int last,
                 const std::vector<Span<const Memory*>>& spans, float* wide, int rows, const float* const* features,
                 const Residency& here, Flow* flow, Mixture& m, int32_t* ids) {
    const Forget forget{e};
    for (int index = first; index < last; index++) {
        const Layer& layer = layers[static_cast<size_t>(index)];
        e.later = {&layer.moe_read->down, &layer.moe_read->inject};
        mix(e, layer, index, spans, wide, rows, features[index]);
        e.later = {&layer.shared->gate, &layer.shared->up};
        const size_t pairs = choose_experts(e, layer, wide, rows, m, ids);
        if (index + 1 < last) {
            const GatedResidual& next = *layers[static_cast<size_t>(index) + 1].mixer_read;
            e.later = {&next.down, &next.inject};
        }
        if (flow != nullptr) {
            if (!flow->layer(e, layers, index, here.slots, wide, rows, m)) return index - first;
            ids += pairs;
            continue;
        }
        const int32_t* slot_of = here.table + static_cast<size_t>(index) * static_cast<size_t>(here.experts);
        slots_.resize(pairs);
        std::transform(m.ids, m.ids + pairs, slots_.begin(), [&](int32_t id) { return slot_of[id]; });
        const auto absent = [&](int32_t slot) { return slot < 0 || slot >= here.slots.count; };
        if (std::any_of(slots_.begin(), slots_.end(), absent)) return index - first;
        e.scratch.reset();
        expert_wave(e, here.slots, {m.ids, slots_.data(), static_cast<int>(pairs)}, *layer.shared, m);
        finish_mixture(e, m, wide);
        ids += pairs;
    }
    if (static_cast<size_t>(last) == layers.size()) set_first(e.first, layers);
    return last - first;
}

}  // namespace cherenkov::cpu
