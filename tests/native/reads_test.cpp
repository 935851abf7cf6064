// Reads of records by themselves, on a disk that is slow, out of order and faulty: what lands is whole, what fails says why,
// nothing is read twice. Meant for ThreadSanitizer; run by sanitize.sh.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include <unistd.h>

#include "read_queue.h"
#include "xxh3.h"

using namespace cherenkov::io;

namespace {

constexpr size_t stride = 16384;
constexpr int records = 200, slots = 16;
int failures = 0;

void expect(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "failed: %s\n", what);
    failures++;
}

uint8_t byte_of(int64_t record, size_t i) { return static_cast<uint8_t>(static_cast<size_t>(record) * 31 + i * 7 + i / 256); }

std::vector<uint8_t> content(int64_t record) {
    std::vector<uint8_t> bytes(stride);
    for (size_t i = 0; i < stride; i++) bytes[i] = byte_of(record, i);
    return bytes;
}

// What the disk does with its calls, by their number.
std::atomic<int> calls{0};
std::atomic<int> mode{0};  // 0 is well, 1 slow and short and interrupted, 2 fails once in a while, 3 fails always, 4 wrong once, 5 EINVAL

ssize_t disk(int, void* memory, size_t size, off_t offset) {
    const int call = calls.fetch_add(1);
    thread_local std::minstd_rand random(static_cast<unsigned>(call) + 1);
    if (mode == 1) {
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
        if (random() % 3 == 0) return errno = EINTR, -1;
        size = 1 + random() % size;
    }
    if ((mode == 2 && call % 2 == 0) || mode == 3) return errno = EIO, -1;
    if (mode == 5 && call == 0) return errno = EINVAL, -1;
    if (offset >= static_cast<off_t>(records * stride)) return 0;
    auto* bytes = static_cast<uint8_t*>(memory);
    const auto start = static_cast<size_t>(offset);
    for (size_t i = 0; i < size; i++) bytes[i] = byte_of(static_cast<int64_t>((start + i) / stride), (start + i) % stride);
    if (mode == 4 && call == 0) bytes[5] ^= 1;
    return static_cast<ssize_t>(size);
}

std::vector<uint64_t> sums() {
    std::vector<uint64_t> list;
    for (int r = 0; r < records; r++) list.push_back(xxh3_64(content(r).data(), stride));
    return list;
}

struct Bench {
    RecordFile file;
    uint8_t* memory;
    ReadQueue queue;

    explicit Bench(int threads, int behaviour, int direct = -1)
        : file(0, direct, stride, sums(), true, disk),
          memory(static_cast<uint8_t*>(std::aligned_alloc(4096, stride * slots))),
          queue(file, memory, threads) {
        calls = 0, mode = behaviour;
    }
    ~Bench() {
        queue.close();
        std::free(memory);
    }
    bool holds(int slot, int64_t record) const {
        return std::memcmp(memory + static_cast<size_t>(slot) * stride, content(record).data(), stride) == 0;
    }
};

// An owner that keeps all slots busy, promotes, cancels, and looks at what landed.
void everything_lands(int threads, int behaviour) {
    Bench b(threads, behaviour);
    std::minstd_rand random(7);
    std::vector<int64_t> in(slots, -1);
    int next = 0, done = 0;
    while (done < records) {
        for (int s = 0; s < slots && next < records; s++)
            if (in[static_cast<size_t>(s)] < 0) {
                in[static_cast<size_t>(s)] = next;
                b.queue.submit({next++}, {s}, random() % 2 == 0);
            }
        if (random() % 4 == 0) b.queue.promote({static_cast<int>(random() % slots), static_cast<int>(random() % slots)});
        if (random() % 4 == 0)
            for (const int s : b.queue.cancel({static_cast<int>(random() % slots)}))
                b.queue.submit({in[static_cast<size_t>(s)]}, {s}, true);
        for (const Landed& l : b.queue.landed(1)) {
            expect(l.status == 0, "it landed");
            expect(b.holds(l.slot, in[static_cast<size_t>(l.slot)]), "it is whole");
            in[static_cast<size_t>(l.slot)] = -1, done++;
        }
    }
    expect(b.queue.outstanding() == 0, "nothing is left");
    expect(behaviour == 1 || calls == records * (behaviour == 2 ? 2 : 1) || threads > 1, "each record is read once");
}

void one(int behaviour, int64_t record, int status, int count, const char* what) {
    Bench b(2, behaviour, behaviour == 5 ? 1 : -1);
    b.queue.submit({record}, {3}, true);
    std::vector<Landed> landed;
    while (landed.empty()) landed = b.queue.landed(1);
    expect(landed[0].status == status, what);
    expect(calls == count, what);
    expect(status != 0 || b.holds(3, record), what);
    expect(behaviour != 5 || !b.file.is_direct(), "direct reads that are refused are not tried again");
}

void closing_in_the_middle() {
    for (int i = 0; i < 30; i++) {
        Bench b(4, 1);
        for (int s = 0; s < slots; s++) b.queue.submit({s}, {s}, s % 2 == 0);
        std::this_thread::sleep_for(std::chrono::microseconds(i * 20));
    }
}

}  // namespace

int main() {
    for (const int threads : {1, 3, 8})
        for (const int behaviour : {0, 1}) everything_lands(threads, behaviour);
    one(0, 5, 0, 1, "a read");
    one(2, 5, 0, 2, "an error once is tried again");
    one(3, 5, EIO, 2, "an error twice is an error");
    one(4, 5, 0, 2, "a wrong record once is read again");
    one(5, 5, 0, 2, "what the file system refuses is read through the cache");
    one(0, records, ends_early, 2, "the end of the file");
    closing_in_the_middle();
    std::printf(failures == 0 ? "reads: ok\n" : "reads: %d failures\n", failures);
    return failures != 0;
}
