#include "engine.h"

#include <algorithm>

namespace cherenkov::cpu {

namespace {
constexpr size_t smallest_chunk = size_t{12} << 10;  // about a microsecond: less is not worth a hand-over
constexpr int chunks_per_thread = 8;
}  // namespace

Task matrix_task(int outputs, size_t bytes, int rows) {
    constexpr size_t cache = size_t{64} << 10;
    const bool panels = rows > 4;  // which read their piece of the matrix more than once
    // The second row is nearly free while one row waits for memory; beyond that, arithmetic counts.
    const size_t cost = bytes + bytes * static_cast<size_t>(std::max(0, rows - 1)) / 2 + 1;
    return {outputs, cost, panels ? 1 + cache / (bytes + 1) : 0, panels ? size_t{32} : size_t{4}};
}

Cuts::Cuts(Engine& engine, const Task* tasks, int count) : tasks_(tasks), count_(count) {
    size_t total = 0;
    for (int t = 0; t < count; t++) total += static_cast<size_t>(tasks[t].size) * tasks[t].cost;
    const auto wanted = static_cast<size_t>(engine.pool.threads() * chunks_per_thread);
    const size_t chunk = std::max(smallest_chunk, total / wanted + 1);
    steps_ = engine.scratch.take<int>(static_cast<size_t>(count));
    begins_ = engine.scratch.take<int>(static_cast<size_t>(count));
    for (int t = 0; t < count; t++) {
        const Task& task = tasks[t];
        size_t step = (chunk + task.cost - 1) / std::max<size_t>(task.cost, 1);
        if (task.most != 0) step = std::min(step, task.most);
        step = (step + task.quantum - 1) / task.quantum * task.quantum;
        if (task.cost >= smallest_chunk && task.quantum <= 4) step = std::max<size_t>(1, chunk / task.cost);
        steps_[t] = static_cast<int>(std::min<size_t>(step, static_cast<size_t>(std::max(task.size, 1))));
        begins_[t] = chunks_;
        chunks_ += (task.size + steps_[t] - 1) / steps_[t];
    }
}

Cuts::Piece Cuts::piece(int chunk) const {
    const int t = static_cast<int>(std::upper_bound(begins_, begins_ + count_, chunk) - begins_) - 1;
    const int first = (chunk - begins_[t]) * steps_[t];
    return {t, first, std::min(first + steps_[t], tasks_[t].size)};
}

void Inputs::prepare(const Weights& w) {
    const Packing packing = Packing::of(w, e_.precision);
    for (int i = 0; i < count_; i++)
        if (forms_[i].packing == packing) return;
    Form& form = forms_[count_++];
    form = {packing, nullptr, 0};
    if (packing.kind == Packing::plain) return;
    form.stride = e_.k.packed_bytes(packing, cols_);
    form.data = e_.scratch.take<std::byte>(form.stride * static_cast<size_t>(rows_));
    const Task task{rows_, static_cast<size_t>(cols_) * 8, 0};
    in_pieces(e_, &task, 1, [&](int, int first, int last, int) {
        for (int r = first; r < last; r++)
            e_.k.pack(packing, x_ + static_cast<size_t>(r) * stride_, cols_, form.data + static_cast<size_t>(r) * form.stride);
    });
}

const void* Inputs::row(const Weights& w, int r) const {
    const Packing packing = Packing::of(w, e_.precision);
    const auto at = static_cast<size_t>(r);
    if (packing.kind == Packing::plain) return x_ + at * stride_;
    int i = 0;
    while (!(forms_[i].packing == packing)) i++;
    return forms_[i].data + at * forms_[i].stride;
}

}  // namespace cherenkov::cpu
