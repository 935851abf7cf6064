// Gated DeltaNet in chunks of positions. Within a chunk the state's matrix S stays as it was at the chunk's start, and
// position t is computed from S and from the positions s < t of its chunk. With G the product of the decays since the
// chunk's start, or since s:
//
//     u_t = beta_t (v_t - G_t S'k_t - sum over s < t of G_ts (k_s . k_t) u_s)
//     y_t = G_t S'q_t + sum over s <= t of G_ts (k_s . q_t) u_s
//
// which is what S <- g S; S <- S + k (beta (v - S'k))'; y = S'q gives, position by position (Yang et al., "Gated Delta
// Networks", the chunkwise form). The first position of the next chunk folds the chunk into the matrix:
// S <- G S + sum over s of G_s k_s u_s'. So the matrix is read once for all rows of a chunk, and written once.
//
// Chunks begin at multiples of `delta_chunk`, wherever a call begins, and each sum runs from the chunk's start in the
// order of positions: one row at a time or many, the bits are the same.
//
// Rows may be taken back. Where that could happen (`may_go_back`), a chunk that begins with such a row is not folded into the
// state's matrix but into a copy, head by head, which the rows behind use; their keys, values and decays go into the spare
// slots behind the chunk's own. Where the next call begins tells what became of them: beyond the chunk, and the fold is
// made up for and they move to their slots; not beyond it, and nothing has happened. The history of the convolution is a
// ring by position, so going back takes nothing there.
//
// A rehearsal, whose rows are all to be run again, works on copies of what it would change. It makes up for a fold that is
// due, which its position says as well as the next call's would.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "ops.h"

namespace cherenkov::cpu {

Taps::Taps(const float* by_channel, int channel_count, int tap_count)
    : weights(static_cast<size_t>(channel_count) * static_cast<size_t>(tap_count)), taps(tap_count), channels(channel_count) {
    for (int c = 0; c < channels; c++)
        for (int t = 0; t < taps; t++)
            weights[static_cast<size_t>(t) * static_cast<size_t>(channels) + static_cast<size_t>(c)] =
                by_channel[static_cast<size_t>(c) * static_cast<size_t>(taps) + static_cast<size_t>(t)];
}

namespace {

constexpr float unit_eps = 1e-6F;  // the model's own, whatever the config says of its norms
constexpr size_t chunk = delta_chunk, kept = delta_kept;

struct Sizes {
    size_t dk, dv, key_heads, heads, channels;
    explicit Sizes(const DeltaNet& w)
        : dk(static_cast<size_t>(w.key_dim)), dv(static_cast<size_t>(w.value_dim)),
          key_heads(static_cast<size_t>(w.key_heads)), heads(static_cast<size_t>(w.value_heads)),
          channels(2 * key_heads * dk + heads * dv) {}
    size_t key_head(size_t head) const { return head / (heads / key_heads); }
    // Parts of a state's pending numbers.
    float* keys(float* pending, size_t key_head) const { return pending + key_head * kept * dk; }
    float* values(float* pending, size_t head) const { return keys(pending, key_heads) + head * kept * dv; }
    float* decays(float* pending, size_t head) const { return values(pending, heads) + head * kept; }
};

// How many slots of the running chunk lie behind those of a chunk that still is to be folded. A decay is never negative:
// that marks the first spare slot as empty.
int spilled(const Sizes& n, int position, float* pending) {
    const int slots = position % delta_chunk;
    const bool due = position > delta_chunk && slots >= 1 && slots <= most_back && !(n.decays(pending, 0)[chunk] < 0);
    return due ? slots : 0;
}

// Whether a row of a call may turn out not to belong to the sequence; the first always does.
template <typename State>
bool may_go_back(const Span<State>& span, int row) {
    return row > 0 && span.stop - span.start <= most_back + 1;
}

// Rows [row, row + count) of a span lie in slots [first, first + count) of a chunk.
struct Part {
    int row, first, count;
};

template <typename F>
void each_chunk(const Span<DeltaState>& span, F f) {
    const int rows = span.stop - span.start;
    for (Part part{0, 0, 0}; part.row < rows; part.row += part.count) {
        part.first = (span.position + part.row) % delta_chunk;
        part.count = std::min(delta_chunk - part.first, rows - part.row);
        f(part);
    }
}

// Folds the first `slots` positions of a chunk into the matrix of a head. `faded` holds [slots, dk].
template <typename KeyAt>
void fold(const Kernels& k, const Sizes& n, int slots, KeyAt key_at, const float* values, const float* decays,
          float* faded, float* matrix) {
    float fade = 1;
    for (int s = slots - 1; s >= 0; s--) {
        k.scale(key_at(s), fade, static_cast<int>(n.dk), faded + static_cast<size_t>(s) * n.dk);
        fade *= decays[s];
    }
    k.add_product(matrix, static_cast<int>(n.dk), fade, {faded, 1, n.dk}, values, slots, static_cast<int>(n.dv), values);
}

// The rows of one layer on their way through it.
class Rows {
public:
    Rows(Engine& engine, const DeltaNet& weights, int rows, bool rehearsal)
        : e_(engine), w_(weights), n_(weights), rows_(static_cast<size_t>(rows)), rehearsal_(rehearsal),
          channels_(take(n_.channels)), convolved_(take(n_.channels)), gate_(take(n_.heads * n_.dv)),
          a_(take(n_.heads)), b_(take(n_.heads)), mixed_(take(n_.heads * n_.dv)),
          dots_(take(n_.key_heads * 2 * chunk)) {}

