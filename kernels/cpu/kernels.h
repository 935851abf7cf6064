// The arithmetic, as a table of functions: one table per instruction set, all with the same meaning.
//
// Every function works on one thread and allocates nothing. What a function computes for a row does not depend on the
// other rows of the call, on how work was cut into calls, or on the thread: sums run in an order that only shapes fix.
#pragma once
#include "weights.h"

namespace cherenkov::cpu {

// Keys or values of one KV head: token t lies at data + t * stride.
struct Tokens {
    const float* data;
    size_t stride;
};

// Factors of a product with rows: factor `i` of output row `r` lies at data + r * row + i * step.
struct Factors {
    const float* data;
    size_t row, step;
};

// Attention of a group of query heads over a run of tokens, not yet divided by the sum of its exponentials.
// `sum` and `top` hold one number per head; `out` is [heads, dim].
struct Partial {
    float* top;
    float* sum;
    float* out;
};

// What some logits weigh, and those of them above a bound; and how many equal it, unless it is -inf.
struct LogitTally {
    double mass, above_mass;
    int64_t equal;
};

// Of some logits, how many exceed the higher of two bounds, and how many the lower alone.
struct LogitSplit {
    int64_t above, inside;
};

// Logits whose weights are summed in float.
constexpr int logit_piece = 128;

// Passes over any number of logits.
struct LogitKernels {
    // The sum of exp((logits - largest) * inverse), where `largest` is the largest of the row, a float where they are.
    double (*weigh)(const float* logits, int64_t n, double largest, double inverse);
    double (*weigh_doubles)(const double* logits, int64_t n, double largest, double inverse);
    LogitTally (*tally)(const float* logits, int64_t n, double largest, double inverse, float bound);
    LogitTally (*tally_doubles)(const double* logits, int64_t n, double largest, double inverse, double bound);
    // maxima = max(maxima, logits); whether a logit is NaN.
    bool (*raise)(float* maxima, const float* logits, int64_t n);
    // Lists those above a bound, and overwrites up to 16 places more; there is room for all. The list may lie where the
    // logits do. Returns how many they are.
    int64_t (*pack)(const float* logits, int64_t n, float bound, float* out);
    // Lists those that exceed the lower of two bounds alone, as pack does, but elsewhere.
    LogitSplit (*split)(const float* logits, int64_t n, float low, float high, float* inside);
    // Lists the places of those above a bound, from `first` on; there is room for all. Returns how many they are.
    int64_t (*above)(const float* logits, int64_t n, float bound, int32_t first, int32_t* places);
    // The logits of some tokens that occurred, divided by `factor` if positive, else multiplied, less
    // presence + frequency * count, and what they were before; a count is from 0 to below 2^52. Whether a logit is NaN.
    bool (*punish)(const float* logits, const int64_t* ids, const int64_t* counts, int64_t n, double factor,
                   double presence, double frequency, double* before, double* out);
    // exp((x - largest) / temperature) for each, to about one unit in the last place of the exponential; 0 for what is below
    // the normal numbers.
    void (*exponentials)(double* x, int64_t n, double largest, double temperature);
};

struct Kernels {
    const char* name;
    Precision preferred;   // the default
    uint8_t precisions;    // bit i: Precision i is offered

    // --- matrices -------------------------------------------------------------------------------------------------

    // Bytes of a packed row, a multiple of 64.
    size_t (*packed_bytes)(const Packing&, int cols);
    // Packs one row of `cols` numbers; `out` is aligned to 64.
    void (*pack)(const Packing&, const float* x, int cols, void* out);
    // row.y[n] = w[n, :] . row.x for n in [first, last), for each of `count` rows packed with Packing::of(w, precision).
    void (*multiply)(const Weights& w, Precision, const Row* rows, int count, int first, int last);

    // --- rows of numbers ------------------------------------------------------------------------------------------

