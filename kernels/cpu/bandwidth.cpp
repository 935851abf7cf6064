#include "bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <vector>

#include "scratch.h"
#include "steal_pool.h"

namespace cherenkov::cpu {

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t buffer_bytes = size_t{256} << 20;
constexpr size_t window_bytes = size_t{16} << 20;
constexpr size_t chunk_bytes = size_t{256} << 10;
constexpr size_t ahead = 8192;  // bytes; as the products prefetch
constexpr auto enough = std::chrono::milliseconds(125);
constexpr size_t fewest = 16;  // windows

std::atomic<uint64_t> kept;  // keeps the compiler from dropping the reads

uint64_t read(const std::byte* at, size_t bytes) {
    uint64_t sums[8] = {};
    for (size_t i = 0; i < bytes; i += 64) {
#if defined(__GNUC__)
        __builtin_prefetch(at + i + ahead);
#endif
        uint64_t line[8];
        std::memcpy(line, at + i, sizeof line);
        for (int l = 0; l < 8; l++) sums[l] ^= line[l];
    }
    uint64_t all = 0;
    for (const uint64_t sum : sums) all ^= sum;
    return all;
}

template <typename F>
void in_chunks(StealPool& pool, size_t bytes, F f) {
    pool.run(static_cast<int>(bytes / chunk_bytes), [&](int chunk, int) { f(static_cast<size_t>(chunk) * chunk_bytes); });
}

}  // namespace

double read_bandwidth(int threads) {
    StealPool pool(threads);
    Scratch scratch;
    std::byte* buffer = scratch.take<std::byte>(buffer_bytes + ahead);
    in_chunks(pool, buffer_bytes, [&](size_t at) { std::memset(buffer + at, 1, chunk_bytes); });
    std::vector<double> rates;
    const auto end = Clock::now() + enough;
    for (size_t window = 0; Clock::now() < end || rates.size() < fewest; window += window_bytes) {
        const std::byte* from = buffer + window % buffer_bytes;
        const auto begin = Clock::now();
        in_chunks(pool, window_bytes, [&](size_t at) { kept ^= read(from + at, chunk_bytes); });
        rates.push_back(static_cast<double>(window_bytes) / std::chrono::duration<double>(Clock::now() - begin).count());
    }
    std::sort(rates.begin(), rates.end());
    return rates[rates.size() * 9 / 10];
}

}  // namespace cherenkov::cpu
