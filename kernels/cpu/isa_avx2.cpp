// AVX2 and FMA: x86-64 machines since 2013 (Intel) and 2015 (AMD).
#include <immintrin.h>

#include "isa.h"
#define ISA_INTEGERS 1

namespace cherenkov::cpu {
namespace {

// For every set of lanes, which they are: a byte each, ascending.
struct KeptLanes {
    uint64_t of[256];
};

constexpr KeptLanes kept_lanes = [] {
    KeptLanes all{};
    for (uint32_t bits = 0; bits < 256; bits++)
        for (int lane = 7; lane >= 0; lane--)
            if (bits >> lane & 1) all.of[bits] = all.of[bits] << 8 | static_cast<uint64_t>(lane);
    return all;
}();

struct Isa {
    using Float = __m256;
    using Int = __m256i;
    static constexpr int lanes = 8;
    static constexpr bool has_bf16 = false;
    static constexpr bool has_integers = ISA_INTEGERS;
    static constexpr int tile_rows = 4;   // inputs that a panel meets at a time: eight sums fit the registers
    static constexpr int panel_from = 12; // rows from which unpacking a panel pays

    // Output rows per pass, by what fits 16 registers.
    template <int Bits, Precision P, int M>
    static constexpr int rows_at_once() { return M == 1 ? 4 : M == 2 ? 2 : 1; }

