// Per-layer embedding: hashed n-gram features, gated into every stream.
#include <cmath>
#include <cstring>

#include "ops.h"

namespace cherenkov::cpu {

namespace {

struct Work {
    float* key;    // [R, S*D]; later the gated values
    float* value;  // [R, D]
    float* query;  // [R, S*D]; later the normalised gated values
};

// Stream s of row r, up to the convolution.
void gate_stream(Engine& e, const Ple& w, const Work& work, const float* wide, size_t r, size_t s) {
    const auto hidden = static_cast<size_t>(w.hidden), offset = s * hidden;
    const size_t at = r * hidden * static_cast<size_t>(w.streams) + offset;
    float *key = work.key + at, *query = work.query + at;
    e.k.rms_norm(key, w.norm_key + offset, w.hidden, w.eps, key);
    e.k.rms_norm(wide + at, w.norm_query + offset, w.hidden, w.eps, query);
    const float score = e.k.dot(key, query, w.hidden) / std::sqrt(static_cast<float>(w.hidden));
    const float root = std::sqrt(std::fmax(std::fabs(score), 1e-6F));
    const float logit = score > 0 ? root : score < 0 ? -root : score;  // 0 for 0, NaN for NaN
    const float gate = 1.0F / (1.0F + std::exp(-logit));
    float *gated = key, *normed = query;
    e.k.scale(work.value + r * hidden, gate, w.hidden, gated);
    e.k.rms_norm(gated, w.norm_conv + offset, w.hidden, w.eps, normed);
}

// Columns [first, last): wide += gated + silu(convolution), for all rows of a sequence; its history moves on, if it shall.
void convolve_columns(Engine& e, const Ple& w, const Work& work, const Span<float*>& span, int first, int last,
                      float* wide, float* scratch, bool rehearsal) {
    const auto width = static_cast<size_t>(w.conv.channels);
    const int rows = span.stop - span.start, n = last - first, past = (w.conv.taps - 1) * w.dilation;
    const Ring ring(span.state, past, width);
    const float* now = work.query + static_cast<size_t>(span.start) * width;
    const float* inputs[max_taps];
    for (int r = 0; r < rows; r++) {
        const size_t at = static_cast<size_t>(span.start + r) * width + static_cast<size_t>(first);
        for (int t = 0; t < w.conv.taps; t++) inputs[t] = ring.at(span.position, r + t * w.dilation - past, now) + first;
        e.k.convolve(inputs, w.conv.weights.data() + first, width, w.conv.taps, n, scratch);
        e.k.silu(scratch, 1.0F, n);
        e.k.add(scratch, work.key + at, n);
        e.k.add(wide + at, scratch, n);
    }
    if (!rehearsal) ring.keep(span.position, rows, now, first, n);
}

}  // namespace

void ple(Engine& e, const Ple& w, float* wide, const float* features, int rows,
         const std::vector<Span<float*>>& spans, bool rehearsal) {
    const auto n = static_cast<size_t>(rows), width = static_cast<size_t>(w.conv.channels);
    const auto hidden = static_cast<size_t>(w.hidden), streams = static_cast<size_t>(w.streams);
    const Work work{e.scratch.take(n * width), e.scratch.take(n * hidden), e.scratch.take(n * width)};
    Inputs in(e, features, static_cast<size_t>(w.key.cols), rows, w.key.cols);
    const Product projections[] = {{&w.key, &in, work.key, width}, {&w.value, &in, work.value, hidden}};
    multiply(e, projections, 2);

    const Task gates{rows * w.streams, hidden * 12, 0};
    in_pieces(e, &gates, 1, [&](int, int first, int last, int) {
        for (auto i = static_cast<size_t>(first); i < static_cast<size_t>(last); i++)
            gate_stream(e, w, work, wide, i / streams, i % streams);
    });

    constexpr int most = 1024;  // columns at a time
    float* scratch = e.scratch.take(static_cast<size_t>(most) * static_cast<size_t>(e.pool.threads()));
    const Task columns{w.conv.channels, n * static_cast<size_t>(w.conv.taps + 8) * 2, most};
    in_pieces(e, &columns, 1, [&](int, int first, int last, int thread) {
        for (const auto& span : spans)
            for (int c = first; c < last; c += most)
                convolve_columns(e, w, work, span, c, c + most < last ? c + most : last, wide,
                                 scratch + static_cast<size_t>(most) * static_cast<size_t>(thread), rehearsal);
    });
}

}  // namespace cherenkov::cpu
