// Passes over the logits of one position, for cherenkov/passes.py, which says what each is for.
//
// Nothing that decides depends on how a sum is rounded here: ids, counts and values are exact, and a sum of weights comes
// with a bound on its error that the callers know.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels.h"

namespace cherenkov::cpu {

// A row of logits, float or double, without NaN.
template <typename T>
struct LogitRow {
    const T* data;
    int64_t size;
};

// What comes before a token: the weights of all larger logits, and how many equal ones precede it.
struct Before {
    double mass;
    int64_t equal;
};

// weights[i] = exp((logits[i] - largest) / temperature); returns their sum. Relative to the weights' own mean, the sum
// errs by less than 64 roundings of 2^-24, where exponents average at most ln(size).
template <typename T>
double weigh(const Kernels&, LogitRow<T>, double largest, double temperature, float* weights);

template <typename T>
Before before(const Kernels&, LogitRow<T>, const float* weights, int64_t token);

// maxima[c] = the largest of logits[c], logits[c + columns], ...; 0 < columns <= size
template <typename T>
void column_maxima(const Kernels&, LogitRow<T>, int64_t columns, T* maxima);

// Ids of the `count` largest, largest first, ties by id; 0 < count <= size.
template <typename T>
std::vector<int64_t> largest_ids(const Kernels&, LogitRow<T>, int64_t count);

// The id of the count-th of them in that order; 0 < count <= size.
template <typename T>
int64_t nth_id(LogitRow<T>, int64_t count);

// changed = logits, but for each of `known` ids: divided by `factor` if positive, else multiplied, less
// presence + frequency * counts[i]. The ids are distinct.
template <typename T>
void punish(LogitRow<T>, const int64_t* ids, const int64_t* counts, int64_t known, double factor, double presence,
            double frequency, double* changed);

}  // namespace cherenkov::cpu
