// Memory for intermediate results: taken piece by piece, given back all at once, kept for the next call.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace cherenkov::cpu {

class Scratch {
public:
    Scratch() = default;
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    ~Scratch() { release(); }

    // Forgets everything handed out. If the last call needed more than one block, one of the whole size replaces them,
    // so that a repeated call allocates nothing.
    void reset() {
        if (blocks_.size() > 1) {
            const size_t whole = total_;
            release();
            grow(whole);
        }
        at_ = {0, 0};
    }

    // As reset(), and sees to it that `bytes` can be taken from one block.
    void reserve(size_t bytes) {
        reset();
        if (bytes <= total_) return;
        release();
        grow(bytes);
    }

    // Memory held.
    size_t bytes() const { return total_; }

    // `count` objects, uninitialised, aligned to 64 bytes.
    template <typename T = float>
    T* take(size_t count) {
        const size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
        while (at_.block < blocks_.size() && at_.used + bytes > blocks_[at_.block].bytes) at_ = {at_.block + 1, 0};
        if (at_.block == blocks_.size()) grow(bytes > total_ ? bytes : total_);
        void* data = blocks_[at_.block].data + at_.used;
        at_.used += bytes;
        return static_cast<T*>(data);
    }

    // How far the memory is used. rewind() gives back what was taken since.
    struct Mark {
        size_t block, used;
    };
    Mark mark() const { return at_; }
    void rewind(Mark mark) { at_ = mark; }

private:
    struct Block {
        std::byte* data;
        size_t bytes;
    };

    static constexpr size_t huge_page = size_t{2} << 20;

    void grow(size_t bytes) {
        bytes = (bytes + huge_page - 1) / huge_page * huge_page;
        void* data = std::aligned_alloc(huge_page, bytes);
        if (data == nullptr) throw std::bad_alloc();
#if defined(__linux__)
        madvise(data, bytes, MADV_HUGEPAGE);  // only a hint
#endif
        blocks_.push_back({static_cast<std::byte*>(data), bytes});
        total_ += bytes;
    }

    void release() {
        for (const Block& block : blocks_) std::free(block.data);
        blocks_.clear();
        total_ = 0;
    }

    std::vector<Block> blocks_;
    size_t total_ = 0;
    Mark at_{0, 0};
};

}  // namespace cherenkov::cpu
