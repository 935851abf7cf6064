// While a layer waits for the disk: what those behind it will likely ask for, so that it is read next.
//
// The processor would be idle, so guessing costs little, and may be thorough: the next layer is rehearsed, its mixer and its
// router, on the residual as far as it is known. Then the one behind that, as if the experts of the next added nothing. At the next
// wait all is guessed anew, from nearer by.
#include <algorithm>

#include "flow.h"

namespace cherenkov::cpu {

namespace {

// A read lasts about as long as a few rehearsals; and the further away, the less is right.
constexpr int furthest = 3;
// Predicted reads under way with which the disk has enough to do until the next layer waits.
constexpr int enough = 6;

// Of `top_k` experts in the order of the router's ranks, how many to believe in: what it ranks last, it often replaces.
// See docs/streaming.md for how often.
size_t believed(size_t top_k, int distance) { return distance == 0 ? top_k - top_k / 8 : top_k - top_k / 3; }

}  // namespace

// Guesses one layer more, of those behind layer `index`, which is in `m`. False if it will not.
bool Flow::look(Engine& e, const Course& c, int index, Stretch& stretch, const Mixture& m) {
    const int next = index + 1 + looked_;
    if (!terms_.ahead || looked_ == furthest || next >= c.last || predicted_under_way() >= enough) return false;
    if (looked_ == 0) {
        rehearsed_.resize(static_cast<size_t>(c.rows) * static_cast<size_t>(m.hidden * m.streams));
        e.scratch.reset();
        sum_so_far(e, m, c.wide, rehearsed_.data());
    }
    const auto rows = static_cast<size_t>(c.rows), top_k = static_cast<size_t>(c.layers[static_cast<size_t>(next)].top_k);
    guesses_.resize(rows * top_k);
    stretch.rehearse(e, c, next, rehearsed_.data(), guesses_.data());
    expect(next, guesses_.data(), rows, top_k, believed(top_k, looked_));
    looked_++;
    return true;
}

// Reads what a layer will likely choose, ids [rows, top_k], as far as slots can be had: the first ranks of every row, the
// likeliest first. What was expected of it before and is not now is taken back.
void Flow::expect(int index, const int32_t* ids, size_t rows, size_t top_k, size_t ranks) {
    std::vector<int32_t> by_rank, experts;
    for (size_t rank = 0; rank < ranks; rank++)
        for (size_t row = 0; row < rows; row++) by_rank.push_back(ids[row * top_k + rank]);
    distinct(by_rank.data(), by_rank.size(), experts);

    const int64_t first = static_cast<int64_t>(index) * memory_.experts;
    std::vector<int64_t>& expected = terms_.expected[static_cast<size_t>(index)];
    std::vector<int> wrong;
    for (const int64_t record : expected)
        if (std::find(experts.begin(), experts.end(), static_cast<int32_t>(record - first)) == experts.end())
            if (const Coming* one = coming(record); one != nullptr) wrong.push_back(one->slot);
    take_back(wrong);
    expected.clear();

    int room = terms_.most_ahead - predicted_under_way();
    std::vector<int64_t> records;
    std::vector<int> slots;
    for (const int32_t expert : experts) {
        const int64_t record = first + expert;
        expected.push_back(record);
        if (const int32_t slot = memory_.table[record]; slot >= 0) {
            memory_.spared[slot] = 1;
        } else if (room > 0 && coming(record) == nullptr && pick(1, slots)) {
            records.push_back(record);
            room--;
        }
    }
    begin(records, slots, false);
    foreseen.insert(foreseen.end(), records.begin(), records.end());
}

int Flow::predicted_under_way() const {
    const auto predicted = [](const Coming& one) { return !one.required; };
    return static_cast<int>(std::count_if(terms_.coming.begin(), terms_.coming.end(), predicted));
}

// Reads that have not begun are taken back; their slots are empty. Those that have begun land.
void Flow::take_back(const std::vector<int>& slots) {
    if (slots.empty()) return;
    for (const int slot : memory_.queue->cancel(slots)) {
        const auto one = std::find_if(terms_.coming.begin(), terms_.coming.end(), [&](const Coming& c) { return c.slot == slot; });
        events.push_back({FlowEvent::cancelled, one->record, slot, 0, 0});
        terms_.coming.erase(one);
        free_.push_back(slot);
    }
}

}  // namespace cherenkov::cpu
