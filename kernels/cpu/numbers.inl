// Everything that is not a product with a matrix, written once over an instruction set `Isa`. Included by isa_*.cpp,
// inside an anonymous namespace, after multiply.inl.
//
// Sums over a row run in vectors of Isa::lanes with a fixed number of partial sums, folded by one tree: the order
// depends on the row's length alone.

// Calls f(i, n) for n = lanes at a time, then once for the rest.
template <typename F>
ALWAYS_INLINE void sweep(int count, F f) {
    int i = 0;
    for (; i + lanes <= count; i += lanes) f(i, lanes);
    if (i < count) f(i, count - i);
}

ALWAYS_INLINE Float load(const float* at, int n) { return n == lanes ? Isa::load(at) : Isa::load_some(at, n); }
ALWAYS_INLINE void store(float* at, Float x, int n) {
    if (n == lanes) Isa::store(at, x);
    else Isa::store_some(at, x, n);
}

// e^x, to about one unit in the last place. Below -87 it stays at e^-87 and above 88 at e^88; NaN passes.
ALWAYS_INLINE Float exponential(Float x) {
    x = Isa::max(Isa::splat(-87.0F), x);
    x = Isa::min(Isa::splat(88.0F), x);
    const Float n = Isa::round(Isa::mul(x, Isa::splat(1.44269504F)));
    Float r = Isa::fmadd(n, Isa::splat(-0.693359375F), x);  // ln 2 in two parts, so that n * part is exact
    r = Isa::fmadd(n, Isa::splat(2.12194440e-4F), r);
    Float p = Isa::splat(1.9875691500e-4F);  // minimax on [-ln2 / 2, ln2 / 2], after Cephes
    p = Isa::fmadd(p, r, Isa::splat(1.3981999507e-3F));
    p = Isa::fmadd(p, r, Isa::splat(8.3334519073e-3F));
    p = Isa::fmadd(p, r, Isa::splat(4.1665795894e-2F));
    p = Isa::fmadd(p, r, Isa::splat(1.6666665459e-1F));
    p = Isa::fmadd(p, r, Isa::splat(5.0000001201e-1F));
    p = Isa::fmadd(Isa::mul(r, r), p, r);
    return Isa::times_power_of_two(Isa::add(p, Isa::splat(1.0F)), n);
}

inline float exponential(float x) { return Isa::first(exponential(Isa::splat(x))); }

ALWAYS_INLINE Float one_plus_exp_of_minus(Float x) {
    return Isa::add(Isa::splat(1.0F), exponential(Isa::sub(Isa::zero(), x)));
}
ALWAYS_INLINE Float sigmoid(Float x) { return Isa::div(Isa::splat(1.0F), one_plus_exp_of_minus(x)); }
ALWAYS_INLINE Float silu(Float x) { return Isa::div(x, one_plus_exp_of_minus(x)); }

float dot(const float* a, const float* b, int n) {
    Float sum[4] = {Isa::zero(), Isa::zero(), Isa::zero(), Isa::zero()};
    int i = 0;
    for (; i + 4 * lanes <= n; i += 4 * lanes)
        for (int k = 0; k < 4; k++)
            sum[k] = Isa::fmadd(Isa::load(a + i + k * lanes), Isa::load(b + i + k * lanes), sum[k]);
    sweep(n - i, [&](int j, int m) { sum[0] = Isa::fmadd(load(a + i + j, m), load(b + i + j, m), sum[0]); });
    return Isa::sum(Isa::add(Isa::add(sum[0], sum[2]), Isa::add(sum[1], sum[3])));
}

void rms_norm(const float* x, const float* weight, int n, float eps, float* out) {
    const float inverse = 1.0F / __builtin_sqrtf(dot(x, x, n) / static_cast<float>(n) + eps);
    const Float factor = Isa::splat(inverse);
    sweep(n, [&](int i, int m) {
        store(out + i, Isa::mul(Isa::mul(load(x + i, m), factor), load(weight + i, m)), m);
    });
}

void scale(const float* x, float a, int n, float* out) {
    const Float factor = Isa::splat(a);
    sweep(n, [&](int i, int m) { store(out + i, Isa::mul(load(x + i, m), factor), m); });
}

void unit(const float* x, int n, float eps, float factor, float* out) {
    scale(x, factor / __builtin_sqrtf(dot(x, x, n) + eps), n, out);
}

