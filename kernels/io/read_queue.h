// Threads that read records into slots of memory, what is required before what is only predicted.
//
// Disks tend to end reads that are under way together at the same time, that of the last: a few predicted ones would hold up one that
// is required. So predicted reads go one after the other, and more at a time only while at least twice as many wait.
//
// One thread, the owner, asks and takes what has landed; it alone decides which slot gets which record. A slot belongs to
// the queue from submit() until landed() or cancel() hands it back.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "record_file.h"

namespace cherenkov::io {

struct Landed {
    int slot;
    int status;  // as RecordFile::read
    double seconds;
};

class ReadQueue {
public:
    // `memory` is slots of the file's stride, one after the other, and outlives the queue, as do the files. `lower`, or
    // null, has the same records in fewer bits: they fit in the same slots.
    ReadQueue(RecordFile& file, uint8_t* memory, int threads, RecordFile* lower = nullptr);
    ~ReadQueue() { close(); }
    ReadQueue(const ReadQueue&) = delete;
    ReadQueue& operator=(const ReadQueue&) = delete;

    // Threads start with the first read.
    void submit(const std::vector<int64_t>& records, const std::vector<int>& slots, bool required, bool lower = false);

    // What is waiting among these becomes required.
    void promote(const std::vector<int>& slots);

    // Takes back what has not begun; returns its slots. What has begun lands.
    std::vector<int> cancel(const std::vector<int>& slots);

    // What has landed since the last call. If nothing has, waits up to `patience` seconds while something is under way.
    std::vector<Landed> landed(double patience);

    // landed() has something to hand out. Takes no lock.
    bool any_landed() const { return any_landed_.load(std::memory_order_acquire); }

    // Reads asked for and not handed back.
    int outstanding();

    // Ends the reads under way, forgets the others, joins the threads. What has landed can still be taken.
    void close();

private:
    struct Read {
        int64_t record;
        int slot;
        bool lower;
    };

    void start();
    void work();
    bool take(Read& read);
    bool has_turn() const;
    int how_many_may_begin() const;

    RecordFile& file_;
    RecordFile* const lower_;
    uint8_t* const memory_;
    const int threads_;
    std::mutex mutex_;  // guards all below
    std::condition_variable wanted_, arrived_;
    std::deque<Read> required_, predicted_;
    std::vector<Landed> landed_;
    std::atomic<bool> any_landed_ = false;  // written under the mutex
    int reading_ = 0;
    int idle_ = 0;
    bool stop_ = false;
    std::vector<std::thread> workers_;
};

}  // namespace cherenkov::io