    // out = x / sqrt(mean(x^2) + eps) * weight. In place is fine.
    void (*rms_norm)(const float* x, const float* weight, int n, float eps, float* out);
    // out = x * scale / sqrt(sum(x^2) + eps)
    void (*unit)(const float* x, int n, float eps, float scale, float* out);
    float (*dot)(const float* a, const float* b, int n);
    // y += a * x
    void (*add_scaled)(float* y, float a, const float* x, int n);
    void (*add)(float* y, const float* x, int n);
    void (*scale)(const float* x, float a, int n, float* out);
    // x = silu(x * a)
    void (*silu)(float* x, float a, int n);
    // gate = silu(gate) * up
    void (*silu_times)(float* gate, const float* up, int n);
    // y *= sigmoid(gate)
    void (*times_sigmoid)(float* y, const float* gate, int n);
    // y *= silu(gate)
    void (*times_silu)(float* y, const float* gate, int n);
    // out = mean over streams of sigmoid(mix) * x; stream s of mix and x starts at s * stride
    void (*mix_streams)(const float* mix, const float* x, int streams, size_t stride, int n, float* out);
    // out = sum over taps of weights[tap] * inputs[tap], tap 0 first; weights of tap t start at t * stride
    void (*convolve)(const float* const* inputs, const float* weights, size_t stride, int taps, int n, float* out);
    // x = exp(x - max(x)) / sum; the sum runs in double
    void (*softmax)(float* x, int n);
    // Index of the largest, the first of equals; `*best` is its value. n > 0.
    int (*argmax)(const float* x, int n, float* best);
    // out = w[0] * each[0] + w[1] * each[1] + ... in that order, + last_weight * last
    void (*combine)(const float* const* each, const float* weights, int count, const float* last, float last_weight,
                    int n, float* out);

    // --- state ----------------------------------------------------------------------------------------------------

    // out[r, :] = keep * out[r, :] + sum over i in [0, count) of a(r, i) * b[i, :], in the order of i; out has `rows`
    // rows of `cols` numbers, b has `count`. On the way as many numbers as b has are prefetched from `next`.
    void (*add_product)(float* out, int rows, float keep, Factors a, const float* b, int count, int cols,
                        const float* next);
    // with_x[i] = x . others[i], with_y[i] = y . others[i] for `count` vectors of n numbers, `stride` apart.
    void (*pair_dots)(const float* x, const float* y, const float* others, size_t stride, int count, int n,
                      float* with_x, float* with_y);
    // change = beta * (v - recalled); y += share * change
    void (*correct)(const float* v, const float* recalled, float beta, float share, int n, float* change, float* y);
    // Half-split rotary embedding of the first 2 * half numbers of x.
    void (*rotate)(float* x, const float* cosines, const float* sines, int half);
    // scores[b] = sum over heads of relu(queries[h] . keys[b]) for blocks [first, last)
    void (*block_scores)(const float* queries, int heads, const float* keys, int dim, int first, int last,
                         float* scores);
    // Attention of `heads` query heads [heads, dim], already scaled, over `count` tokens: `chosen[i]`, or first + i
    // where chosen is null. `scratch` holds heads * count floats.
    void (*attend)(const float* queries, int heads, int dim, Tokens keys, Tokens values, const int32_t* chosen,
                   int first, int count, float* scratch, Partial out);
    // Folds `next` into `into`.
    void (*merge)(Partial into, Partial next, int heads, int dim);

    // --- logits ---------------------------------------------------------------------------------------------------

    LogitKernels logits;
};

extern const Kernels portable_kernels;
#if defined(CHERENKOV_X86)
extern const Kernels avx2_kernels;
#endif
#if defined(CHERENKOV_AVX512)
extern const Kernels avx512_vnni_kernels;
extern const Kernels avx512_bf16_kernels;
#endif

// The table of that name; the fastest that this machine runs if `name` is empty; null if there is none.
const Kernels* find_kernels(const char* name);
// Tables that this machine runs, fastest first; returns how many.
int usable_kernels(const Kernels** out, int capacity);
// The precision in use when `asked` for: `asked` if the table offers it, else the next more exact one that it does.
Precision offered(const Kernels&, Precision asked);

}  // namespace cherenkov::cpu
