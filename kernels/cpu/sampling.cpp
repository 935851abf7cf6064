// Passes over the logits of one position. Compiled for the plainest machine of its architecture, but for what kernels do.
#include "sampling.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <utility>

namespace cherenkov::cpu {

namespace {

constexpr int64_t chunk = logit_piece;
constexpr int64_t columns_at_least = 1024;
constexpr int64_t small = 4096;  // few enough to select from without narrowing them down
constexpr double none = -std::numeric_limits<double>::infinity();

struct Ranked {
    double value;
    int64_t id;
};

// Most likely first, ties by id.
bool first_of(const Ranked& a, const Ranked& b) { return a.value > b.value || (a.value == b.value && a.id < b.id); }

// Finite, so that 0 times it is 0: no two logits are so near that it would matter.
double inverse_of(Weighing by) { return std::min(1 / by.temperature, 1e300); }

// a if `first`, else b, without a branch that nobody could predict.
double either(bool first, double a, double b) {
    const uint64_t mask = 0 - static_cast<uint64_t>(first);
    return std::bit_cast<double>((std::bit_cast<uint64_t>(a) & mask) | (std::bit_cast<uint64_t>(b) & ~mask));
}

// The largest float that is at most x: a float exceeds one if it exceeds the other.
float floor_of(double x) {
    const auto f = static_cast<float>(x);
    return static_cast<double>(f) > x ? std::nextafterf(f, -std::numeric_limits<float>::infinity()) : f;
}

// How many logits hold; in the width of few bits that loops of comparisons become vectors with.
template <typename P>
int64_t count_that(const float* logits, int64_t count, P holds) {
    int64_t found = 0;
    for (int64_t start = 0; start < count; start += chunk) {
        const float* l = logits + start;
        const int64_t n = std::min(chunk, count - start);
        int32_t some = 0;
        for (int64_t i = 0; i < n; i++) some += static_cast<int32_t>(holds(l[i]));
        found += some;
    }
    return found;
}

// The largest logit as floats are weighed against, and what their weights are then to be multiplied with.
struct FloatTop {
    double largest, factor;
};

FloatTop float_top(Weighing by, double inverse) {
    const double near = floor_of(by.largest);  // not below any of the floats
    if (near == by.largest || !std::isfinite(near)) return {by.largest, 1};
    return {near, std::exp((near - by.largest) * inverse)};
}

// Adds to what comes before two tokens what a run of logits holds; `first` and `second` are where each token lies in it.
template <typename F>
void tally(F one, int64_t count, double factor, int64_t first, int64_t second, Before& found, Before& sooner) {
    for (int64_t i = 0; i < count;) {
        int64_t end = count;
        if (first > i) end = std::min(end, first);
        if (second > i) end = std::min(end, second);
        const LogitTally some = one(i, end - i);
        found.mass += some.mass * factor;
        sooner.mass += some.upper_mass * factor;
        found.larger += some.count;
        sooner.larger += some.upper_count;
        found.equal += i < first ? some.equal : 0;
        sooner.equal += i < second ? some.upper_equal : 0;
        i = end;
    }
}

// The largest of data[c], data[c + columns], ... for each c; 0 < columns <= size. None if a logit is NaN.
std::vector<float> column_maxima(const Kernels& k, const LogitRow& row, int64_t columns) {
    std::vector<float> maxima(static_cast<size_t>(columns), -std::numeric_limits<float>::infinity());
    bool broken = false;
    for (int64_t start = 0; start < row.size; start += columns)
        broken = k.logits.raise(maxima.data(), row.data + start, std::min(columns, row.size - start)) || broken;
    if (broken) maxima.clear();
    return maxima;
}

double value_of(const LogitRow& row, int64_t token) {
    const auto value = static_cast<double>(row.data[token]);
    if (value != none) return value;
    const int64_t* end = row.ids + row.changed;
    const int64_t* found = std::lower_bound(row.ids, end, token);
    return found != end && *found == token ? row.values[found - row.ids] : value;
}

// Calls f(id) for the logits that equal `value`, in order, but the first `skipped`, until it returns false.
template <typename F>
void each_equal(const LogitRow& row, double value, int64_t skipped, F f) {
    constexpr int64_t block = chunk;
    const float plain = floor_of(value);
    const bool among_floats = static_cast<double>(plain) == value;
    int64_t next = 0;
    for (int64_t start = 0; start < row.size; start += block) {
        const int64_t end = std::min(start + block, row.size);
        int64_t found = 0, behind = next;
        if (among_floats) found = count_that(row.data + start, end - start, [&](float l) { return l == plain; });
        for (; behind < row.changed && row.ids[behind] < end; behind++) {
            found += row.values[behind] == value ? 1 : 0;
            found -= value == none ? 1 : 0;  // in its place among the floats
        }
        if (skipped >= found) {
            skipped -= found;
            next = behind;
            continue;
        }
        for (int64_t i = start; i < end; i++) {
            const bool changed = next < row.changed && row.ids[next] == i;
            const double here = changed ? row.values[next] : static_cast<double>(row.data[i]);
            next += changed ? 1 : 0;
            if (here == value && skipped-- <= 0 && !f(i)) return;
        }
    }
}

// A value, and which of the logits that equal it is meant, from 1.
struct Place {
    double value;
    int64_t tie;
};

// The count-th largest of some, and how many of them exceed it.
template <typename T>
Place nth_of(T* values, int64_t size, int64_t count) {
    T* nth = values + (count - 1);
    std::nth_element(values, nth, values + size, std::greater<>());
    return {static_cast<double>(*nth), count - std::count_if(values, nth, [&](T v) { return v > *nth; })};
}

// Two floats between which the count-th largest most likely lies: around that of a sample.
std::pair<float, float> bracket(const LogitRow& row, int64_t count) {
    const int64_t stride = std::max<int64_t>(1, row.size / std::clamp<int64_t>(row.size / 16, 512, 2048));
    std::vector<float> sample;
    sample.reserve(static_cast<size_t>((row.size + row.changed) / stride + 2));
    for (int64_t i = stride / 2; i < row.size; i += stride) sample.push_back(row.data[i]);
    for (int64_t j = stride / 2; j < row.changed; j += stride) sample.push_back(static_cast<float>(row.values[j]));
    if (std::any_of(sample.begin(), sample.end(), [](float l) { return l != l; })) return {0, 0};
    const double share = std::min(1.0, static_cast<double>(count) / static_cast<double>(row.size));
    const double all = static_cast<double>(row.size) / static_cast<double>(stride);
    const auto place = static_cast<int64_t>(share * all);
    const auto spread = static_cast<int64_t>(3 * std::sqrt(share * (1 - share) * all)) + 4;
    constexpr float infinity = std::numeric_limits<float>::infinity();
    float low = -infinity, high = infinity;
    auto end = sample.end();
    if (place + spread < static_cast<int64_t>(sample.size())) {
        end = sample.begin() + (place + spread);
        std::nth_element(sample.begin(), end, sample.end(), std::greater<>());
        low = *end;
    }
    if (place >= spread) {
        const auto nth = sample.begin() + (place - spread);
        if (nth < end) std::nth_element(sample.begin(), nth, end, std::greater<>());
        high = *nth;
    }
    return {low, high};
}

// Where the count-th largest lies, if it lies from low to high; else a tie of 0. The ids of changed logits do not matter.
Place place_between(const Kernels& k, const LogitRow& row, int64_t count, std::pair<float, float> bounds) {
    const auto [low, high] = bounds;
    const auto inside = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(row.size + 16));
    const LogitSplit floats = k.logits.split(row.data, row.size, low, high, inside.get());
    if (floats.broken > 0) return {0, 0};
    int64_t above = floats.above;
    const double bottom = low, top = high;
    std::vector<double> between(static_cast<size_t>(row.changed));
    size_t kept = 0;
    for (int64_t j = 0; j < row.changed; j++) {
        const double value = between[kept] = row.values[j];
        above += static_cast<int64_t>(value > top);
        kept += static_cast<size_t>(value > bottom) & static_cast<size_t>(value <= top);
    }
    between.resize(kept);
    const int64_t n = floats.inside + static_cast<int64_t>(between.size());
    if (count <= above) return {0, 0};
    count -= above;
    if (count > n) {
        const float lowest = low;
        const int64_t equal = count_that(row.data, row.size, [=](float l) { return l == lowest; }) +
                              std::count(row.values, row.values + row.changed, bottom);
        return {bottom, count - n <= equal ? count - n : 0};
    }
    if (floats.inside > small && n < (row.size + row.changed) / 2) {
        const LogitRow rest{inside.get(), floats.inside, nullptr, between.data(), n - floats.inside};
        const Place found = place_between(k, rest, count, bracket(rest, count));
        if (found.tie > 0) return found;
    }
    if (between.empty()) return nth_of(inside.get(), n, count);
    between.insert(between.end(), inside.get(), inside.get() + floats.inside);
    return nth_of(between.data(), n, count);
}

// The count-th largest. The largest of a column is one of them, so at least `count` reach the count-th largest of columns.
double nth_largest(const std::vector<double>& values, size_t count) {
    const size_t columns = 4 * count;
    std::vector<double> some(values.begin(), values.begin() + static_cast<int64_t>(std::min(columns, values.size())));
    const auto nth = static_cast<int64_t>(count - 1);
    if (columns < values.size()) {
        for (size_t start = columns; start < values.size(); start += columns)
            for (size_t c = 0; c < std::min(columns, values.size() - start); c++)
                some[c] = std::max(some[c], values[start + c]);
        std::nth_element(some.begin(), some.begin() + nth, some.end(), std::greater<>());
        const double bound = some[count - 1];
        some.clear();
        std::copy_if(values.begin(), values.end(), std::back_inserter(some), [=](double v) { return v >= bound; });
    }
    std::nth_element(some.begin(), some.begin() + nth, some.end(), std::greater<>());
    return some[count - 1];
}

// The first of those that occurred, from one on, whose id is at least `id`; most often it is near.
int64_t reached(const Occurred& seen, int64_t from, int64_t id) {
    int64_t step = 1, end = from;
    while (end < seen.size && seen.ids[end] < id) {
        from = end + 1;
        end += step;
        step *= 2;
    }
    return std::lower_bound(seen.ids + from, seen.ids + std::min(end, seen.size), id) - seen.ids;
}

uint64_t mixed(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
    return x ^ (x >> 31);
}

}  // namespace

