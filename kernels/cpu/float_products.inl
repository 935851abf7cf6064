// Products of codes with float32 or BF16 activations. Included by multiply.inl.
//
// Codes stay exact up to the end of a block; scales are applied to the lanes' sums. Biases enter as sum over groups of
// bias * (sum of the group's inputs), with the inputs as they were rounded. Every (output row, input row) pair owns one
// vector of partial sums, filled in column order and folded by one tree.

using Scales = Isa::Scales;
template <int R>
using ScaleRun = Isa::template ScaleRun<R>;

template <int M, int R>
ALWAYS_INLINE void add_biases(const Strip<R>& strip, const Inputs<M>& in, int groups, Float (&acc)[R][M]) {
    for (int g = 0; g < groups; g += lanes) {
        const int left = groups - g;
        for (int r = 0; r < R; r++) {
            const uint8_t* at = strip.biases[r] + 2 * static_cast<size_t>(g);
            const Float bias = left >= lanes ? Isa::load_bf16(at) : Isa::load_bf16_some(at, left);
            for (int m = 0; m < M; m++) acc[r][m] = Isa::fmadd(bias, Isa::load(in.sums[m] + g), acc[r][m]);
        }
    }
}

// One block of R output rows and M input rows. `left` codes of it exist; the rest read as zero if Tail.
template <int Bits, Precision P, int M, int R, bool Tail>
ALWAYS_INLINE void multiply_block(const Strip<R>& strip, const Inputs<M>& in, const ScaleRun<R>& scales, size_t b,
                                  int left, Float (&acc)[R][M]) {
    constexpr size_t code_bytes = block_codes * Bits / 8;
    constexpr size_t step = P == Precision::float32 ? block_bytes(P) / 8 : 4 * lanes;  // between vectors of inputs
    const auto input = [&](int m, size_t j) { return in.x[m] + b * block_bytes(P) + j * step; };
    Float scale[R];
    for (int r = 0; r < R; r++)
        scale[r] = scales.template load<Tail>(r, b, left);
    constexpr int vectors = P == Precision::float32 ? 8 : 4;
    Float sum[R][M];
    Int codes[R];
    for (int r = 0; r < R; r++) {
        const uint8_t* at = strip.codes[r] + b * code_bytes;
        if constexpr (P == Precision::float32) codes[r] = Isa::template dwords<Bits, Tail>(at, left);
        else codes[r] = With<P>::template words<Bits, Tail>(at, left);
        for (int m = 0; m < M; m++) sum[r][m] = Isa::zero();
    }
    UNROLL(8)
    for (int j = 0; j < vectors; j++) {
        if constexpr (P == Precision::float32) {
            Float q[R];
            for (int r = 0; r < R; r++) q[r] = Isa::template code_float<Bits>(codes[r], j);
            for (int m = 0; m < M; m++) {
                const Float x = Isa::load(reinterpret_cast<const float*>(input(m, static_cast<size_t>(j))));
                for (int r = 0; r < R; r++) sum[r][m] = Isa::fmadd(q[r], x, sum[r][m]);
            }
        } else {
            Int q[R];
            for (int r = 0; r < R; r++) q[r] = With<P>::template code_bf16<Bits>(codes[r], j);
            for (int m = 0; m < M; m++) {
                const Int x = With<P>::load_int(input(m, static_cast<size_t>(j)));
                for (int r = 0; r < R; r++) sum[r][m] = With<P>::dot_bf16(sum[r][m], q[r], x);
            }
        }
    }
    for (int r = 0; r < R; r++)
        for (int m = 0; m < M; m++) acc[r][m] = Isa::fmadd(sum[r][m], scale[r], acc[r][m]);
}

template <int M, int R>
ALWAYS_INLINE void store_sums(const Inputs<M>& in, int n, int last, const Float (&acc)[R][M]) {
    for (int m = 0; m < M; m++) {
        if constexpr (R == 4) {
            if (n + 4 <= last) {
                Isa::store_sums(in.y[m] + n, acc[0][m], acc[1][m], acc[2][m], acc[3][m]);
                continue;
            }
        }
        for (int r = 0; r < R && n + r < last; r++) in.y[m][n + r] = Isa::sum(acc[r][m]);
    }
}

template <int Bits, Precision P, int M, int R>
ALWAYS_INLINE void multiply_strip(const Weights& w, const Inputs<M>& in, const Scales& scales, int n, int last,
                                 int distance) {
    const Strip<R> strip = strip_of<R>(w, n, last);
    Float acc[R][M];
    for (int r = 0; r < R; r++)
        for (int m = 0; m < M; m++) acc[r][m] = Isa::zero();
    const int groups = w.cols / w.group;
    prefetch_scales(w, n, last, R, distance);
    add_biases<M, R>(strip, in, groups, acc);
    constexpr size_t code_bytes = block_codes * Bits / 8;
    const auto blocks = static_cast<size_t>(w.cols / block_codes);
    ScaleRun<R> run(scales, strip.scales, groups);
    for (size_t begin = 0; begin < blocks; begin += ScaleRun<R>::blocks) {
        const size_t end = begin + ScaleRun<R>::blocks < blocks ? begin + ScaleRun<R>::blocks : blocks;
        run.start(begin);
        for (size_t b = begin; b < end; b++) {
            if (code_bytes >= 48 || (b & 1) == 0)  // one per cache line
                for (int r = 0; r < R; r++) Isa::prefetch(strip.codes[r] + b * code_bytes + prefetch_distance);
            multiply_block<Bits, P, M, R, false>(strip, in, run, b, block_codes, acc);
        }
    }
    if (const int left = w.cols % block_codes; left != 0) {
        run.start(blocks);
        multiply_block<Bits, P, M, R, true>(strip, in, run, blocks, left, acc);
    }
    store_sums<M, R>(in, n, last, acc);
}

template <int Bits, Precision P, int M>
void multiply_rows(const Weights& w, const Row* rows, int first, int last) {
    constexpr int R = Isa::template rows_at_once<Bits, P, M>();
    const Inputs<M> in = inputs_of<M>(rows, packed_layout(Packing::of(w, P), w.cols));
    const Scales scales(w.group);
    const int distance = scales_ahead(w);
    for (int n = first; n < last; n += R) multiply_strip<Bits, P, M, R>(w, in, scales, n, last, distance);
}

template <int Bits, Precision P>
void multiply_floats(const Weights& w, const Row* rows, int count, int first, int last) {
    by_fours(count, [&]<int M>(int i) { multiply_rows<Bits, P, M>(w, rows + i, first, last); });
}
