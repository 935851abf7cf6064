#include "steal_pool.h"

#include <chrono>
#include <system_error>

#include "rounding.h"

#if defined(_WIN32)
#include <process.h>
#define getpid _getpid
#else
#include <unistd.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace cherenkov::cpu {

namespace {

constexpr auto spin_time = std::chrono::microseconds(100);

void relax() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace

// Calls ready() until it holds or the spin time is over, and asks for what lies ahead meanwhile; returns its last answer.
template <typename F>
bool StealPool::spin_until(int thread, Ahead::Place& place, F ready) const {
    const auto end = std::chrono::steady_clock::now() + spin_time;
    do {
        for (int i = 0; i < 32; i++) {
            if (ready()) return true;
            if (!ahead.ask(thread, threads_, place)) relax();
        }
    } while (std::chrono::steady_clock::now() < end);
    return ready();
}

StealPool::StealPool(int threads)
    : threads_(threads), ranges_(std::make_unique<Range[]>(static_cast<size_t>(threads))) {}

StealPool::~StealPool() {
    if (workers_.empty()) return;
    if (getpid() != owner_) {  // a forked child: there is nothing to stop, and joining would wait for ever
        for (auto& worker : workers_) worker.detach();
        return;
    }
    stop_.store(true, std::memory_order_relaxed);
    region_.fetch_add(1, std::memory_order_seq_cst);
    region_.notify_all();
    for (auto& worker : workers_) worker.join();
}

void StealPool::run_parallel(int chunks, Body body, const void* context) {
    if (workers_.empty()) start();
    // No thread is inside a chunk now, so none reads these. They are published by the ranges.
    body_ = body;
    context_ = context;
    done_.store(0, std::memory_order_relaxed);
    for (int t = 0; t < threads_; t++) {
        const auto begin = static_cast<uint64_t>(chunks) * static_cast<uint64_t>(t) / static_cast<uint64_t>(threads_);
        const auto end = static_cast<uint64_t>(chunks) * static_cast<uint64_t>(t + 1) / static_cast<uint64_t>(threads_);
        ranges_[static_cast<size_t>(t)].left.store(end << 32 | begin, std::memory_order_release);
    }
    region_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) != 0) region_.notify_all();
    work(0);
    const auto finished = [&] { return done_.load(std::memory_order_acquire) == chunks; };
    Ahead::Place place;
    while (!spin_until(0, place, finished)) std::this_thread::yield();
}

void StealPool::start() {
    owner_ = static_cast<int>(getpid());
    workers_.reserve(static_cast<size_t>(threads_ - 1));
    try {
        for (int i = 1; i < threads_; i++) workers_.emplace_back([this, i] { wait_for_work(i); });
    } catch (const std::system_error&) {
        // The system has no more threads to give. Those that there are take the others' chunks.
    }
}

void StealPool::work(int thread) {
    for (int i = 0; i < threads_; i++) {
        auto& left = ranges_[static_cast<size_t>((thread + i) % threads_)].left;
        for (;;) {
            uint64_t range = left.load(std::memory_order_relaxed);
            if (static_cast<uint32_t>(range) >= range >> 32) break;
            range = left.fetch_add(1, std::memory_order_acq_rel);
            const auto chunk = static_cast<uint32_t>(range);
            if (chunk >= range >> 32) break;
            body_(context_, static_cast<int>(chunk), thread);
            done_.fetch_add(1, std::memory_order_release);
        }
    }
}

void StealPool::wait_for_work(int thread) {
    const PlainRounding plain;
    uint32_t seen = 0;
    Ahead::Place place;
    for (;;) {
        const auto changed = [&] { return region_.load(std::memory_order_acquire) != seen; };
        while (!spin_until(thread, place, changed)) {
            sleepers_.fetch_add(1, std::memory_order_seq_cst);
            region_.wait(seen, std::memory_order_seq_cst);
            sleepers_.fetch_sub(1, std::memory_order_seq_cst);
        }
        seen = region_.load(std::memory_order_acquire);
        if (stop_.load(std::memory_order_relaxed)) return;
        work(thread);
    }
}

}  // namespace cherenkov::cpu
