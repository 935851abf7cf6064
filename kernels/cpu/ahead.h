// What the next regions will read, for threads that have nothing to do: they ask memory for it meanwhile.
//
// Between two regions memory would idle, while one thread normalises, packs or routes; and the first lines of a matrix
// are waited for at full latency. A thread that waits prefetches the beginning of its own share into its cache instead.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "weights.h"

namespace cherenkov::cpu {

// Asks memory for bytes: into every cache, or with `Nearness` 2 past the first, where they are many.
template <int Nearness = 3>
inline void prefetch(const void* from, size_t bytes) {
    for (size_t line = 0; line < bytes; line += 64) __builtin_prefetch(static_cast<const std::byte*>(from) + line, 0, Nearness);
}

// Matrices in the order in which they are read; each thread begins at its share of their bytes, as StealPool deals it.
//
// One thread writes, others read meanwhile. A mixture of old and new only makes them ask for the wrong lines, which a
// prefetch may do anywhere.
class Ahead {
public:
    // How far a thread has come.
    struct Place {
        uint32_t list = 0;
        int matrix = 0, row = 0;
        size_t left = 0;  // bytes that it may still ask for
    };

    // The list, in place of the one before. Null pointers and matrices without rows are left out, and what is too much.
    template <typename Pointers>
    void expect(const Pointers& matrices) {
        begin();
        for (const Weights* w : matrices)
            if (w != nullptr) add(*w);
        end();
    }
    void expect(std::initializer_list<const Weights*> matrices) { expect<std::initializer_list<const Weights*>>(matrices); }
    void begin() { count_ = 0, bytes_ = 0; }
    // A matrix; of one with `parts`, rows n, n + rows / parts and so on are read together.
    void add(const Weights& w, int parts = 1);
    void end();

    // Asks for one row, of each part, of what `thread` of `threads` will read. False if there is nothing left to ask for.
    bool ask(int thread, int threads, Place& place) const;

private:
    static constexpr int most = 16;
    static constexpr size_t share_bytes = size_t{96} << 10;  // of a thread: what its cache holds beside its work

    struct Matrix {
        std::atomic<const uint8_t*> codes, scales, biases;
        std::atomic<size_t> codes_stride, scales_stride;
        std::atomic<int> rows, parts;  // rows of each part
    };

    void find(int thread, int threads, Place& place) const;

    Matrix matrices_[most] = {};
    std::atomic<int> matrices_there_{0};
    std::atomic<size_t> bytes_there_{0};
    alignas(64) std::atomic<uint32_t> list_{0};  // counts up
    int count_ = 0;                              // the writer's own
    size_t bytes_ = 0;
};

}  // namespace cherenkov::cpu
