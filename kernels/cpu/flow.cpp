#include "flow.h"

#include <algorithm>
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

}  // namespace

void Flow::lend(Terms terms) {
    terms_ = std::move(terms);
    terms_.expected.resize(static_cast<size_t>(memory_.layers));
    next_victim_ = 0, frontier_ = from_ = -1, failed_ = false;
    events.clear(), missed.clear(), foreseen.clear(), free_.clear(), missing_.clear();
    counts = {};
}

bool Flow::layer(Engine& e, const Course& c, int index, Stretch& stretch, Mixture& m) {
    const Layer& layer = c.layers[static_cast<size_t>(index)];
    first_record_ = static_cast<int64_t>(index) * memory_.experts;
    distinct(m.ids, static_cast<size_t>(c.rows) * static_cast<size_t>(layer.top_k), asked_);
    if (!terms_.coming.empty()) take(memory_.queue->landed(0));
    const int64_t useful = counts.useful_predictions;
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
        if (const Coming* one = coming(record); one != nullptr) joined.push_back(one->slot);
        else unplaced.push_back(record);
    }
    std::vector<int> slots;
    if (!pick(unplaced.size(), slots)) return false;
    missing_ = missing;
    note_needed(missing.size() + static_cast<size_t>(counts.useful_predictions - useful));
    begin(unplaced, slots, true);
    for (auto& one : terms_.coming)
        if (contains(joined, one.slot)) one.required = true, events.push_back({FlowEvent::required, one.record, one.slot, 0, 0});
    if (!joined.empty()) memory_.queue->promote(joined);

    ready_.clear(), ready_slots_.clear();
    guess(e, c, index);
    const Slots& pool = c.here.slots;
    if (!here_.empty()) {
        e.scratch.reset();
        expert_wave(e, pool, {here_.data(), slots_.data(), static_cast<int>(here_.size())}, *layer.shared, m);
    }
    if (!await(e, c, index, stretch, m)) {
        hand_back(missing, unplaced);
        return false;
    }
    e.scratch.reset();
    finish_mixture(e, m, c.wide);

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

// Computes what lands until nothing is missing. As long as nothing has, looks at the layers behind, and then waits.
bool Flow::await(Engine& e, const Course& c, int index, Stretch& stretch, Mixture& m) {
    const Layer& layer = c.layers[static_cast<size_t>(index)];
    double waited = 0;
    while (!missing_.empty() || !ready_.empty()) {
        if (memory_.queue->any_landed()) take(memory_.queue->landed(0));
        double seconds = 0;
        if (ready_.empty() && !failed_) {
            if (look(e, c, index, stretch, m)) continue;
            const double begun = now();
            take(memory_.queue->landed(patience));
            seconds = now() - begun;
            counts.stall_s += seconds;
        }
        if (failed_) return failed_ = false;
        if (ready_.empty()) {
            waited += seconds;
            if (waited >= patience || terms_.coming.empty()) return false;
            continue;
        }
        if (counts.stall_s > patience_in_all && !missing_.empty()) return false;
        e.scratch.reset();
        expert_wave(e, c.here.slots, {ready_.data(), ready_slots_.data(), static_cast<int>(ready_.size())}, *layer.shared, m);
        ready_.clear(), ready_slots_.clear();
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
        note_read(l.seconds);
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
    take_back(wrong);
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
