// Products with 8-bit codes and with values: float32 inputs in column order. Included by multiply.inl.

template <int M, int R>
ALWAYS_INLINE void multiply_bytes_strip(const Weights& w, const Inputs<M>& in, int n, int last) {
    const Strip<R> strip = strip_of<R>(w, n, last);
    Float acc[R][M];
    for (int r = 0; r < R; r++)
        for (int m = 0; m < M; m++) acc[r][m] = Isa::zero();
    add_biases<M, R>(strip, in, w.cols / w.group, acc);
    for (int g = 0; g < w.cols / w.group; g++) {
        Float sum[R][M];
        for (int r = 0; r < R; r++)
            for (int m = 0; m < M; m++) sum[r][m] = Isa::zero();
        for (int c = g * w.group; c < (g + 1) * w.group; c += lanes) {
            Float q[R];
            for (int r = 0; r < R; r++) {
                if (c % 64 == 0) Isa::prefetch(strip.codes[r] + c + prefetch_distance);
                q[r] = Isa::load_bytes(strip.codes[r] + c);
            }
            for (int m = 0; m < M; m++) {
                const Float x = Isa::load(reinterpret_cast<const float*>(in.x[m]) + c);
                for (int r = 0; r < R; r++) sum[r][m] = Isa::fmadd(q[r], x, sum[r][m]);
            }
        }
        for (int r = 0; r < R; r++) {
            const Float scale = Isa::splat_bf16(strip.scales[r] + 2 * static_cast<size_t>(g));
            for (int m = 0; m < M; m++) acc[r][m] = Isa::fmadd(sum[r][m], scale, acc[r][m]);
        }
    }
    store_sums<M, R>(in, n, last, acc);
}

struct Bf16Values {
    static constexpr size_t size = 2;
    static ALWAYS_INLINE Float load(const uint8_t* at) { return Isa::load_bf16(at); }
    static ALWAYS_INLINE Float load_some(const uint8_t* at, int n) { return Isa::load_bf16_some(at, n); }
};

struct Float32Values {
    static constexpr size_t size = 4;
    static ALWAYS_INLINE Float load(const uint8_t* at) { return Isa::load(reinterpret_cast<const float*>(at)); }
    static ALWAYS_INLINE Float load_some(const uint8_t* at, int n) {
        return Isa::load_some(reinterpret_cast<const float*>(at), n);
    }
};

template <typename Values, int M, int R>
ALWAYS_INLINE void multiply_values_strip(const Weights& w, const Inputs<M>& in, int n, int last) {
    const Strip<R> strip = strip_of<R>(w, n, last);
    Float acc[R][M];
    for (int r = 0; r < R; r++)
        for (int m = 0; m < M; m++) acc[r][m] = Isa::zero();
    const auto x = [&](int m) { return reinterpret_cast<const float*>(in.x[m]); };
    int c = 0;
    for (; c + lanes <= w.cols; c += lanes) {
        Float q[R];
        for (int r = 0; r < R; r++) {
            const uint8_t* at = strip.codes[r] + static_cast<size_t>(c) * Values::size;
            Isa::prefetch(at + prefetch_distance);
            q[r] = Values::load(at);
        }
        for (int m = 0; m < M; m++) {
            const Float v = Isa::load(x(m) + c);
            for (int r = 0; r < R; r++) acc[r][m] = Isa::fmadd(q[r], v, acc[r][m]);
        }
    }
    if (const int left = w.cols - c; left > 0)
        for (int r = 0; r < R; r++) {
            const Float q = Values::load_some(strip.codes[r] + static_cast<size_t>(c) * Values::size, left);
            for (int m = 0; m < M; m++) acc[r][m] = Isa::fmadd(q, Isa::load_some(x(m) + c, left), acc[r][m]);
        }
    store_sums<M, R>(in, n, last, acc);
}

// Output rows per pass of these: four, or two where four would not fit the registers.
template <int M>
constexpr int strip_rows = M <= 2 ? 4 : 2;

void multiply_bytes(const Weights& w, const Row* rows, int count, int first, int last) {
    const PackedLayout layout = packed_layout(Packing::of(w, Precision::float32), w.cols);
    by_fours(count, [&]<int M>(int i) {
        const Inputs<M> in = inputs_of<M>(rows + i, layout);
        constexpr int R = strip_rows<M>;
        for (int n = first; n < last; n += R) multiply_bytes_strip<M, R>(w, in, n, last);
    });
}

template <typename Values>
void multiply_values(const Weights& w, const Row* rows, int count, int first, int last) {
    by_fours(count, [&]<int M>(int i) {
        const Inputs<M> in = inputs_of<M>(rows + i, PackedLayout{});
        constexpr int R = strip_rows<M>;
        for (int n = first; n < last; n += R) multiply_values_strip<Values, M, R>(w, in, n, last);
    });
}
