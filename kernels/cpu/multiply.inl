// Products of matrices with rows, written once over an instruction set `Isa`. Included by isa_*.cpp, inside an
// anonymous namespace: nothing here may be shared between translation units that were compiled for different machines,
// so it uses no inline function of the standard library either.
//
// Codes. A block is 8 codes for each of Isa::lanes 32-bit lanes: lane l holds codes 8l .. 8l+7, so a group of 64 (32)
// fills 8 (4) neighbouring lanes at any width. Inputs are permuted once to match (`pack`): the dot product of a block
// then needs one shift and one mask or table look-up per vector of codes, and no other permutation. Codes stay exact
// integers up to the end of the block; scales are applied to the lanes' sums in float32. Biases enter as
// sum over groups of bias * (sum of the group's inputs), with the inputs as they were rounded.
//
// Every (output row, input row) pair owns one vector of partial sums, filled in column order and folded by one tree, so
// the tile shapes below change speed and nothing else.

constexpr int lanes = Isa::lanes;
constexpr int block_codes = 8 * lanes;
using Float = Isa::Float;
using Int = Isa::Int;
using Scales = Isa::Scales;

constexpr size_t prefetch_distance = 8192;  // of codes, in bytes: half of DRAM bandwidth without it
constexpr int prefetch_rows = 8;            // of scales and biases

// --- packed rows ------------------------------------------------------------------------------------------------------
// [codes in block order][sums, one per group, padded with zeros][integer precisions: the scale of every lane]

constexpr size_t block_bytes(Precision p) {
    return static_cast<size_t>(block_codes) * (p == Precision::float32 ? 4 : p == Precision::int8 ? 1 : 2);
}

struct PackedLayout {
    size_t sums;
    size_t scales;
    size_t bytes;
};

inline PackedLayout packed_layout(const Packing& packing, int cols) {
    const auto padded = [](size_t n) { return (n + 63) / 64 * 64; };
    const auto wide = static_cast<size_t>(cols);
    const size_t blocks = (wide + block_codes - 1) / block_codes;
    const bool permuted = packing.kind == Packing::codes;
    PackedLayout layout{};
    layout.sums = permuted ? blocks * block_bytes(packing.precision) : padded(wide * 4);
    layout.scales = layout.sums + padded(wide / static_cast<size_t>(packing.group) * 4 + 60);
    const bool scaled = permuted && packing.precision >= Precision::int16;
    layout.bytes = layout.scales + (scaled ? padded(blocks * lanes * 4) : 0);
    return layout;
}

size_t packed_bytes(const Packing& packing, int cols) {
    return packing.kind == Packing::plain ? 0 : packed_layout(packing, cols).bytes;
}

// Isa, as a name that depends on P: an instruction set need not have the functions of precisions that it lacks.
template <Precision>
struct With : Isa {};

inline float round_to_bf16(float x) {
    uint32_t bits = __builtin_bit_cast(uint32_t, x);
    const uint32_t quiet = (bits & 0x7fffffff) > 0x7f800000 ? 0x400000 : 0;  // NaN stays NaN
    bits = quiet != 0 ? (bits | quiet) : bits + 0x7fff + ((bits >> 16) & 1);
    return __builtin_bit_cast(float, bits & 0xffff0000);
}

