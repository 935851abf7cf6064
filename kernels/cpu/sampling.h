// Passes over the logits of one position, for cherenkov/passes.py, which says what each is for.
//
// Nothing that decides depends on how a sum is rounded here: ids, counts and values are exact, and a sum of weights comes
// with a bound on its error that the callers know.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels.h"

namespace cherenkov::cpu {

// A row of logits. Those that penalties and biases changed are -inf in `data`, and stand in a list of their own:
// they are few, and need the bits of a double.
struct LogitRow {
    const float* data;
    int64_t size;
    const int64_t* ids;  // of the changed ones, ascending
    const double* values;
    int64_t changed;
};

// What turns logits into weights exp((logit - largest) / temperature); the temperature is above 0.
struct Weighing {
    double largest, temperature;
};

// A token, and its logit.
struct Token {
    int64_t id;
    double value;
};

// What comes before a token, most likely first, ties by id.
struct Before {
    double mass;             // the weights of all larger logits
    int64_t larger, equal;   // how many they are, and how many equal ones have lower ids
};

// The sum of all weights. Relative to their own mean it errs by less than 64 roundings of 2^-24, where exponents average
// at most ln(size).
double mass(const Kernels&, const LogitRow&, Weighing);

// What comes before a token; and before a second one, which is no less likely than the first, in `sooner`.
Before before(const Kernels&, const LogitRow&, Weighing, Token, Token second, Before& sooner);

// Ids of the `count` largest, largest first, ties by id; 0 < count <= size. None if a logit is NaN.
std::vector<int64_t> largest_ids(const Kernels&, const LogitRow&, int64_t count);

// The id of the count-th of them in that order; 0 < count <= size. -1 if a logit is NaN.
int64_t nth_id(const Kernels&, const LogitRow&, int64_t count);

// Tokens that occurred, and how often; distinct, ascending.
struct Occurred {
    const int64_t *ids, *counts;
    int64_t size;
};

// What is added to some logits; distinct, ascending.
struct Biases {
    const int64_t* ids;
    const double* values;
    int64_t size;
};

// Logits of tokens that occurred are divided by `factor` if positive, else multiplied, less presence + frequency * count.
struct Penalties {
    double factor, presence, frequency;
};

// Makes of `size` logits the parts of a LogitRow, whose lists have room for all that may change; returns how many did.
int64_t amend(const float* logits, int64_t size, Occurred, Penalties, Biases, float* data, int64_t* ids, double* values);

// Draws tokens by their weights, one after the other, from one number in [0, 1): see `draws` in cherenkov/selection.py.
class Draws {
public:
    Draws(const Kernels&, const LogitRow&, Weighing, double number);
    bool possible() const { return possible_; }  // whether there is anything to draw, and no NaN
    int64_t next();

private:
    double weight(double logit) const;
    void weigh(const Kernels&, std::vector<double>& logits) const;
    double random(uint64_t count) const;

    LogitRow row_;
    Weighing by_;
    int64_t columns_, rows_;
    std::vector<int64_t> singles_;  // tokens that stand for themselves
    std::vector<double> tops_;      // the largest weight of each column
    std::vector<double> reached_;   // sums of weights: of the singles, then of the columns
    int64_t last_ = 0;
    uint64_t start_, trial_ = 0;
    bool possible_ = false;
};

}  // namespace cherenkov::cpu