    static ALWAYS_INLINE Float zero() { return _mm256_setzero_ps(); }
    static ALWAYS_INLINE Float splat(float x) { return _mm256_set1_ps(x); }
    static ALWAYS_INLINE Float load(const float* at) { return _mm256_loadu_ps(at); }
    static ALWAYS_INLINE void store(float* at, Float x) { _mm256_storeu_ps(at, x); }
    static ALWAYS_INLINE __m256i mask(int n) {
        return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    }
    static ALWAYS_INLINE Float load_some(const float* at, int n) { return _mm256_maskload_ps(at, mask(n)); }
    static ALWAYS_INLINE void store_some(float* at, Float x, int n) { _mm256_maskstore_ps(at, mask(n), x); }
    static ALWAYS_INLINE Float add(Float a, Float b) { return _mm256_add_ps(a, b); }
    static ALWAYS_INLINE Float sub(Float a, Float b) { return _mm256_sub_ps(a, b); }
    static ALWAYS_INLINE Float mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
    static ALWAYS_INLINE Float div(Float a, Float b) { return _mm256_div_ps(a, b); }
    static ALWAYS_INLINE Float max(Float a, Float b) { return _mm256_max_ps(a, b); }  // b if either is NaN
    static ALWAYS_INLINE Float min(Float a, Float b) { return _mm256_min_ps(a, b); }
    static ALWAYS_INLINE Float fmadd(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
    static ALWAYS_INLINE Float round(Float x) {
        return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    }
    static ALWAYS_INLINE Float times_power_of_two(Float x, Float n) {
        const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
        return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
    }
    // Stores the lanes whose bits are set, one after the other, and something in the others' place; returns how many.
    static ALWAYS_INLINE int keep(float* at, Float x, uint32_t bits) {
        const __m128i order = _mm_cvtsi64_si128(static_cast<int64_t>(kept_lanes.of[bits]));
        _mm256_storeu_ps(at, _mm256_permutevar8x32_ps(x, _mm256_cvtepu8_epi32(order)));
        return __builtin_popcount(bits);
    }
    // The power of two whose exponent, with its offset, is what the low bits of x say.
    static ALWAYS_INLINE Float from_exponent(Float x) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(x), 23));
    }
    // x where a > b, or where a = b; else 0. Nothing holds of NaN.
    static ALWAYS_INLINE Float where_above(Float a, Float b, Float x) {
        return _mm256_and_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ), x);
    }
    static ALWAYS_INLINE Float where_equal(Float a, Float b, Float x) {
        return _mm256_and_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ), x);
    }
    // Bit l: whether a > b in lane l.
    static ALWAYS_INLINE uint32_t bits_above(Float a, Float b) {
        return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)));
    }
    static ALWAYS_INLINE float first(Float x) { return _mm256_cvtss_f32(x); }
    static ALWAYS_INLINE __m128 half(Float x) {
        return _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    }
    static ALWAYS_INLINE float sum(Float x) {
        const __m128 h = half(x), q = _mm_add_ps(h, _mm_movehl_ps(h, h));
        return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
    }
    static ALWAYS_INLINE float largest(Float x) {
        const __m128 h = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        const __m128 q = _mm_max_ps(h, _mm_movehl_ps(h, h));
        return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
    }
    // The sums of four vectors, each in the order of sum().
    static ALWAYS_INLINE void store_sums(float* at, Float a, Float b, Float c, Float d) {
        const __m128 ha = half(a), hb = half(b), hc = half(c), hd = half(d);
        const __m128 ab = _mm_add_ps(_mm_unpacklo_ps(ha, hb), _mm_unpackhi_ps(ha, hb));
        const __m128 cd = _mm_add_ps(_mm_unpacklo_ps(hc, hd), _mm_unpackhi_ps(hc, hd));
        _mm_storeu_ps(at, _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab)));
    }
    static ALWAYS_INLINE void prefetch(const void* at) { _mm_prefetch(static_cast<const char*>(at), _MM_HINT_T0); }

    // BF16 to float32
    static ALWAYS_INLINE Float widen(__m128i words) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
    }
    static ALWAYS_INLINE Float load_bf16(const uint8_t* at) { return widen(load_16_bytes(at)); }
    static ALWAYS_INLINE Float load_bf16_some(const uint8_t* at, int n) {
        uint64_t low = 0, high = 0;
        for (int i = 0; i < n && i < 4; i++) low |= static_cast<uint64_t>(word(at + 2 * i)) << (16 * i);
        for (int i = 4; i < n; i++) high |= static_cast<uint64_t>(word(at + 2 * i)) << (16 * (i - 4));
        return widen(_mm_set_epi64x(static_cast<int64_t>(high), static_cast<int64_t>(low)));
    }
    static ALWAYS_INLINE Float splat_bf16(const uint8_t* at) {
        return _mm256_castsi256_ps(_mm256_set1_epi32(word(at) << 16));
    }
    static ALWAYS_INLINE Float load_bytes(const uint8_t* at) {
        return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at))));
    }

    // activations: whole numbers to words, and a block of 64 words w to four vectors [w[4i + j] for i] by j
    static ALWAYS_INLINE void store_words(int16_t* at, Float whole) {
        const __m256i x = _mm256_cvtps_epi32(whole);
        const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(at), words);
    }
    static ALWAYS_INLINE void scatter_words(const void* words, void* out) {
        const auto* from = static_cast<const __m128i*>(words);
        auto* to = static_cast<__m256i*>(out);
        const __m256i pairs = _mm256_broadcastsi128_si256(
            _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
        __m256i v[4];  // in each half of v[r], 32-bit lane j: two words of vector j
        for (int r = 0; r < 4; r++) {  // by halves, as store_words wrote them a moment ago: then no load waits for the cache
            const __m128i low = _mm_loadu_si128(from + 2 * r), high = _mm_loadu_si128(from + 2 * r + 1);
            v[r] = _mm256_shuffle_epi8(_mm256_set_m128i(high, low), pairs);
        }
        const __m256i a = _mm256_unpacklo_epi32(v[0], v[2]), b = _mm256_unpacklo_epi32(v[1], v[3]);
        const __m256i c = _mm256_unpackhi_epi32(v[0], v[2]), d = _mm256_unpackhi_epi32(v[1], v[3]);
        const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        _mm256_storeu_si256(to, _mm256_permutevar8x32_epi32(_mm256_unpacklo_epi32(a, b), order));
        _mm256_storeu_si256(to + 1, _mm256_permutevar8x32_epi32(_mm256_unpackhi_epi32(a, b), order));
        _mm256_storeu_si256(to + 2, _mm256_permutevar8x32_epi32(_mm256_unpacklo_epi32(c, d), order));
        _mm256_storeu_si256(to + 3, _mm256_permutevar8x32_epi32(_mm256_unpackhi_epi32(c, d), order));
    }

    // codes of a block: 64 of them, or 32 if Tail, which only groups of 32 leave
    static ALWAYS_INLINE Int load_int(const void* at) { return _mm256_loadu_si256(static_cast<const __m256i*>(at)); }
    static ALWAYS_INLINE Float to_float(Int x) { return _mm256_cvtepi32_ps(x); }

    // 3-bit codes: bytes 0-11 in the lower half, 12-23 in the upper
    template <bool Tail>
    static ALWAYS_INLINE __m256i load_threes(const uint8_t* at) {
        if (Tail) {
            const __m128i low = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at));
            return _mm256_zextsi128_si256(_mm_insert_epi32(low, dword(at + 8), 2));
        }
        const __m128i low = load_16_bytes(at), high = _mm_srli_si128(load_16_bytes(at + 8), 4);
        return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
    }
    template <bool Tail>
    static ALWAYS_INLINE __m256i load_fours(const uint8_t* at) {
        return Tail ? _mm256_zextsi128_si256(load_16_bytes(at)) : load_int(at);
    }
    template <bool Tail>
    static ALWAYS_INLINE __m128i load_twos(const uint8_t* at) {
        return Tail ? _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)) : load_16_bytes(at);
    }

    // 32-bit lane l: codes 8l .. 8l+7 from bit 0 up
    template <int Bits, bool Tail>
    static ALWAYS_INLINE Int dwords(const uint8_t* at, int) {
        if constexpr (Bits == 4) return load_fours<Tail>(at);
        if constexpr (Bits == 2) return _mm256_cvtepu16_epi32(load_twos<Tail>(at));
        const __m256i spread = _mm256_broadcastsi128_si256(
            _mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1));
        return _mm256_shuffle_epi8(load_threes<Tail>(at), spread);
    }
    // 16-bit word i: codes 4i .. 4i+3 from bit 0 up
    template <int Bits, bool Tail>
    static ALWAYS_INLINE Int words(const uint8_t* at, int) {
        if constexpr (Bits == 4) return load_fours<Tail>(at);
        if constexpr (Bits == 2) return _mm256_cvtepu8_epi16(load_twos<Tail>(at));
        const __m256i spread = _mm256_broadcastsi128_si256(
            _mm_setr_epi8(0, 1, 1, 2, 3, 4, 4, 5, 6, 7, 7, 8, 9, 10, 10, 11));
        const __m256i pairs = _mm256_shuffle_epi8(load_threes<Tail>(at), spread);
        return _mm256_blend_epi16(pairs, _mm256_srli_epi16(pairs, 4), 0xaa);
    }
    // bytes 2i, 2i+1 of `even`: codes 4i, 4i+2; of `odd`: codes 4i+1, 4i+3
    template <int Bits, bool Tail>
    static ALWAYS_INLINE void bytes(const uint8_t* at, int left, Int& even, Int& odd) {
        const Int v = words<Bits, Tail>(at, left);
        if constexpr (Bits == 4) {
            const Int low = _mm256_set1_epi8(15);
            even = _mm256_and_si256(v, low);
            odd = _mm256_and_si256(_mm256_srli_epi16(v, 4), low);
        } else if constexpr (Bits == 2) {
            const Int low = _mm256_set1_epi8(3), doubled = _mm256_or_si256(v, _mm256_slli_epi16(v, 4));
            even = _mm256_and_si256(doubled, low);
            odd = _mm256_and_si256(_mm256_srli_epi16(doubled, 2), low);
        } else {
            const Int low = _mm256_set1_epi16(7), high = _mm256_set1_epi16(0x700);
            even = _mm256_or_si256(_mm256_and_si256(v, low), _mm256_and_si256(_mm256_slli_epi16(v, 2), high));
            odd = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(v, 3), low),
                                  _mm256_and_si256(_mm256_srli_epi16(v, 1), high));
        }
    }
    template <int Bits>
    static ALWAYS_INLINE Float code_float(Int v, int j) {
        return _mm256_cvtepi32_ps(
            _mm256_and_si256(j != 0 ? _mm256_srli_epi32(v, Bits * j) : v, _mm256_set1_epi32((1 << Bits) - 1)));
    }
    template <int Bits>
    static ALWAYS_INLINE Int code_word(Int v, int j) {
        const Int shifted = j != 0 ? _mm256_srli_epi16(v, Bits * j) : v;
        return Bits == 4 && j == 3 ? shifted : _mm256_and_si256(shifted, _mm256_set1_epi16((1 << Bits) - 1));
    }
    static ALWAYS_INLINE Int dot_words(Int q, Int x) { return _mm256_madd_epi16(q, x); }
    // GCC would collect the products of a loop first and add them up later, and run out of registers.
    static ALWAYS_INLINE Int dot_words(Int sum, Int q, Int x) {
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(q, x));
        asm("" : "+x"(sum));
        return sum;
    }
    static ALWAYS_INLINE Int dot_bytes(Int q0, Int x0, Int q1, Int x1) {  // at most 4 * 15 * 127: no word overflows
        const Int pairs = _mm256_add_epi16(_mm256_maddubs_epi16(q0, x0), _mm256_maddubs_epi16(q1, x1));
        return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    }
    // for integer products: see integer_products.inl
    static ALWAYS_INLINE Int no_sums() { return _mm256_setzero_si256(); }
    static ALWAYS_INLINE Int splat_pair(const void* at) { return _mm256_set1_epi32(dword(static_cast<const uint8_t*>(at))); }
    // In each half: the sums of the half's lanes of a, b, c and d.
    static ALWAYS_INLINE Int reduce(Int a, Int b, Int c, Int d) {
        const Int ab = _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
        const Int cd = _mm256_add_epi32(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
        return _mm256_add_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
    }
    // The halves of a added up, then those of b.
    static ALWAYS_INLINE Int join(Int a, Int b) {
        return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
    }
    // For rows of a single group, which a vector holds one of: its inputs, and the sums that join() leaves.
    static ALWAYS_INLINE Int load_group(const void* at) { return load_int(at); }
    static ALWAYS_INLINE Int in_order(Int sums) { return sums; }
    // Four BF16 numbers of each of four rows, to [number][row].
    template <typename Quad>
    static ALWAYS_INLINE Quad spread(const uint8_t* r0, const uint8_t* r1, const uint8_t* r2, const uint8_t* r3) {
        const __m128i a = load_two(r0, r1), b = load_two(r2, r3);
        const __m128i even = _mm_unpacklo_epi16(a, b), odd = _mm_unpackhi_epi16(a, b);
        return {{widen(_mm_unpacklo_epi16(even, odd)), widen(_mm_unpackhi_epi16(even, odd))}};
    }
    template <typename Quad, typename Plain>
    using Spread = Plain;
    template <typename Quad>
    static ALWAYS_INLINE void fold(const Quad& chains, float* products) {
        _mm_storeu_ps(products, half(_mm256_add_ps(chains.part[0], chains.part[1])));
    }
    static ALWAYS_INLINE void transpose(Int (&v)[8]) {
        Int a[8], b[8];
        for (int i = 0; i < 8; i += 2) {
            a[i] = _mm256_unpacklo_epi32(v[i], v[i + 1]);
            a[i + 1] = _mm256_unpackhi_epi32(v[i], v[i + 1]);
        }
        for (int i = 0; i < 8; i += 4)
            for (int k = 0; k < 2; k++) {
                b[i + 2 * k] = _mm256_unpacklo_epi64(a[i + k], a[i + k + 2]);
                b[i + 2 * k + 1] = _mm256_unpackhi_epi64(a[i + k], a[i + k + 2]);
            }
        for (int i = 0; i < 4; i++) {
            v[i] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x20);
            v[i + 4] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x31);
        }
    }

    // Scales of a block, spread over its lanes: one for all of them, or one for each half. Both cases run the same
    // instructions, with a second load of the same scale in the first.
    struct Scales {
        size_t per_block;  // groups
        size_t second;     // from the lower half's scale to the upper's
        explicit Scales(int group) : per_block(group == 64 ? 1 : 2), second(group == 64 ? 0 : 1) {}
    };
    // Those of R rows, widened for some blocks at once: in the loop over blocks a scale costs one load.
    template <int R>
    struct ScaleRun {
        static constexpr size_t blocks = 32;
        Scales scales;
        const uint8_t* const* rows;
        int groups;
        size_t first = 0;
        float values[R][2 * blocks + lanes];  // padded with zeros
        ALWAYS_INLINE ScaleRun(const Scales& s, const uint8_t* const (&r)[R], int g) : scales(s), rows(r), groups(g) {}
        ALWAYS_INLINE void start(size_t block) {
            first = block * scales.per_block;
            const int left = groups - static_cast<int>(first), wanted = static_cast<int>(blocks * scales.per_block);
            for (int r = 0; r < R; r++)
                for (int g = 0; g < (left < wanted ? left : wanted); g += lanes) {
                    const uint8_t* at = rows[r] + 2 * (first + static_cast<size_t>(g));
                    store(values[r] + g, left - g >= lanes ? load_bf16(at) : load_bf16_some(at, left - g));
                }
        }
        template <bool Tail>
        ALWAYS_INLINE Float load(int r, size_t block, int) const {
            const float* at = values[r] + (block * scales.per_block - first);
            return _mm256_blend_ps(_mm256_broadcast_ss(at), _mm256_broadcast_ss(at + scales.second), 0xf0);
        }
    };

private:
    static ALWAYS_INLINE __m128i load_16_bytes(const uint8_t* at) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    }
    static ALWAYS_INLINE __m128i load_two(const uint8_t* low, const uint8_t* high) {  // 8 bytes each
        const __m128i l = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(low));
        return _mm_unpacklo_epi64(l, _mm_loadl_epi64(reinterpret_cast<const __m128i*>(high)));
    }
    static ALWAYS_INLINE int word(const uint8_t* at) {
        uint16_t x;
        memcpy(&x, at, 2);
        return x;
    }
    static ALWAYS_INLINE int dword(const uint8_t* at) {
        int x;
        memcpy(&x, at, 4);
        return x;
    }
};

#include "multiply.inl"
#include "numbers.inl"

}  // namespace

const Kernels avx2_kernels = make_kernels("avx2", Precision::int16);

}  // namespace cherenkov::cpu