void add_scaled(float* y, float a, const float* x, int n) {
    const Float factor = Isa::splat(a);
    sweep(n, [&](int i, int m) { store(y + i, Isa::fmadd(load(x + i, m), factor, load(y + i, m)), m); });
}

void add(float* y, const float* x, int n) {
    sweep(n, [&](int i, int m) { store(y + i, Isa::add(load(y + i, m), load(x + i, m)), m); });
}

void silu_scaled(float* x, float a, int n) {
    const Float factor = Isa::splat(a);
    sweep(n, [&](int i, int m) { store(x + i, silu(Isa::mul(load(x + i, m), factor)), m); });
}

void silu_times(float* gate, const float* up, int n) {
    sweep(n, [&](int i, int m) { store(gate + i, Isa::mul(silu(load(gate + i, m)), load(up + i, m)), m); });
}

void times_sigmoid(float* y, const float* gate, int n) {
    sweep(n, [&](int i, int m) { store(y + i, Isa::mul(load(y + i, m), sigmoid(load(gate + i, m))), m); });
}

void times_silu(float* y, const float* gate, int n) {
    sweep(n, [&](int i, int m) { store(y + i, Isa::mul(load(y + i, m), silu(load(gate + i, m))), m); });
}

void mix_streams(const float* mix, const float* x, int streams, size_t stride, int n, float* out) {
    const Float share = Isa::splat(1.0F / static_cast<float>(streams));
    sweep(n, [&](int i, int m) {
        Float sum = Isa::zero();
        for (int s = 0; s < streams; s++) {
            const size_t at = static_cast<size_t>(s) * stride + static_cast<size_t>(i);
            sum = Isa::fmadd(sigmoid(load(mix + at, m)), load(x + at, m), sum);
        }
        store(out + i, Isa::mul(sum, share), m);
    });
}

void convolve(const float* const* inputs, const float* weights, size_t stride, int taps, int n, float* out) {
    sweep(n, [&](int i, int m) {
        Float sum = Isa::zero();
        for (int t = 0; t < taps; t++)
            sum = Isa::fmadd(load(inputs[t] + i, m), load(weights + static_cast<size_t>(t) * stride + i, m), sum);
        store(out + i, sum, m);
    });
}

float largest(const float* x, int n) {
    float best = x[0];
    int i = 0;
    if (n >= lanes) {
        Float top = Isa::load(x);
        for (i = lanes; i + lanes <= n; i += lanes) top = Isa::max(top, Isa::load(x + i));
        float each[lanes];
        Isa::store(each, top);
        for (int l = 0; l < lanes; l++) best = each[l] > best ? each[l] : best;
    }
    for (; i < n; i++) best = x[i] > best ? x[i] : best;
    return best;
}

// Exponentials of x - top, in place; returns their sum.
float exponentials(float* x, float top, int n) {
    const Float shift = Isa::splat(top);
    Float sum = Isa::zero();
    int i = 0;
    for (; i + lanes <= n; i += lanes) {
        const Float e = exponential(Isa::sub(Isa::load(x + i), shift));
        Isa::store(x + i, e);
        sum = Isa::add(sum, e);
    }
    float rest = 0;
    for (; i < n; i++) {
        x[i] = exponential(x[i] - top);
        rest += x[i];
    }
    return Isa::sum(sum) + rest;
}

void softmax(float* x, int n) {
    const float sum = exponentials(x, largest(x, n), n);
    const Float inverse = Isa::splat(sum);
    sweep(n, [&](int i, int m) { store(x + i, Isa::div(load(x + i, m), inverse), m); });
}

int argmax(const float* x, int n, float* best) {
    *best = largest(x, n);
    for (int i = 0; i < n; i++)
        if (x[i] == *best) return i;
    return 0;  // nothing but NaN
}

void combine(const float* const* each, const float* weights, int count, const float* last, float last_weight, int n,
             float* out) {
    sweep(n, [&](int i, int m) {
        Float sum = Isa::zero();
        for (int k = 0; k < count; k++) sum = Isa::fmadd(load(each[k] + i, m), Isa::splat(weights[k]), sum);
        store(out + i, Isa::fmadd(load(last + i, m), Isa::splat(last_weight), sum), m);
    });
}

