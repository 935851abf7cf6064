// What the passes over logits share.
#pragma once
#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <vector>

#include "sampling.h"

namespace cherenkov::cpu {

constexpr double none = -std::numeric_limits<double>::infinity();

// Finite, so that 0 times it is 0: no two logits are so near that it would matter.
inline double inverse_of(Weighing by) { return std::min(1 / by.temperature, 1e300); }

// The largest float that is at most x: a float exceeds one if it exceeds the other.
inline float floor_of(double x) {
    const auto f = static_cast<float>(x);
    return static_cast<double>(f) > x ? std::nextafterf(f, -std::numeric_limits<float>::infinity()) : f;
}

// How many logits hold; in the width of few bits that loops of comparisons become vectors with.
template <typename P>
int64_t count_that(const float* logits, int64_t count, P holds) {
    int64_t found = 0;
    for (int64_t start = 0; start < count; start += logit_piece) {
        const float* l = logits + start;
        const int64_t n = std::min<int64_t>(logit_piece, count - start);
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

inline FloatTop float_top(Weighing by, double inverse) {
    const double near = floor_of(by.largest);  // not below any of the floats
    if (near == by.largest || !std::isfinite(near)) return {by.largest, 1};
    return {near, std::exp((near - by.largest) * inverse)};
}

// The largest of some numbers, none NaN; -inf of none.
template <typename T>
T largest_of(const T* values, int64_t size) {
    constexpr int abreast = 16;  // so that none waits for the one before
    T top[abreast];
    std::fill_n(top, abreast, -std::numeric_limits<T>::infinity());
    int64_t i = 0;
    for (; i + abreast <= size; i += abreast)
        for (int j = 0; j < abreast; j++) top[j] = values[i + j] > top[j] ? values[i + j] : top[j];
    for (; i < size; i++) top[0] = std::max(top[0], values[i]);
    return *std::max_element(top, top + abreast);
}

// Calls f(from, to) for about one logit in so many, in runs of neighbours: a sample costs what it takes to reach them.
template <typename F>
void each_sampled(int64_t size, int64_t stride, F f) {
    constexpr int64_t run = 8;
    for (int64_t i = stride / 2 * run; i < size; i += stride * run) f(i, std::min(i + run, size));
}

// Where a changed logit would stand in the list of them.
inline int64_t changed_from(const LogitRow& row, int64_t token) {
    return std::lower_bound(row.ids, row.ids + row.changed, token) - row.ids;
}

inline double value_of(const LogitRow& row, int64_t token) {
    const auto value = static_cast<double>(row.data[token]);
    if (value != none) return value;
    const int64_t place = changed_from(row, token);
    return place < row.changed && row.ids[place] == token ? row.values[place] : value;
}

// The count-th largest. The largest of a column is one of them, so at least `count` reach the count-th largest of columns.
template <typename T>
T nth_largest(const std::vector<T>& values, size_t count) {
    const size_t columns = 4 * count;
    std::vector<T> some(values.begin(), values.begin() + static_cast<int64_t>(std::min(columns, values.size())));
    const auto nth = static_cast<int64_t>(count - 1);
    if (columns < values.size()) {
        for (size_t start = columns; start < values.size(); start += columns)
            for (size_t c = 0; c < std::min(columns, values.size() - start); c++)
                some[c] = std::max(some[c], values[start + c]);
        std::nth_element(some.begin(), some.begin() + nth, some.end(), std::greater<>());
        const T bound = some[count - 1];
        some.clear();
        std::copy_if(values.begin(), values.end(), std::back_inserter(some), [=](T v) { return v >= bound; });
    }
    std::nth_element(some.begin(), some.begin() + nth, some.end(), std::greater<>());
    return some[count - 1];
}

// How many logits that equal a token's have lower ids.
int64_t equal_before(const LogitRow&, Token);

}  // namespace cherenkov::cpu