// Rounds a group to integers of at most `limit`; returns the step, NaN if an input is not finite. `sum` is that of the
// integers, which float32 holds exactly.
template <Precision P>
inline float round_group(const float* x, int n, int16_t* out, float* sum) {
    constexpr float limit = P == Precision::int16 ? 32767.0F : 127.0F;
    Float top = Isa::zero(), poison = Isa::zero(), total = Isa::zero();
    for (int i = 0; i < n; i += lanes) {
        const Float v = Isa::load(x + i);
        top = Isa::max(top, Isa::max(v, Isa::sub(Isa::zero(), v)));
        poison = Isa::fmadd(v, Isa::zero(), poison);  // NaN if v is not finite
    }
    float tops[lanes], highest = 0;
    Isa::store(tops, top);
    for (int l = 0; l < lanes; l++) highest = tops[l] > highest ? tops[l] : highest;
    const float bad = Isa::sum(poison);
    if (bad != 0 || highest == 0) {
        memset(out, 0, static_cast<size_t>(n) * sizeof *out);
        *sum = 0;
        return bad;
    }
    const Float inverse = Isa::splat(limit / highest);
    for (int i = 0; i < n; i += lanes) {
        const Float whole = Isa::round(Isa::mul(Isa::load(x + i), inverse));
        total = Isa::add(total, whole);
        With<P>::store_words(out + i, whole);
    }
    *sum = Isa::sum(total);
    return highest / limit;
}

// A block of one row, values at i in column order, to where the kernels look for it.
inline void scatter_bytes(const int16_t* values, int8_t* out) {
    for (int half = 0; half < 2; half++)
        for (int i = 0; i < 2 * lanes; i++) {
            out[half * 4 * lanes + 2 * i] = static_cast<int8_t>(values[4 * i + half]);
            out[half * 4 * lanes + 2 * i + 1] = static_cast<int8_t>(values[4 * i + 2 + half]);
        }
}

inline float sum_in_order(const float* x, int n) {  // n is a multiple of 8
    float part[8] = {};
    for (int i = 0; i < n; i += 8)
        for (int l = 0; l < 8; l++) part[l] += x[i + l];
    return ((part[0] + part[4]) + (part[2] + part[6])) + ((part[1] + part[5]) + (part[3] + part[7]));
}

template <Precision P>
inline void pack_block(const float* x, int left, int group, unsigned char* out, float* sums, float* scales) {
    float values[block_codes] = {};
    if constexpr (P == Precision::float32 || P == Precision::bf16) {
        for (int i = 0; i < left; i++) values[i] = P == Precision::bf16 ? round_to_bf16(x[i]) : x[i];
        for (int g = 0; g * group < left; g++) sums[g] = sum_in_order(values + g * group, group);
    }
    if constexpr (P == Precision::float32) {
        auto* to = reinterpret_cast<float*>(out);
        for (int j = 0; j < 8; j++)
            for (int l = 0; l < lanes; l++) to[j * lanes + l] = values[8 * l + j];
    } else if constexpr (P == Precision::bf16) {
        uint16_t words[block_codes];
        for (int i = 0; i < block_codes; i++)
            words[i] = static_cast<uint16_t>(__builtin_bit_cast(uint32_t, values[i]) >> 16);
        With<P>::scatter_words(words, out);
    } else {
        int16_t whole[block_codes] = {};
        for (int l = 0; l < lanes; l++) scales[l] = 0;
        for (int g = 0; g * group < left; g++) {
            float sum;
            const float step = round_group<P>(x + g * group, group, whole + g * group, &sum);
            sums[g] = step * sum;
            for (int l = g * group / 8; l < (g + 1) * group / 8; l++) scales[l] = step;
        }
        if constexpr (P == Precision::int16) With<P>::scatter_words(whole, out);
        else scatter_bytes(whole, reinterpret_cast<int8_t*>(out));
    }
}

template <Precision P>
void pack_codes(const Packing& packing, const float* x, int cols, unsigned char* out) {
    const PackedLayout layout = packed_layout(packing, cols);
    auto* sums = reinterpret_cast<float*>(out + layout.sums);
    auto* scales = reinterpret_cast<float*>(out + layout.scales);
    for (int c = 0, b = 0; c < cols; c += block_codes, b++) {
        const int left = cols - c < block_codes ? cols - c : block_codes;
        pack_block<P>(x + c, left, packing.group, out + static_cast<size_t>(b) * block_bytes(P),
                      sums + c / packing.group, scales + b * lanes);
    }
}