// --- DeltaNet ---------------------------------------------------------------------------------------------------------

// R rows by V vectors of columns, of which `n` columns of the last exist; rows are `stride` apart. Each number is one
// chain of additions, so it does not matter to its bits which tile it falls into.
template <int R, int V, bool Fetch>
ALWAYS_INLINE void product_tile(float* out, float keep, Factors a, const float* b, size_t stride, int count, int n,
                                const float* next) {
    const auto width = [&](int j) { return j == V - 1 ? n : lanes; };
    const auto at = [&](int r, int j) { return out + static_cast<size_t>(r) * stride + j * lanes; };
    const Float kept = Isa::splat(keep);
    Float sum[R][V];
    for (int r = 0; r < R; r++)
        for (int j = 0; j < V; j++) sum[r][j] = Isa::mul(kept, load(at(r, j), width(j)));
    for (int i = 0; i < count; i++) {
        Float row[V];
        for (int j = 0; j < V; j++) row[j] = load(b + j * lanes, width(j));
        if constexpr (Fetch) {
            for (int j = 0; j < V * lanes; j += 16) Isa::prefetch(next + j);
            next += V * lanes;
        }
        for (int r = 0; r < R; r++) {
            const Float factor = Isa::splat(a.data[static_cast<size_t>(r) * a.row]);
            for (int j = 0; j < V; j++) sum[r][j] = Isa::fmadd(factor, row[j], sum[r][j]);
        }
        a.data += a.step;
        b += stride;
    }
    for (int r = 0; r < R; r++)
        for (int j = 0; j < V; j++) store(at(r, j), sum[r][j], width(j));
}

// V vectors of columns of all rows: R at a time, then two, then one. The first rows to read b fetch what comes next.
template <int R, int V>
ALWAYS_INLINE void product_strip(float* out, int rows, float keep, Factors a, const float* b, size_t stride, int count,
                                 int n, const float* next) {
    int r = 0;
    const auto take = [&]<int N>() {
        for (; r + N <= rows; r += N) {
            const Factors here{a.data + static_cast<size_t>(r) * a.row, a.row, a.step};
            float* to = out + static_cast<size_t>(r) * stride;
            if (r == 0) product_tile<N, V, true>(to, keep, here, b, stride, count, n, next);
            else product_tile<N, V, false>(to, keep, here, b, stride, count, n, next);
        }
    };
    if constexpr (R > 2) take.template operator()<R>();
    take.template operator()<2>();
    take.template operator()<1>();
}

void add_product(float* out, int rows, float keep, Factors a, const float* b, int count, int cols, const float* next) {
    const auto stride = static_cast<size_t>(cols);
    const auto by_strips = [&]<int R, int V>() {  // as many sums as registers hold
        int c = 0;
        const auto strip = [&]<int W>(int at, int n) {
            product_strip<R, W>(out + at, rows, keep, a, b + at, stride, count, n, next);
            next += static_cast<size_t>(count) * W * lanes;
        };
        for (; c + V * lanes <= cols; c += V * lanes) strip.template operator()<V>(c, lanes);
        sweep(cols - c, [&](int j, int n) { strip.template operator()<1>(c + j, n); });
    };
    if (rows <= 2) by_strips.template operator()<2, lanes == 16 ? 8 : 4>();
    else if (rows % 4 == 0 && rows <= 8) by_strips.template operator()<4, lanes == 16 ? 4 : 2>();  // of two tokens, of four
    else by_strips.template operator()<6, 2>();
}

// Dot products of two vectors with each of K others, in the order of dots().
template <int K>
ALWAYS_INLINE void pair_dots_of(const float* x, const float* y, const float* others, size_t stride, int n,
                                float* with_x, float* with_y) {
    Float a[K], b[K];
    for (int k = 0; k < K; k++) a[k] = b[k] = Isa::zero();
    sweep(n, [&](int i, int m) {
        const Float u = load(x + i, m), v = load(y + i, m);
        for (int k = 0; k < K; k++) {
            const Float w = load(others + static_cast<size_t>(k) * stride + i, m);
            a[k] = Isa::fmadd(u, w, a[k]);
            b[k] = Isa::fmadd(v, w, b[k]);
        }
    });
    if constexpr (K == 4) {
        Isa::store_sums(with_x, a[0], a[1], a[2], a[3]);
        Isa::store_sums(with_y, b[0], b[1], b[2], b[3]);
    } else {
        for (int k = 0; k < K; k++) with_x[k] = Isa::sum(a[k]), with_y[k] = Isa::sum(b[k]);
    }
}

