// The draft head in one call: from the trunk's residual to the tokens that it guesses, one after the other.
#include <algorithm>
#include <numeric>
#include <optional>

#include "ops.h"

namespace cherenkov::cpu {

namespace {

// While it lives, products round activations to 8 bits where the machine can: for what is only guessed, and verified
// before anybody sees it. What the head remembers of a sequence is computed outside of it.
class Coarse {
public:
    explicit Coarse(Engine& e) : e_(e) { e.precision = offered(e.k, Precision::int8); }
    ~Coarse() { e_.precision = e_.usual; }
    Coarse(const Coarse&) = delete;
    Coarse& operator=(const Coarse&) = delete;

private:
    Engine& e_;
};

// The experts of rows in `out` [R, S*D], added to it. Those that are not in memory are left out if that is allowed; else
// false, and the choice is in `m`.
bool experts(Engine& e, const Layer& layer, const Residency& here, bool all, Mixture& m, int rows, int32_t* ids, float* out) {
    const size_t pairs = choose_experts(e, layer, out, rows, m, ids);
    e.scratch.reset();
    auto* slots = e.scratch.take<int32_t>(pairs);
    std::transform(ids, ids + pairs, slots, [&](int32_t id) {
        const int32_t slot = here.table[id];
        return slot < 0 || slot >= here.slots.count ? left_out : slot;
    });
    if (all && std::find(slots, slots + pairs, left_out) != slots + pairs) return false;
    expert_wave(e, here.slots, {m.ids, slots, static_cast<int>(pairs)}, *layer.shared, m);
    finish_mixture(e, m, out);
    return true;
}

// What follows each row of `wide`.
void most_likely(Engine& e, const Head& head, const float* wide, int rows, int32_t* best) {
    e.scratch.reset();
    auto* all = e.scratch.take<int32_t>(static_cast<size_t>(rows));
    std::iota(all, all + rows, 0);
    argmax(e, head, wide, all, rows, best);
}

// The head's layer up to its experts: all rows go into the caches, and `out` is of the rows `ends`.
void enter(Engine& e, const DraftHead& h, const int32_t* tokens, const float* wide, int rows,
           const std::vector<Span<AttentionState>>& spans, const int32_t* ends, int count, float* out) {
    const Layer& layer = *h.layer;
    const auto width = static_cast<size_t>(layer.mixer_read->hidden) * static_cast<size_t>(layer.mixer_read->streams);
    e.scratch.reset();
    float* fused = e.scratch.take(static_cast<size_t>(rows) * width);
    const Scratch::Mark mark = e.scratch.mark();
    fuse(e, *h.fuse, *h.table, tokens, wide, rows, fused);
    e.scratch.rewind(mark);
    mix(e, *layer.mixer_read, *layer.attention, fused, rows, spans, ends, count, out);
}

}  // namespace

bool draft(Engine& e, const DraftHead& h, const int32_t* tokens, const float* wide, int rows,
           const std::vector<Span<AttentionState>>& spans, const int32_t* ends, int count, const Residency& here, Mixture& m,
           int32_t* ids, float* out) {
    enter(e, h, tokens, wide, rows, spans, ends, count, out);
    return count == 0 || experts(e, *h.layer, here, h.all, m, count, ids, out);
}

bool guess(Engine& e, const DraftHead& h, const Head& head, const int32_t* tokens, const float* wide, int rows,
           std::vector<Span<AttentionState>> spans, int depth, const Residency& here, Mixture& m, Guesses found) {
    const int count = static_cast<int>(spans.size());
    const size_t pairs = static_cast<size_t>(count) * static_cast<size_t>(h.layer->top_k);
    std::vector<int32_t> ends;
    for (const auto& s : spans) ends.push_back(s.stop - 1);
    std::optional<Coarse> coarse;
    for (int i = 0; i < depth; i++) {
        enter(e, h, tokens, wide, rows, spans, ends.data(), count, found.wide);
        if (i == 0) coarse.emplace(e);  // what further links remember is taken off again
        if (!experts(e, *h.layer, here, h.all, m, count, found.ids, found.wide)) return false;
        most_likely(e, head, found.wide, count, found.tokens);
        for (int s = 0; s < count; s++) {
            auto& span = spans[static_cast<size_t>(s)];
            span = {s, s + 1, span.position + span.stop - span.start, span.state};
            ends[static_cast<size_t>(s)] = s;
        }
        tokens = found.tokens, wide = found.wide, rows = count;
        found.tokens += count, found.ids += pairs;
    }
    return true;
}

}  // namespace cherenkov::cpu
