#include "ngrams.h"

#include <bit>
#include <cstddef>

namespace cherenkov::cpu {

namespace {

float bf16(const uint8_t* at) {
    return std::bit_cast<float>(static_cast<uint32_t>(at[0]) << 16 | static_cast<uint32_t>(at[1]) << 24);
}

// As Python has it: the sign of the divisor, which is positive.
int64_t in_range(int64_t a, int64_t b) {
    const int64_t rest = a % b;
    return rest < 0 ? rest + b : rest;
}

}  // namespace

void NgramHash::rows(const int64_t* tokens, int size, int count, int64_t* out) const {
    const std::size_t orders = multipliers.size() - 1, heads = sizes.size(), each = orders == 0 ? 0 : heads / orders;
    for (int r = size - count; r < size; r++) {
        // Products wrap at 64 bits, and so does what is made of them.
        uint64_t mixed = static_cast<uint64_t>(tokens[r]) * static_cast<uint64_t>(multipliers[0]);
        bool ended = false;
        std::size_t head = 0;
        for (std::size_t ago = 1; ago <= orders; ago++) {
            const auto back = r - static_cast<int64_t>(ago);
            ended = ended || back < 0 || tokens[back] == eos;
            mixed ^= static_cast<uint64_t>(ended ? eos : tokens[back]) * static_cast<uint64_t>(multipliers[ago]);
            for (const std::size_t end = head + each; head < end; head++)
                *out++ = in_range(static_cast<int64_t>(mixed), sizes[head]) + offsets[head];
        }
    }
}

void NibbleRows::values(int64_t row, float* out) const {
    const uint8_t* codes = data + row * row_bytes;
    const uint8_t* scales = codes + dim / 2;
    const uint8_t* biases = scales + dim / group * 2;
    for (int g = 0; g < dim / group; g++) {
        const float scale = bf16(scales + 2 * g), bias = bf16(biases + 2 * g);
        for (int i = g * group; i < (g + 1) * group; i += 2) {
            const unsigned pair = codes[i / 2];
            out[i] = static_cast<float>(pair & 15) * scale + bias;
            out[i + 1] = static_cast<float>(pair >> 4) * scale + bias;
        }
    }
}

}  // namespace cherenkov::cpu
