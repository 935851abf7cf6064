// The table of operations of cherenkov/backends/base.py on host memory. Shapes and meaning are documented there; here
// is how each runs. All arrays are float32, C-contiguous, and belong to the caller.
//
// Letters: R rows, D hidden, S streams, V vocabulary, E experts, K chosen experts, H heads.
#pragma once
#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "engine.h"

namespace cherenkov::cpu {

// Rows [start, stop) are consecutive tokens of one sequence, the first at `position`; State is what it remembers.
template <typename State>
struct Span {
    int start, stop, position;
    State state;
};

constexpr int max_taps = 16;  // of convolutions

// A tensor [channels, taps], turned so that a tap's weights of neighbouring channels are neighbours.
struct Taps {
    std::vector<float> weights;  // [taps, channels]
    int taps = 0;
    int channels = 0;
    Taps() = default;
    Taps(const float* by_channel, int channels, int taps);
};

// Rows of an array [R, width], side by side in scratch memory.
const float* gather(Engine&, const float* x, const int32_t* chosen, int count, size_t width);

// tokens[R] -> wide [R, S*D]. Tokens must be in [0, V).
void embed(Engine&, const Weights& table, int streams, const int32_t* tokens, int rows, float* wide);
// One row of a matrix as float32.
void dequantise_row(const Weights&, int row, float* out);

struct GatedResidual {
    const float* norm;
    Weights down, up, inject;  // inject.rows == 0: only reads
    int streams, hidden;
    float eps;
};
// wide [R, S*D] -> block [R, D], gain [R, S] (may be null if there is no inject). Two regions. `next` is what follows.
void read_residual(Engine&, const GatedResidual&, const float* wide, int rows, float* block, float* gain,
                   std::initializer_list<const Weights*> next = {});
// wide += gain x block, in place.
void inject(Engine&, float* wide, const float* block, const float* gain, int rows, int streams, int hidden);

// Rows can be taken back: a call of at most most_back + 1 rows leaves a state that the next call may go on with at any
// position from the call's second row on, as if the rows from there had not been. Only the position tells.
constexpr int most_back = 3;

// The inputs of a causal convolution that lie behind, a row of `width` in slot position % rows. Rows before the first
// position are zero: no position that is at hand together with them uses their slots.
struct Ring {
    float* memory;  // [rows(past), width]
    int past;       // positions that a convolution looks back
    size_t width;
    Ring(float* memory_, int past_, size_t width_) : memory(memory_), past(past_), width(width_) {}
    static int rows(int past) { return past == 0 ? 0 : past + most_back; }
    float* slot(int position) const {
        const int n = rows(past);
        return memory + static_cast<size_t>(position < 0 ? position + n : position % n) * width;
    }
    // Row `row` of a call that begins at `position`, of those in `now` or, if it is negative, of those behind.
    const float* at(int position, int row, const float* now) const {
        return row < 0 ? slot(position + row) : now + static_cast<size_t>(row) * width;
    }
    // Keeps columns [first, first + n) of a call's last rows.
    void keep(int position, int count, const float* now, int first, int n) const {
        for (int r = std::max(0, count - rows(past)); r < count; r++)
            std::memcpy(slot(position + r) + first, now + static_cast<size_t>(r) * width + first, static_cast<size_t>(n) * 4);
    }
};

constexpr int delta_chunk = 16;  // positions between two folds of a state's matrix
constexpr int delta_kept = delta_chunk + most_back;

// The matrix is that of the last fold, which the first position of a chunk brings: until then it is as of the chunk
// before. What the positions since did lies in `pending`: normalised keys [Hk, kept, dk], changes of values
// [Hv, kept, dv] and decays [Hv, kept], each position in slot position % chunk, or behind the chunk's while the chunk
// before is not folded yet.
struct DeltaState {
    float* history;  // a Ring of C columns, [taps - 1 + most_back, C]
    float* matrix;   // [Hv, dk, dv]
    float* pending;  // [pending_size()]
};
struct DeltaNet {
    Weights qkv, z, a, b, out;
    Taps conv;
    std::vector<float> rate;  // exp(a_log) [Hv]
    const float* dt_bias;
    const float* norm;
    int hidden, key_heads, value_heads, key_dim, value_dim;
    bool sigmoid_gate;
    float eps;
};
// Numbers in the pending part of a state, or -1 if they are more than an int counts.
int64_t pending_size(const DeltaNet&);
// Four regions: projections with the convolution, keys, heads, output. A rehearsal leaves the state as it was: the same rows
// are still to be run.
void delta_net(Engine&, const DeltaNet&, const float* x, int rows, const std::vector<Span<DeltaState>>&, float* out,
               bool rehearsal = false);
// Folds what is pending at `position` into `matrix`, which may be the state's or a copy. Position 0 has nothing pending.
void settle(Engine&, const DeltaNet&, int position, float* pending, float* matrix);

struct AttentionState {
    float* keys;        // [T, Hkv, d]
    float* values;      // [T, Hkv, d]
    float* index_keys;  // [T, di]
    float* block_keys;  // [T / block, di]
};
struct SparseAttention {
    Weights q, k, v, o, index;
    const float *q_bias, *k_bias, *v_bias, *o_bias;  // or null
    const float *q_norm, *k_norm, *index_q_norm, *index_k_norm;
    int hidden, heads, kv_heads, head_dim, index_heads, index_dim, block, budget;
    std::vector<float> frequencies;  // [rotary_dim / 2]
    float eps;
};
// Projections; rotation and cache; block scores where the context exceeds the budget; attention; output.
void sparse_attention(Engine&, const SparseAttention&, const float* x, int rows,
                      const std::vector<Span<AttentionState>>&, float* out);
// The same with `out` [count, D] of the rows `ends` only; what the others are good for is the cache.
void sparse_attention(Engine&, const SparseAttention&, const float* x, int rows,
                      const std::vector<Span<AttentionState>>&, const int32_t* ends, int count, float* out);

// read_residual; mixer; inject. In place.
void mix(Engine&, const GatedResidual&, const DeltaNet&, float* wide, int rows, const std::vector<Span<DeltaState>>&,
         bool rehearsal = false);
void mix(Engine&, const GatedResidual&, const SparseAttention&, float* wide, int rows,
         const std::vector<Span<AttentionState>>&);
// The same with `out` [count, S*D] of the rows `ends` only; `wide` stays.
void mix(Engine&, const GatedResidual&, const SparseAttention&, const float* wide, int rows,
         const std::vector<Span<AttentionState>>&, const int32_t* ends, int count, float* out);

struct Ple {
    Weights key, value;
    const float *norm_key, *norm_query, *norm_conv;
    Taps conv;
    int dilation, streams, hidden;
    float eps;
};
// wide += gated n-gram features, in place; the state is a Ring, [(taps - 1) * dilation + most_back, S*D], which a rehearsal
// leaves as it was.
void ple(Engine&, const Ple&, float* wide, const float* features, int rows, const std::vector<Span<float*>>&,
         bool rehearsal = false);

// x [R, D] -> ids [R, K] by falling score, ties to the lower id; weights [R, K].
void route(Engine&, const Weights& gate, int top_k, bool normalise, const float* x, int rows, int32_t* ids,
           float* weights);

struct SharedExpert {
    Weights gate, up, down, switch_;
};
// Where the matrices of an expert lie inside its record.
struct Record {
    int inter, hidden, bits, group;
    size_t stride;                   // between slots
    size_t codes[3], scales[3], biases[3];  // of gate, up, down
    Weights matrix(const uint8_t* slot, int which) const;
};
// Slots of `record.stride` bytes each. Which of the two layouts the record in a slot has, its tag says: 0 for the first.
struct Slots {
    const uint8_t* memory;
    int count;
    const Record* record;
    const Record* lower = nullptr;  // the same expert in fewer bits; without it, there are no tags
    const uint8_t* tags = nullptr;  // [count]
    Weights matrix(int slot, int which) const {
        const Record& layout = lower != nullptr && tags[slot] != 0 ? *lower : *record;
        return layout.matrix(memory + static_cast<size_t>(slot) * record->stride, which);
    }
};
constexpr int left_out = -2;  // instead of a slot: this expert counts as nothing
// Experts that are in memory now: experts[i] in slot slots[i].
struct Wave {
    const int32_t* experts;
    const int32_t* slots;
    int count;
};
// A layer's experts at work, from the choice to the sum: what outlives a call. The memory is kept for the next layer.
struct Mixture {
    Scratch memory;
    int rows = 0, top_k = 0, hidden = 0;
    int streams = 0;          // 0: the sum is not injected
    int missing = 0;          // (row, rank) pairs that no wave has brought yet
    bool begun = false;       // the shared expert was computed, which comes with the first wave
    bool finished = true;     // nothing is left to do, or nothing was chosen yet
    float* x = nullptr;       // [R, D]
    float* gain = nullptr;    // [R, S]
    int32_t* ids = nullptr;   // [R, K]
    float* weights = nullptr;   // [R, K]
    uint8_t* done = nullptr;    // [R, K]
    float* each = nullptr;      // [R, K, D], unweighted
    float* shared = nullptr;    // [R, D], unweighted; finish_mixture() sums here
    float* switches = nullptr;  // [R], of the shared expert
    // Takes memory for a choice. x, gain, ids and weights are the caller's to fill; then it is not finished any more.
    void lay_out(int rows, int top_k, int hidden, int streams);
};
// read_residual, then route.
void choose(Engine&, const GatedResidual&, const Weights& gate, bool normalise, const float* wide, Mixture&);
// The ids that choose() would give. For guessing a later layer's.
void likely(Engine&, const GatedResidual&, const Weights& gate, int top_k, bool normalise, const float* wide, int rows,
            int32_t* ids);
// Outputs of one wave's experts for the rows routed to them. Two regions, which the first wave shares with the shared expert.
void expert_wave(Engine&, const Slots&, const Wave&, const SharedExpert&, Mixture&);
// The residual as it would be without the pairs that are missing still: out [R, S*D]. The mixture stays as it is.
void sum_so_far(Engine&, const Mixture&, const float* wide, float* out);
// Once none is missing: the sum over ranks, in their order, and the shared expert. wide += gain x sum, or without
// streams, out = sum.
void finish_mixture(Engine&, Mixture&, float* wide_or_out);

// A decoder layer: pointers to weights that its owner keeps alive. One of `delta` and `attention`; `ple` may be null.
struct Layer {
    const Ple* ple;
    const GatedResidual* mixer_read;
    const DeltaNet* delta;
    const SparseAttention* attention;
    const GatedResidual* moe_read;
    const Weights* gate;
    bool normalise;
    int top_k;
    const SharedExpert* shared;
};
// Lays out a mixture for rows of a residual and makes its choice, which is still to be computed; `ids` [R, K] gets a copy.
// Returns how many these are. Resets the scratch memory.
size_t choose_experts(Engine&, const Layer&, const float* wide, int rows, Mixture& m, int32_t* ids);
// One sequence's memory of every layer; of the three, those are null that the layer has not.
struct Memory {
    struct Of {
        DeltaState delta;
        AttentionState attention;
        float* ple;
    };
    std::vector<Of> layers;
};
// Which experts are in memory: table[layer * experts + expert] is the slot, or a number that is none.
struct Residency {
    Slots slots;
    const int32_t* table;
    int experts;
};
// N-gram features [R, P] by layer; null for a layer that has none, or whose rows are still being read: `late` waits for those.
struct Features {
    std::vector<const float*> here;
    std::function<const float*(int layer)> late;
    const float* of(int layer) {
        const float*& found = here[static_cast<size_t>(layer)];
        return found != nullptr ? found : found = late(layer);
    }
};
// What a stretch runs through: layers [first, last) and rows of some sequences, whose residual is `wide` [R, S*D].
struct Course {
    const std::vector<Layer>& layers;
    int first, last;
    const std::vector<Span<const Memory*>>& spans;
    float* wide;
    int rows;
    Features& features;
    const Residency& here;
};
class Flow;
// Layers until one lacks an expert, or with a flow, until it cannot go on. Keeps its lists from call to call.
class Stretch {
public:
    // wide in place; ids [last - first, R, K]. Returns how many layers ran whole. If that is not all of them, the next one
    // ran as well, up to its experts: its choice is in `m`, and its ids follow the others'.
    int run(Engine&, const Course&, Flow*, Mixture& m, int32_t* ids);
    // The ids that layer `index` would choose if its input were `wide`, which goes through its mixer. Everything that it
    // remembers stays as it is, as far as a later call can tell.
    void rehearse(Engine&, const Course&, int index, float* wide, int32_t* ids);

private:
    void mix(Engine&, const Course&, int index, float* wide, bool rehearsal);
    std::vector<Span<DeltaState>> delta_;
    std::vector<Span<AttentionState>> attention_;
    std::vector<Span<float*>> ple_;
    std::vector<int32_t> slots_;
};

struct DraftFuse {
    const float *norm_embedding, *norm_hidden;
    Weights fc_embedding, fc_hidden;
    int streams, hidden;
    float eps;
};
void fuse(Engine&, const DraftFuse&, const Weights& table, const int32_t* tokens, const float* wide, int rows,
          float* out);

struct Head {
    GatedResidual mixer;
    Weights matrix;
};
// Logits [count, V] of chosen rows of a residual.
void logits(Engine&, const Head&, const float* wide, const int32_t* chosen, int count, float* out);
// The most likely token of each; ties to the lowest.
void argmax(Engine&, const Head&, const float* wide, const int32_t* chosen, int count, int32_t* out);

// The draft head's entry and its only layer.
struct DraftHead {
    const DraftFuse* fuse;
    const Weights* table;  // the embedding
    const Layer* layer;    // with attention
    bool all;              // it needs every expert; else those count as nothing that are not in memory
};
// tokens[R] that follow rows whose residuals are `wide` [R, S*D]: all go into the caches, and of the rows `ends` come the
// head's residuals, out [count, S*D], and their experts, ids [count, K]. False if it lacks one: then the choice is in `m`.
bool draft(Engine&, const DraftHead&, const int32_t* tokens, const float* wide, int rows,
           const std::vector<Span<AttentionState>>&, const int32_t* ends, int count, const Residency&, Mixture& m,
           int32_t* ids, float* out);
// A chain of drafts: the most likely token after each span's last row, then the one after that, and so on, as often as
// `depth` says. False if an expert is missing that it needs.
struct Guesses {
    int32_t* tokens;  // [depth, spans]
    int32_t* ids;     // [depth, spans, K]
    float* wide;      // [spans, S*D], for its own use; may not be the input
};
bool guess(Engine&, const DraftHead&, const Head&, const int32_t* tokens, const float* wide, int rows,
           std::vector<Span<AttentionState>>, int depth, const Residency&, Mixture& m, Guesses);

}  // namespace cherenkov::cpu
