// The work-stealing pool by itself: every chunk runs once, results are visible to the caller, threads come and go.
// Meant for ThreadSanitizer; run by sanitize.sh.
#include <cstdio>
#include <vector>

#include "steal_pool.h"

using cherenkov::cpu::StealPool;

namespace {

int failures = 0;

void expect(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "failed: %s\n", what);
    failures++;
}

void every_chunk_once(int threads, int regions) {
    StealPool pool(threads);
    std::vector<int> counts(1000);
    for (int region = 0; region < regions; region++) {
        const int chunks = 1 + region * 37 % 1000;
        std::fill(counts.begin(), counts.end(), 0);
        pool.run(chunks, [&](int chunk, int thread) {
            expect(thread >= 0 && thread < threads, "a thread has an index below the count");
            counts[static_cast<size_t>(chunk)]++;  // not atomic: no two threads may get the same chunk
        });
        for (int i = 0; i < 1000; i++) expect(counts[static_cast<size_t>(i)] == (i < chunks ? 1 : 0), "each chunk once");
        // Long enough for some threads to fall asleep in between.
        if (region % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
}

void regions_follow_each_other() {
    StealPool pool(4);
    std::vector<long> sums(64);
    long expected = 0;
    for (int region = 0; region < 2000; region++) {
        pool.run(64, [&](int chunk, int) { sums[static_cast<size_t>(chunk)] += region; });
        expected += region;
    }
    for (const long sum : sums) expect(sum == expected, "a region sees what the one before wrote");
}

// The list changes while threads read it.
void what_lies_ahead_changes() {
    std::vector<uint8_t> memory(1 << 16);
    StealPool pool(4);
    for (int region = 0; region < 500; region++) {
        cherenkov::cpu::Weights w;
        w.codes = w.scales = w.biases = memory.data();
        w.codes_stride = static_cast<size_t>(1 + region % 100), w.scales_stride = static_cast<size_t>(region % 3);
        w.rows = region % 7 * 4;
        pool.ahead.begin();
        for (int i = 0; i < region % 20; i++) pool.ahead.add(w, 1 + region % 4);
        pool.ahead.end();
        pool.run(8, [](int, int) {});
    }
}

// Each thread asks for its own share, and all of them together for everything.
void shares_cover_the_list() {
    std::vector<uint8_t> memory(1 << 12);
    cherenkov::cpu::Weights w;
    w.codes = memory.data(), w.codes_stride = 64, w.rows = 10;
    for (const int threads : {1, 2, 3, 5}) {
        cherenkov::cpu::Ahead ahead;
        ahead.expect({&w, nullptr, &w});
        int rows = 0;
        cherenkov::cpu::Ahead::Place last;
        while (ahead.ask(threads - 1, threads, last)) rows++;
        expect(rows == 20 - 20 * (threads - 1) / threads, "the last thread asks for the last share");
        expect(!ahead.ask(threads - 1, threads, last), "nothing is asked for twice");
    }
}

}  // namespace

int main() {
    for (const int threads : {1, 2, 3, 8}) every_chunk_once(threads, 300);
    for (int i = 0; i < 20; i++) every_chunk_once(4, 1);  // start and stop
    { const StealPool unused(4); }
    regions_follow_each_other();
    what_lies_ahead_changes();
    shares_cover_the_list();
    std::printf("%s\n", failures == 0 ? "pool: all well" : "pool: failed");
    return failures == 0 ? 0 : 1;
}
