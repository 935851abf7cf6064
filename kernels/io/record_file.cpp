#include "record_file.h"

#include <cerrno>
#include <utility>

#include <sys/stat.h>
#include <unistd.h>

#include "xxh3.h"

namespace cherenkov::io {

namespace {

constexpr size_t alignment = 4096;  // of offsets, sizes and memory, for reads past the page cache

bool is_aligned(size_t value) { return value % alignment == 0; }

// Size and time of the last change, in one number that differs when they do.
int64_t stamp_of(int file) {
    struct stat s;
    if (fstat(file, &s) != 0) return -1;
#if defined(__APPLE__)
    const auto& time = s.st_mtimespec;
#else
    const auto& time = s.st_mtim;
#endif
    const auto mixed = static_cast<uint64_t>(time.tv_sec) * 1000000007 + static_cast<uint64_t>(time.tv_nsec) +
                       static_cast<uint64_t>(s.st_size) * 0x9E3779B185EBCA87;
    return static_cast<int64_t>(mixed);
}

}  // namespace

RecordFile::RecordFile(int file, int direct, size_t stride, std::vector<uint64_t> sums, bool every_time, Pread pread)
    : file_(file),
      direct_(is_aligned(stride) ? direct : -1),
      stride_(stride),
      sums_(std::move(sums)),
      sound_(sums_.size()),
      every_time_(every_time),
      pread_(pread == nullptr ? ::pread : pread),
      stamp_(stamp_of(file)) {}

int RecordFile::read(int64_t record, uint8_t* slot) {
    int status = 0;
    for (int attempt = 0; attempt < 2; attempt++) {
        status = fill(record, slot);
        if (status == 0 && needs_check(record)) {
            const auto i = static_cast<size_t>(record);
            if (xxh3_64(slot, stride_) == sums_[i])
                sound_[i].store(1, std::memory_order_relaxed);
            else
                status = wrong_checksum;
        }
        if (status == 0) break;
    }
    return status;
}

// Short reads go on where they ended; that is no aligned place as a rule, so through the page cache.
int RecordFile::fill(int64_t record, uint8_t* slot) {
    const auto start = static_cast<off_t>(record) * static_cast<off_t>(stride_);
    size_t done = 0;
    while (done < stride_) {
        const bool direct = is_direct() && done == 0 && is_aligned(reinterpret_cast<uintptr_t>(slot));
        const ssize_t count = read_some(direct, slot + done, stride_ - done, start + static_cast<off_t>(done));
        if (count > 0)
            done += static_cast<size_t>(count);
        else if (count == 0)
            return ends_early;
        else if (direct && errno == EINVAL)
            direct_.store(-1, std::memory_order_relaxed);  // the file system wants another alignment than ours, or none
        else if (errno != EINTR)
            return errno;
    }
    return 0;
}

ssize_t RecordFile::read_some(bool direct, uint8_t* to, size_t size, off_t offset) {
    preads_.fetch_add(1, std::memory_order_relaxed);
    return pread_(direct ? direct_.load(std::memory_order_relaxed) : file_, to, size, offset);
}

// Records do not change under an open store, so each is checked when it is first read; after a change, again.
bool RecordFile::needs_check(int64_t record) {
    if (sums_.empty()) return false;
    const int64_t stamp = stamp_of(file_);
    if (stamp_.exchange(stamp, std::memory_order_relaxed) != stamp)
        for (auto& sound : sound_) sound.store(0, std::memory_order_relaxed);
    return every_time_ || sound_[static_cast<size_t>(record)].load(std::memory_order_relaxed) == 0;
}

}  // namespace cherenkov::io