void pair_dots(const float* x, const float* y, const float* others, size_t stride, int count, int n, float* with_x,
               float* with_y) {
    int k = 0;
    for (; k + 4 <= count; k += 4)
        pair_dots_of<4>(x, y, others + static_cast<size_t>(k) * stride, stride, n, with_x + k, with_y + k);
    for (; k < count; k++)
        pair_dots_of<1>(x, y, others + static_cast<size_t>(k) * stride, stride, n, with_x + k, with_y + k);
}

void correct(const float* v, const float* recalled, float beta, float share, int n, float* change, float* y) {
    const Float strength = Isa::splat(beta), part = Isa::splat(share);
    sweep(n, [&](int i, int m) {
        const Float u = Isa::mul(strength, Isa::sub(load(v + i, m), load(recalled + i, m)));
        store(change + i, u, m);
        store(y + i, Isa::fmadd(part, u, load(y + i, m)), m);
    });
}

// --- attention --------------------------------------------------------------------------------------------------------

void rotate(float* x, const float* cosines, const float* sines, int half) {
    sweep(half, [&](int i, int m) {
        const Float a = load(x + i, m), b = load(x + half + i, m);
        const Float c = load(cosines + i, m), s = load(sines + i, m);
        store(x + i, Isa::sub(Isa::mul(a, c), Isa::mul(b, s)), m);
        store(x + half + i, Isa::fmadd(b, c, Isa::mul(a, s)), m);
    });
}

// Dot products of H vectors, `stride` apart, with T others. Each is one chain of vectors, whatever H and T, which are
// what keeps several additions under way.
template <int H, int T>
ALWAYS_INLINE void dots(const float* heads, size_t stride, const float* const (&others)[T], int dim, float (&out)[H][T]) {
    Float sum[H][T];
    for (int h = 0; h < H; h++)
        for (int t = 0; t < T; t++) sum[h][t] = Isa::zero();
    sweep(dim, [&](int i, int m) {
        Float other[T];
        for (int t = 0; t < T; t++) other[t] = load(others[t] + i, m);
        for (int h = 0; h < H; h++) {
            const Float head = load(heads + static_cast<size_t>(h) * stride + i, m);
            for (int t = 0; t < T; t++) sum[h][t] = Isa::fmadd(head, other[t], sum[h][t]);
        }
    });
    for (int h = 0; h < H; h++) {
        if constexpr (T == 4) Isa::store_sums(out[h], sum[h][0], sum[h][1], sum[h][2], sum[h][3]);
        else
            for (int t = 0; t < T; t++) out[h][t] = Isa::sum(sum[h][t]);
    }
}

// The dot products of all heads with `count` others, `at(i)` each: take(first head, first other, dots[H][T]).
template <typename At, typename Take>
ALWAYS_INLINE void all_dots(const float* heads, int head_count, size_t stride, int dim, int count, At at, Take take) {
    const auto some = [&]<int T>(int i) {
        const float* others[T];
        for (int t = 0; t < T; t++) others[t] = at(i + t);
        by_tiles<2>(head_count, [&]<int H>(int h) {
            float each[H][T];
            dots<H, T>(heads + static_cast<size_t>(h) * stride, stride, others, dim, each);
            take(h, i, each);
        });
    };
    int i = 0;
    for (; i + 4 <= count; i += 4) some.template operator()<4>(i);
    for (; i < count; i++) some.template operator()<1>(i);
}

void block_scores(const float* queries, int heads, const float* keys, int dim, int first, int last, float* scores) {
    const auto stride = static_cast<size_t>(dim);
    for (int b = first; b < last; b++) scores[b] = 0;
    all_dots(queries, heads, stride, dim, last - first, [&](int b) { return keys + static_cast<size_t>(first + b) * stride; },
             [&]<int H, int T>(int, int b, const float (&each)[H][T]) {
                 for (int h = 0; h < H; h++)
                     for (int t = 0; t < T; t++) scores[first + b + t] += each[h][t] > 0 ? each[h][t] : 0;
             });
}

