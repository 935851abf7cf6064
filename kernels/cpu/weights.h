// How matrices and their inputs lie in memory. Plain data: every kernel, for every instruction set, takes these.
#pragma once
#include <cstddef>
#include <cstdint>

namespace cherenkov::cpu {

// Of activations inside products with 2, 3 and 4-bit matrices. Other matrices always take float32 activations.
enum class Precision : uint8_t { float32, bf16, int16, int8 };

// A matrix [rows, cols] where its owner put it; nothing is copied and nothing here is owned. Rows are strided, so
// that it may be a tensor of its own or one of three inside an expert record.
//
//   bits 2, 3, 4, 8: value = scale * code + bias, one BF16 scale and bias per `group` columns (32 or 64); codes are
//                    packed first code in the lowest bits, little-endian. `cols` is a multiple of `group`.
//   bits 16: BF16 values.   bits 32: float32 values.   Any number of columns; no scales.
//
// Addresses need no alignment. Nothing past the last byte of a row is read, except by prefetches, which cannot fault.
struct Weights {
    const uint8_t* codes = nullptr;
    const uint8_t* scales = nullptr;
    const uint8_t* biases = nullptr;
    size_t codes_stride = 0;   // bytes from one row to the next
    size_t scales_stride = 0;  // of scales and of biases
    int rows = 0;
    int cols = 0;
    int bits = 0;
    int group = 0;
    // What is wanted next, if that is known: prefetches that run past the rows asked for go on there.
    struct Ahead {
        const uint8_t* codes = nullptr;
        const uint8_t* scales = nullptr;
        const uint8_t* biases = nullptr;
    } ahead;

    // Row n, as what is wanted next.
    Ahead row(int n) const {
        const size_t at = static_cast<size_t>(n) * scales_stride;
        return {codes + static_cast<size_t>(n) * codes_stride, scales + at, biases + at};
    }

    // What one row costs to read.
    size_t row_bytes() const {
        const size_t codes_bytes = static_cast<size_t>(cols) * static_cast<size_t>(bits) / 8;
        return group != 0 ? codes_bytes + static_cast<size_t>(cols / group) * 4 : codes_bytes;
    }
};

// The form in which a matrix wants its input rows. Rows are packed once per form, however many matrices share them.
struct Packing {
    enum Kind : uint8_t {
        plain,  // float32 as they are: matrices of values
        bytes,  // float32 in order, with a sum per group: 8-bit codes
        codes,  // permuted and rounded to `precision`, with a sum per group: 2, 3 and 4-bit codes
    };
    Kind kind = plain;
    Precision precision = Precision::float32;
    int group = 0;

    static Packing of(const Weights& w, Precision precision) {
        if (w.bits >= 16) return {};
        if (w.bits == 8) return {bytes, Precision::float32, w.group};
        return {codes, precision, w.group};
    }
    bool operator==(const Packing&) const = default;
};

// One input row in the form its matrix wants, and where its products go: y[n] for output rows n.
struct Row {
    const void* x;
    float* y;
};

}  // namespace cherenkov::cpu
