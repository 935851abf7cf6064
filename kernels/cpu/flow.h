// Experts of a layer that are not in memory: slots emptied for them, reads begun, the layer computed as they land.
//
// What a stretch needs to go on without the host. The host decides beforehand which slots may be emptied and in what order, and
// takes over afterwards what happened (cherenkov.experts.flow). Between the two calls, everything here is as the host left it.
#pragma once
#include <chrono>
#include <cstdint>
#include <vector>

#include "ops.h"
#include "../io/read_queue.h"

namespace cherenkov::cpu {

// In seconds, from some point on.
inline double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A step of what happened, in order.
struct FlowEvent {
    enum Kind : int { emptied, asked, predicted, landed, cancelled, required };
    int kind;
    int64_t record;
    int slot;
    int status;      // of what landed; of what was asked for, whether it is read in fewer bits
    double seconds;  // of reading, of what landed
};

// Counters, all since the host lent what it has.
struct FlowCounts {
    int64_t asks = 0, misses = 0, joined = 0;
    int64_t predictions = 0, right_predictions = 0, predicted_asks = 0, useful_predictions = 0;
    int64_t lower_hits = 0, lower_misses = 0;
    double stall_s = 0;
};

class Flow {
public:
    struct Coming {
        int64_t record;
        int slot;
        bool required, lower;
    };
    // The host's memory, as long as the flow. All are written to.
    struct Memory {
        io::ReadQueue* queue;
        int32_t* table;     // [layers, experts]: slot, or -1
        int64_t* record_in; // [slots]: record, or -1
        uint8_t* tags;      // [slots]: holds fewer bits
        uint8_t* spared;    // [slots]: was used since the victims were chosen
        uint8_t* unasked;   // [layers * experts]: a prediction brought it, and nobody asked for it yet
        int layers, experts, slots;
    };
    // What holds for one stretch.
    struct Terms {
        std::vector<int> victims;     // slots that may be emptied, in this order
        std::vector<Coming> coming;   // reads under way
        std::vector<std::vector<int64_t>> expected;  // [layers]: records that were predicted
        bool ahead = false;           // while a layer waits, look at those behind it
        int most_ahead = 0;           // predicted reads under way at once
        bool lower = false;           // read what is missing in fewer bits
    };

    explicit Flow(const Memory& memory) : memory_(memory) {}

    void lend(Terms terms);
    // The experts of layer `index`, chosen in `m`, from first to last, and the sum into `wide`. False if the host has to do it:
    // there are not enough slots to empty, a read failed, or the disk is slow. Some may have been computed then.
    bool layer(Engine&, const Course&, int index, Stretch&, Mixture& m);

    // What happened since lend(), for the host to take over.
    std::vector<FlowEvent> events;
    std::vector<int64_t> missed, foreseen;
    FlowCounts counts;
    size_t victims_used() const { return next_victim_; }
    const std::vector<std::vector<int64_t>>& expected() const { return terms_.expected; }

private:
    void confront(int index);
    void take(const std::vector<io::Landed>& landed);
    int predicted_under_way() const;
    void take_back(const std::vector<int>& slots);
    void note_needed(size_t records);
    void note_read(double seconds);
    bool pays_to_guess();
    void guess(Engine&, const Course&, int index);
    bool look(Engine&, const Course&, int index, Stretch&, const Mixture& m);
    void expect(int index, const int32_t* ids, size_t rows, size_t top_k, size_t ranks);
    bool pick(size_t count, std::vector<int>& slots);
    void begin(const std::vector<int64_t>& records, const std::vector<int>& slots, bool required);
    void distinct(const int32_t* ids, size_t count, std::vector<int32_t>& found);
    Coming* coming(int64_t record);
    void hand_back(const std::vector<int64_t>& missing, const std::vector<int64_t>& unplaced);
    bool await(Engine&, const Course&, int index, Stretch&, Mixture& m);

    const Memory memory_;
    Terms terms_;
    size_t next_victim_ = 0;
    std::vector<int> free_;               // emptied by cancelling
    std::vector<int32_t> asked_, here_, slots_;  // experts of the layer; those in memory, and where
    std::vector<int64_t> missing_;        // records that the layer waits for
    std::vector<int32_t> ready_, ready_slots_;
    int frontier_ = -1;                   // the last layer that was rehearsed
    int from_ = -1;                       // the layer whose residual that began with
    double needed_ = 0;                   // records that layers lacked, or would have, of late
    double read_s_ = 0, guess_s_ = 0;     // how long a read takes, and a guess
    std::vector<int32_t> guesses_;
    std::vector<float> rehearsed_, trial_;  // the residual as it would be behind the last of them; where the next works
    std::vector<uint8_t> seen_;           // by expert
    bool failed_ = false;
    int64_t first_record_ = 0;            // of the layer
};

}  // namespace cherenkov::cpu