    void run(const float* x, const std::vector<Span<DeltaState>>& spans, float* out);

private:
    float* take(size_t width) { return e_.scratch.take(rows_ * width); }
    // Key and query of a row, one after the other.
    float* pair(size_t key_head, size_t row) const { return channels_ + (key_head * rows_ + row) * 2 * n_.dk; }
    // Dot products of a row's key, then of its query, with the keys of its chunk up to its own.
    float* dots(size_t key_head, size_t row) const { return dots_ + (key_head * rows_ + row) * 2 * chunk; }

    void fetch_taps(const Span<DeltaState>& span, int first, int last) const;
    void convolve(const Span<DeltaState>& span, int first, int last) const;
    void find_dots(const Span<DeltaState>& span, int spilled, size_t key_head) const;
    void run_head(const Span<DeltaState>& span, int spilled, size_t head, const float* next, float* scratch) const;
    void run_row(size_t head, size_t row, size_t slot, float* values, float* decays, float* shares, float* recalled) const;
    void run_heads(const std::vector<Span<DeltaState>>& spans, const int* spills) const;
    void expect_heads(const std::vector<Span<DeltaState>>& spans) const;
    void keep_keys(const Span<DeltaState>& span, int spilled) const;
    size_t head_scratch() const {
        return (chunk * n_.dk + 2 * chunk * n_.dv + 2 * chunk + n_.dk * n_.dv + chunk * (n_.dv + 1) + 15) / 16 * 16;
    }

