#include "ahead.h"

namespace cherenkov::cpu {

namespace {

constexpr auto relaxed = std::memory_order_relaxed;

}  // namespace

void Ahead::add(const Weights& w, int parts) {
    if (count_ == most || w.rows == 0) return;
    Matrix& m = matrices_[count_++];
    m.codes.store(w.codes, relaxed);
    m.scales.store(w.scales, relaxed);
    m.biases.store(w.biases, relaxed);
    m.codes_stride.store(w.codes_stride, relaxed);
    m.scales_stride.store(w.scales_stride, relaxed);
    m.rows.store(w.rows / parts, relaxed);
    m.parts.store(parts, relaxed);
    bytes_ += static_cast<size_t>(w.rows) * (w.codes_stride + 2 * w.scales_stride);
}

void Ahead::end() {
    matrices_there_.store(count_, relaxed);
    bytes_there_.store(bytes_, relaxed);
    list_.store(list_.load(relaxed) + 1, std::memory_order_release);
}

void Ahead::find(int thread, int threads, Place& place) const {
    size_t before = bytes_there_.load(relaxed) / static_cast<size_t>(threads) * static_cast<size_t>(thread);
    place.matrix = place.row = 0;
    place.left = share_bytes;
    for (const int there = matrices_there_.load(relaxed); place.matrix < there; place.matrix++) {
        const Matrix& m = matrices_[place.matrix];
        const size_t row_bytes = m.codes_stride.load(relaxed) + 2 * m.scales_stride.load(relaxed);
        const size_t each = row_bytes * static_cast<size_t>(m.parts.load(relaxed));
        const auto rows = static_cast<size_t>(m.rows.load(relaxed));
        if (before < each * rows) {
            place.row = static_cast<int>(before / each);
            return;
        }
        before -= each * rows;
    }
}

bool Ahead::ask(int thread, int threads, Place& place) const {
    const uint32_t list = list_.load(std::memory_order_acquire);
    if (place.list != list) {
        place.list = list;
        find(thread, threads, place);
    }
    if (place.left == 0 || place.matrix >= matrices_there_.load(relaxed)) return false;
    const Matrix& m = matrices_[place.matrix];
    const size_t codes = m.codes_stride.load(relaxed), scales = m.scales_stride.load(relaxed);
    const int rows = m.rows.load(relaxed), parts = m.parts.load(relaxed);
    for (int part = 0; part < parts; part++) {
        const size_t row = static_cast<size_t>(part) * static_cast<size_t>(rows) + static_cast<size_t>(place.row);
        prefetch<2>(m.codes.load(relaxed) + row * codes, codes);
        if (scales == 0) continue;
        prefetch<2>(m.scales.load(relaxed) + row * scales, scales);
        prefetch<2>(m.biases.load(relaxed) + row * scales, scales);
    }
    const size_t asked = (codes + 2 * scales) * static_cast<size_t>(parts);
    place.left = place.left > asked ? place.left - asked : 0;
    if (++place.row >= rows) place.matrix++, place.row = 0;
    return true;
}

}  // namespace cherenkov::cpu
