// The most likely tokens, so many of them that they are not listed.
#include <utility>

#include "logit_row.h"

namespace cherenkov::cpu {

namespace {

constexpr int64_t small = 4096;  // few enough to select from without narrowing them down
constexpr float infinity = std::numeric_limits<float>::infinity();

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
    sample.reserve(static_cast<size_t>((row.size + row.changed) / stride + 9));
    each_sampled(row.size, stride,
                 [&](int64_t from, int64_t to) { sample.insert(sample.end(), row.data + from, row.data + to); });
    for (int64_t j = stride / 2; j < row.changed; j += stride) sample.push_back(static_cast<float>(row.values[j]));
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
    if (count > n) return {0, 0};
    if (floats.inside > small && n < (row.size + row.changed) / 2) {
        const LogitRow rest{inside.get(), floats.inside, nullptr, between.data(), n - floats.inside};
        const Place found = place_between(k, rest, count, bracket(rest, count));
        if (found.tie > 0) return found;
    }
    if (between.empty()) return nth_of(inside.get(), n, count);
    between.insert(between.end(), inside.get(), inside.get() + floats.inside);
    return nth_of(between.data(), n, count);
}

int64_t how_many_equal(const LogitRow& row, float value) {
    return count_that(row.data, row.size, [=](float l) { return l == value; }) +
           std::count(row.values, row.values + row.changed, static_cast<double>(value));
}

}  // namespace

Foremost::Foremost(const Kernels& k, const LogitRow& row, int64_t count)
    : kernels_(k), row_(row), floats_(std::make_unique_for_overwrite<float[]>(static_cast<size_t>(row.size + 16))) {
    const auto [low, high] = bracket(row, count);
    for (const float bound : {low, -infinity}) {  // the second if the sample misled
        keep_above(row, bound);
        const int64_t n = size_ + static_cast<int64_t>(doubles_.size());
        if (count > n) {
            if (bound == -infinity || count - n <= how_many_equal(row, bound)) {
                value_ = bound;
                ties_ = count - n;
                return;
            }
            continue;
        }
        Place last = place_between(k, known(), count, {bound, high});
        if (last.tie == 0) last = place_between(k, known(), count, {-infinity, infinity});
        value_ = last.value;
        ties_ = last.tie;
        keep_above(known(), value_);
        return;
    }
}

void Foremost::keep_above(const LogitRow& some, double bound) {
    // In its own place, too: what is kept never overtakes what is read.
    size_ = kernels_.logits.pack(some.data, some.size, floor_of(bound), floats_.get());
    std::vector<double> above(static_cast<size_t>(some.changed));
    size_t kept = 0;
    for (int64_t j = 0; j < some.changed; j++) {
        above[kept] = some.values[j];
        kept += static_cast<size_t>(some.values[j] > bound);
    }
    above.resize(kept);
    doubles_ = std::move(above);
}

double Foremost::mass(Weighing by) const { return cpu::mass(kernels_, known(), by); }

Before Foremost::before(Weighing by, Token token) const {
    const double inverse = inverse_of(by);
    const FloatTop top = float_top(by, inverse);
    const float bound = floor_of(token.value);
    const LogitKernels& of = kernels_.logits;
    const LogitRow some = known();
    const LogitTally floats = of.tally(some.data, some.size, top.largest, inverse, bound);
    const LogitTally doubles = of.tally_doubles(some.values, some.changed, by.largest, inverse, token.value);
    const int64_t like_it = doubles.equal + (static_cast<double>(bound) == token.value ? floats.equal : 0);
    // Without ids here: but for itself, there are rarely any.
    const bool alone = token.value > value_ && like_it == 1;
    const int64_t equal = alone ? 0 : equal_before(row_, token);
    return {floats.mass * top.factor + doubles.mass, floats.above_mass * top.factor + doubles.above_mass, equal};
}

bool Foremost::holds(Token token) const {
    return token.value > value_ || (token.value == value_ && equal_before(row_, token) < ties_);
}

}  // namespace cherenkov::cpu