// Sums of V vectors of values from column i on, the last of n numbers, each token's times its weight for each of H heads.
template <int H, int V, typename At>
ALWAYS_INLINE void weigh(const float* weights, size_t run, int count, At value, int n, float* out, size_t stride) {
    const auto width = [&](int j) { return j == V - 1 ? n : lanes; };
    Float sum[H][V];
    for (int h = 0; h < H; h++)
        for (int j = 0; j < V; j++) sum[h][j] = Isa::zero();
    for (int t = 0; t < count; t++) {
        const float* from = value(t);
        Float row[V];
        for (int j = 0; j < V; j++) row[j] = load(from + j * lanes, width(j));
        for (int h = 0; h < H; h++) {
            const Float weight = Isa::splat(weights[static_cast<size_t>(h) * run + static_cast<size_t>(t)]);
            for (int j = 0; j < V; j++) sum[h][j] = Isa::fmadd(weight, row[j], sum[h][j]);
        }
    }
    for (int h = 0; h < H; h++)
        for (int j = 0; j < V; j++) store(out + static_cast<size_t>(h) * stride + j * lanes, sum[h][j], width(j));
}

void attend(const float* queries, int heads, int dim, Tokens keys, Tokens values, const int32_t* chosen, int first,
            int count, float* weights, Partial out) {
    const auto wide = static_cast<size_t>(dim), run = static_cast<size_t>(count);
    const auto token = [&](int t) { return static_cast<size_t>(chosen != nullptr ? chosen[t] : first + t); };
    all_dots(queries, heads, wide, dim, count, [&](int t) { return keys.data + token(t) * keys.stride; },
             [&]<int H, int T>(int h, int t, const float (&each)[H][T]) {
                 for (int k = 0; k < H; k++)
                     __builtin_memcpy(weights + static_cast<size_t>(h + k) * run + t, each[k], sizeof each[k]);
             });
    for (int h = 0; h < heads; h++) {
        float* row = weights + static_cast<size_t>(h) * run;
        out.top[h] = largest(row, count);
        out.sum[h] = exponentials(row, out.top[h], count);
    }
    const auto columns = [&]<int V>(int i, int n) {
        by_tiles<2>(heads, [&]<int H>(int h) {
            const auto head = static_cast<size_t>(h);
            weigh<H, V>(weights + head * run, run, count, [&](int t) { return values.data + token(t) * values.stride + i; }, n,
                        out.out + head * wide + i, wide);
        });
    };
    int i = 0;
    for (; i + 4 * lanes <= dim; i += 4 * lanes) columns.template operator()<4>(i, lanes);
    sweep(dim - i, [&](int j, int n) { columns.template operator()<1>(i + j, n); });
}

void merge(Partial into, Partial next, int heads, int dim) {
    for (int h = 0; h < heads; h++) {
        const float top = into.top[h] > next.top[h] ? into.top[h] : next.top[h];
        const float a = exponential(into.top[h] - top), b = exponential(next.top[h] - top);
        into.top[h] = top;
        into.sum[h] = into.sum[h] * a + next.sum[h] * b;
        float* y = into.out + static_cast<size_t>(h) * static_cast<size_t>(dim);
        const float* x = next.out + static_cast<size_t>(h) * static_cast<size_t>(dim);
        const Float fa = Isa::splat(a), fb = Isa::splat(b);
        sweep(dim, [&](int i, int m) {
            store(y + i, Isa::fmadd(load(x + i, m), fb, Isa::mul(load(y + i, m), fa)), m);
        });
    }
}

#include "logits.inl"

constexpr uint8_t precisions_offered() {
    uint8_t mask = 1;
    if (Isa::has_bf16) mask |= 1 << static_cast<int>(Precision::bf16);
    if (Isa::has_integers) mask |= 1 << static_cast<int>(Precision::int16) | 1 << static_cast<int>(Precision::int8);
    return mask;
}

constexpr Kernels make_kernels(const char* name, Precision preferred) {
    return {name, preferred, precisions_offered(), packed_bytes, pack, multiply, rms_norm, unit, dot, add_scaled, add,
            scale, silu_scaled, silu_times, times_sigmoid, times_silu, mix_streams, convolve, softmax, argmax, combine,
            add_product, pair_dots, correct, rotate, block_scores, attend, merge, logit_kernels};
}