    Engine& e_;
    const DeltaNet& w_;
    const Sizes n_;
    const size_t rows_;
    const bool rehearsal_;
    float* const channels_;   // [R, C] as projected; after the convolution keys and queries, [Hk, R, 2, dk]
    float* const convolved_;  // [R, C]
    float* const gate_;       // [R, Hv*dv]
    float* const a_;          // [R, Hv]
    float* const b_;          // [R, Hv]
    float* const mixed_;      // [R, Hv*dv]
    float* const dots_;       // [Hk, R, 2, chunk]
};

// Asks memory for what the convolution of these channels reads beside its input.
void Rows::fetch_taps(const Span<DeltaState>& span, int first, int last) const {
    const Ring ring(span.state.history, w_.conv.taps - 1, n_.channels);
    for (int t = 0; t < w_.conv.taps; t++) {
        const float* weights = w_.conv.weights.data() + static_cast<size_t>(t) * n_.channels;
        const float* earlier = t + 1 < w_.conv.taps ? ring.slot(span.position + t + 1 - w_.conv.taps) : weights;
        const size_t bytes = static_cast<size_t>(last - first) * sizeof(float);
        prefetch(weights + first, bytes);
        prefetch(earlier + first, bytes);
    }
}

// Causal convolution and silu of channels [first, last) of a sequence's rows; its history of them moves on.
void Rows::convolve(const Span<DeltaState>& span, int first, int last) const {
    const int rows = span.stop - span.start, n = last - first;
    const Ring ring(span.state.history, w_.conv.taps - 1, n_.channels);
    const float* now = channels_ + static_cast<size_t>(span.start) * n_.channels;
    const float* inputs[max_taps];
    for (int r = 0; r < rows; r++) {
        for (int t = 0; t < w_.conv.taps; t++) inputs[t] = ring.at(span.position, r + t + 1 - w_.conv.taps, now) + first;
        float* out = convolved_ + static_cast<size_t>(span.start + r) * n_.channels + first;
        e_.k.convolve(inputs, w_.conv.weights.data() + first, n_.channels, w_.conv.taps, n, out);
        e_.k.silu(out, 1.0F, n);
    }
    if (!rehearsal_) ring.keep(span.position, rows, now, first, n);
}

// Normalises a head's keys and queries, and finds their dot products with the keys of their chunk.
void Rows::find_dots(const Span<DeltaState>& span, int spilled, size_t key_head) const {
    const float query_scale = 1.0F / std::sqrt(static_cast<float>(w_.key_dim));
    for (auto row = static_cast<size_t>(span.start); row < static_cast<size_t>(span.stop); row++) {
        const float* query = convolved_ + row * n_.channels + key_head * n_.dk;
        e_.k.unit(query + n_.key_heads * n_.dk, w_.key_dim, unit_eps, 1.0F, pair(key_head, row));
        e_.k.unit(query, w_.key_dim, unit_eps, query_scale, pair(key_head, row) + n_.dk);
    }
    const float* earlier = n_.keys(span.state.pending, key_head) + (spilled > 0 ? chunk * n_.dk : 0);
    each_chunk(span, [&](Part part) {
        const auto begin = static_cast<size_t>(span.start + part.row);
        for (int i = 0; i < part.count; i++) {
            const auto row = begin + static_cast<size_t>(i);
            const float *key = pair(key_head, row), *query = key + n_.dk;
            float *with_key = dots(key_head, row), *with_query = with_key + chunk;
            e_.k.pair_dots(key, query, earlier, n_.dk, part.first, w_.key_dim, with_key, with_query);
            e_.k.pair_dots(key, query, pair(key_head, begin), 2 * n_.dk, i + 1, w_.key_dim, with_key + part.first,
                           with_query + part.first);
        }
    });
}

// One value head over a sequence's rows. `next` is the matrix that this thread reads after it.
void Rows::run_head(const Span<DeltaState>& span, int spilled, size_t head, const float* next, float* scratch) const {
    const size_t key_head = n_.key_head(head);
    float* matrix = span.state.matrix + head * n_.dk * n_.dv;
    float *values = n_.values(span.state.pending, head), *decays = n_.decays(span.state.pending, head);
    const float *before = n_.keys(span.state.pending, key_head), *earlier = before + (spilled > 0 ? chunk * n_.dk : 0);
    float *faded = scratch, *recalled = faded + chunk * n_.dk, *shares = recalled + 2 * chunk * n_.dv;
    float* copy = shares + 2 * chunk;
    if (spilled > 0) {
        fold(e_.k, n_, delta_chunk, [&](int slot) { return before + static_cast<size_t>(slot) * n_.dk; }, values, decays,
             faded, matrix);
        std::memcpy(values, values + chunk * n_.dv, static_cast<size_t>(spilled) * n_.dv * sizeof(float));
        std::memcpy(decays, decays + chunk, static_cast<size_t>(spilled) * sizeof(float));
        decays[chunk] = -1;
    }
    if (rehearsal_) {
        const auto slots = static_cast<size_t>(span.position == 0 ? 0 : (span.position - 1) % delta_chunk + 1);
        float *own_values = copy + n_.dk * n_.dv, *own_decays = own_values + chunk * n_.dv;
        std::copy_n(values, slots * n_.dv, own_values);
        std::copy_n(decays, slots, own_decays);
        values = own_values, decays = own_decays;
    }
    each_chunk(span, [&](Part part) {
        const auto begin = static_cast<size_t>(span.start + part.row);
        if (part.first == 0 && span.position + part.row != 0) {
            const bool spare = !rehearsal_ && may_go_back(span, part.row);
            if (spare || rehearsal_) {
                if (matrix != copy) std::memcpy(copy, matrix, n_.dk * n_.dv * sizeof(float));
                matrix = copy;
            } else decays[chunk] = -1;
            fold(e_.k, n_, delta_chunk, [&](int slot) -> const float* {
                const int row = part.row - delta_chunk + slot;  // before the span's first: an earlier call's
                return row < 0 ? earlier + static_cast<size_t>(slot) * n_.dk
                               : pair(key_head, static_cast<size_t>(span.start + row));
            }, values, decays, faded, matrix);
            if (spare) values += chunk * n_.dv, decays += chunk;
        }
        const auto count = static_cast<size_t>(part.count);
        std::memset(recalled, 0, count * 2 * n_.dv * sizeof(float));
        const bool done = part.row + part.count == span.stop - span.start;
        e_.k.add_product(recalled, 2 * part.count, 1.0F, {pair(key_head, begin), n_.dk, 1}, matrix, w_.key_dim,
                         w_.value_dim, done ? next : matrix);
        for (size_t i = 0; i < count; i++)
            run_row(head, begin + i, static_cast<size_t>(part.first) + i, values, decays, shares,
                    recalled + i * 2 * n_.dv);
    });
}

// One row of a head. `recalled` [2, dv] is what its key and its query find in the matrix; `shares` holds [2, chunk].
void Rows::run_row(size_t head, size_t row, size_t slot, float* values, float* decays, float* shares,
                   float* recalled) const {
    const float step = a_[row * n_.heads + head] + w_.dt_bias[head];
    const float softplus = step > 20.0F ? step : std::log1p(std::exp(step));
    const float beta = 1.0F / (1.0F + std::exp(-b_[row * n_.heads + head]));
    decays[slot] = std::exp(-w_.rate[head] * softplus);

    // Products of decays, never quotients: what has faded to nothing must not be divided by.
    const float *with_key = dots(n_.key_head(head), row), *with_query = with_key + chunk;
    float fade = decays[slot];
    for (size_t s = slot; s-- > 0;) {
        shares[s] = with_key[s] * fade;
        shares[chunk + s] = with_query[s] * fade;
        fade *= decays[s];
    }
    e_.k.add_product(recalled, 2, fade, {shares, chunk, 1}, values, static_cast<int>(slot), w_.value_dim,
                     values + chunk * n_.dv);
    const float* v = convolved_ + row * n_.channels + 2 * n_.key_heads * n_.dk + head * n_.dv;
    float* found = recalled + n_.dv;
    e_.k.correct(v, recalled, beta, with_query[slot], w_.value_dim, values + slot * n_.dv, found);

    float* y = mixed_ + (row * n_.heads + head) * n_.dv;
    const float* gate = gate_ + (row * n_.heads + head) * n_.dv;
    e_.k.rms_norm(found, w_.norm, w_.value_dim, w_.eps, y);
    if (w_.sigmoid_gate) e_.k.times_sigmoid(y, gate, w_.value_dim);
    else e_.k.times_silu(y, gate, w_.value_dim);
}

// All heads of a sequence, then those of the next: so matrices are read as they lie. Each thread asks memory for the
// matrix after the one it works on, and in order for the one it begins with: the sums take it in strips, which is slow
// where it is not in a cache.
void Rows::run_heads(const std::vector<Span<DeltaState>>& spans, const int* spills) const {
    const size_t each = head_scratch(), size = n_.dk * n_.dv, threads = static_cast<size_t>(e_.pool.threads());
    float* scratch = e_.scratch.take(each * threads);
    int* expected = e_.scratch.take<int>(threads);
    std::fill(expected, expected + threads, -1);
    const auto matrix = [&](int item) {
        const auto at = static_cast<size_t>(item);
        return spans[at / n_.heads].state.matrix + at % n_.heads * size;
    };
    const int items = static_cast<int>(spans.size() * n_.heads);
    size_t longest = 0;
    for (const auto& span : spans) longest = std::max(longest, static_cast<size_t>(span.stop - span.start));
    const Task heads{items, longest * size * 2, 0};
    in_pieces(e_, &heads, 1, [&](int, int first, int last, int thread) {
        const auto t = static_cast<size_t>(thread);
        for (int item = first; item < last; item++) {
            if (expected[t] != item) prefetch<2>(matrix(item), size * sizeof(float));
            expected[t] = item + 1;
            const auto at = static_cast<size_t>(item);
            run_head(spans[at / n_.heads], spills[at / n_.heads], at % n_.heads, matrix(item + 1 < items ? item + 1 : item),
                     scratch + each * t);
        }
    });
}

// Keys of the rows that the next call may need. Only now: until here heads may still fold those before them.
void Rows::keep_keys(const Span<DeltaState>& span, int spilled) const {
    const bool whole = !may_go_back(span, span.stop - span.start - 1);  // only the last chunk counts
    for (size_t h = 0; h < n_.key_heads; h++) {
        float* keys = n_.keys(span.state.pending, h);
        std::memcpy(keys, keys + chunk * n_.dk, static_cast<size_t>(spilled) * n_.dk * sizeof(float));
        if (rehearsal_) continue;
        each_chunk(span, [&](Part part) {
            if (whole && part.row + part.count != span.stop - span.start) return;
            const size_t first = static_cast<size_t>(part.first) + (part.first == 0 && may_go_back(span, part.row) ? chunk : 0);
            for (int i = 0; i < part.count; i++)
                std::memcpy(keys + (first + static_cast<size_t>(i)) * n_.dk,
                            pair(h, static_cast<size_t>(span.start + part.row + i)), n_.dk * sizeof(float));
        });
    }
}

// What comes after the projections: the recurrent matrices, then the output's.
void Rows::expect_heads(const std::vector<Span<DeltaState>>& spans) const {
    e_.pool.ahead.begin();
    for (const auto& span : spans) {
        Weights matrix;
        matrix.codes = reinterpret_cast<const uint8_t*>(span.state.matrix);
        matrix.codes_stride = n_.dv * sizeof(float);
        matrix.rows = static_cast<int>(n_.heads * n_.dk);
        e_.pool.ahead.add(matrix);
    }
    e_.pool.ahead.end();
}

void Rows::run(const float* x, const std::vector<Span<DeltaState>>& spans, float* out) {
    const auto hidden = static_cast<size_t>(w_.hidden), width = n_.heads * n_.dv;
    const int rows = static_cast<int>(rows_);
    Inputs in(e_, x, hidden, rows, w_.hidden);
    const Product projections[] = {{&w_.qkv, &in, channels_, n_.channels}, {&w_.z, &in, gate_, width},
                                   {&w_.a, &in, a_, n_.heads}, {&w_.b, &in, b_, n_.heads}};
    expect_heads(spans);
    multiply(e_, projections, 4, [&](Outputs f) {
        if (f.product != 0) return;
        for (const auto& span : spans) convolve(span, f.first, f.last);
    }, [&](Outputs f) {
        if (f.product != 0) return;
        for (const auto& span : spans) fetch_taps(span, f.first, f.last);
    });

    int* spills = e_.scratch.take<int>(spans.size());
    for (size_t i = 0; i < spans.size(); i++) spills[i] = spilled(n_, spans[i].position, spans[i].state.pending);
    const Task keys{w_.key_heads, rows_ * n_.dk * chunk / 2, 0};  // for a row, mostly not worth a hand-over
    in_pieces(e_, &keys, 1, [&](int, int first, int last, int) {
        for (int head = first; head < last; head++)
            for (size_t i = 0; i < spans.size(); i++) find_dots(spans[i], spills[i], static_cast<size_t>(head));
    });

    e_.pool.ahead.expect({&w_.out});
    {
        const Whole whole(e_);  // a fold is made up for in all heads or in none
        run_heads(spans, spills);
        for (size_t i = 0; i < spans.size(); i++) keep_keys(spans[i], spills[i]);
    }

    Inputs mixed(e_, mixed_, width, rows, static_cast<int>(width));
    const Product output{&w_.out, &mixed, out, hidden};
    e_.expect_later();
    multiply(e_, &output, 1);
}

}  // namespace

int64_t pending_size(const DeltaNet& w) {
    const int64_t each = static_cast<int64_t>(w.key_heads) * w.key_dim + static_cast<int64_t>(w.value_heads) * (w.value_dim + 1);
    return each <= std::numeric_limits<int>::max() / delta_kept ? each * delta_kept : -1;
}

void delta_net(Engine& e, const DeltaNet& w, const float* x, int rows, const std::vector<Span<DeltaState>>& spans,
               float* out, bool rehearsal) {
    Rows(e, w, rows, rehearsal).run(x, spans, out);
}

void settle(Engine& e, const DeltaNet& w, int position, float* pending, float* matrix) {
    if (position == 0) return;
    const Sizes n(w);
    const int spill = spilled(n, position, pending);
    float* faded = e.scratch.take(chunk * n.dk);
    for (size_t head = 0; head < n.heads; head++) {
        const float* keys = n.keys(pending, n.key_head(head));
        const float *values = n.values(pending, head), *decays = n.decays(pending, head);
        float* into = matrix + head * n.dk * n.dv;
        const auto fold_from = [&](size_t first, int slots) {
            fold(e.k, n, slots, [&](int slot) { return keys + (first + static_cast<size_t>(slot)) * n.dk; },
                 values + first * n.dv, decays + first, faded, into);
        };
        if (spill > 0) fold_from(0, delta_chunk), fold_from(chunk, spill);
        else fold_from(0, (position - 1) % delta_chunk + 1);
    }
}

}  // namespace cherenkov::cpu
