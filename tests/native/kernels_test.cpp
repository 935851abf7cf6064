// The tables of kernels that this machine runs, against plain loops in double precision. Needs nothing but the kernels,
// so that it can be cross-compiled and run under an emulator; run by cross_aarch64.sh. What it covers is wide rather
// than deep: the tests in Python go further, on machines that have Python.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <new>
#include <vector>

#include "kernels.h"

using namespace cherenkov::cpu;

namespace {

using Floats = std::vector<float>;

int failures = 0;

// The same numbers on every machine; roughly normal.
struct Random {
    uint64_t state = 88172645463325252ULL;
    uint32_t bits() {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        return static_cast<uint32_t>(state >> 32);
    }
    float number() {
        double sum = 0;
        for (int i = 0; i < 4; i++) sum += bits() / 4294967296.0 - 0.5;
        return static_cast<float>(sum * 1.7);
    }
    Floats numbers(int n) {
        Floats out(static_cast<size_t>(n));
        for (float& x : out) x = number();
        return out;
    }
};

struct Worst {
    double difference = 0, size = 1;
    void see(double found, double expected) {
        const double d = std::fabs(found - expected);
        difference = d >= 0 ? std::fmax(difference, d) : INFINITY;  // NaN is as far as can be
        size = std::fmax(size, std::fabs(expected));
    }
    void see(const Floats& found, const std::vector<double>& expected) {
        for (size_t i = 0; i < expected.size(); i++) see(found[i], expected[i]);
    }
    void within(double limit, const char* table, const char* what, int detail = 0) const {
        if (difference <= limit * size) return;
        std::fprintf(stderr, "failed: %s: %s (%d): off by %g of %g\n", table, what, detail, difference, size);
        failures++;
    }
};

uint16_t to_bf16(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return static_cast<uint16_t>((bits + 0x8000) >> 16);
}
double of_bf16(const uint8_t* at) {
    const uint32_t bits = static_cast<uint32_t>(at[0]) << 16 | static_cast<uint32_t>(at[1]) << 24;
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

// A matrix and the memory it lies in; rows begin at odd addresses, as they may in a record.
struct Matrix {
    std::vector<uint8_t> codes, scales, biases;
    Weights w;

    Matrix(Random& draw, int rows, int cols, int bits, int group) {
        w.rows = rows, w.cols = cols, w.bits = bits, w.group = group;
        w.codes_stride = static_cast<size_t>(cols) * static_cast<size_t>(bits) / 8 + 3;
        w.scales_stride = group != 0 ? static_cast<size_t>(cols / group) * 2 + 1 : 0;
        const auto count = static_cast<size_t>(rows);
        codes.resize(count * w.codes_stride + 1);
        scales.resize(count * w.scales_stride + 1);
        biases.resize(count * w.scales_stride + 1);
        w.codes = codes.data() + 1, w.scales = scales.data() + 1, w.biases = biases.data() + 1;
        for (int r = 0; r < rows; r++) fill(draw, static_cast<size_t>(r));
    }
    double value(int row, int col) const {
        const auto r = static_cast<size_t>(row), c = static_cast<size_t>(col), bits = static_cast<size_t>(w.bits);
        const uint8_t* at = w.codes + r * w.codes_stride;
        if (w.bits == 32) {
            uint32_t word = 0;
            for (size_t i = 0; i < 4; i++) word |= static_cast<uint32_t>(at[4 * c + i]) << (8 * i);
            float x;
            std::memcpy(&x, &word, 4);
            return x;
        }
        if (w.bits == 16) return of_bf16(at + 2 * c);
        int code = 0;
        for (size_t i = 0; i < bits; i++) code |= (at[(c * bits + i) / 8] >> ((c * bits + i) % 8) & 1) << i;
        const size_t g = r * w.scales_stride + 2 * (c / static_cast<size_t>(w.group));
        return of_bf16(w.scales + g) * code + of_bf16(w.biases + g);
    }

private:
    static void put_bf16(uint8_t* at, float x) {
        const uint16_t half = to_bf16(x);
        at[0] = static_cast<uint8_t>(half), at[1] = static_cast<uint8_t>(half >> 8);
    }
    void fill(Random& draw, size_t row) {
        uint8_t* at = codes.data() + 1 + row * w.codes_stride;
        const auto cols = static_cast<size_t>(w.cols);
        if (w.bits >= 16) {
            for (size_t c = 0; c < cols; c++) {
                const float x = draw.number();
                uint32_t word;
                std::memcpy(&word, &x, 4);
                if (w.bits == 16) put_bf16(at + 2 * c, x);
                else for (size_t i = 0; i < 4; i++) at[4 * c + i] = static_cast<uint8_t>(word >> (8 * i));
            }
            return;
        }
        for (size_t i = 0; i < cols * static_cast<size_t>(w.bits) / 8; i++) at[i] = static_cast<uint8_t>(draw.bits());
        for (size_t g = 0; g < cols / static_cast<size_t>(w.group); g++) {
            const float step = 0.02F + 0.01F * std::fabs(draw.number());
            put_bf16(scales.data() + 1 + row * w.scales_stride + 2 * g, step);
            put_bf16(biases.data() + 1 + row * w.scales_stride + 2 * g, -step * static_cast<float>((1 << w.bits) / 2));
        }
    }
};

struct Aligned {
    explicit Aligned(size_t bytes) : data(::operator new(bytes + 64, std::align_val_t{64})) {}
    ~Aligned() { ::operator delete(data, std::align_val_t{64}); }
    Aligned(const Aligned&) = delete;
    Aligned& operator=(const Aligned&) = delete;
    void* const data;
};

// Errors that kernels/README.md states for products, with room for the worst of a few hundred.
double limit_of(Precision p) {
    switch (p) {
        case Precision::float32: return 2e-6;
        case Precision::int16: return 3e-4;
        case Precision::bf16: return 2e-2;
        case Precision::int8: return 6e-2;
    }
    return 0;
}

void products(const Kernels& k, Precision precision, int bits, int group, int cols) {
    Random draw;
    constexpr int rows = 13, most = 9;
    const Matrix m(draw, rows, cols, bits, group);
    const Packing form = Packing::of(m.w, precision);
    std::vector<Floats> inputs, outputs(most, Floats(rows + 1, 77.0F)), alone(most, Floats(rows + 1, 77.0F));
    std::vector<Row> together;
    const size_t size = (k.packed_bytes(form, cols) + 63) / 64 * 64;
    const Aligned memory(size * most);
    for (int r = 0; r < most; r++) {
        inputs.push_back(draw.numbers(cols));
        auto* at = static_cast<uint8_t*>(memory.data) + static_cast<size_t>(r) * size;
        if (form.kind != Packing::plain) k.pack(form, inputs.back().data(), cols, at);
        const void* x = form.kind == Packing::plain ? static_cast<const void*>(inputs.back().data()) : at;
        together.push_back({x, outputs[static_cast<size_t>(r)].data()});
        Row single{x, alone[static_cast<size_t>(r)].data()};
        k.multiply(m.w, precision, &single, 1, 0, 5);
        k.multiply(m.w, precision, &single, 1, 5, rows);
    }
    k.multiply(m.w, precision, together.data(), most, 0, rows);
    Worst worst;
    for (size_t r = 0; r < most; r++) {
        for (int n = 0; n < rows; n++) {
            double sum = 0;
            for (int c = 0; c < cols; c++) sum += m.value(n, c) * static_cast<double>(inputs[r][static_cast<size_t>(c)]);
            worst.see(outputs[r][static_cast<size_t>(n)], sum);
        }
        if (std::memcmp(outputs[r].data(), alone[r].data(), sizeof(float) * (rows + 1)) != 0) {
            std::fprintf(stderr, "failed: %s: a row's bits depend on its company (%d bits)\n", k.name, bits);
            failures++;
        }
        if (outputs[r][rows] != 77.0F) {
            std::fprintf(stderr, "failed: %s: a product beyond the last was written (%d bits)\n", k.name, bits);
            failures++;
        }
    }
    worst.within(limit_of(form.kind == Packing::codes ? precision : Precision::float32), k.name, "products", bits);
}

void norms(const Kernels& k, int n) {
    Random draw;
    const auto size = static_cast<size_t>(n);
    const Floats x = draw.numbers(n), weight = draw.numbers(n);
    double squares = 0, both = 0;
    for (size_t i = 0; i < size; i++) squares += double{x[i]} * x[i], both += double{x[i]} * weight[i];
    Worst norm, unit, dot;
    Floats out(size);
    k.rms_norm(x.data(), weight.data(), n, 1e-6F, out.data());
    for (size_t i = 0; i < size; i++) norm.see(out[i], x[i] / std::sqrt(squares / n + 1e-6) * weight[i]);
    norm.within(1e-6, k.name, "rms_norm", n);
    k.unit(x.data(), n, 1e-6F, 0.5F, out.data());
    for (size_t i = 0; i < size; i++) unit.see(out[i], x[i] * 0.5 / std::sqrt(squares + 1e-6));
    unit.within(1e-6, k.name, "unit", n);
    dot.see(k.dot(x.data(), weight.data(), n), both);
    dot.within(1e-5, k.name, "dot", n);
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

void activations(const Kernels& k, int n) {
    Random draw;
    const auto size = static_cast<size_t>(n);
    const Floats x = draw.numbers(n), gate = draw.numbers(n);
    std::vector<double> silu(size), times(size), exps(size);
    double sum = 0;
    for (size_t i = 0; i < size; i++) {
        silu[i] = gate[i] * sigmoid(gate[i]) * x[i];
        times[i] = x[i] * sigmoid(gate[i]);
        exps[i] = std::exp(double{x[i]});
        sum += exps[i];
    }
    for (double& e : exps) e /= sum;
    Worst gated, switched, soft;
    Floats out = gate;
    k.silu_times(out.data(), x.data(), n);
    gated.see(out, silu);
    gated.within(1e-6, k.name, "silu_times", n);
    out = x;
    k.times_sigmoid(out.data(), gate.data(), n);
    switched.see(out, times);
    switched.within(1e-6, k.name, "times_sigmoid", n);
    out = x;
    k.softmax(out.data(), n);
    soft.see(out, exps);
    soft.within(1e-6, k.name, "softmax", n);
    float best;
    const int at = k.argmax(x.data(), n, &best);
    for (int i = 0; i < n; i++)
        if (x[static_cast<size_t>(i)] > best || (x[static_cast<size_t>(i)] == best && i < at)) {
            std::fprintf(stderr, "failed: %s: argmax of %d\n", k.name, n);
            failures++;
            break;
        }
}

// One token at a time, by the functions that work on whole chunks.
void delta_rule(const Kernels& k, int keys, int values) {
    Random draw;
    const auto K = static_cast<size_t>(keys), V = static_cast<size_t>(values);
    Floats state = draw.numbers(keys * values), change(V);
    std::vector<double> expected(state.begin(), state.end()), y(V);
    for (int step = 0; step < 3; step++) {
        Floats pair = draw.numbers(2 * keys), recalled(2 * V);  // of key and query
        const Floats v = draw.numbers(values);
        float *key = pair.data(), *q = key + K, *out = recalled.data() + V, dots[2];
        k.unit(key, keys, 1e-6F, 1.0F, key);
        const float decay = 0.9F, beta = 0.7F;
        k.add_product(recalled.data(), 2, 1.0F, {key, K, 1}, state.data(), keys, values, state.data());
        k.scale(recalled.data(), decay, 2 * values, recalled.data());
        k.pair_dots(key, q, key, K, 1, keys, &dots[0], &dots[1]);
        k.correct(v.data(), recalled.data(), beta, dots[1], values, change.data(), out);
        k.add_product(state.data(), keys, decay, {key, 1, K}, change.data(), 1, values, change.data());
        for (size_t j = 0; j < V; j++) {
            double remembered = 0;
            for (size_t i = 0; i < K; i++) remembered += key[i] * (expected[i * V + j] *= decay);
            y[j] = 0;
            for (size_t i = 0; i < K; i++) {
                expected[i * V + j] += key[i] * (beta * (v[j] - remembered));
                y[j] += q[i] * expected[i * V + j];
            }
        }
        Worst worst;
        worst.see(Floats(out, out + V), y);
        worst.see(state, expected);
        worst.within(4e-6, k.name, "delta rule", step);
    }
}

// Attention over tokens in two runs, merged, some of them chosen, against one softmax over all.
void attention(const Kernels& k, int heads, int dim, bool choose) {
    Random draw;
    constexpr int tokens = 45, cut = 17;
    const auto D = static_cast<size_t>(dim);
    const size_t stride = D + 8;
    const Floats queries = draw.numbers(heads * dim);
    const Floats keys = draw.numbers(tokens * (dim + 8)), values = draw.numbers(tokens * (dim + 8));
    std::vector<int32_t> chosen;
    for (int t = 0; t < tokens; t++) chosen.push_back(choose ? (t * 7) % tokens : t);
    const auto run = [&](int first, int count, Floats& top, Floats& sum, Floats& out) {
        top.assign(static_cast<size_t>(heads), 0), sum = top, out.assign(static_cast<size_t>(heads) * D, 0);
        Floats scratch(static_cast<size_t>(heads * count));
        k.attend(queries.data(), heads, dim, {keys.data(), stride}, {values.data(), stride},
                 choose ? chosen.data() + first : nullptr, first, count, scratch.data(),
                 {top.data(), sum.data(), out.data()});
    };
    Floats top, sum, out, next_top, next_sum, next_out;
    run(0, cut, top, sum, out);
    run(cut, tokens - cut, next_top, next_sum, next_out);
    k.merge({top.data(), sum.data(), out.data()}, {next_top.data(), next_sum.data(), next_out.data()}, heads, dim);
    Worst worst;
    for (int h = 0; h < heads; h++) {
        std::vector<double> y(D);
        double total = 0;
        for (int t = 0; t < tokens; t++) {
            double score = 0;
            const size_t at = static_cast<size_t>(t) * stride, head = static_cast<size_t>(h) * D;
            for (size_t i = 0; i < D; i++) score += double{queries[head + i]} * keys[at + i];
            const double e = std::exp(score);
            total += e;
            for (size_t i = 0; i < D; i++) y[i] += e * values[at + i];
        }
        for (size_t i = 0; i < D; i++)
            worst.see(out[static_cast<size_t>(h) * D + i] / sum[static_cast<size_t>(h)], y[i] / total);
    }
    worst.within(1e-5, k.name, choose ? "attention over chosen tokens" : "attention", dim);
}

void rotation(const Kernels& k, int half) {
    Random draw;
    const auto n = static_cast<size_t>(half);
    Floats x = draw.numbers(2 * half);
    const Floats before = x, cosines = draw.numbers(half), sines = draw.numbers(half);
    k.rotate(x.data(), cosines.data(), sines.data(), half);
    Worst worst;
    for (size_t i = 0; i < n; i++) {
        worst.see(x[i], double{before[i]} * cosines[i] - double{before[n + i]} * sines[i]);
        worst.see(x[n + i], double{before[n + i]} * cosines[i] + double{before[i]} * sines[i]);
    }
    worst.within(1e-6, k.name, "rotate", half);
}

void everything(const Kernels& k) {
    for (int p = 0; p < 4; p++) {
        if ((k.precisions >> p & 1) == 0) continue;
        for (const int bits : {2, 3, 4, 8})
            for (const int group : {32, 64}) products(k, static_cast<Precision>(p), bits, group, group * 5);
        products(k, static_cast<Precision>(p), 4, 64, 1024);
    }
    products(k, k.preferred, 16, 0, 77);
    products(k, k.preferred, 32, 0, 77);
    for (const int n : {1, 7, 8, 31, 64, 100}) norms(k, n), activations(k, n);
    for (const int half : {4, 16, 19}) rotation(k, half);
    delta_rule(k, 32, 32);
    delta_rule(k, 24, 43);
    for (const bool choose : {false, true}) attention(k, 6, 64, choose), attention(k, 1, 27, choose);
}

}  // namespace

int main() {
    const Kernels* tables[8];
    const int count = usable_kernels(tables, 8);
    for (int i = 0; i < count; i++) {
        everything(*tables[i]);
        std::printf("%s ", tables[i]->name);
    }
    std::printf(failures == 0 ? "kernels agree with plain loops\n" : "kernels: %d failures\n", failures);
    return failures == 0 && count > 0 ? 0 : 1;
}
