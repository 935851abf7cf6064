// Expert records on disk: fixed-size pieces of one file, read whole into memory and compared with their checksums.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <sys/types.h>

namespace cherenkov::io {

// What became of a read: 0, an errno, or one of these.
constexpr int ends_early = -1, wrong_checksum = -2;

using Pread = ssize_t (*)(int file, void* memory, size_t size, off_t offset);

// May be used by several threads at once.
class RecordFile {
public:
    // `file` is an open descriptor and stays the caller's, as does `direct`: one of the same file that by-passes the page
    // cache, or -1. `sums` has a checksum for each record, or none at all to read unchecked. `pread` is for tests.
    RecordFile(int file, int direct, size_t stride, std::vector<uint64_t> sums, bool every_time, Pread pread = nullptr);

    size_t stride() const { return stride_; }
    // Reads go past the page cache.
    bool is_direct() const { return direct_.load(std::memory_order_relaxed) >= 0; }
    // System calls so far.
    uint64_t preads() const { return preads_.load(std::memory_order_relaxed); }

    // Fills `slot` with a record. A failure is tried once more, for it may have been a passing fault.
    int read(int64_t record, uint8_t* slot);

private:
    int fill(int64_t record, uint8_t* slot);
    ssize_t read_some(bool direct, uint8_t* to, size_t size, off_t offset);
    bool needs_check(int64_t record);

    const int file_;
    std::atomic<int> direct_;
    const size_t stride_;
    const std::vector<uint64_t> sums_;
    std::vector<std::atomic<uint8_t>> sound_;  // records that were right when they were read
    const bool every_time_;
    const Pread pread_;
    std::atomic<uint64_t> preads_{0};
    std::atomic<int64_t> stamp_;  // tells whether the file was written to since
};

}  // namespace cherenkov::io
