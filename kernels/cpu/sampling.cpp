// Passes over the logits of one position. Compiled for the plainest machine of its architecture, but for what kernels do.
#include "sampling.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

namespace cherenkov::cpu {

namespace {

constexpr int64_t chunk = logit_piece;
constexpr int64_t columns_at_least = 1024;

template <typename T>
const LogitKernels<T>& of(const Kernels& k) {
    if constexpr (sizeof(T) == sizeof(float)) return k.floats;
    else return k.doubles;
}

// How many logits hold; in the width of few bits that loops of comparisons become vectors with.
template <typename T, typename P>
int64_t count_that(const T* logits, int64_t count, P holds) {
    int64_t found = 0;
    for (int64_t start = 0; start < count; start += chunk) {
        const T* l = logits + start;
        const int64_t n = std::min(chunk, count - start);
        int32_t some = 0;
        for (int64_t i = 0; i < n; i++) some += static_cast<int32_t>(holds(l[i]));
        found += some;
    }
    return found;
}

// Adds to `found` what a run of logits holds.
template <typename T>
void tally(const Kernels& k, const T* logits, const float* weights, int64_t count, T value, Before& found) {
    for (int64_t i = 0; i < count; i += chunk) {
        const auto n = static_cast<int>(std::min(chunk, count - i));
        const LogitTally some = of<T>(k).tally(logits + i, weights + i, n, value);
        found.mass += static_cast<double>(some.mass);
        found.equal += some.equal;
    }
}

// Calls f(id) for the ids that `holds`, in order. Most blocks hold none.
template <typename T, typename P, typename F>
void each_that(LogitRow<T> row, P holds, F f) {
    constexpr int64_t block = 32;
    for (int64_t start = 0; start < row.size; start += block) {
        const int64_t end = std::min(start + block, row.size);
        const bool any = count_that(row.data + start, end - start, holds) > 0;
        for (int64_t i = start; any && i < end; i++)
            if (holds(row.data[i])) f(i);
    }
}

// Sixteen bits that are the larger the larger a logit is: those of a float from its sign on, larger ones first.
template <typename T>
uint32_t bin_of(T logit) {
    const auto bits = std::bit_cast<uint32_t>(static_cast<float>(logit) + 0.0F);  // one zero, not two
    const uint32_t flip = (0 - (bits >> 31)) | 0x80000000U;
    return (bits ^ flip) >> 16;
}

// Whether a comes before b, most likely first, ties by id.
template <typename T>
auto in_order(LogitRow<T> row) {
    return [row](int64_t a, int64_t b) {
        return row.data[a] > row.data[b] || (row.data[a] == row.data[b] && a < b);
    };
}

// a if `first`, else b, without a branch that nobody could predict.
double either(bool first, double a, double b) {
    const uint64_t mask = 0 - static_cast<uint64_t>(first);
    return std::bit_cast<double>((std::bit_cast<uint64_t>(a) & mask) | (std::bit_cast<uint64_t>(b) & ~mask));
}

}  // namespace

template <typename T>
double weigh(const Kernels& k, LogitRow<T> row, double largest, double temperature, float* weights) {
    // Finite, so that 0 times it is 0: no two logits are so near that it would matter.
    const double inverse = std::min(1 / temperature, 1e300);
    double sum = 0;
    for (int64_t i = 0; i < row.size; i += chunk) {
        const auto n = static_cast<int>(std::min(chunk, row.size - i));
        sum += static_cast<double>(of<T>(k).weigh(row.data + i, n, largest, inverse, weights + i));
    }
    return sum;
}

template <typename T>
Before before(const Kernels& k, LogitRow<T> row, const float* weights, int64_t token) {
    const T value = row.data[token];
    Before found{0, 0};
    tally(k, row.data, weights, token, value, found);
    const int64_t equal = found.equal;
    tally(k, row.data + token, weights + token, row.size - token, value, found);
    return {found.mass, equal};
}

template <typename T>
void column_maxima(const Kernels& k, LogitRow<T> row, int64_t columns, T* maxima) {
    std::copy_n(row.data, columns, maxima);
    for (int64_t start = columns; start < row.size; start += columns)
        of<T>(k).raise(maxima, row.data + start, static_cast<int>(std::min(columns, row.size - start)));
}

template <typename T>
std::vector<int64_t> largest_ids(const Kernels& k, LogitRow<T> row, int64_t count) {
    // The largest logit of a column is one logit, so at least `count` reach the count-th largest of the columns'.
    std::vector<T> maxima(static_cast<size_t>(std::min(row.size, std::max(columns_at_least, 4 * count))));
    column_maxima(k, row, static_cast<int64_t>(maxima.size()), maxima.data());
    std::nth_element(maxima.begin(), maxima.begin() + (count - 1), maxima.end(), std::greater<T>());
    const T bound = maxima[static_cast<size_t>(count - 1)];
    std::vector<int64_t> ids;
    each_that(row, [&](T l) { return l > bound; }, [&](int64_t i) { ids.push_back(i); });
    const auto first = in_order(row);
    const auto sorted = std::min(count, static_cast<int64_t>(ids.size()));
    if (sorted < static_cast<int64_t>(ids.size())) std::nth_element(ids.begin(), ids.begin() + sorted, ids.end(), first);
    ids.resize(static_cast<size_t>(sorted));
    std::sort(ids.begin(), ids.end(), first);
    for (int64_t i = 0; static_cast<int64_t>(ids.size()) < count; i++)
        if (row.data[i] == bound) ids.push_back(i);
    return ids;
}

template <typename T>
int64_t nth_id(LogitRow<T> row, int64_t count) {
    std::vector<int32_t> sizes(size_t{1} << 16);
    for (int64_t i = 0; i < row.size; i++) sizes[bin_of(row.data[i])]++;
    uint32_t bin = 0xffff;
    for (; count > sizes[bin]; bin--) count -= sizes[bin];
    std::vector<int64_t> ids;
    each_that(row, [&](T l) { return bin_of(l) == bin; }, [&](int64_t i) { ids.push_back(i); });
    const bool same = std::all_of(ids.begin(), ids.end(), [&](int64_t i) { return row.data[i] == row.data[ids[0]]; });
    const auto nth = ids.begin() + (count - 1);
    if (!same) std::nth_element(ids.begin(), nth, ids.end(), in_order(row));
    return *nth;
}

template <typename T>
void punish(LogitRow<T> row, const int64_t* ids, const int64_t* counts, int64_t known, double factor, double presence,
            double frequency, double* changed) {
    for (int64_t i = 0; i < row.size; i++) changed[i] = static_cast<double>(row.data[i]);
    for (int64_t start = 0; start < known; start += chunk) {
        const int64_t n = std::min(chunk, known - start);
        double found[chunk];
        for (int64_t i = 0; i < n; i++) found[i] = changed[ids[start + i]];
        for (int64_t i = 0; i < n; i++) found[i] = either(found[i] > 0, found[i] / factor, found[i] * factor);
        for (int64_t i = 0; i < n; i++)
            changed[ids[start + i]] = found[i] - (presence + frequency * static_cast<double>(counts[start + i]));
    }
}

#define FOR_LOGITS(T)                                                                                                   \
    template double weigh(const Kernels&, LogitRow<T>, double, double, float*);                                         \
    template Before before(const Kernels&, LogitRow<T>, const float*, int64_t);                                         \
    template void column_maxima(const Kernels&, LogitRow<T>, int64_t, T*);                                              \
    template std::vector<int64_t> largest_ids(const Kernels&, LogitRow<T>, int64_t);                                    \
    template int64_t nth_id(LogitRow<T>, int64_t);                                                                      \
    template void punish(LogitRow<T>, const int64_t*, const int64_t*, int64_t, double, double, double, double*);
FOR_LOGITS(float)
FOR_LOGITS(double)

}  // namespace cherenkov::cpu