double mass(const Kernels& k, const LogitRow& row, Weighing by) {
    const double inverse = inverse_of(by);
    const FloatTop top = float_top(by, inverse);
    return k.logits.weigh(row.data, row.size, top.largest, inverse) * top.factor +
           k.logits.weigh_doubles(row.values, row.changed, by.largest, inverse);
}

Before before(const Kernels& k, const LogitRow& row, Weighing by, Token first, Token second, Before& sooner) {
    const double inverse = inverse_of(by);
    const FloatTop top = float_top(by, inverse);
    const float bound = floor_of(first.value), upper = floor_of(second.value);
    Before found{}, ahead{};
    tally(
        [&](int64_t at, int64_t n) { return k.logits.tally(row.data + at, n, top.largest, inverse, bound, upper); },
        row.size, top.factor, first.id, second.id, found, ahead);
    if (static_cast<double>(bound) != first.value) found.equal = 0;
    if (static_cast<double>(upper) != second.value) ahead.equal = 0;
    const auto place = [&](Token t) { return std::lower_bound(row.ids, row.ids + row.changed, t.id) - row.ids; };
    tally(
        [&](int64_t at, int64_t n) {
            return k.logits.tally_doubles(row.values + at, n, by.largest, inverse, first.value, second.value);
        },
        row.changed, 1, place(first), place(second), found, ahead);
    sooner = ahead;
    return found;
}

