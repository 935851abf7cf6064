#include "flow.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace cherenkov::cpu {

namespace {

// Seconds; after that the host waits, who listens to Ctrl-C.
constexpr double patience = 0.05;
constexpr double patience_in_all = 0.25;  // of one stretch

template <typename List, typename T>
bool contains(const List& list, const T& value) {
    return std::find(list.begin(), list.end(), value) != list.end();
}

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

void Flow::lend(Terms terms) {
    terms_ = std::move(terms);
    terms_.expected.resize(static_cast<size_t>(memory_.layers));
    next_victim_ = 0;
    events.clear(), missed.clear(), foreseen.clear(), free_.clear(), missing_.clear();
    counts = {};
}

bool Flow::layer(Engine& e, const std::vector<Layer>& layers, int index, const Slots& pool, float* wide, int rows, Mixture& m) {
    const auto next = static_cast<size_t>(index) + 1;
    const Layer& layer = layers[next - 1];
    first_record_ = static_cast<int64_t>(index) * memory_.experts;
    distinct(m.ids, static_cast<size_t>(rows) * static_cast<size_t>(layer.top_k), asked_);
    if (!terms_.coming.empty()) take(memory_.queue->landed(0));
    confront(index);

    std::vector<int64_t> missing, unplaced;
    std::vector<int> joined;
    here_.clear(), slots_.clear();
    for (const int32_t expert : asked_) {
        const int64_t record = first_record_ + expert;
        const int32_t slot = memory_.table[record];
        if (slot >= 0) {
            here_.push_back(expert), slots_.push_back(slot);
            memory_.spared[slot] = 1;
            continue;
        }
        missing.push_back(record);
        if (const Coming* c = coming(record); c != nullptr) joined.push_back(c->slot);
        else unplaced.push_back(record);
    }
    std::vector<int> slots;
    if (!pick(unplaced.size(), slots)) return false;
    missing_ = missing;
    begin(unplaced, slots, true);
    for (auto& c : terms_.coming)
        if (contains(joined, c.slot)) c.required = true, events.push_back({FlowEvent::required, c.record, c.slot, 0, 0});
    if (!joined.empty()) memory_.queue->promote(joined);
    if (!missing.empty() && terms_.ahead && next < layers.size()) predict(e, layers[next], index + 1, wide, rows);

    if (!here_.empty()) {
        e.scratch.reset();
        expert_wave(e, pool, {here_.data(), slots_.data(), static_cast<int>(here_.size())}, *layer.shared, m);
    }
    if (!await(e, layer, pool, m)) {
        hand_back(missing, unplaced);
        return false;
    }
    e.scratch.reset();
    finish_mixture(e, m, wide);

    counts.asks += static_cast<int64_t>(asked_.size());
    counts.misses += static_cast<int64_t>(missing.size());
    counts.joined += static_cast<int64_t>(joined.size());
    missed.insert(missed.end(), missing.begin(), missing.end());
    if (pool.lower == nullptr) return true;
    for (const int32_t slot : slots_) counts.lower_hits += memory_.tags[slot];
    if (terms_.lower) counts.lower_misses += static_cast<int64_t>(unplaced.size());
    return true;
}

// Counts so that it comes out right when the host asks for the layer's experts again: it will find in memory what has landed,
// and take for predicted what is still coming.
void Flow::hand_back(const std::vector<int64_t>& missing, const std::vector<int64_t>& unplaced) {
    for (const int64_t record : missing) {
        const bool own = contains(unplaced, record), landed = !contains(missing_, record);
        if (!landed && coming(record) == nullptr) continue;  // it failed, and is asked for anew
        if (landed) missed.push_back(record);
        counts.misses += landed ? 1 : 0;
        if (own != landed) counts.joined += landed ? 1 : -1;
        if (own && terms_.lower) counts.lower_misses++, counts.lower_hits -= landed ? 1 : 0;
    }
    missing_.clear();
}

// Computes what lands until nothing is missing.
bool Flow::await(Engine& e, const Layer& layer, const Slots& pool, Mixture& m) {
    double waited = 0;
    while (!missing_.empty()) {
        ready_.clear(), ready_slots_.clear();
        const double begun = now();
        take(memory_.queue->landed(patience));
        const double seconds = now() - begun;
        counts.stall_s += seconds;
        if (failed_) return failed_ = false;
        if (ready_.empty()) {
            waited += seconds;
            if (waited >= patience || terms_.coming.empty()) return false;
            continue;
        }
        if (counts.stall_s > patience_in_all && !missing_.empty()) return false;
        e.scratch.reset();
        expert_wave(e, pool, {ready_.data(), ready_slots_.data(), static_cast<int>(ready_.size())}, *layer.shared, m);
    }
    return true;
}

// What has landed is in its slot from now on; what the layer waits for is ready.
void Flow::take(const std::vector<io::Landed>& landed) {
    for (const io::Landed& l : landed) {
        const auto c = std::find_if(terms_.coming.begin(), terms_.coming.end(), [&](const Coming& one) { return one.slot == l.slot; });
        if (c == terms_.coming.end()) continue;
        const Coming came = *c;
        terms_.coming.erase(c);
        events.push_back({FlowEvent::landed, came.record, came.slot, l.status, l.seconds});
        const auto wanted = std::find(missing_.begin(), missing_.end(), came.record);
        if (l.status != 0) {
            failed_ = failed_ || wanted != missing_.end();
            continue;
        }
        memory_.tags[came.slot] = came.lower ? 1 : 0;
        memory_.record_in[came.slot] = came.record;
        memory_.table[came.record] = came.slot;
        memory_.unasked[came.record] = came.required ? 0 : 1;
        if (wanted == missing_.end()) continue;
        missing_.erase(wanted);
        memory_.spared[came.slot] = 1;
        ready_.push_back(static_cast<int32_t>(came.record - first_record_)), ready_slots_.push_back(came.slot);
    }
}

// Compares what was predicted for a layer with what it asks for; wrong reads that have not begun are taken back.
void Flow::confront(int index) {
    for (const int32_t expert : asked_) {
        uint8_t& unasked = memory_.unasked[first_record_ + expert];
        counts.useful_predictions += unasked;
        unasked = 0;
    }
    std::vector<int64_t>& expected = terms_.expected[static_cast<size_t>(index)];
    if (expected.empty()) return;
    std::vector<int> wrong;
    for (const int64_t record : expected) {
        if (contains(asked_, static_cast<int32_t>(record - first_record_))) counts.right_predictions++;
        else if (const Coming* c = coming(record); c != nullptr) wrong.push_back(c->slot);
    }
    counts.predictions += static_cast<int64_t>(expected.size());
    counts.predicted_asks += static_cast<int64_t>(asked_.size());
    expected.clear();
    if (wrong.empty()) return;
    for (const int slot : memory_.queue->cancel(wrong)) {
        const auto c = std::find_if(terms_.coming.begin(), terms_.coming.end(), [&](const Coming& one) { return one.slot == slot; });
        events.push_back({FlowEvent::cancelled, c->record, slot, 0, 0});
        terms_.coming.erase(c);
        free_.push_back(slot);
    }
}

// Reads what the next layer's router would choose for the residual as it is now, as far as slots can be had.
void Flow::predict(Engine& e, const Layer& next, int index, const float* wide, int rows) {
    const auto r = static_cast<size_t>(rows), k = static_cast<size_t>(next.top_k);
    e.scratch.reset();
    int32_t* ids = e.scratch.take<int32_t>(r * k);
    cpu::likely(e, *next.moe_read, *next.gate, next.top_k, next.normalise, wide, rows, ids);

    const size_t ranks = (3 * k + 4) / 5;  // those below are wrong too often; see cherenkov.experts.lookahead
    std::vector<int32_t> by_rank, experts;  // the likeliest first, of all rows
    for (size_t rank = 0; rank < ranks; rank++)
        for (size_t row = 0; row < r; row++) by_rank.push_back(ids[row * k + rank]);
    distinct(by_rank.data(), by_rank.size(), experts);
    std::vector<int64_t>& expected = terms_.expected[static_cast<size_t>(index)];
    expected.clear();
    const auto under_way = std::count_if(terms_.coming.begin(), terms_.coming.end(), [](const Coming& c) { return !c.required; });
    auto room = terms_.most_ahead - static_cast<int>(under_way);
    std::vector<int64_t> records;
    std::vector<int> slots;
    for (const int32_t expert : experts) {
        const int64_t record = static_cast<int64_t>(index) * memory_.experts + expert;
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

// Appends `count` slots that may be emptied, or none: false.
bool Flow::pick(size_t count, std::vector<int>& slots) {
    const size_t had = slots.size(), freed = free_.size(), victim = next_victim_;
    while (slots.size() < had + count) {
        if (!free_.empty()) {
            slots.push_back(free_.back());
            free_.pop_back();
        } else if (next_victim_ < terms_.victims.size()) {
            const int slot = terms_.victims[next_victim_++];
            if (memory_.spared[slot] == 0) slots.push_back(slot);
        } else {
            for (size_t i = had; i < had + freed - free_.size(); i++) free_.push_back(slots[i]);
            slots.resize(had);
            next_victim_ = victim;
            return false;
        }
    }
    return true;
}

// Empties slots and reads records into them.
void Flow::begin(const std::vector<int64_t>& records, const std::vector<int>& slots, bool required) {
    if (records.empty()) return;
    const bool lower = required && terms_.lower;
    for (size_t i = 0; i < records.size(); i++) {
        const int slot = slots[i];
        int64_t& held = memory_.record_in[slot];
        if (held >= 0) {
            if (memory_.table[held] == slot) memory_.table[held] = -1;
            events.push_back({FlowEvent::emptied, held, slot, memory_.unasked[held], 0});
            memory_.unasked[held] = 0;
            held = -1;
        }
        events.push_back({required ? FlowEvent::asked : FlowEvent::predicted, records[i], slot, lower, 0});
        terms_.coming.push_back({records[i], slot, required, lower});
    }
    memory_.queue->submit(records, slots, required, lower);
}

void Flow::distinct(const int32_t* ids, size_t count, std::vector<int32_t>& found) {
    found.clear();
    seen_.assign(static_cast<size_t>(memory_.experts), 0);
    for (size_t i = 0; i < count; i++)
        if (uint8_t& seen = seen_[static_cast<size_t>(ids[i])]; seen == 0) seen = 1, found.push_back(ids[i]);
}

Flow::Coming* Flow::coming(int64_t record) {
    for (auto& c : terms_.coming)
        if (c.record == record) return &c;
    return nullptr;
}

}  // namespace cherenkov::cpu
