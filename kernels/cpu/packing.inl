// How activations are packed for products with codes. Included by multiply.inl.
//
// A block is 8 codes for each of Isa::lanes 32-bit lanes: lane l holds codes 8l .. 8l+7, so a group of 64 (32) fills 8
// (4) neighbouring lanes at any width. Inputs are permuted once to match: the dot product of a block then needs one
// shift and one mask or table look-up per vector of codes, and no other permutation.

constexpr int lanes = Isa::lanes;
constexpr int block_codes = 8 * lanes;
using Float = Isa::Float;
using Int = Isa::Int;

constexpr int quad_groups = 4;  // groups that integer products take at a time

// A packed row: [numbers in block order][sums][integer precisions: steps].
// Floating-point precisions have one sum per group, padded with zeros. Integer precisions have sum and step of every
// group four times, side by side, padded with zeros to whole quads of groups.

constexpr size_t block_bytes(Precision p) {
    return static_cast<size_t>(block_codes) * (p == Precision::float32 ? 4 : p == Precision::int8 ? 1 : 2);
}

struct PackedLayout {
    size_t sums;
    size_t steps;
    size_t bytes;
};

inline PackedLayout packed_layout(const Packing& packing, int cols) {
    const auto padded = [](size_t n) { return (n + 63) / 64 * 64; };
    const auto wide = static_cast<size_t>(cols);
    const size_t blocks = (wide + block_codes - 1) / block_codes;
    const size_t groups = wide / static_cast<size_t>(packing.group);
    const bool permuted = packing.kind == Packing::codes;
    const bool whole = permuted && packing.precision >= Precision::int16;
    const size_t quads = (groups + quad_groups - 1) / quad_groups * quad_groups * 16;  // bytes
    PackedLayout layout{};
    layout.sums = permuted ? blocks * block_bytes(packing.precision) : padded(wide * 4);
    layout.steps = layout.sums + (whole ? quads : padded(groups * 4 + 60));
    layout.bytes = layout.steps + (whole ? quads : 0);
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

// How the numbers of a group become integers.
struct Rounding {
    float raise, inverse;  // what they are multiplied by, one after the other
    float step;            // of the integers; NaN if an input is not finite
    bool none;             // all become 0
};

// For integers of at most `limit`.
ALWAYS_INLINE Rounding rounding_of(const float* x, int n, float limit) {
    Float top = Isa::zero(), poison[2] = {Isa::zero(), Isa::zero()};
    for (int i = 0; i < n; i += 2 * lanes)
        for (int k = 0; k < 2 && i + k * lanes < n; k++) {
            const Float v = Isa::load(x + i + k * lanes);
            top = Isa::max(top, Isa::max(v, Isa::sub(Isa::zero(), v)));
            poison[k] = Isa::fmadd(v, Isa::zero(), poison[k]);  // NaN if v is not finite
        }
    const float highest = Isa::largest(top), bad = Isa::sum(Isa::add(poison[0], poison[1]));
    if (bad != 0 || highest == 0) return {1, 0, bad, true};
    // So small that the inverse would be infinite? Raised first, which loses nothing.
    const float raise = highest < 0x1p-100F ? 0x1p100F : 1.0F;
    return {raise, limit / (highest * raise), highest / limit, false};
}

// Rounds a group. Returns the sum of the integers, which float32 holds exactly, in whatever order.
template <Precision P>
ALWAYS_INLINE float round_group(const float* x, int n, const Rounding& r, int16_t* out) {
    if (r.none) return memset(out, 0, static_cast<size_t>(n) * sizeof *out), 0.0F;
    const Float raise = Isa::splat(r.raise), inverse = Isa::splat(r.inverse);
    Float total[2] = {Isa::zero(), Isa::zero()};
    for (int i = 0; i < n; i += 2 * lanes)
        for (int k = 0; k < 2 && i + k * lanes < n; k++) {
            const Float whole = Isa::round(Isa::mul(Isa::mul(Isa::load(x + i + k * lanes), raise), inverse));
            total[k] = Isa::add(total[k], whole);
            With<P>::store_words(out + i + k * lanes, whole);
        }
    return Isa::sum(Isa::add(total[0], total[1]));
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
inline void pack_floats(const float* x, int left, int group, unsigned char* out, float* sums) {
    float values[block_codes] = {};
    for (int i = 0; i < left; i++) values[i] = P == Precision::bf16 ? round_to_bf16(x[i]) : x[i];
    for (int g = 0; g * group < left; g++) sums[g] = sum_in_order(values + g * group, group);
    if constexpr (P == Precision::float32) {
        auto* to = reinterpret_cast<float*>(out);
        for (int j = 0; j < 8; j++)
            for (int l = 0; l < lanes; l++) to[j * lanes + l] = values[8 * l + j];
    } else {
        uint16_t words[block_codes];
        for (int i = 0; i < block_codes; i++)
            words[i] = static_cast<uint16_t>(__builtin_bit_cast(uint32_t, values[i]) >> 16);
        With<P>::scatter_words(words, out);
    }
}

template <Precision P>
ALWAYS_INLINE void pack_integers(const float* x, int left, int group, const Rounding* roundings, unsigned char* out, float* sums,
                                 float* steps) {
    int16_t whole[block_codes];
    if (left < block_codes) memset(whole, 0, sizeof whole);
    for (int g = 0; g * group < left; g++) {
        const float step = roundings[g].step, sum = round_group<P>(x + g * group, group, roundings[g], whole + g * group);
        for (int i = 0; i < 4; i++) sums[4 * g + i] = step * sum, steps[4 * g + i] = step;
    }
    if constexpr (P == Precision::int16) With<P>::scatter_words(whole, out);
    else scatter_bytes(whole, reinterpret_cast<int8_t*>(out));
}

// Calls f(column, columns, group, where the block goes) for the blocks of columns [from, to).
template <Precision P, typename F>
ALWAYS_INLINE void by_blocks(const Packing& packing, int from, int to, unsigned char* out, F f) {
    for (int c = from; c < to; c += block_codes)
        f(c, to - c < block_codes ? to - c : block_codes, c / packing.group,
          out + static_cast<size_t>(c / block_codes) * block_bytes(P));
}

template <Precision P>
void pack_codes(const Packing& packing, const float* x, int cols, unsigned char* out) {
    const PackedLayout layout = packed_layout(packing, cols);
    auto* sums = reinterpret_cast<float*>(out + layout.sums);
    auto* steps = reinterpret_cast<float*>(out + layout.steps);
    if constexpr (P < Precision::int16) {
        by_blocks<P>(packing, 0, cols, out, [&](int c, int n, int g, unsigned char* block) {
            pack_floats<P>(x + c, n, packing.group, block, sums + g);
        });
    } else {
        // All roundings of some columns, then their numbers: each waits long for itself, and little for its neighbours.
        constexpr int most = 16 * block_codes;
        constexpr float limit = P == Precision::int16 ? 32767.0F : 127.0F;
        Rounding roundings[most / 32];
        for (int from = 0; from < cols; from += most) {
            const int to = cols - from < most ? cols : from + most, first = from / packing.group;
            for (int g = first; g * packing.group < to; g++)
                roundings[g - first] = rounding_of(x + g * packing.group, packing.group, limit);
            by_blocks<P>(packing, from, to, out, [&](int c, int n, int g, unsigned char* block) {
                pack_integers<P>(x + c, n, packing.group, roundings + (g - first), block, sums + 4 * g, steps + 4 * g);
            });
        }
    }
}

template <Precision P, bool Offered>
void pack_if(const Packing& packing, const float* x, int cols, unsigned char* out) {
    if constexpr (Offered) pack_codes<P>(packing, x, cols, out);
}

void pack(const Packing& packing, const float* x, int cols, void* to) {
    auto* out = static_cast<unsigned char*>(to);
    const PackedLayout layout = packed_layout(packing, cols);
    memset(out + layout.sums, 0, layout.bytes - layout.sums);
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