std::vector<int64_t> largest_ids(const Kernels& k, const LogitRow& row, int64_t count) {
    // The largest logit of a column is one logit, so at least `count` reach the count-th largest of the columns'.
    const int64_t columns = std::min(row.size, std::max(columns_at_least, 4 * count));
    const std::vector<float> maxima = column_maxima(k, row, columns);
    if (maxima.empty()) return {};
    auto sorted = maxima;
    std::nth_element(sorted.begin(), sorted.begin() + (count - 1), sorted.end(), std::greater<>());
    const float bound = sorted[static_cast<size_t>(count - 1)];
    std::vector<Ranked> found;
    found.reserve(static_cast<size_t>(2 * count));
    constexpr int64_t block = 4096;
    int32_t places[block];
    for (int64_t start = 0; start < row.size; start += block) {
        const int64_t some = k.logits.above(row.data + start, std::min(block, row.size - start), bound,
                                            static_cast<int32_t>(start), places);
        for (int64_t i = 0; i < some; i++) found.push_back({static_cast<double>(row.data[places[i]]), places[i]});
    }
    for (int64_t j = 0; j < row.changed; j++)
        if (row.values[j] > static_cast<double>(bound)) found.push_back({row.values[j], row.ids[j]});
    const auto taken = std::min(count, static_cast<int64_t>(found.size()));
    if (taken < static_cast<int64_t>(found.size()))
        std::nth_element(found.begin(), found.begin() + taken, found.end(), first_of);
    std::sort(found.begin(), found.begin() + taken, first_of);
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < taken; i++) ids.push_back(found[static_cast<size_t>(i)].id);
    if (taken < count)
        each_equal(row, bound, 0, [&](int64_t i) {
            ids.push_back(i);
            return static_cast<int64_t>(ids.size()) < count;
        });
    return ids;
}

