// Passes over the logits of one position, for cherenkov/passes.py, which says what each is for.
//
// Nothing that decides depends on how a sum is rounded here: ids, counts and values are exact, and a sum of weights comes
// with a bound on its error that the callers know.
#pragma once
#include <cstdint>
#include <memory>
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
    double mass;    // the weights of all logits
    double ahead;   // those of all larger ones
    int64_t equal;  // how many equal ones have lower ids
};

// How many columns a row is laid out in for draws.
inline int64_t columns_of(int64_t size) { return size < 128 ? 1 : size / 64; }

// The largest of data[c], data[c + columns], ... for each of these columns, where all that is large is looked for: of the
// floats. None if a logit is NaN.
using Crest = std::vector<float>;

Crest crest_of(const Kernels&, const LogitRow&);

// The same with the logits that were changed.
std::vector<double> whole_crest(const LogitRow&, const Crest&);

// The id of the largest logit, the lowest of several; -1 if one is NaN, or the largest is not finite.
int64_t likeliest(const LogitRow&, const Crest&);

// How many logits exceed a value.
int64_t count_above(const LogitRow&, double value);

// Whether the `count` largest seem to make up less than a share of all weights, and to weigh no less than `least` each.
// A guess from the crest and a sample, but always the same one.
bool looks_wide(const Kernels&, const LogitRow&, const std::vector<double>& whole_crest, Weighing, int64_t count,
                double share, double least);

// The sum of all weights. Relative to their own mean it errs by less than 64 roundings of 2^-24, where exponents average
// at most ln(size).
double mass(const Kernels&, const LogitRow&, Weighing);

// The same of the floats alone, and of those that were changed alone.
double mass_of_floats(const Kernels&, const LogitRow&, Weighing);
double mass_of_changed(const Kernels&, const LogitRow&, Weighing);

// What comes before a token; and the mass of the floats alone.
Before before(const Kernels&, const LogitRow&, Weighing, Token, double& floats);

// The `count` largest, largest first, ties by id; 0 < count <= size. None if a logit is NaN.
std::vector<Token> largest(const Kernels&, const LogitRow&, const Crest&, int64_t count);

// The `count` most likely tokens, ties by id, as one finds them without sorting: those above the value of the last, and some
// that equal it. Their values stand packed together, without ids. The row must outlive it.
class Foremost {
public:
    Foremost(const Kernels&, const LogitRow&, int64_t count);  // 0 < count <= size; no logit may be NaN
    double value() const { return value_; }                    // of the last
    int64_t ties() const { return ties_; }                     // how many of them have that value
    // As for a whole row, of those above the last alone; the token is one of them or has the value of the last.
    double mass(Weighing) const;
    Before before(Weighing, Token) const;
    bool holds(Token) const;
    // Those above the last; their ids are not known.
    LogitRow known() const {
        return {floats_.get(), size_, nullptr, doubles_.data(), static_cast<int64_t>(doubles_.size())};
    }

private:
    void keep_above(const LogitRow&, double bound);  // of some floats and doubles

    const Kernels& kernels_;
    LogitRow row_;
    std::unique_ptr<float[]> floats_;
    int64_t size_ = 0;
    std::vector<double> doubles_;
    double value_ = 0;
    int64_t ties_ = 0;
};

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

// Makes of `size` logits the parts of a LogitRow, whose lists have room for all that may change, and its crest. What was
// changed stands in `before` as it was, unless that is null.
LogitRow amend(const Kernels&, const float* logits, int64_t size, Occurred, Penalties, Biases, float* data, int64_t* ids,
               double* values, double* before, Crest& crest);

// Draws tokens by their weights, one after the other, from one number in [0, 1): see `draws` in cherenkov/selection.py.
class Draws {
public:
    Draws(const Kernels&, const LogitRow&, std::vector<double> whole_crest, Weighing, double number);
    bool possible() const { return possible_; }  // whether there is anything to draw, and no NaN
    int64_t next();

private:
    double weight(double logit) const;
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
