// Routing, the routed experts wave by wave, and the shared expert.
#include <algorithm>
#include <cmath>

#include "ops.h"

namespace cherenkov::cpu {

namespace {

// Intermediate activations of (row, rank) pairs, those of one expert side by side.
struct Activations {
    Activations(Engine& e, int pairs, int inter)
        : width(static_cast<size_t>(inter)),
          gate(e.scratch.take(static_cast<size_t>(pairs) * width)),
          up(e.scratch.take(static_cast<size_t>(pairs) * width)),
          packed(e, gate, width, pairs, inter) {}

    size_t width;
    float* gate;  // then silu(gate) * up
    float* up;
    Inputs packed;
};

// One expert and the pairs it works for: `pairs` of the activations, from `first` on.
struct Job {
    Weights gate, up, down;
    Activations* activations;
    int first, pairs;
    Row *gates, *ups, *outputs;
};

// A job whose pairs are still to be added.
Job make_job(Engine& e, const Weights& gate, const Weights& up, const Weights& down, Activations& activations, int first,
             int pairs) {
    const auto n = static_cast<size_t>(pairs);
    return {gate, up, down, &activations, first, 0, e.scratch.take<Row>(n), e.scratch.take<Row>(n), e.scratch.take<Row>(n)};
}

void add_pair(Job& job, const Inputs& x, int row, float* out) {
    const size_t at = static_cast<size_t>(job.first + job.pairs) * job.activations->width;
    job.gates[job.pairs] = {x.row(job.gate, row), job.activations->gate + at};
    job.ups[job.pairs] = {x.row(job.up, row), job.activations->up + at};
    job.outputs[job.pairs++] = {nullptr, out};
}

void compute(Engine& e, Job* jobs, int count) {
    Task* tasks = e.scratch.take<Task>(static_cast<size_t>(count));
    for (int j = 0; j < count; j++)
        tasks[j] = matrix_task(jobs[j].gate.rows, jobs[j].gate.row_bytes() + jobs[j].up.row_bytes(), jobs[j].pairs);
    e.pool.ahead.begin();
    for (int j = 0; j < count; j++) e.pool.ahead.add(jobs[j].down);
    e.pool.ahead.end();
    in_pieces(e, tasks, count, [&](int j, int first, int last, int) {
        const Job& job = jobs[j];
        Weights gate = job.gate, up = job.up;  // read in turns
        gate.ahead = up.row(first);
        if (last < gate.rows) up.ahead = gate.row(last);
        else if (j + 1 < count) up.ahead = jobs[j + 1].gate.row(0);
        e.k.multiply(gate, e.precision, job.gates, job.pairs, first, last);
        e.k.multiply(up, e.precision, job.ups, job.pairs, first, last);
        for (int i = 0; i < job.pairs; i++)
            e.k.silu_times(job.gates[i].y + first, job.ups[i].y + first, last - first);
    });
    for (int j = 0; j < count; j++) {
        Job& job = jobs[j];
        job.activations->packed.prepare(job.down);
        for (int i = 0; i < job.pairs; i++) job.outputs[i].x = job.activations->packed.row(job.down, job.first + i);
        tasks[j] = matrix_task(job.down.rows, job.down.row_bytes(), job.pairs);
    }
    e.expect_later();
    in_pieces(e, tasks, count, [&](int j, int first, int last, int) {
        Weights down = jobs[j].down;
        if (last == down.rows && j + 1 < count) down.ahead = jobs[j + 1].down.row(0);  // else the next piece follows
        e.k.multiply(down, e.precision, jobs[j].outputs, jobs[j].pairs, first, last);
    });
}

// The pairs of each expert of a wave: those of experts[i] are order[begins[i]] .. order[begins[i + 1] - 1], ascending.
struct Sorted {
    int* begins;
    int* order;
};

// Pairs that an earlier wave brought are left out.
Sorted sort_pairs(Engine& e, const Wave& wave, const Mixture& m) {
    const int pairs = m.rows * m.top_k;
    const int32_t* ids = m.ids;
    int32_t highest = 0;
    for (int p = 0; p < pairs; p++) highest = std::max(highest, ids[p]);
    for (int i = 0; i < wave.count; i++) highest = std::max(highest, wave.experts[i]);
    int* place = e.scratch.take<int>(static_cast<size_t>(highest) + 1);  // of an expert in the wave
    std::fill(place, place + highest + 1, -1);
    for (int i = 0; i < wave.count; i++) place[wave.experts[i]] = i;
    const auto n = static_cast<size_t>(wave.count);
    Sorted sorted{e.scratch.take<int>(n + 1), e.scratch.take<int>(static_cast<size_t>(pairs))};
    std::fill(sorted.begins, sorted.begins + n + 1, 0);
    const auto wanted = [&](int p) { return m.done[p] != 0 ? -1 : place[ids[p]]; };
    for (int p = 0; p < pairs; p++)
        if (const int i = wanted(p); i >= 0) sorted.begins[i + 1]++;
    for (size_t i = 0; i < n; i++) sorted.begins[i + 1] += sorted.begins[i];
    int* next = e.scratch.take<int>(n + 1);
    std::copy(sorted.begins, sorted.begins + n, next);
    for (int p = 0; p < pairs; p++)
        if (const int i = wanted(p); i >= 0) sorted.order[next[i]++] = p;
    return sorted;
}

// Pairs of experts that are left out of the sum have nothing to add to it. Returns how many.
int leave_out(const Wave& wave, const Sorted& sorted, Mixture& m) {
    const auto width = static_cast<size_t>(m.hidden);
    int count = 0;
    for (int i = 0; i < wave.count; i++) {
        if (wave.slots[i] >= 0) continue;
        for (int n = sorted.begins[i]; n < sorted.begins[i + 1]; n++, count++)
            std::fill_n(m.each + static_cast<size_t>(sorted.order[n]) * width, width, 0.0F);
    }
    return count;
}

}  // namespace

void route(Engine& e, const Weights& gate, int top_k, bool normalise, const float* x, int rows, int32_t* ids,
           float* weights) {
    const auto experts = static_cast<size_t>(gate.rows), k = static_cast<size_t>(top_k);
    float* scores = e.scratch.take(static_cast<size_t>(rows) * experts);
    Inputs in(e, x, static_cast<size_t>(gate.cols), rows, gate.cols);
    const Product product{&gate, &in, scores, experts};
    e.expect_later();
    multiply(e, &product, 1);
    const Task task{rows, experts * static_cast<size_t>(top_k + 4), 0};
    in_pieces(e, &task, 1, [&](int, int first, int last, int) {
        for (int r = first; r < last; r++) {
            float* row = scores + static_cast<size_t>(r) * experts;
            e.k.softmax(row, gate.rows);
            float sum = 0;
            for (size_t i = static_cast<size_t>(r) * k; i < static_cast<size_t>(r + 1) * k; i++) {
                ids[i] = e.k.argmax(row, gate.rows, &weights[i]);
                row[ids[i]] = -1.0F;  // taken: below every probability
                sum += weights[i];
            }
            if (!normalise) continue;
            for (size_t i = static_cast<size_t>(r) * k; i < static_cast<size_t>(r + 1) * k; i++) weights[i] /= sum;
        }
    });
}

Weights Record::matrix(const uint8_t* slot, int which) const {
    Weights w;
    w.rows = which == 2 ? hidden : inter;
    w.cols = which == 2 ? inter : hidden;
    w.bits = bits;
    w.codes = slot + codes[which];
    w.codes_stride = static_cast<size_t>(w.cols) * static_cast<size_t>(bits) / 8;
    if (bits < 16) {
        w.group = group;
        w.scales = slot + scales[which];
        w.biases = slot + biases[which];
        w.scales_stride = static_cast<size_t>(w.cols / group) * 2;
    }
    return w;
}

void Mixture::lay_out(int row_count, int k, int width, int stream_count) {
    finished = true;  // until the caller has filled it: a choice that fails half way is none
    rows = row_count, top_k = k, hidden = width, streams = stream_count;
    missing = rows * top_k, begun = false;
    const auto r = static_cast<size_t>(rows), pairs = static_cast<size_t>(missing), d = static_cast<size_t>(hidden);
    const size_t floats = r * d * 2 + pairs * d + pairs + r * static_cast<size_t>(streams + 1);
    memory.reserve(floats * 4 + pairs * 5 + 8 * 64);
    x = memory.take(r * d), gain = memory.take(r * static_cast<size_t>(streams));
    ids = memory.take<int32_t>(pairs), weights = memory.take(pairs), done = memory.take<uint8_t>(pairs);
    each = memory.take(pairs * d), shared = memory.take(r * d), switches = memory.take(r);
    std::fill(done, done + pairs, uint8_t{0});
}

void choose(Engine& e, const GatedResidual& read, const Weights& gate, bool normalise, const float* wide, Mixture& m) {
    read_residual(e, read, wide, m.rows, m.x, m.gain, {&gate});
    route(e, gate, m.top_k, normalise, m.x, m.rows, m.ids, m.weights);
}

void likely(Engine& e, const GatedResidual& read, const Weights& gate, int top_k, bool normalise, const float* wide, int rows,
            int32_t* ids) {
    const auto r = static_cast<size_t>(rows);
    float* block = e.scratch.take(r * static_cast<size_t>(read.hidden));
    float* gain = e.scratch.take(r * static_cast<size_t>(read.streams));
    float* weights = e.scratch.take(r * static_cast<size_t>(top_k));
    read_residual(e, read, wide, rows, block, gain);
    route(e, gate, top_k, normalise, block, rows, ids, weights);
}

void expert_wave(Engine& e, const Slots& pool, const Wave& wave, const SharedExpert& shared, Mixture& m) {
    const auto hidden = static_cast<size_t>(m.hidden);
    const bool first_wave = !m.begun;
    Inputs in(e, m.x, hidden, m.rows, m.hidden);
    const Sorted sorted = sort_pairs(e, wave, m);
    const int pairs = sorted.begins[wave.count];
    Activations routed(e, pairs - leave_out(wave, sorted, m), pool.record->inter);
    Activations for_shared(e, first_wave ? m.rows : 0, shared.gate.rows);
    Job* jobs = e.scratch.take<Job>(static_cast<size_t>(wave.count + 1));
    int count = 0, begun = 0;
    for (int i = 0; i < wave.count; i++) {
        const int first = sorted.begins[i], last = sorted.begins[i + 1], slot = wave.slots[i];
        if (first == last || slot < 0) continue;
        Job& job = jobs[count++];
        job = make_job(e, pool.matrix(slot, 0), pool.matrix(slot, 1), pool.matrix(slot, 2), routed, begun, last - first);
        begun += last - first;
        in.prepare(job.gate);  // up has the same form
        for (int n = first; n < last; n++)
            add_pair(job, in, sorted.order[n] / m.top_k, m.each + static_cast<size_t>(sorted.order[n]) * hidden);
    }
    if (first_wave) {
        for (const Weights* w : {&shared.gate, &shared.up, &shared.switch_}) in.prepare(*w);
        Job& job = jobs[count++];
        job = make_job(e, shared.gate, shared.up, shared.down, for_shared, 0, m.rows);
        for (int r = 0; r < m.rows; r++) {
            add_pair(job, in, r, m.shared + static_cast<size_t>(r) * hidden);
            const Row row{in.row(shared.switch_, r), m.switches + r};
            e.k.multiply(shared.switch_, e.precision, &row, 1, 0, 1);
        }
    }
    compute(e, jobs, count);
    for (int n = 0; n < pairs; n++) m.done[sorted.order[n]] = 1;
    m.missing -= pairs, m.begun = true;
}

void sum_so_far(Engine& e, const Mixture& m, const float* wide, float* out) {
    const auto width = static_cast<size_t>(m.hidden), s = static_cast<size_t>(m.streams);
    const auto rows = static_cast<size_t>(m.rows), k = static_cast<size_t>(m.top_k);
    float *sums = e.scratch.take(rows * width), *weights = e.scratch.take(rows * k);
    const float** parts = e.scratch.take<const float*>(rows * k);
    const Task task{m.rows, width * (k + 1 + s) * 2, 0};
    in_pieces(e, &task, 1, [&](int, int first, int last, int) {
        for (auto r = static_cast<size_t>(first); r < static_cast<size_t>(last); r++) {
            size_t count = r * k;
            for (size_t pair = r * k; pair < (r + 1) * k; pair++)
                if (m.done[pair] != 0) parts[count] = m.each + pair * width, weights[count++] = m.weights[pair];
            float* sum = sums + r * width;
            if (m.begun) e.k.scale(m.shared + r * width, 1.0F / (1.0F + std::exp(-m.switches[r])), m.hidden, sum);
            else std::fill_n(sum, width, 0.0F);
            if (count > r * k)
                e.k.combine(parts + r * k, weights + r * k, static_cast<int>(count - r * k), sum, 1.0F, m.hidden, sum);
            for (size_t i = r * s; i < (r + 1) * s; i++) {
                std::copy_n(wide + i * width, width, out + i * width);
                e.k.add_scaled(out + i * width, m.gain[i], sum, m.hidden);
            }
        }
    });
}

void finish_mixture(Engine& e, Mixture& m, float* target) {
    const auto width = static_cast<size_t>(m.hidden), k = static_cast<size_t>(m.top_k), s = static_cast<size_t>(m.streams);
    const float** ranks = e.scratch.take<const float*>(static_cast<size_t>(m.rows) * k);
    for (size_t i = 0; i < static_cast<size_t>(m.rows) * k; i++) ranks[i] = m.each + i * width;
    const Task task{m.rows, width * (k + 1 + s) * 2, 0};
    in_pieces(e, &task, 1, [&](int, int first, int last, int) {
        for (auto r = static_cast<size_t>(first); r < static_cast<size_t>(last); r++) {
            float* shared = m.shared + r * width;
            float* sum = s == 0 ? target + r * width : shared;
            e.k.scale(shared, 1.0F / (1.0F + std::exp(-m.switches[r])), m.hidden, shared);
            e.k.combine(ranks + r * k, m.weights + r * k, m.top_k, shared, 1.0F, m.hidden, sum);
            for (size_t i = r * s; i < (r + 1) * s; i++) e.k.add_scaled(target + i * width, m.gain[i], sum, m.hidden);
        }
    });
    m.finished = true;
}

}  // namespace cherenkov::cpu