int64_t nth_id(const Kernels& k, const LogitRow& row, int64_t count) {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    Place place = place_between(k, row, count, bracket(row, count));
    if (place.tie == 0) place = place_between(k, row, count, {-infinity, infinity});  // the sample misled
    int64_t id = -1;
    if (place.tie > 0)
        each_equal(row, place.value, place.tie - 1, [&](int64_t i) {
            id = i;
            return false;
        });
    return id;
}

int64_t amend(const float* logits, int64_t size, Occurred seen, Penalties by, Biases biases, float* data, int64_t* ids,
              double* values) {
    std::copy_n(logits, size, data);
    // The values of tokens that occurred, at the end of the list first, out of the way of the biased ones among them.
    double* const punished = values + biases.size;
    for (int64_t start = 0; start < seen.size; start += chunk) {
        const int64_t n = std::min(chunk, seen.size - start);
        double found[chunk];
        for (int64_t i = 0; i < n; i++) found[i] = logits[seen.ids[start + i]];
        for (int64_t i = 0; i < n; i++) found[i] = either(found[i] > 0, found[i] / by.factor, found[i] * by.factor);
        for (int64_t i = 0; i < n; i++)
            punished[start + i] = found[i] - (by.presence + by.frequency * static_cast<double>(seen.counts[start + i]));
    }
    int64_t changed = 0, s = 0;
    const auto take = [&](int64_t end) {  // those that occurred, up to a place
        std::copy(seen.ids + s, seen.ids + end, ids + changed);
        std::copy(punished + s, punished + end, values + changed);
        changed += end - s;
        s = end;
    };
    for (int64_t b = 0; b < biases.size; b++) {
        const int64_t id = biases.ids[b];
        take(reached(seen, s, id));
        const bool both = s < seen.size && seen.ids[s] == id;
        const double before = both ? punished[s++] : static_cast<double>(logits[id]);
        ids[changed] = id;
        values[changed++] = before + biases.values[b];
    }
    take(seen.size);
    for (int64_t i = 0; i < changed; i++) data[ids[i]] = -std::numeric_limits<float>::infinity();
    return changed;
}

