// Indexed sparse attention (QSA): an indexer scores blocks of keys, the best are attended.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops.h"

namespace cherenkov::cpu {

namespace {

constexpr int run_tokens = 128;             // attended at a time; runs are merged in order, whoever computed them
constexpr int score_blocks = 256;           // scored at a time
constexpr size_t batch_floats = 2'000'000;  // of scratch for partial results, which bounds the rows in flight

// Rows of a call as projected. All of them are remembered; those that ask, Q of them, may be fewer.
struct Work {
    float* queries;  // [Q, H, 2, d]: query and gate of each head
    float* index;    // [R, Hi + 1, di]: queries and the key
    float* mixed;    // [Q, H * d]
};

// A row that asks: where it stands, whose it is, which tokens it sees.
struct Query {
    const AttentionState* state;
    int row;       // of all
    int at;        // of those that ask
    int position;
    int complete;     // finished blocks it sees
    int count;        // tokens it attends to
    int32_t* chosen;  // their positions, ascending; null: all up to its own
    float* scores;    // of its complete blocks, if it must choose
};

// Angles are float32 products, as the published model computes them. Layers share frequencies: what the thread computed
// last is mostly what is asked for.
const Angles& angles_at(const SparseAttention& w, int position, Angles& last) {
    const size_t n = w.frequencies.size();
    if (last.position == position && last.frequencies == w.frequencies) return last;
    last.position = position, last.frequencies = w.frequencies;
    last.cosines.resize(n), last.sines.resize(n);
    for (size_t j = 0; j < n; j++) {
        const float angle = static_cast<float>(position) * w.frequencies[j];
        last.cosines[j] = static_cast<float>(std::cos(static_cast<double>(angle)));
        last.sines[j] = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
    return last;
}

void rotate(Engine& e, float* x, const Angles& angles) {
    e.k.rotate(x, angles.cosines.data(), angles.sines.data(), static_cast<int>(angles.cosines.size()));
}

void add_bias(Engine& e, float* x, const float* bias, size_t width, int rows) {
    if (bias == nullptr) return;
    for (int r = 0; r < rows; r++) e.k.add(x + static_cast<size_t>(r) * width, bias, static_cast<int>(width));
}

// Norm and rotation of one row's keys, in place.
void prepare_keys(Engine& e, const SparseAttention& w, float* keys, const Angles& angles) {
    for (int h = 0; h < w.kv_heads; h++) {
        float* k = keys + static_cast<size_t>(h) * static_cast<size_t>(w.head_dim);
        e.k.rms_norm(k, w.k_norm, w.head_dim, w.eps, k);
        rotate(e, k, angles);
    }
}

// Norm, rotation and scale of one row's queries and index queries, in place.
void prepare_queries(Engine& e, const SparseAttention& w, float* queries, float* index,
                     const Angles& angles) {
    const auto dim = static_cast<size_t>(w.head_dim), index_dim = static_cast<size_t>(w.index_dim);
    const float shrink = 1.0F / std::sqrt(static_cast<float>(w.head_dim));
    for (int h = 0; h < w.heads; h++) {
        float* q = queries + static_cast<size_t>(h) * 2 * dim;
        e.k.rms_norm(q, w.q_norm, w.head_dim, w.eps, q);
        rotate(e, q, angles);
        e.k.scale(q, shrink, w.head_dim, q);
    }
    for (int h = 0; h < w.index_heads; h++) {
        float* q = index + static_cast<size_t>(h) * index_dim;
        e.k.rms_norm(q, w.index_q_norm, w.index_dim, w.eps, q);
        rotate(e, q, angles);
    }
}

// The key of a finished block: mean of its raw keys, norm, rotation at its first position.
void finish_block(Engine& e, const SparseAttention& w, const AttentionState& state, int b) {
    const auto dim = static_cast<size_t>(w.index_dim);
    float* key = state.block_keys + static_cast<size_t>(b) * dim;
    const float* raw = state.index_keys + static_cast<size_t>(b) * static_cast<size_t>(w.block) * dim;
    std::memcpy(key, raw, dim * 4);
    for (int i = 1; i < w.block; i++) e.k.add(key, raw + static_cast<size_t>(i) * dim, w.index_dim);
    e.k.scale(key, 1.0F / static_cast<float>(w.block), w.index_dim, key);
    e.k.rms_norm(key, w.index_k_norm, w.index_dim, w.eps, key);
    rotate(e, key, angles_at(w, b * w.block, e.block_angles));
}

// Positions of the best blocks and of what follows the last complete one. Ties go to the lower block.
void choose(const SparseAttention& w, const Query& query, float* copy) {
    const int keep = w.budget / w.block;
    const float* scores = query.scores;
    std::copy(scores, scores + query.complete, copy);
    std::nth_element(copy, copy + (keep - 1), copy + query.complete, std::greater<>());
    const float cut = copy[keep - 1];
    int ties = keep;  // how many that equal the cut are taken
    for (int b = 0; b < query.complete; b++) ties -= scores[b] > cut ? 1 : 0;
    int32_t* to = query.chosen;
    for (int b = 0; b < query.complete; b++) {
        if (!(scores[b] > cut) && (scores[b] != cut || ties-- <= 0)) continue;
        for (int i = 0; i < w.block; i++) *to++ = b * w.block + i;
    }
    for (int t = query.complete * w.block; t <= query.position; t++) *to++ = t;
}

class Attention {
public:
    Attention(Engine& e, const SparseAttention& w, const Work& work) : e_(e), w_(w), work_(work) {}

    // Queries [first, last) of a list, few enough for the scratch.
    void run(Query* queries, int count) {
        select(queries, count);
        const int group = w_.heads / w_.kv_heads;
        most_runs_ = 1;
        for (int i = 0; i < count; i++) most_runs_ = std::max(most_runs_, runs(queries[i]));
        const auto slots = static_cast<size_t>(count * w_.kv_heads * most_runs_);
        tops_ = e_.scratch.take(slots * static_cast<size_t>(group));
        sums_ = e_.scratch.take(slots * static_cast<size_t>(group));
        outs_ = e_.scratch.take(slots * static_cast<size_t>(group * w_.head_dim));
        gathered_ = e_.scratch.take(static_cast<size_t>(count * w_.heads * w_.head_dim));
        weights_ = e_.scratch.take(static_cast<size_t>(e_.pool.threads() * group * run_tokens));
        for (int i = 0; i < count; i++) gather(queries[i], i);

        const auto token_bytes = static_cast<size_t>(w_.head_dim) * 8;
        const Task parts{static_cast<int>(slots), token_bytes * run_tokens * (1 + static_cast<size_t>(group) / 4), 0};
        in_pieces(e_, &parts, 1, [&](int, int first, int last, int thread) {
            for (int slot = first; slot < last; slot++) attend(queries, slot, thread);
        });
        const Task heads{count * w_.kv_heads, token_bytes * static_cast<size_t>(group * (most_runs_ + 2)), 0};
        in_pieces(e_, &heads, 1, [&](int, int first, int last, int) {
            for (int i = first; i < last; i++) finish(queries[i / w_.kv_heads], i);
        });
    }

private:
    static int runs(const Query& q) { return (q.count + run_tokens - 1) / run_tokens; }

    Partial partial(int slot) const {
        const auto group = static_cast<size_t>(w_.heads / w_.kv_heads), at = static_cast<size_t>(slot) * group;
        return {tops_ + at, sums_ + at, outs_ + at * static_cast<size_t>(w_.head_dim)};
    }

    // Which tokens each query sees.
    void select(Query* queries, int count) {
        const auto keep = w_.budget / w_.block;
        int most = 0, choosing = 0;
        for (int i = 0; i < count; i++) {
            Query& q = queries[i];
            q.complete = (q.position + 1) / w_.block;
            q.count = q.position + 1;
            q.chosen = nullptr;
            if (q.complete <= keep) continue;
            q.count = keep * w_.block + (q.position + 1) % w_.block;
            q.chosen = e_.scratch.take<int32_t>(static_cast<size_t>(q.count));
            q.scores = e_.scratch.take(static_cast<size_t>(q.complete));
            most = std::max(most, q.complete);
            choosing++;
        }
        if (choosing == 0) return;
        const int runs_of_blocks = (most + score_blocks - 1) / score_blocks;
        const auto block_bytes = static_cast<size_t>(w_.index_dim) * 4 * (1 + static_cast<size_t>(w_.index_heads) / 4);
        const Task scoring{count * runs_of_blocks, block_bytes * score_blocks, 0};
        in_pieces(e_, &scoring, 1, [&](int, int first, int last, int) {
            for (int i = first; i < last; i++) {
                const Query& q = queries[i / runs_of_blocks];
                const int begin = i % runs_of_blocks * score_blocks, end = std::min(begin + score_blocks, q.complete);
                if (q.chosen == nullptr || begin >= end) continue;
                const float* index = work_.index + static_cast<size_t>(q.row) *
                                                       static_cast<size_t>((w_.index_heads + 1) * w_.index_dim);
                e_.k.block_scores(index, w_.index_heads, q.state->block_keys, w_.index_dim, begin, end, q.scores);
            }
        });
        float* copies = e_.scratch.take(static_cast<size_t>(e_.pool.threads()) * static_cast<size_t>(most));
        const Task choices{count, static_cast<size_t>(most) * 16, 0};
        in_pieces(e_, &choices, 1, [&](int, int first, int last, int thread) {
            for (int i = first; i < last; i++)
                if (queries[i].chosen != nullptr)
                    choose(w_, queries[i], copies + static_cast<size_t>(thread) * static_cast<size_t>(most));
        });
    }

    // Heads lie [query | gate]; attention wants queries side by side.
    void gather(const Query& q, int i) {
        const auto dim = static_cast<size_t>(w_.head_dim), heads = static_cast<size_t>(w_.heads);
        const float* from = work_.queries + static_cast<size_t>(q.at) * heads * 2 * dim;
        for (size_t h = 0; h < heads; h++)
            std::memcpy(gathered_ + (static_cast<size_t>(i) * heads + h) * dim, from + h * 2 * dim, dim * 4);
    }

    void attend(const Query* queries, int slot, int thread) const {
        const int run = slot % most_runs_, i = slot / most_runs_;
        const Query& q = queries[i / w_.kv_heads];
        const int first = run * run_tokens, count = std::min(run_tokens, q.count - first);
        if (count <= 0) return;
        const int group = w_.heads / w_.kv_heads, kv = i % w_.kv_heads;
        const auto dim = static_cast<size_t>(w_.head_dim), stride = dim * static_cast<size_t>(w_.kv_heads);
        const size_t offset = static_cast<size_t>(kv) * dim;
        const int32_t* chosen = q.chosen != nullptr ? q.chosen + first : nullptr;
        e_.k.attend(gathered_ + static_cast<size_t>(i) * static_cast<size_t>(group) * dim, group, w_.head_dim,
                    {q.state->keys + offset, stride}, {q.state->values + offset, stride}, chosen, first, count,
                    weights_ + static_cast<size_t>(thread * group * run_tokens), partial(slot));
    }

    // Runs of one row and KV head, merged in order; then the division and the output gate.
    void finish(const Query& q, int i) const {
        const int group = w_.heads / w_.kv_heads, kv = i % w_.kv_heads;
        const auto dim = static_cast<size_t>(w_.head_dim);
        const Partial whole = partial(i * most_runs_);
        for (int run = 1; run < runs(q); run++) e_.k.merge(whole, partial(i * most_runs_ + run), group, w_.head_dim);
        for (int g = 0; g < group; g++) {
            const auto head = static_cast<size_t>(q.at * w_.heads + kv * group + g);
            float* out = work_.mixed + head * dim;
            e_.k.scale(whole.out + static_cast<size_t>(g) * dim, 1.0F / whole.sum[g], w_.head_dim, out);
            e_.k.times_sigmoid(out, work_.queries + head * 2 * dim + dim, w_.head_dim);
        }
    }

    Engine& e_;
    const SparseAttention& w_;
    const Work& work_;
    int most_runs_ = 1;
    float *tops_ = nullptr, *sums_ = nullptr, *outs_ = nullptr, *gathered_ = nullptr, *weights_ = nullptr;
};

}  // namespace

void sparse_attention(Engine& e, const SparseAttention& w, const float* x, int rows,
                      const std::vector<Span<AttentionState>>& spans, float* out) {
    sparse_attention(e, w, x, rows, spans, nullptr, rows, out);
}

void sparse_attention(Engine& e, const SparseAttention& w, const float* x, int rows,
                      const std::vector<Span<AttentionState>>& spans, const int32_t* ends, int asking, float* out) {
    const auto n = static_cast<size_t>(rows), asks = static_cast<size_t>(asking);
    const auto query_width = static_cast<size_t>(w.heads * w.head_dim * 2);
    const auto kv_width = static_cast<size_t>(w.kv_heads * w.head_dim);
    const auto index_width = static_cast<size_t>((w.index_heads + 1) * w.index_dim);
    const auto index_dim = static_cast<size_t>(w.index_dim);
    const Work work{e.scratch.take(asks * query_width), e.scratch.take(n * index_width),
                    e.scratch.take(asks * query_width / 2)};
    float* keys = e.scratch.take(n * kv_width);
    float* values = e.scratch.take(n * kv_width);
    Query* queries = e.scratch.take<Query>(asks);
    int* places = e.scratch.take<int>(n);  // of a row among those that ask, or -1
    for (int r = 0; r < rows; r++) places[r] = ends == nullptr ? r : -1;
    for (int i = 0; ends != nullptr && i < asking; i++) places[ends[i]] = i;

    const float* asked = ends == nullptr ? x : gather(e, x, ends, asking, static_cast<size_t>(w.hidden));
    Inputs in(e, x, static_cast<size_t>(w.hidden), rows, w.hidden);
    Inputs in_asked(e, asked, static_cast<size_t>(w.hidden), asking, w.hidden);
    const Product projections[] = {{&w.q, ends == nullptr ? &in : &in_asked, work.queries, query_width},
                                   {&w.k, &in, keys, kv_width}, {&w.v, &in, values, kv_width},
                                   {&w.index, &in, work.index, index_width}};
    const int first = asking != 0 ? 0 : 1;  // without queries, there is nothing for the first
    e.pool.ahead.expect({&w.o});
    multiply(e, projections + first, 4 - first);
    add_bias(e, work.queries, w.q_bias, query_width, asking);
    add_bias(e, keys, w.k_bias, kv_width, rows);
    add_bias(e, values, w.v_bias, kv_width, rows);

    // Norms and rotation by row, into the cache; then the blocks that the rows complete.
    for (const auto& span : spans) {
        const Task task{span.stop - span.start, (query_width + kv_width + index_width) * 4, 0};
        in_pieces(e, &task, 1, [&](int, int first, int last, int thread) {
            for (int i = first; i < last; i++) {
                const auto row = static_cast<size_t>(span.start + i), at = static_cast<size_t>(span.position + i);
                float* index = work.index + row * index_width;
                const Angles& angles = angles_at(w, span.position + i, e.angles[static_cast<size_t>(thread)]);
                prepare_keys(e, w, keys + row * kv_width, angles);
                std::memcpy(span.state.keys + at * kv_width, keys + row * kv_width, kv_width * 4);
                std::memcpy(span.state.values + at * kv_width, values + row * kv_width, kv_width * 4);
                std::memcpy(span.state.index_keys + at * index_dim, index + index_width - index_dim, index_dim * 4);
                if (places[row] < 0) continue;
                const auto asks_at = static_cast<size_t>(places[row]);
                prepare_queries(e, w, work.queries + asks_at * query_width, index, angles);
                queries[asks_at] = {&span.state, static_cast<int>(row), places[row], span.position + i, 0, 0, nullptr, nullptr};
            }
        });
        const int stop = span.position + span.stop - span.start;
        for (int b = span.position / w.block; b < stop / w.block; b++) finish_block(e, w, span.state, b);
    }

    if (asking == 0) return;

    int longest = 0;
    for (const auto& span : spans) longest = std::max(longest, span.position + span.stop - span.start);
    const int seen = std::min(longest, w.budget + w.block);
    const auto per_row = static_cast<size_t>((seen + run_tokens - 1) / run_tokens) * (query_width / 2) +
                         static_cast<size_t>(longest / w.block + seen);
    const int batch = static_cast<int>(std::clamp<size_t>(batch_floats / per_row, 1, asks));
    Attention attention(e, w, work);
    for (int r = 0; r < asking; r += batch) {
        const Scratch::Mark mark = e.scratch.mark();
        attention.run(queries + r, std::min(batch, asking - r));
        e.scratch.rewind(mark);
    }

    Inputs mixed(e, work.mixed, query_width / 2, asking, static_cast<int>(query_width / 2));
    const Product output{&w.o, &mixed, out, static_cast<size_t>(w.hidden)};
    e.expect_later();
    multiply(e, &output, 1);
    add_bias(e, out, w.o_bias, static_cast<size_t>(w.hidden), asking);
}

}  // namespace cherenkov::cpu