template <Precision P, bool Offered>
void pack_if(const Packing& packing, const float* x, int cols, unsigned char* out) {
    if constexpr (Offered) pack_codes<P>(packing, x, cols, out);
}

void pack(const Packing& packing, const float* x, int cols, void* to) {
    auto* out = static_cast<unsigned char*>(to);
    const PackedLayout layout = packed_layout(packing, cols);
    memset(out + layout.sums, 0, layout.scales - layout.sums);
    if (packing.kind == Packing::bytes) {
        memcpy(out, x, static_cast<size_t>(cols) * 4);
        auto* sums = reinterpret_cast<float*>(out + layout.sums);
        for (int g = 0; g < cols / packing.group; g++) sums[g] = sum_in_order(x + g * packing.group, packing.group);
        return;
    }
    switch (packing.precision) {
        case Precision::float32: return pack_codes<Precision::float32>(packing, x, cols, out);
        case Precision::bf16: return pack_if<Precision::bf16, Isa::has_bf16>(packing, x, cols, out);
        case Precision::int16: return pack_if<Precision::int16, Isa::has_integers>(packing, x, cols, out);
        case Precision::int8: return pack_if<Precision::int8, Isa::has_integers>(packing, x, cols, out);
    }
}

// --- products with codes ----------------------------------------------------------------------------------------------

template <int M>
struct Inputs {
    const unsigned char* x[M];
    const float* sums[M];
    const float* scales[M];
    float* y[M];
};