Draws::Draws(const Kernels& k, const LogitRow& row, Weighing by, double number)
    : row_(row), by_(by), columns_(std::max<int64_t>(1, row.size / 64)), rows_((row.size + columns_ - 1) / columns_),
      start_(mixed(static_cast<uint64_t>(number * 0x1p53))) {
    const std::vector<float> plain = column_maxima(k, row, columns_);
    if (plain.empty()) return;
    std::vector<double> maxima(plain.begin(), plain.end());
    for (int64_t j = 0, start = 0; j < row.changed; j++) {
        while (row.ids[j] - start >= columns_) start += columns_;
        double& top = maxima[static_cast<size_t>(row.ids[j] - start)];
        top = std::max(top, row.values[j]);
    }
    const auto hot = std::min<size_t>(64, maxima.size());
    const double bound = nth_largest(maxima, hot);
    tops_ = maxima;
    std::vector<double> bounds(maxima.size(), static_cast<double>(rows_));
    std::vector<int64_t> hottest;
    for (size_t c = 0; c < maxima.size() && hottest.size() < hot; c++)
        if (maxima[c] >= bound) hottest.push_back(static_cast<int64_t>(c));
    singles_.reserve(hot * static_cast<size_t>(rows_));
    for (const int64_t c : hottest) {
        bounds[static_cast<size_t>(c)] = 0;
        for (int64_t i = c; i < row.size; i += columns_) singles_.push_back(i);
    }
    reached_.reserve(singles_.size() + maxima.size());
    for (const int64_t one : singles_) reached_.push_back(value_of(row, one));
    weigh(k, tops_);
    weigh(k, reached_);
    for (size_t c = 0; c < maxima.size(); c++) reached_.push_back(bounds[c] * tops_[c]);
    double sum = 0;
    for (double& one : reached_) one = (sum += one);
    last_ = std::lower_bound(reached_.begin(), reached_.end(), sum) - reached_.begin();
    possible_ = sum > 0 && sum <= std::numeric_limits<double>::max();
}

void Draws::weigh(const Kernels& k, std::vector<double>& logits) const {
    for (double& one : logits) one = (one - by_.largest) / by_.temperature;
    k.logits.exponentials(logits.data(), static_cast<int64_t>(logits.size()));
}

double Draws::weight(double logit) const { return std::exp((logit - by_.largest) / by_.temperature); }

double Draws::random(uint64_t count) const {
    return static_cast<double>(mixed(start_ + (count + 1) * 0x9E3779B97F4A7C15U) >> 11) * 0x1p-53;
}

int64_t Draws::next() {
    constexpr uint64_t batch = 128;
    const auto singles = static_cast<int64_t>(singles_.size());
    while (true) {
        const uint64_t base = trial_ / batch * batch * 3 + trial_ % batch;
        trial_++;
        const double where = random(base) * reached_.back();
        const int64_t passed = std::upper_bound(reached_.begin(), reached_.end(), where) - reached_.begin();
        const int64_t slot = std::min(passed, last_);
        if (slot < singles) return singles_[static_cast<size_t>(slot)];
        const int64_t column = slot - singles;
        const auto line = static_cast<int64_t>(random(base + batch) * static_cast<double>(rows_));
        const int64_t token = column + columns_ * line;
        if (token >= row_.size) continue;
        const double luck = random(base + 2 * batch);
        if (luck * tops_[static_cast<size_t>(column)] < weight(value_of(row_, token))) return token;
    }
}

}  // namespace cherenkov::cpu
