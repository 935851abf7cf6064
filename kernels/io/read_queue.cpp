#include "read_queue.h"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

namespace cherenkov::io {

namespace {

bool contains(const std::vector<int>& slots, int slot) { return std::find(slots.begin(), slots.end(), slot) != slots.end(); }

// A predicted read may begin beside so many others if `left`, it among them, wait. See the header.
bool goes_beside(int others, int left) { return left > 0 && others <= left / 2; }

}  // namespace

ReadQueue::ReadQueue(RecordFile& file, uint8_t* memory, int threads, RecordFile* lower)
    : file_(file), lower_(lower), memory_(memory), threads_(threads) {}

void ReadQueue::submit(const std::vector<int64_t>& records, const std::vector<int>& slots, bool required, bool lower) {
    const std::lock_guard lock(mutex_);
    if (workers_.empty()) start();
    auto& queue = required ? required_ : predicted_;
    for (size_t i = 0; i < records.size(); i++) queue.push_back({records[i], slots[i], lower});
    for (int i = std::min(idle_, how_many_may_begin()); i > 0; i--) wanted_.notify_one();
}

void ReadQueue::promote(const std::vector<int>& slots) {
    const std::lock_guard lock(mutex_);
    const auto chosen = [&](const Read& read) { return contains(slots, read.slot); };
    std::copy_if(predicted_.begin(), predicted_.end(), std::back_inserter(required_), chosen);
    std::erase_if(predicted_, chosen);
    for (int i = std::min(idle_, how_many_may_begin()); i > 0; i--) wanted_.notify_one();
}

std::vector<int> ReadQueue::cancel(const std::vector<int>& slots) {
    const std::lock_guard lock(mutex_);
    std::vector<int> cancelled;
    const auto chosen = [&](const Read& read) {
        if (!contains(slots, read.slot)) return false;
        cancelled.push_back(read.slot);
        return true;
    };
    for (auto* queue : {&required_, &predicted_}) {
        std::deque<Read> kept;
        for (const Read& read : *queue)
            if (!chosen(read)) kept.push_back(read);
        queue->swap(kept);
    }
    return cancelled;
}

std::vector<Landed> ReadQueue::landed(double patience) {
    std::unique_lock lock(mutex_);
    const auto over = [&] { return !landed_.empty() || (reading_ == 0 && required_.empty() && predicted_.empty()); };
    if (patience > 0 && !over()) arrived_.wait_for(lock, std::chrono::duration<double>(patience), over);
    any_landed_.store(false, std::memory_order_relaxed);
    return std::exchange(landed_, {});
}

int ReadQueue::outstanding() {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(required_.size() + predicted_.size() + landed_.size()) + reading_;
}

void ReadQueue::close() {
    std::vector<std::thread> workers;
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
        required_.clear(), predicted_.clear();
        workers.swap(workers_);
    }
    wanted_.notify_all();
    for (auto& worker : workers) worker.join();
    const std::lock_guard lock(mutex_);
    stop_ = false;
}

void ReadQueue::start() {
    for (int i = 0; i < threads_; i++) {
        try {
            workers_.emplace_back([this] { work(); });
        } catch (const std::system_error&) {
            if (workers_.empty()) throw;
            break;  // the system has no more to give; those that there are will do
        }
    }
}

void ReadQueue::work() {
    std::unique_lock lock(mutex_);
    Read read{};
    while (take(read) || !stop_) {
        if (read.slot < 0) {
            idle_++;
            wanted_.wait(lock, [&] { return stop_ || has_turn(); });
            idle_--;
            continue;
        }
        reading_++;
        lock.unlock();
        const auto begun = std::chrono::steady_clock::now();
        RecordFile& file = read.lower ? *lower_ : file_;
        const int status = file.read(read.record, memory_ + static_cast<size_t>(read.slot) * file_.stride());
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
        lock.lock();
        reading_--;
        landed_.push_back({read.slot, status, seconds});
        any_landed_.store(true, std::memory_order_release);
        arrived_.notify_one();
    }
}

bool ReadQueue::has_turn() const {
    return !required_.empty() || goes_beside(reading_, static_cast<int>(predicted_.size()));
}

int ReadQueue::how_many_may_begin() const {
    int count = static_cast<int>(required_.size());
    for (int left = static_cast<int>(predicted_.size()); goes_beside(reading_ + count, left); left--) count++;
    return count;
}

// The next read in turn; slot -1 if there is none.
bool ReadQueue::take(Read& read) {
    read.slot = -1;
    if (!has_turn()) return false;
    auto& queue = required_.empty() ? predicted_ : required_;
    read = queue.front();
    queue.pop_front();
    return true;
}

}  // namespace cherenkov::io