template <int M>
inline Inputs<M> inputs_of(const Row* rows, const PackedLayout& layout) {
    Inputs<M> in;
    for (int m = 0; m < M; m++) {
        in.x[m] = static_cast<const unsigned char*>(rows[m].x);
        in.sums[m] = reinterpret_cast<const float*>(in.x[m] + layout.sums);
        in.scales[m] = reinterpret_cast<const float*>(in.x[m] + layout.scales);
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

// Rows n .. n+R-1; past `last` the last one again, whose products store_sums drops.
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
ALWAYS_INLINE void multiply_block(const Strip<R>& strip, const Inputs<M>& in, const Scales& scales, size_t b, int left,
                                  Float (&acc)[R][M]) {
    constexpr size_t code_bytes = block_codes * Bits / 8;
    constexpr size_t step = P == Precision::float32 ? block_bytes(P) / 8 : 4 * lanes;  // between vectors of inputs
    const auto input = [&](int m, size_t j) { return in.x[m] + b * block_bytes(P) + j * step; };
    Float scale[R];
    for (int r = 0; r < R; r++)
        scale[r] = scales.template load<Tail>(strip.scales[r] + b * scales.bytes, left);
    if constexpr (P == Precision::float32 || P == Precision::bf16) {
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
    } else {
        Int sum[R][M];
        if constexpr (P == Precision::int16) {
            Int codes[R];
            for (int r = 0; r < R; r++) codes[r] = With<P>::template words<Bits, Tail>(strip.codes[r] + b * code_bytes, left);
            UNROLL(4)
            for (int j = 0; j < 4; j++) {
                Int q[R];
                for (int r = 0; r < R; r++) q[r] = With<P>::template code_word<Bits>(codes[r], j);
                for (int m = 0; m < M; m++) {
                    const Int x = With<P>::load_int(input(m, static_cast<size_t>(j)));
                    for (int r = 0; r < R; r++)
                        sum[r][m] = j == 0 ? With<P>::dot_words(q[r], x) : With<P>::dot_words(sum[r][m], q[r], x);
                }
            }
        } else {
            Int even[R], odd[R];
            for (int r = 0; r < R; r++)
                With<P>::template bytes<Bits, Tail>(strip.codes[r] + b * code_bytes, left, even[r], odd[r]);
            for (int m = 0; m < M; m++) {
                const Int x0 = With<P>::load_int(input(m, 0)), x1 = With<P>::load_int(input(m, 1));
                for (int r = 0; r < R; r++) sum[r][m] = With<P>::dot_bytes(even[r], x0, odd[r], x1);
            }
        }
        for (int m = 0; m < M; m++) {
            const Float step_of_x = Isa::load(in.scales[m] + b * lanes);
            for (int r = 0; r < R; r++)
                acc[r][m] = Isa::fmadd(With<P>::to_float(sum[r][m]), Isa::mul(scale[r], step_of_x), acc[r][m]);
        }
    }
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
ALWAYS_INLINE void multiply_strip(const Weights& w, const Inputs<M>& in, const Scales& scales, int n, int last) {
    const Strip<R> strip = strip_of<R>(w, n, last);
    Float acc[R][M];
    for (int r = 0; r < R; r++)
        for (int m = 0; m < M; m++) acc[r][m] = Isa::zero();
    const int groups = w.cols / w.group;
    for (int r = 0; r < R; r++)
        for (int at = 0; at < groups * 2; at += 64) {
            Isa::prefetch(strip.scales[r] + prefetch_rows * w.scales_stride + at);
            Isa::prefetch(strip.biases[r] + prefetch_rows * w.scales_stride + at);
        }
    add_biases<M, R>(strip, in, groups, acc);
    constexpr size_t code_bytes = block_codes * Bits / 8;
    const auto blocks = static_cast<size_t>(w.cols / block_codes);
    for (size_t b = 0; b < blocks; b++) {
        if (code_bytes >= 48 || (b & 1) == 0)  // one per cache line
            for (int r = 0; r < R; r++) Isa::prefetch(strip.codes[r] + b * code_bytes + prefetch_distance);
        multiply_block<Bits, P, M, R, false>(strip, in, scales, b, block_codes, acc);
    }
    if (const int left = w.cols % block_codes; left != 0)
        multiply_block<Bits, P, M, R, true>(strip, in, scales, blocks, left, acc);
    store_sums<M, R>(in, n, last, acc);
}

template <int Bits, Precision P, int M>
void multiply_rows(const Weights& w, const Row* rows, int first, int last) {
    constexpr int R = Isa::template rows_at_once<Bits, P, M>();
    const Inputs<M> in = inputs_of<M>(rows, packed_layout(Packing::of(w, P), w.cols));
    const Scales scales(w.group);
    for (int n = first; n < last; n += R) multiply_strip<Bits, P, M, R>(w, in, scales, n, last);
}

// Calls f with 4 at a time, then with what is left, as a compile-time count.
template <typename F>
inline void by_fours(int count, F f) {
    int i = 0;
    for (; i + 4 <= count; i += 4) f.template operator()<4>(i);
    switch (count - i) {
        case 3: return f.template operator()<3>(i);
        case 2: return f.template operator()<2>(i);
        case 1: return f.template operator()<1>(i);
        default: return;
    }
}

template <int Bits, Precision P>
void multiply_codes(const Weights& w, const Row* rows, int count, int first, int last) {
    by_fours(count, [&]<int M>(int i) { multiply_rows<Bits, P, M>(w, rows + i, first, last); });
}

template <int Bits>
void multiply_bits(const Weights& w, Precision precision, const Row* rows, int count, int first, int last) {
    switch (precision) {
        case Precision::float32: return multiply_codes<Bits, Precision::float32>(w, rows, count, first, last);
        case Precision::bf16:
            if constexpr (Isa::has_bf16) return multiply_codes<Bits, Precision::bf16>(w, rows, count, first, last);
            return;
        case Precision::int16:
            if constexpr (Isa::has_integers) return multiply_codes<Bits, Precision::int16>(w, rows, count, first, last);
            return;
        case Precision::int8:
            if constexpr (Isa::has_integers) return multiply_codes<Bits, Precision::int8>(w, rows, count, first, last);
            return;
    }
}

// --- products with bytes and with values: float32 inputs in column order ----------------------------------------------

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
