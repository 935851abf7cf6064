// What the layers behind the present one will likely ask for, so that it is read before they do.
//
// Two ways, a cheap one and a thorough one. Before a layer's experts are computed, the next layer's router is asked, with the residual
// as it is: that leaves its reads the time of a layer. And while a layer waits for the disk, the processor would be idle: the next
// layer is rehearsed, its mixer and its router, on the residual as far as it is known; then those behind that, as if experts added
// nothing, for as long as nothing is ready to be computed. Later waits go on where the last one ended.
#include <algorithm>
#include <utility>

#include "flow.h"

namespace cherenkov::cpu {

namespace {

// Layers that are rehearsed without the experts of those between: the further away, the less is right.
constexpr int furthest = 6;
// Predicted reads under way with which the disk has enough to do until the next layer waits.
constexpr int enough = 10;
// A guess has to cost less than this share of the reading that it may bring forward.
constexpr double worth = 0.25;
constexpr double weight = 1.0 / 64;  // of the newest in running means

// Of `top_k` experts in the order of the router's ranks, how many to believe in: what it ranks last, it often replaces.
// See docs/streaming.md for how often.
size_t believed_of_next(size_t top_k) { return top_k - top_k / 8; }
size_t believed_behind(size_t top_k) { return top_k - top_k / 5; }
size_t believed_of_guess(size_t top_k) { return top_k - top_k / 4; }

// A running mean takes in one value more; the first as it is.
void follow(double& mean, double value) { mean += (mean == 0 ? 1 : weight) * (value - mean); }

}  // namespace

// What a layer needed from the disk, `records`, whether a prediction had brought them or not.
void Flow::note_needed(size_t records) { needed_ += weight * (static_cast<double>(records) - needed_); }

void Flow::note_read(double seconds) { follow(read_s_, seconds); }

bool Flow::pays_to_guess() {
    if (needed_ * read_s_ * worth >= guess_s_) return true;
    guess_s_ *= 1 - weight / 16;  // now and then it is tried again, and measured
    return false;
}

// Reads what the next layer would choose of the present residual, if that is likely to pay.
void Flow::guess(Engine& e, const Course& c, int index) {
    const int next = index + 1;
    if (!terms_.ahead || next >= c.last || frontier_ > index || !pays_to_guess()) return;
    const double begun = now();
    const Layer& layer = c.layers[static_cast<size_t>(next)];
    const auto rows = static_cast<size_t>(c.rows), top_k = static_cast<size_t>(layer.top_k);
    guesses_.resize(rows * top_k);
    const KeepLater kept{e, std::exchange(e.later, {})};
    e.scratch.reset();
    likely(e, *layer.moe_read, *layer.gate, layer.top_k, layer.normalise, c.wide, c.rows, guesses_.data());
    expect(next, guesses_.data(), rows, top_k, believed_of_guess(top_k));
    follow(guess_s_, now() - begun);
}

// Rehearses one layer more, of those behind layer `index`, which is in `m`. False if it will not. Given up when all that the
// layer waits for is there, unless the disk would have nothing to do then.
bool Flow::look(Engine& e, const Course& c, int index, Stretch& stretch, const Mixture& m) {
    if (!terms_.ahead || predicted_under_way() >= enough) return false;
    const bool anew = frontier_ <= index || frontier_ - from_ >= furthest;
    const int next = anew ? index + 1 : frontier_ + 1;
    if (next >= c.last || (anew && frontier_ > index)) return false;
    if (anew) {
        rehearsed_.resize(static_cast<size_t>(c.rows) * static_cast<size_t>(m.hidden * m.streams));
        e.scratch.reset();
        sum_so_far(e, m, c.wide, rehearsed_.data());
        from_ = frontier_ = index;
    }
    const auto rows = static_cast<size_t>(c.rows), top_k = static_cast<size_t>(c.layers[static_cast<size_t>(next)].top_k);
    guesses_.resize(rows * top_k);
    trial_ = rehearsed_;
    const auto landed = [this] {
        if (memory_.queue->any_landed()) take(memory_.queue->landed(0));
        return failed_ || (missing_.empty() && predicted_under_way() > 0);
    };
    if (!with_halt(e, landed, [&] { stretch.rehearse(e, c, next, trial_.data(), guesses_.data()); })) return true;
    rehearsed_.swap(trial_);
    expect(next, guesses_.data(), rows, top_k, next == from_ + 1 ? believed_of_next(top_k) : believed_behind(top_k));
    frontier_ = next;
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
