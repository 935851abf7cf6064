// The n-gram table: which rows a token looks up, and what they hold. For cherenkov/architectures/qwen4_exp/ngrams.py and
// cherenkov/experts/rows.py, which say what it means; a step of one token spends as long on either in NumPy as on a layer here.
#pragma once
#include <cstdint>
#include <vector>

namespace cherenkov::cpu {

// Heads are ordered by n-gram order (2, 3, ...), then by head.
struct NgramHash {
    std::vector<int64_t> multipliers;  // one per distance
    std::vector<int64_t> sizes;        // of each head, above 0
    std::vector<int64_t> offsets;
    int64_t eos;  // ends a segment, and stands in for what lies before it

    // Rows [count, heads] of the last `count` of `size` tokens.
    void rows(const int64_t* tokens, int size, int count, int64_t* out) const;
};

// Rows of 4-bit codes, then a BF16 scale and a BF16 bias for each group.
struct NibbleRows {
    const uint8_t* data;
    int64_t row_bytes;
    int dim, group;

    // The values of a row, float32 [dim].
    void values(int64_t row, float* out) const;
};

}  // namespace cherenkov::cpu
