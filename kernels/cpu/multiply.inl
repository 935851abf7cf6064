// Products of matrices with rows, written once over an instruction set `Isa`. Included by isa_*.cpp, inside an
// anonymous namespace: nothing here may be shared between translation units that were compiled for different machines,
// so it uses no inline function of the standard library either.
//
// Whatever shape of tile computes it, a product's bits depend on its row of the matrix and on its input row alone.

#include "packing.inl"

constexpr size_t prefetch_distance = 8192;  // of codes, in bytes: half of DRAM bandwidth without it
constexpr int prefetch_rows = 8;            // of scales and biases, at least

template <int M>
struct Inputs {
    const unsigned char* x[M];
    const float* sums[M];
    const float* steps[M];
    float* y[M];
};

template <int M>
inline Inputs<M> inputs_of(const Row* rows, const PackedLayout& layout) {
    Inputs<M> in;
    for (int m = 0; m < M; m++) {
        in.x[m] = static_cast<const unsigned char*>(rows[m].x);
        in.sums[m] = reinterpret_cast<const float*>(in.x[m] + layout.sums);
        in.steps[m] = reinterpret_cast<const float*>(in.x[m] + layout.steps);
        in.y[m] = rows[m].y;
    }
    return in;
}

// Where R neighbouring rows of a matrix lie.
template <int R>
struct Strip {
    const uint8_t* codes[R];
    const uint8_t* scales[R];
    const uint8_t* biases[R];
};

// Rows n .. n+R-1; past `last` the last one again, whose products are dropped.
template <int R>
ALWAYS_INLINE Strip<R> strip_of(const Weights& w, int n, int last) {
    Strip<R> strip;
    for (int r = 0; r < R; r++) {
        const auto row = static_cast<size_t>(n + r < last ? n + r : last - 1);
        strip.codes[r] = w.codes + row * w.codes_stride;
        strip.scales[r] = w.scales + row * w.scales_stride;
        strip.biases[r] = w.biases + row * w.scales_stride;
    }
    return strip;
}

// What to prefetch while row n is at work: codes further down, or what comes after the rows that were asked for.
ALWAYS_INLINE const uint8_t* codes_ahead(const Weights& w, int n, int last) {
    const size_t at = static_cast<size_t>(n) * w.codes_stride + prefetch_distance, end = static_cast<size_t>(last) * w.codes_stride;
    return w.ahead.codes == nullptr || at < end ? w.codes + at : w.ahead.codes + (at - end);
}

// Rows from the one at work to the one whose scales and biases are prefetched: about as far as its codes are.
inline int scales_ahead(const Weights& w) {
    const int rows = static_cast<int>(prefetch_distance / (w.codes_stride + 1));
    return rows < prefetch_rows ? prefetch_rows : (rows + 3) / 4 * 4;
}

// Prefetches scales and biases of `rows` rows that come `distance` after row n.
ALWAYS_INLINE void prefetch_scales(const Weights& w, int n, int last, int rows, int distance) {
    const int to = n + distance;
    const bool here = w.ahead.scales == nullptr || to < last;
    const uint8_t* scales = here ? w.scales : w.ahead.scales;
    const uint8_t* biases = here ? w.biases : w.ahead.biases;
    const size_t at = static_cast<size_t>(here ? to : to - last) * w.scales_stride, size = static_cast<size_t>(rows) * w.scales_stride;
    for (size_t line = 0; line < size; line += 64) {
        Isa::prefetch(scales + at + line);
        Isa::prefetch(biases + at + line);
    }
}

// Calls f with Most at a time, then with what is left, as a compile-time count.
template <int Most, typename F>
inline void by_tiles(int count, F f) {
    int i = 0;
    for (; i + Most <= count; i += Most) f.template operator()<Most>(i);
    if constexpr (Most > 1)
        if (i < count) by_tiles<Most - 1>(count - i, [&]<int M>(int j) { f.template operator()<M>(i + j); });
}

template <typename F>
inline void by_fours(int count, F f) {
    by_tiles<4>(count, f);
}

#include "float_products.inl"

#if ISA_INTEGERS
#include "integer_products.inl"
#endif

#include "value_products.inl"

template <int Bits>
void multiply_bits(const Weights& w, Precision precision, const Row* rows, int count, int first, int last) {
    switch (precision) {
        case Precision::float32: return multiply_floats<Bits, Precision::float32>(w, rows, count, first, last);
        case Precision::bf16:
            if constexpr (Isa::has_bf16) return multiply_floats<Bits, Precision::bf16>(w, rows, count, first, last);
            return;
#if ISA_INTEGERS
        case Precision::int16: return multiply_integers<Bits, Precision::int16>(w, rows, count, first, last);
        case Precision::int8: return multiply_integers<Bits, Precision::int8>(w, rows, count, first, last);
#else
        default: return;  // not offered
#endif
    }
}

void multiply(const Weights& w, Precision precision, const Row* rows, int count, int first, int last) {
    switch (w.bits) {
        case 2: return multiply_bits<2>(w, precision, rows, count, first, last);
        case 3: return multiply_bits<3>(w, precision, rows, count, first, last);
        case 4: return multiply_bits<4>(w, precision, rows, count, first, last);
        case 8: return multiply_bytes(w, rows, count, first, last);
        case 16: return multiply_values<Bf16Values>(w, rows, count, first, last);
        default: return multiply_values<Float32Values>(w, rows, count, first, last);
    }
}
