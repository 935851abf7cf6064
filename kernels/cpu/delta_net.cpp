// Gated DeltaNet, token by token.
#include <cmath>
#include <cstring>

#include "ops.h"

namespace cherenkov::cpu {

Taps::Taps(const float* by_channel, int channel_count, int tap_count)
    : weights(static_cast<size_t>(channel_count) * static_cast<size_t>(tap_count)), taps(tap_count), channels(channel_count) {
    for (int c = 0; c < channels; c++)
        for (int t = 0; t < taps; t++)
            weights[static_cast<size_t>(t) * static_cast<size_t>(channels) + static_cast<size_t>(c)] =
                by_channel[static_cast<size_t>(c) * static_cast<size_t>(taps) + static_cast<size_t>(t)];
}

namespace {

constexpr float unit_eps = 1e-6F;  // the model's own, whatever the config says of its norms

// The rows of one layer while they pass through it.
struct Work {
    float* channels;   // [R, C] as projected
    float* convolved;  // [R, C]
    float* gate;       // [R, Hv*dv]
    float* a;          // [R, Hv]
    float* b;          // [R, Hv]
    float* mixed;      // [R, Hv*dv]
};

// Causal convolution and silu of channels [first, last) of a sequence's rows; its history of them moves on.
void convolve_channels(Engine& e, const DeltaNet& w, const Work& work, const Span<DeltaState>& span, int first, int last) {
    const auto width = static_cast<size_t>(w.conv.channels);
    const int past = w.conv.taps - 1, rows = span.stop - span.start, n = last - first;
    float* history = span.state.history + first;
    const float* now = work.channels + static_cast<size_t>(span.start) * width + first;
    // Row i of history and present joined.
    const auto joined = [&](int i) {
        return i < past ? history + static_cast<size_t>(i) * width : now + static_cast<size_t>(i - past) * width;
    };
    const float* inputs[max_taps];
    for (int r = 0; r < rows; r++) {
        for (int t = 0; t <= past; t++) inputs[t] = joined(r + t);
        float* out = work.convolved + static_cast<size_t>(span.start + r) * width + first;
        e.k.convolve(inputs, w.conv.weights.data() + first, width, w.conv.taps, n, out);
        e.k.silu(out, 1.0F, n);
    }
    for (int i = 0; i < past; i++)  // upwards: what is read lies after what is written
        std::memmove(history + static_cast<size_t>(i) * width, joined(i + rows), static_cast<size_t>(n) * 4);
}

// The recurrence of one value head over a sequence's rows.
void run_head(Engine& e, const DeltaNet& w, const Work& work, const Span<DeltaState>& span, int head, float* scratch) {
    const auto dk = static_cast<size_t>(w.key_dim), dv = static_cast<size_t>(w.value_dim);
    const auto keys = static_cast<size_t>(w.key_heads) * dk, heads = static_cast<size_t>(w.value_heads);
    const auto at = static_cast<size_t>(head);
    const size_t key_head = at / (heads / static_cast<size_t>(w.key_heads));
    const float rate = w.rate[at], shift = w.dt_bias[at];
    const float query_scale = 1.0F / std::sqrt(static_cast<float>(w.key_dim));
    float *q = scratch, *k = scratch + (dk + 15) / 16 * 16;
    float* state = span.state.matrix + at * dk * dv;
    for (int r = span.start; r < span.stop; r++) {
        const auto row = static_cast<size_t>(r);
        const float* c = work.convolved + row * static_cast<size_t>(w.conv.channels);
        e.k.unit(c + key_head * dk, w.key_dim, unit_eps, query_scale, q);
        e.k.unit(c + keys + key_head * dk, w.key_dim, unit_eps, 1.0F, k);
        const float step = work.a[row * heads + at] + shift;
        const float softplus = step > 20.0F ? step : std::log1p(std::exp(step));
        const float decay = std::exp(-rate * softplus);
        const float beta = 1.0F / (1.0F + std::exp(-work.b[row * heads + at]));
        float* y = work.mixed + (row * heads + at) * dv;
        e.k.delta_step(state, q, k, c + 2 * keys + at * dv, decay, beta, w.key_dim, w.value_dim, y);
        e.k.rms_norm(y, w.norm, w.value_dim, w.eps, y);
        const float* gate = work.gate + (row * heads + at) * dv;
        if (w.sigmoid_gate) e.k.times_sigmoid(y, gate, w.value_dim);
        else e.k.times_silu(y, gate, w.value_dim);
    }
}

}  // namespace

void delta_net(Engine& e, const DeltaNet& w, const float* x, int rows, const std::vector<Span<DeltaState>>& spans,
               float* out) {
    const auto n = static_cast<size_t>(rows), width = static_cast<size_t>(w.conv.channels);
    const auto heads = static_cast<size_t>(w.value_heads), values = heads * static_cast<size_t>(w.value_dim);
    const Work work{e.scratch.take(n * width), e.scratch.take(n * width), e.scratch.take(n * values),
                    e.scratch.take(n * heads), e.scratch.take(n * heads), e.scratch.take(n * values)};

    Inputs in(e, x, static_cast<size_t>(w.hidden), rows, w.hidden);
    const Product projections[] = {{&w.qkv, &in, work.channels, width}, {&w.z, &in, work.gate, values},
                                   {&w.a, &in, work.a, heads}, {&w.b, &in, work.b, heads}};
    multiply(e, projections, 4, [&](Finished f) {
        if (f.product != 0) return;
        for (const auto& span : spans) convolve_channels(e, w, work, span, f.first, f.last);
    });

    const size_t each = (static_cast<size_t>(w.key_dim) + 15) / 16 * 32;
    float* scratch = e.scratch.take(each * static_cast<size_t>(e.pool.threads()));
    const Task task{w.value_heads, n * static_cast<size_t>(w.key_dim) * static_cast<size_t>(w.value_dim) * 2, 0};
    in_pieces(e, &task, 1, [&](int, int first, int last, int thread) {
        for (int head = first; head < last; head++)
            for (const auto& span : spans)
                run_head(e, w, work, span, head, scratch + each * static_cast<size_t>(thread));
    });

    Inputs mixed(e, work.mixed, values, rows, static_cast<int>(values));
    const Product output{&w.out, &mixed, out, static_cast<size_t>(w.hidden)};
    multiply(e, &output, 1);
}

}  // namespace cherenkov::cpu
