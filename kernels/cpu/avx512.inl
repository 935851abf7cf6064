// AVX-512 with VBMI and VNNI (Intel since Ice Lake, AMD since Zen 4), and with BF16 where ISA_BF16 is 1 (Sapphire Rapids,
// Zen 4). Included by the two isa_avx512_*.cpp inside an anonymous namespace.

struct Isa {
    using Float = __m512;
    using Int = __m512i;
    static constexpr int lanes = 16;
    static constexpr bool has_bf16 = ISA_BF16;
    static constexpr bool has_integers = ISA_INTEGERS;
    static constexpr int tile_rows = 8;   // inputs that a panel meets at a time: sixteen sums hide the latency
    static constexpr int panel_from = 36; // rows from which unpacking a panel pays: measured on Zen 5

    // Output rows per pass. One row streams best from memory where unpacking is cheap; measured on Zen 5.
    template <int Bits, Precision P, int M>
    static constexpr int rows_at_once() {
        if (M == 1) return P == Precision::float32 || Bits < 4 ? 4 : 1;
        if (M == 2) return 4;
        return P == Precision::int16 || P == Precision::float32 ? 1 : 2;
    }

    static ALWAYS_INLINE Float zero() { return _mm512_setzero_ps(); }
    static ALWAYS_INLINE Float splat(float x) { return _mm512_set1_ps(x); }
    static ALWAYS_INLINE Float load(const float* at) { return _mm512_loadu_ps(at); }
    static ALWAYS_INLINE void store(float* at, Float x) { _mm512_storeu_ps(at, x); }
    static ALWAYS_INLINE __mmask16 mask(int n) { return static_cast<__mmask16>((1U << n) - 1); }
    static ALWAYS_INLINE Float load_some(const float* at, int n) { return _mm512_maskz_loadu_ps(mask(n), at); }
    static ALWAYS_INLINE void store_some(float* at, Float x, int n) { _mm512_mask_storeu_ps(at, mask(n), x); }
    static ALWAYS_INLINE Float add(Float a, Float b) { return _mm512_add_ps(a, b); }
    static ALWAYS_INLINE Float sub(Float a, Float b) { return _mm512_sub_ps(a, b); }
    static ALWAYS_INLINE Float mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
    static ALWAYS_INLINE Float div(Float a, Float b) { return _mm512_div_ps(a, b); }
    static ALWAYS_INLINE Float max(Float a, Float b) { return _mm512_max_ps(a, b); }  // b if either is NaN
    static ALWAYS_INLINE Float min(Float a, Float b) { return _mm512_min_ps(a, b); }
    static ALWAYS_INLINE Float fmadd(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
    static ALWAYS_INLINE Float round(Float x) { return _mm512_roundscale_ps(x, 0); }
    static ALWAYS_INLINE Float times_power_of_two(Float x, Float n) { return _mm512_scalef_ps(x, n); }
    // Stores the lanes whose bits are set, one after the other; returns how many.
    static ALWAYS_INLINE int keep(float* at, Float x, uint32_t bits) {
        _mm512_mask_compressstoreu_ps(at, static_cast<__mmask16>(bits), x);
        return __builtin_popcount(bits);
    }
    // The power of two whose exponent, with its offset, is what the low bits of x say.
    static ALWAYS_INLINE Float from_exponent(Float x) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(x), 23));
    }
    // x where a > b, or where a = b; else 0. Nothing holds of NaN.
    static ALWAYS_INLINE Float where_above(Float a, Float b, Float x) {
        return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), x);
    }
    static ALWAYS_INLINE Float where_equal(Float a, Float b, Float x) {
        return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ), x);
    }
    // Bit l: whether a > b in lane l.
    static ALWAYS_INLINE uint32_t bits_above(Float a, Float b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
    static ALWAYS_INLINE float first(Float x) { return _mm_cvtss_f32(_mm512_castps512_ps128(x)); }
    static ALWAYS_INLINE __m128 quarter(Float x) {
        const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
        return _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    }
    static ALWAYS_INLINE float sum(Float x) {
        const __m128 h = quarter(x), q = _mm_add_ps(h, _mm_movehl_ps(h, h));
        return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
    }
    static ALWAYS_INLINE float largest(Float x) {
        const __m256 h = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
        const __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1)), p = _mm_max_ps(q, _mm_movehl_ps(q, q));
        return _mm_cvtss_f32(_mm_max_ss(p, _mm_movehdup_ps(p)));
    }
    // The sums of four vectors, each in the order of sum().
    static ALWAYS_INLINE void store_sums(float* at, Float a, Float b, Float c, Float d) {
        const __m128 qa = quarter(a), qb = quarter(b), qc = quarter(c), qd = quarter(d);
        const __m128 ab = _mm_add_ps(_mm_unpacklo_ps(qa, qb), _mm_unpackhi_ps(qa, qb));
        const __m128 cd = _mm_add_ps(_mm_unpacklo_ps(qc, qd), _mm_unpackhi_ps(qc, qd));
        _mm_storeu_ps(at, _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab)));
    }
    static ALWAYS_INLINE void prefetch(const void* at) { _mm_prefetch(static_cast<const char*>(at), _MM_HINT_T0); }

    // BF16 to float32
    static ALWAYS_INLINE Float widen(__m256i words) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
    }
    static ALWAYS_INLINE Float load_bf16(const uint8_t* at) {
        return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
    }
    static ALWAYS_INLINE Float load_bf16_some(const uint8_t* at, int n) {
        return widen(_mm256_maskz_loadu_epi16(mask(n), at));
    }
    static ALWAYS_INLINE Float splat_bf16(const uint8_t* at) {
        uint16_t word;
        memcpy(&word, at, 2);
        return _mm512_castsi512_ps(_mm512_set1_epi32(word << 16));
    }
    static ALWAYS_INLINE Float load_bytes(const uint8_t* at) {
        return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))));
    }

    // activations: whole numbers to words, and a block of 128 words w to four vectors [w[4i + j] for i] by j
    static ALWAYS_INLINE void store_words(int16_t* at, Float whole) {
        const __m512i x = _mm512_cvtps_epi32(whole);
        const __m256i words = _mm256_packs_epi32(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), _mm256_permute4x64_epi64(words, 0xd8));
    }
    static ALWAYS_INLINE void scatter_words(const void* words, void* out) {
        const auto* from = static_cast<const char*>(words);
        auto* to = static_cast<char*>(out);
        const __m512i in[4] = {_mm512_loadu_si512(from), _mm512_loadu_si512(from + 64), _mm512_loadu_si512(from + 128),
                               _mm512_loadu_si512(from + 192)};
        for (int pair = 0; pair < 2; pair++) {  // j = 2 * pair in the lower half, 2 * pair + 1 in the upper
            const __m512i index = _mm512_load_si512(every_fourth[pair]);
            const __m512i low = _mm512_permutex2var_epi16(in[0], index, in[1]);
            const __m512i high = _mm512_permutex2var_epi16(in[2], index, in[3]);
            _mm512_storeu_si512(to + 128 * pair, _mm512_inserti64x4(low, _mm512_castsi512_si256(high), 1));
            _mm512_storeu_si512(to + 128 * pair + 64, _mm512_inserti64x4(high, _mm512_extracti64x4_epi64(low, 1), 0));
        }
    }

    // codes of a block: 128 of them, or the first `left` if Tail
    static ALWAYS_INLINE Int load_int(const void* at) { return _mm512_loadu_si512(at); }
    static ALWAYS_INLINE Float to_float(Int x) { return _mm512_cvtepi32_ps(x); }

    template <int Bits, bool Tail>
    static ALWAYS_INLINE Int load_codes(const uint8_t* at, int left) {
        if constexpr (Bits == 4 && !Tail) {
            return _mm512_loadu_si512(at);
        } else {
            const int count = Tail ? left * Bits / 8 : 16 * Bits;
            return _mm512_maskz_loadu_epi8((1ULL << count) - 1, at);
        }
    }
    // 32-bit lane l: codes 8l .. 8l+7 from bit 0 up
    template <int Bits, bool Tail>
    static ALWAYS_INLINE Int dwords(const uint8_t* at, int left) {
        const Int v = load_codes<Bits, Tail>(at, left);
        if constexpr (Bits == 4) return v;
        if constexpr (Bits == 2) return _mm512_cvtepu16_epi32(_mm512_castsi512_si256(v));
        return _mm512_maskz_permutexvar_epi8(0x7777777777777777ULL, table(three_dwords), v);
    }
    // 16-bit word i: codes 4i .. 4i+3 from bit 0 up
    template <int Bits, bool Tail>
    static ALWAYS_INLINE Int words(const uint8_t* at, int left) {
        const Int v = load_codes<Bits, Tail>(at, left);
        if constexpr (Bits == 4) return v;
        if constexpr (Bits == 2) return _mm512_cvtepu8_epi16(_mm512_castsi512_si256(v));
        return _mm512_srlv_epi16(_mm512_permutexvar_epi8(table(three_words), v), _mm512_set1_epi32(4 << 16));
    }
    // bytes 2i, 2i+1 of `even`: codes 4i, 4i+2; of `odd`: codes 4i+1, 4i+3
    template <int Bits, bool Tail>
    static ALWAYS_INLINE void bytes(const uint8_t* at, int left, Int& even, Int& odd) {
        const Int low = _mm512_set1_epi8((1 << Bits) - 1);
        if constexpr (Bits == 4) {
            const Int v = load_codes<Bits, Tail>(at, left);
            even = _mm512_and_si512(v, low);
            odd = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
        } else if constexpr (Bits == 2) {
            const Int v = words<Bits, Tail>(at, left), doubled = _mm512_or_si512(v, _mm512_slli_epi16(v, 4));
            even = _mm512_and_si512(doubled, low);
            odd = _mm512_and_si512(_mm512_srli_epi16(doubled, 2), low);
        } else {  // 16 codes to each 64-bit lane, then eight of them by their bit offsets
            const Int packed = load_codes<Bits, Tail>(at, left);
            const Int v = _mm512_permutexvar_epi8(table(three_qwords), packed);
            even = _mm512_and_si512(_mm512_multishift_epi64_epi8(_mm512_set1_epi64(0x2a241e18120c0600), v), low);
            odd = _mm512_and_si512(_mm512_multishift_epi64_epi8(_mm512_set1_epi64(0x2d27211b150f0903), v), low);
        }
    }
    template <int Bits>
    static ALWAYS_INLINE Float code_float(Int v, int j) {
        const Int shifted = j != 0 ? _mm512_srli_epi32(v, static_cast<unsigned>(Bits * j)) : v;
        return _mm512_permutexvar_ps(shifted, _mm512_load_ps(floats[Bits - 2]));
    }
    template <int Bits>
    static ALWAYS_INLINE Int code_word(Int v, int j) {
        const Int shifted = j != 0 ? _mm512_srli_epi16(v, static_cast<unsigned>(Bits * j)) : v;
        return Bits == 4 && j == 3 ? shifted : _mm512_and_si512(shifted, _mm512_set1_epi16((1 << Bits) - 1));
    }
    static ALWAYS_INLINE Int dot_words(Int q, Int x) { return _mm512_madd_epi16(q, x); }
    static ALWAYS_INLINE Int dot_words(Int sum, Int q, Int x) { return _mm512_dpwssd_epi32(sum, q, x); }
    static ALWAYS_INLINE Int dot_bytes(Int q0, Int x0, Int q1, Int x1) {
        return _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(_mm512_setzero_si512(), q0, x0), q1, x1);
    }
