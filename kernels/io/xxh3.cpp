#include "xxh3.h"

#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace cherenkov::io {

namespace {

static_assert(std::endian::native == std::endian::little, "the checksum reads little-endian words");

constexpr uint64_t prime32_1 = 0x9E3779B1, prime32_2 = 0x85EBCA77, prime32_3 = 0xC2B2AE3D;
constexpr uint64_t prime64_1 = 0x9E3779B185EBCA87, prime64_2 = 0xC2B2AE3D27D4EB4F, prime64_3 = 0x165667B19E3779F9;
constexpr uint64_t prime64_4 = 0x85EBCA77C2B2AE63, prime64_5 = 0x27D4EB2F165667C5;
constexpr size_t stripe = 64, lanes = 8;

// The specification's default secret.
constexpr uint8_t secret[] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4, 0x6d, 0xe9,
    0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78,
    0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6,
    0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f,
    0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31,
    0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff,
    0xfa, 0x13, 0x63, 0xeb, 0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f,
    0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};
constexpr size_t stripes_a_block = (sizeof(secret) - stripe) / 8;

uint64_t word(const uint8_t* at) {
    uint64_t value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

// Adds `count` stripes to the sums; the key moves on by 8 bytes a stripe.
using Accumulate = void (*)(uint64_t* sums, const uint8_t* data, size_t count, const uint8_t* key);

void accumulate(uint64_t* sums, const uint8_t* data, size_t count, const uint8_t* key) {
    for (size_t n = 0; n < count; n++, data += stripe, key += 8) {
        uint64_t words[lanes], keyed[lanes];
        for (size_t i = 0; i < lanes; i++) words[i] = word(data + 8 * i), keyed[i] = words[i] ^ word(key + 8 * i);
        for (size_t i = 0; i < lanes; i++) sums[i] += words[i ^ 1] + (keyed[i] & 0xFFFFFFFF) * (keyed[i] >> 32);
    }
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) inline __m256i load(const void* at) { return _mm256_loadu_si256(static_cast<const __m256i*>(at)); }

// The same; a compiler multiplies whole words, which takes three times as many products.
__attribute__((target("avx2"))) void accumulate_avx2(uint64_t* sums, const uint8_t* data, size_t count, const uint8_t* key) {
    constexpr size_t ahead = 2048;  // bytes; a record comes from memory
    constexpr int swapped = 0x4E;   // words of a pair
    __m256i total[2] = {load(sums), load(sums + 4)};
    for (size_t n = 0; n < count; n++, data += stripe, key += 8) {
        __builtin_prefetch(data + ahead);
        for (size_t i = 0; i < 2; i++) {
            const __m256i words = load(data + 32 * i), keyed = _mm256_xor_si256(words, load(key + 32 * i));
            const __m256i product = _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32));
            total[i] = _mm256_add_epi64(total[i], _mm256_add_epi64(_mm256_shuffle_epi32(words, swapped), product));
        }
    }
    for (size_t i = 0; i < 2; i++) _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums + 4 * i), total[i]);
}
#endif

Accumulate fastest() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) return accumulate_avx2;
#endif
    return accumulate;
}

void scramble(uint64_t* sums) {
    for (size_t i = 0; i < lanes; i++)
        sums[i] = (sums[i] ^ (sums[i] >> 47) ^ word(secret + sizeof(secret) - stripe + 8 * i)) * prime32_1;
}

uint64_t folded_product(uint64_t a, uint64_t b) {
    const auto product = static_cast<unsigned __int128>(a) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t digest(const uint8_t* data, size_t size, Accumulate add) {
    uint64_t sums[lanes] = {prime32_3, prime64_1, prime64_2, prime64_3, prime64_4, prime32_2, prime64_5, prime32_1};
    constexpr size_t block = stripe * stripes_a_block;
    const size_t blocks = (size - 1) / block;
    for (size_t b = 0; b < blocks; b++) {
        add(sums, data + b * block, stripes_a_block, secret);
        scramble(sums);
    }
    const size_t stripes = (size - 1 - blocks * block) / stripe;
    add(sums, data + blocks * block, stripes, secret);
    add(sums, data + size - stripe, 1, secret + sizeof(secret) - stripe - 7);

    uint64_t hash = static_cast<uint64_t>(size) * prime64_1;
    for (size_t i = 0; i < lanes; i += 2)
        hash += folded_product(sums[i] ^ word(secret + 11 + 8 * i), sums[i + 1] ^ word(secret + 11 + 8 * i + 8));
    hash = (hash ^ (hash >> 37)) * 0x165667919E3779F9;
    return hash ^ (hash >> 32);
}

}  // namespace

uint64_t xxh3_64(const uint8_t* data, size_t size) {
    static const Accumulate add = fastest();
    return digest(data, size, add);
}

uint64_t xxh3_64_portable(const uint8_t* data, size_t size) { return digest(data, size, accumulate); }

}  // namespace cherenkov::io
