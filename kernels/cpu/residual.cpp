// Embedding, hyper-connections, the draft head's entry and the LM head: everything that works on the wide residual.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops.h"

namespace cherenkov::cpu {

namespace {

float from_bf16(const uint8_t* at) {
    const uint32_t bits = static_cast<uint32_t>(at[0]) << 16 | static_cast<uint32_t>(at[1]) << 24;
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

// Cost of elementwise work, in the units of Task.
Task rows_task(int rows, size_t numbers) { return {rows, numbers * 2, 0}; }

// Asks memory for rows [first, last) of a matrix.
void fetch(const Weights& w, int first, int last) {
    const auto at = static_cast<size_t>(first), rows = static_cast<size_t>(last - first);
    prefetch(w.codes + at * w.codes_stride, rows * w.codes_stride);
    prefetch(w.scales + at * w.scales_stride, rows * w.scales_stride);
    prefetch(w.biases + at * w.scales_stride, rows * w.scales_stride);
}

// RMS norm of each stream by itself.
void norm_streams(Engine& e, const float* wide, const float* weight, int rows, int streams, int hidden, float eps,
                  float* out) {
    const auto width = static_cast<size_t>(hidden);
    const Task task = rows_task(rows * streams, width);
    in_pieces(e, &task, 1, [&](int, int first, int last, int) {
        for (int i = first; i < last; i++) {
            const size_t at = static_cast<size_t>(i) * width;
            e.k.rms_norm(wide + at, weight + static_cast<size_t>(i % streams) * width, hidden, eps, out + at);
        }
    });
}

// `mixer` takes the block's input and leaves its output, both [R, D].
template <typename F>
void mix_with(Engine& e, const GatedResidual& w, float* wide, int rows, std::initializer_list<const Weights*> next,
              const F& mixer) {
    const size_t size = static_cast<size_t>(rows) * static_cast<size_t>(w.hidden);
    float* block = e.scratch.take(size);
    float* mixed = e.scratch.take(size);
    float* gain = e.scratch.take(static_cast<size_t>(rows) * static_cast<size_t>(w.streams));
    const Scratch::Mark mark = e.scratch.mark();
    read_residual(e, w, wide, rows, block, gain, next);
    e.scratch.rewind(mark);
    mixer(block, mixed);
    e.scratch.rewind(mark);
    inject(e, wide, mixed, gain, rows, w.streams, w.hidden);
}

}  // namespace

const float* gather(Engine& e, const float* x, const int32_t* chosen, int count, size_t width) {
    float* rows = e.scratch.take(static_cast<size_t>(count) * width);
    for (int i = 0; i < count; i++)
        std::memcpy(rows + static_cast<size_t>(i) * width, x + static_cast<size_t>(chosen[i]) * width, width * 4);
    return rows;
}

void dequantise_row(const Weights& w, int row, float* out) {
    const auto at = static_cast<size_t>(row);
    const uint8_t* codes = w.codes + at * w.codes_stride;
    if (w.bits == 32) {
        std::memcpy(out, codes, static_cast<size_t>(w.cols) * 4);
        return;
    }
    if (w.bits == 16) {
        for (int c = 0; c < w.cols; c++) out[c] = from_bf16(codes + 2 * c);
        return;
    }
    const uint8_t* scales = w.scales + at * w.scales_stride;
    const uint8_t* biases = w.biases + at * w.scales_stride;
    const unsigned mask = (1U << w.bits) - 1;
    for (int g = 0; g < w.cols / w.group; g++) {
        const float scale = from_bf16(scales + 2 * g), bias = from_bf16(biases + 2 * g);
        for (int c = g * w.group; c < (g + 1) * w.group; c++) {
            const int bit = c * w.bits, shift = bit % 8;
            unsigned code = codes[bit / 8] >> shift;
            if (shift + w.bits > 8) code |= static_cast<unsigned>(codes[bit / 8 + 1]) << (8 - shift);
            out[c] = scale * static_cast<float>(code & mask) + bias;
        }
    }
}

void embed(Engine& e, const Weights& table, int streams, const int32_t* tokens, int rows, float* wide) {
    const auto width = static_cast<size_t>(table.cols);
    const Task task = rows_task(rows, width * static_cast<size_t>(streams + 4));
    in_pieces(e, &task, 1, [&](int, int first, int last, int) {
        for (int r = first; r < last; r++) {
            float* row = wide + static_cast<size_t>(r) * width * static_cast<size_t>(streams);
            dequantise_row(table, tokens[r], row);
            for (int s = 1; s < streams; s++) std::memcpy(row + static_cast<size_t>(s) * width, row, width * 4);
        }
    });
}

void read_residual(Engine& e, const GatedResidual& w, const float* wide, int rows, float* block, float* gain,
                   std::initializer_list<const Weights*> next) {
    const auto hidden = static_cast<size_t>(w.hidden), streams = static_cast<size_t>(w.streams);
    const size_t width = hidden * streams, rank = static_cast<size_t>(w.down.rows);
    const float share = 1.0F / static_cast<float>(w.streams);
    float* normed = e.scratch.take(static_cast<size_t>(rows) * width);
    float* low = e.scratch.take(static_cast<size_t>(rows) * rank);
    float* mix = e.scratch.take(static_cast<size_t>(rows) * width);
    norm_streams(e, wide, w.norm, rows, w.streams, w.hidden, w.eps, normed);

    Inputs x(e, normed, width, rows, static_cast<int>(width));
    const Product reads[] = {{&w.down, &x, low, rank}, {&w.inject, &x, gain, streams}};
    e.pool.ahead.begin();
    e.pool.ahead.add(w.up, w.streams);
    e.pool.ahead.end();
    multiply(e, reads, w.inject.rows != 0 ? 2 : 1, [&](Outputs f) {
        if (f.product != 0) return;
        for (int r = 0; r < rows; r++)
            e.k.silu(low + static_cast<size_t>(r) * rank + f.first, share, f.last - f.first);
    });
    if (w.inject.rows != 0)
        for (size_t i = 0; i < static_cast<size_t>(rows) * streams; i++)
            gain[i] = 2.0F / (1.0F + std::exp(-gain[i] * share));

    // A piece is a range of hidden columns, of every stream: then the mean over streams needs no other piece.
    Inputs y(e, low, rank, rows, static_cast<int>(rank));
    y.prepare(w.up);
    Row* products = e.scratch.take<Row>(static_cast<size_t>(rows));
    for (int r = 0; r < rows; r++) products[r] = {y.row(w.up, r), mix + static_cast<size_t>(r) * width};
    Task task = matrix_task(w.hidden, w.up.row_bytes() * streams, rows);
    task.quantum = std::max<size_t>(task.quantum, 16);  // what rows of a single group are taken at a time
    e.pool.ahead.expect(next);
    in_pieces(e, &task, 1, [&](int, int first, int last, int) {
        if (rows == 1)
            for (int s = 1; s < w.streams; s++) fetch(w.up, s * w.hidden + first, s * w.hidden + last);
        for (int s = 0; s < w.streams; s++)
            e.k.multiply(w.up, e.precision, products, rows, s * w.hidden + first, s * w.hidden + last);
        for (int r = 0; r < rows; r++) {
            const size_t at = static_cast<size_t>(r) * width + static_cast<size_t>(first);
            e.k.mix_streams(mix + at, normed + at, w.streams, hidden, last - first,
                            block + static_cast<size_t>(r) * hidden + first);
        }
    });
}

void inject(Engine& e, float* wide, const float* block, const float* gain, int rows, int streams, int hidden) {
    const auto width = static_cast<size_t>(hidden);
    const Task task = rows_task(rows * streams, width);
    in_pieces(e, &task, 1, [&](int, int first, int last, int) {
        for (int i = first; i < last; i++)
            e.k.add_scaled(wide + static_cast<size_t>(i) * width, gain[i],
                           block + static_cast<size_t>(i / streams) * width, hidden);
    });
}

void mix(Engine& e, const GatedResidual& read, const DeltaNet& w, float* wide, int rows,
         const std::vector<Span<DeltaState>>& spans, bool rehearsal) {
    mix_with(e, read, wide, rows, {&w.qkv, &w.z, &w.a, &w.b},
             [&](const float* x, float* out) { delta_net(e, w, x, rows, spans, out, rehearsal); });
}

void mix(Engine& e, const GatedResidual& read, const SparseAttention& w, float* wide, int rows,
         const std::vector<Span<AttentionState>>& spans) {
    mix_with(e, read, wide, rows, {&w.q, &w.k, &w.v, &w.index}, [&](const float* x, float* out) { sparse_attention(e, w, x, rows, spans, out); });
}

void mix(Engine& e, const GatedResidual& read, const SparseAttention& w, const float* wide, int rows,
         const std::vector<Span<AttentionState>>& spans, const int32_t* ends, int count, float* out) {
    const auto hidden = static_cast<size_t>(read.hidden), streams = static_cast<size_t>(read.streams);
    float* block = e.scratch.take(static_cast<size_t>(rows) * hidden);
    float* mixed = e.scratch.take(static_cast<size_t>(count) * hidden);
    float* gain = e.scratch.take(static_cast<size_t>(rows) * streams);
    const Scratch::Mark mark = e.scratch.mark();
    read_residual(e, read, wide, rows, block, gain, {&w.k, &w.v, &w.index});
    e.scratch.rewind(mark);
    sparse_attention(e, w, block, rows, spans, ends, count, mixed);
    e.scratch.rewind(mark);
    if (count == 0) return;
    std::memcpy(out, gather(e, wide, ends, count, hidden * streams), static_cast<size_t>(count) * hidden * streams * 4);
    inject(e, out, mixed, gather(e, gain, ends, count, streams), count, read.streams, read.hidden);
}

void fuse(Engine& e, const DraftFuse& w, const Weights& table, const int32_t* tokens, const float* wide, int rows,
          float* out) {
    const auto hidden = static_cast<size_t>(w.hidden);
    const size_t width = hidden * static_cast<size_t>(w.streams);
    float* token = e.scratch.take(static_cast<size_t>(rows) * hidden);
    float* normed = e.scratch.take(static_cast<size_t>(rows) * width);
    float* fused = e.scratch.take(static_cast<size_t>(rows) * hidden);
    const Task task = rows_task(rows, width * 2);
    in_pieces(e, &task, 1, [&](int, int first, int last, int) {
        for (int r = first; r < last; r++) {
            float* row = token + static_cast<size_t>(r) * hidden;
            dequantise_row(table, tokens[r], row);
            e.k.rms_norm(row, w.norm_embedding, w.hidden, w.eps, row);
            const size_t at = static_cast<size_t>(r) * width;
            e.k.rms_norm(wide + at, w.norm_hidden, static_cast<int>(width), w.eps, normed + at);
        }
    });
    Inputs tokens_in(e, token, hidden, rows, w.hidden);
    Inputs streams_in(e, normed, hidden, rows * w.streams, w.hidden);
    const Product products[] = {{&w.fc_embedding, &tokens_in, fused, hidden}, {&w.fc_hidden, &streams_in, out, hidden}};
    multiply(e, products, 2);
    const Task sums = rows_task(rows * w.streams, hidden);
    in_pieces(e, &sums, 1, [&](int, int first, int last, int) {
        for (int i = first; i < last; i++)
            e.k.add(out + static_cast<size_t>(i) * hidden, fused + static_cast<size_t>(i / w.streams) * hidden, w.hidden);
    });
}

void logits(Engine& e, const Head& w, const float* wide, const int32_t* chosen, int count, float* out) {
    const auto hidden = static_cast<size_t>(w.mixer.hidden);
    const float* rows = gather(e, wide, chosen, count, hidden * static_cast<size_t>(w.mixer.streams));
    float* block = e.scratch.take(static_cast<size_t>(count) * hidden);
    read_residual(e, w.mixer, rows, count, block, nullptr, {&w.matrix});
    Inputs x(e, block, hidden, count, w.mixer.hidden);
    const Product product{&w.matrix, &x, out, static_cast<size_t>(w.matrix.rows)};
    multiply(e, &product, 1);
}

void argmax(Engine& e, const Head& w, const float* wide, const int32_t* chosen, int count, int32_t* out) {
    const auto vocab = static_cast<size_t>(w.matrix.rows);
    float* scores = e.scratch.take(static_cast<size_t>(count) * vocab);
    logits(e, w, wide, chosen, count, scores);
    const Task task = rows_task(count, vocab / 4);
    in_pieces(e, &task, 1, [&](int, int first, int last, int) {
        float best;
        for (int r = first; r < last; r++)
            out[r] = e.k.argmax(scores + static_cast<size_t>(r) * vocab, w.matrix.rows, &best);
    });
}

}  // namespace cherenkov::cpu