#if ISA_BF16
    template <int Bits>
    static ALWAYS_INLINE Int code_bf16(Int v, int j) {  // the table repeats, so higher bits do not matter
        const Int shifted = j != 0 ? _mm512_srli_epi16(v, static_cast<unsigned>(Bits * j)) : v;
        return _mm512_permutexvar_epi16(shifted, _mm512_load_si512(halves[Bits - 2]));
    }
    static ALWAYS_INLINE Float dot_bf16(Float sum, Int q, Int x) {
        return _mm512_dpbf16_ps(sum, (__m512bh)q, (__m512bh)x);
    }
#endif

    // for integer products: see integer_products.inl
    static ALWAYS_INLINE Int no_sums() { return _mm512_setzero_si512(); }
    static ALWAYS_INLINE Int splat_pair(const void* at) {
        int x;
        memcpy(&x, at, 4);
        return _mm512_set1_epi32(x);
    }
    // In each quarter: the sums of the quarter's lanes of a, b, c and d.
    static ALWAYS_INLINE Int reduce(Int a, Int b, Int c, Int d) {
        const Int ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        const Int cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        return _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    }
    // Neighbouring quarters of a added up, then those of b.
    static ALWAYS_INLINE Int join(Int a, Int b) {
        return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
    }
    // For rows of a single group, two of them in a vector: inputs for both, and the sums that join() leaves of such vectors.
    static ALWAYS_INLINE Int load_group(const void* at) {
        return _mm512_broadcast_i64x4(_mm256_loadu_si256(static_cast<const __m256i*>(at)));
    }
    static ALWAYS_INLINE Int in_order(Int sums) {
        return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15), sums);
    }
    // Four BF16 numbers of each of four rows, to [number][row].
    template <typename Quad>
    static ALWAYS_INLINE Quad spread(const uint8_t* r0, const uint8_t* r1, const uint8_t* r2, const uint8_t* r3) {
        const __m128i a = load_two(r0, r1), b = load_two(r2, r3);
        const __m128i even = _mm_unpacklo_epi16(a, b), odd = _mm_unpackhi_epi16(a, b);
        const __m256i low = _mm256_castsi128_si256(_mm_unpacklo_epi16(even, odd));
        return {{widen(_mm256_inserti128_si256(low, _mm_unpackhi_epi16(even, odd), 1))}};
    }
    // The same for one quad of groups after the other: sixteen groups are loaded at a time, and none past the last.
    template <typename Quad, typename Plain>
    struct Spread {
        const uint8_t* const (&rows)[4];
        int groups;
        Int low, high;  // of rows 0 and 1, of rows 2 and 3
        ALWAYS_INLINE Spread(const uint8_t* const (&at)[4], int count) : rows(at), groups(count) {}
        template <bool Tail>
        ALWAYS_INLINE Quad quad(int g) {
            if (g % 16 == 0) {
                const int left = groups - g;
                const auto here = static_cast<__mmask16>(left >= 16 ? 0xffff : (1U << left) - 1);
                const auto row = [&](int r) { return _mm256_maskz_loadu_epi16(here, rows[r] + 2 * static_cast<size_t>(g)); };
                low = _mm512_inserti64x4(_mm512_castsi256_si512(row(0)), row(1), 1);
                high = _mm512_inserti64x4(_mm512_castsi256_si512(row(2)), row(3), 1);
            }
            const Int order = _mm512_load_si512(by_quad[g / 4 % 4]);
            return {{_mm512_castsi512_ps(_mm512_maskz_permutex2var_epi16(0xaaaaaaaa, low, order, high))}};
        }
    };
    template <typename Quad>
    static ALWAYS_INLINE void fold(const Quad& chains, float* products) { _mm_storeu_ps(products, quarter(chains.part[0])); }
    static ALWAYS_INLINE void transpose(Int (&v)[16]) {
        Int a[16], b[16];
        for (int i = 0; i < 16; i += 2) {
            a[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
            a[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
        }
        for (int i = 0; i < 16; i += 4)
            for (int k = 0; k < 2; k++) {
                b[i + 2 * k] = _mm512_unpacklo_epi64(a[i + k], a[i + k + 2]);
                b[i + 2 * k + 1] = _mm512_unpackhi_epi64(a[i + k], a[i + k + 2]);
            }
        for (int i = 0; i < 4; i++) {  // quarter q of b[i + 4k]: column 4q + i of rows 4k ..
            const Int even0 = _mm512_shuffle_i32x4(b[i], b[i + 4], 0x88), odd0 = _mm512_shuffle_i32x4(b[i], b[i + 4], 0xdd);
            const Int even1 = _mm512_shuffle_i32x4(b[i + 8], b[i + 12], 0x88), odd1 = _mm512_shuffle_i32x4(b[i + 8], b[i + 12], 0xdd);
            v[i] = _mm512_shuffle_i32x4(even0, even1, 0x88);
            v[i + 4] = _mm512_shuffle_i32x4(odd0, odd1, 0x88);
            v[i + 8] = _mm512_shuffle_i32x4(even0, even1, 0xdd);
            v[i + 12] = _mm512_shuffle_i32x4(odd0, odd1, 0xdd);
        }
    }

    // The scales of a block, spread over its lanes.
    struct Scales {
        size_t bytes;  // in a block
        int group;
        __mmask8 here;
        Int spread;
        explicit Scales(int group) : bytes(256 / static_cast<size_t>(group)), group(group),
              here(group == 64 ? 3 : 15), spread(table(group == 64 ? spread_64 : spread_32)) {}
    };
    // Those of R rows, straight from memory.
    template <int R>
    struct ScaleRun {
        static constexpr size_t blocks = SIZE_MAX / 2;
        const Scales& scales;
        const uint8_t* const* rows;
        ALWAYS_INLINE ScaleRun(const Scales& s, const uint8_t* const (&r)[R], int) : scales(s), rows(r) {}
        ALWAYS_INLINE void start(size_t) {}
        template <bool Tail>
        ALWAYS_INLINE Float load(int r, size_t block, int left) const {
            const __mmask8 read = Tail ? static_cast<__mmask8>((1U << (left / scales.group)) - 1) : scales.here;
            const __m128i here = _mm_maskz_loadu_epi16(read, rows[r] + block * scales.bytes);
            return _mm512_castsi512_ps(_mm512_shuffle_epi8(_mm512_broadcast_i32x4(here), scales.spread));
        }
    };

private:
    static ALWAYS_INLINE __m128i load_two(const uint8_t* low, const uint8_t* high) {  // 8 bytes each
        const __m128i l = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(low));
        return _mm_unpacklo_epi64(l, _mm_loadl_epi64(reinterpret_cast<const __m128i*>(high)));
    }
    static ALWAYS_INLINE Int table(const uint8_t (&bytes)[64]) { return _mm512_load_si512(bytes); }

    alignas(64) static constexpr uint16_t every_fourth[2][32] = {
        {0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60, 1, 5, 9, 13, 17, 21, 25, 29, 33, 37, 41, 45, 49, 53, 57, 61},
        {2, 6, 10, 14, 18, 22, 26, 30, 34, 38, 42, 46, 50, 54, 58, 62, 3, 7, 11, 15, 19, 23, 27, 31, 35, 39, 43, 47, 51, 55, 59, 63}};
    // The upper word of lane 4 * number + row: where that number of a quad lies in that row, of four times sixteen.
#define ROWS_OF(number) 0, number, 0, 16 + number, 0, 32 + number, 0, 48 + number
#define QUAD_OF(first) {ROWS_OF(first), ROWS_OF(first + 1), ROWS_OF(first + 2), ROWS_OF(first + 3)}
    alignas(64) static constexpr uint16_t by_quad[4][32] = {QUAD_OF(0), QUAD_OF(4), QUAD_OF(8), QUAD_OF(12)};
    alignas(64) static constexpr uint8_t three_words[64] = {
        0,  1,  1,  2,  3,  4,  4,  5,  6,  7,  7,  8,  9,  10, 10, 11, 12, 13, 13, 14, 15, 16, 16, 17, 18, 19, 19, 20, 21, 22, 22, 23,
        24, 25, 25, 26, 27, 28, 28, 29, 30, 31, 31, 32, 33, 34, 34, 35, 36, 37, 37, 38, 39, 40, 40, 41, 42, 43, 43, 44, 45, 46, 46, 47};
    alignas(64) static constexpr uint8_t three_dwords[64] = {  // every fourth byte is masked off
        0,  1,  2,  0, 3,  4,  5,  0, 6,  7,  8,  0, 9,  10, 11, 0, 12, 13, 14, 0, 15, 16, 17, 0, 18, 19, 20, 0, 21, 22, 23, 0,
        24, 25, 26, 0, 27, 28, 29, 0, 30, 31, 32, 0, 33, 34, 35, 0, 36, 37, 38, 0, 39, 40, 41, 0, 42, 43, 44, 0, 45, 46, 47, 0};
    alignas(64) static constexpr uint8_t three_qwords[64] = {
        0,  1,  2,  3,  4,  5,  63, 63, 6,  7,  8,  9,  10, 11, 63, 63, 12, 13, 14, 15, 16, 17, 63, 63, 18, 19, 20, 21, 22, 23, 63, 63,
        24, 25, 26, 27, 28, 29, 63, 63, 30, 31, 32, 33, 34, 35, 63, 63, 36, 37, 38, 39, 40, 41, 63, 63, 42, 43, 44, 45, 46, 47, 63, 63};
    // byte 128 and up: zero
    alignas(64) static constexpr uint8_t spread_64[64] = {
        128, 128, 0, 1, 128, 128, 0, 1, 128, 128, 0, 1, 128, 128, 0, 1, 128, 128, 0, 1, 128, 128, 0, 1, 128, 128, 0, 1, 128, 128, 0, 1,
        128, 128, 2, 3, 128, 128, 2, 3, 128, 128, 2, 3, 128, 128, 2, 3, 128, 128, 2, 3, 128, 128, 2, 3, 128, 128, 2, 3, 128, 128, 2, 3};
    alignas(64) static constexpr uint8_t spread_32[64] = {
        128, 128, 0, 1, 128, 128, 0, 1, 128, 128, 0, 1, 128, 128, 0, 1, 128, 128, 2, 3, 128, 128, 2, 3, 128, 128, 2, 3, 128, 128, 2, 3,
        128, 128, 4, 5, 128, 128, 4, 5, 128, 128, 4, 5, 128, 128, 4, 5, 128, 128, 6, 7, 128, 128, 6, 7, 128, 128, 6, 7, 128, 128, 6, 7};
    // code -> value, by width; repeated to fill the register
    alignas(64) static constexpr float floats[3][16] = {{0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3},
                                                        {0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7},
                                                        {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}};
#if ISA_BF16
#define EIGHT_LOW 0, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0
#define EIGHT_HIGH 0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170
#define FOUR_LOW 0, 0x3f80, 0x4000, 0x4040
    alignas(64) static constexpr uint16_t halves[3][32] = {
        {FOUR_LOW, FOUR_LOW, FOUR_LOW, FOUR_LOW, FOUR_LOW, FOUR_LOW, FOUR_LOW, FOUR_LOW},
        {EIGHT_LOW, EIGHT_LOW, EIGHT_LOW, EIGHT_LOW},
        {EIGHT_LOW, EIGHT_HIGH, EIGHT_LOW, EIGHT_HIGH}};
#endif
};

#include "multiply.inl"
#include "numbers.inl"
