// Intel's intrinsics; or, to test the AVX-512 kernels on machines that lack it, SIMDe's emulation of them.
#pragma once
#if !defined(CHERENKOV_EMULATE_AVX512)
#include <immintrin.h>
#else
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/fma.h>
#include <stdint.h>
#include <string.h>

// What SIMDe 0.7 has not, or has wrong. Masked elements are not touched, as on the machine.
namespace {

template <typename Vector, typename Element>
inline Vector emulated_masked_load(uint64_t mask, const void* at) {
    Vector out;
    memset(&out, 0, sizeof out);
    for (size_t i = 0; i < sizeof(Vector) / sizeof(Element); i++)
        if (mask >> i & 1)
            memcpy(reinterpret_cast<char*>(&out) + i * sizeof(Element),
                   static_cast<const char*>(at) + i * sizeof(Element), sizeof(Element));
    return out;
}

inline void emulated_masked_store(float* at, uint64_t mask, __m512 x) {
    for (size_t i = 0; i < 16; i++)
        if (mask >> i & 1) memcpy(at + i, reinterpret_cast<const char*>(&x) + 4 * i, 4);
}

template <typename Vector, typename Half>
inline Vector emulated_join(Half low, Half high) {
    Vector out;
    memcpy(&out, &low, sizeof low);
    memcpy(reinterpret_cast<char*>(&out) + sizeof low, &high, sizeof high);
    return out;
}

inline __m512i emulated_masked_permute(uint32_t mask, __m512i low, __m512i order, __m512i high) {
    __m512i out = simde_mm512_permutex2var_epi16(low, order, high);
    for (size_t i = 0; i < 32; i++)
        if (!(mask >> i & 1)) memset(reinterpret_cast<char*>(&out) + 2 * i, 0, 2);
    return out;
}

inline __m512 emulated_cvtepi32_ps(__m512i x) {
    __m256i half[2];
    memcpy(half, &x, sizeof x);
    return emulated_join<__m512>(_mm256_cvtepi32_ps(half[0]), _mm256_cvtepi32_ps(half[1]));
}
inline __m512i emulated_cvtps_epi32(__m512 x) {
    __m256 half[2];
    memcpy(half, &x, sizeof x);
    return emulated_join<__m512i>(_mm256_cvtps_epi32(half[0]), _mm256_cvtps_epi32(half[1]));
}
inline __m512i emulated_cvtepu16_epi32(__m256i x) {
    return emulated_join<__m512i>(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(x)),
                                  _mm256_cvtepu16_epi32(_mm256_extracti128_si256(x, 1)));
}
inline __m512i emulated_cvtepu8_epi16(__m256i x) {
    return emulated_join<__m512i>(_mm256_cvtepu8_epi16(_mm256_castsi256_si128(x)),
                                  _mm256_cvtepu8_epi16(_mm256_extracti128_si256(x, 1)));
}
inline __m512i emulated_cvtepu8_epi32(__m128i x) {
    return emulated_join<__m512i>(_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_srli_si128(x, 8)));
}
inline __m256 emulated_extractf32x8_ps(__m512 x, int which) {
    __m256 half[2];
    memcpy(half, &x, sizeof x);
    return half[which];
}

}  // namespace

#undef _mm512_extractf32x8_ps
#define _mm512_extractf32x8_ps(x, which) emulated_extractf32x8_ps(x, which)
#undef _mm512_cvtepi32_ps
#define _mm512_cvtepi32_ps(x) emulated_cvtepi32_ps(x)
#undef _mm512_cvtps_epi32
#define _mm512_cvtps_epi32(x) emulated_cvtps_epi32(x)
#undef _mm512_cvtepu16_epi32
#define _mm512_cvtepu16_epi32(x) emulated_cvtepu16_epi32(x)
#undef _mm512_cvtepu8_epi16
#define _mm512_cvtepu8_epi16(x) emulated_cvtepu8_epi16(x)
#undef _mm512_cvtepu8_epi32
#define _mm512_cvtepu8_epi32(x) emulated_cvtepu8_epi32(x)
#undef _mm512_maskz_loadu_ps
#define _mm512_maskz_loadu_ps(mask, at) emulated_masked_load<__m512, float>(mask, at)
#undef _mm512_maskz_loadu_epi8
#define _mm512_maskz_loadu_epi8(mask, at) emulated_masked_load<__m512i, uint8_t>(mask, at)
#undef _mm256_maskz_loadu_epi16
#define _mm256_maskz_loadu_epi16(mask, at) emulated_masked_load<__m256i, uint16_t>(mask, at)
#undef _mm_maskz_loadu_epi16
#define _mm_maskz_loadu_epi16(mask, at) emulated_masked_load<__m128i, uint16_t>(mask, at)
#undef _mm512_mask_storeu_ps
#define _mm512_mask_storeu_ps(at, mask, x) emulated_masked_store(at, mask, x)
#undef _mm512_maskz_permutex2var_epi16
#define _mm512_maskz_permutex2var_epi16(mask, low, order, high) emulated_masked_permute(mask, low, order, high)
#undef _mm512_madd_epi16
#define _mm512_madd_epi16(a, b) simde_mm512_madd_epi16(a, b)
#endif
