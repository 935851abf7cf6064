// XXH3-64, the checksum of expert records (cherenkov/packing/integrity.py), for inputs of more than 240 bytes.
// Source: Y. Collet, "xxHash fast digest algorithm", the specification of XXH3.
#pragma once
#include <cstddef>
#include <cstdint>

namespace cherenkov::io {

// Of `size` bytes, seed 0. Shorter inputs than 241 bytes have other rules, which records never need.
uint64_t xxh3_64(const uint8_t* data, size_t size);

// The same, as processors without AVX2 do it.
uint64_t xxh3_64_portable(const uint8_t* data, size_t size);

}  // namespace cherenkov::io
