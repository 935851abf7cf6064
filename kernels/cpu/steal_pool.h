// A fork-join pool in which nobody waits for a thread that has not been scheduled.
//
// A region is cut into chunks, and each thread gets a contiguous range of them. A thread that is done takes chunks from
// the others' ranges. The caller works too, and may end up doing every chunk: it waits only for chunks that another
// thread has begun. So a region never takes longer than it would on one thread, also when another process holds a core;
// a static split stalls for a scheduler's time slice then.
//
// Which thread runs a chunk is left to chance. Results must not depend on it: a chunk writes what no other chunk does.
//
// Threads start with the first region that has more than one chunk. Idle threads spin for some microseconds, since the
// next region of a forward pass follows at once, then sleep. After fork() the child has none of them: it computes alone,
// correctly, and forgets the threads instead of joining them.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "ahead.h"

namespace cherenkov::cpu {

class StealPool {
public:
    explicit StealPool(int threads);
    ~StealPool();
    StealPool(const StealPool&) = delete;
    StealPool& operator=(const StealPool&) = delete;

    int threads() const { return threads_; }

    // What the next region will read, which idle threads ask memory for. The caller's to set, before a region: it holds
    // until the next one.
    Ahead ahead;

    // Regions handed to the threads so far, modulo 2^32; those that the caller ran by itself do not count.
    uint32_t regions() const { return region_.load(std::memory_order_relaxed); }

    // Calls f(chunk, thread) for every chunk in [0, chunks) and returns when all are done. f must not throw and must not
    // call run(). One caller at a time.
    template <typename F>
    void run(int chunks, const F& f) {
        if (chunks <= 1 || threads_ == 1) {
            for (int i = 0; i < chunks; i++) f(i, 0);
            return;
        }
        run_parallel(chunks, [](const void* body, int chunk, int thread) {
            (*static_cast<const F*>(body))(chunk, thread);
        }, &f);
    }

private:
    using Body = void (*)(const void* context, int chunk, int thread);

    // Chunks left to a thread: [low 32 bits, high 32 bits). Taking one adds 1; going past the end does no harm.
    struct alignas(64) Range {
        std::atomic<uint64_t> left{0};
    };

    void run_parallel(int chunks, Body body, const void* context);
    void start();
    void work(int thread);
    void wait_for_work(int thread);
    template <typename F>
    bool spin_until(int thread, Ahead::Place& place, F ready) const;

    const int threads_;
    const std::unique_ptr<Range[]> ranges_;
    std::vector<std::thread> workers_;
    int owner_ = 0;  // process that started the workers
    Body body_ = nullptr;
    const void* context_ = nullptr;
    std::atomic<bool> stop_{false};
    alignas(64) std::atomic<uint32_t> region_{0};  // counts up; what idle threads watch
    alignas(64) std::atomic<int> done_{0};
    alignas(64) std::atomic<int> sleepers_{0};
};

}  // namespace cherenkov::cpu
