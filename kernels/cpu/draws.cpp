// Draws from all of the logits, by rejection.
#include <utility>

#include "logit_row.h"

namespace cherenkov::cpu {

namespace {

uint64_t mixed(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
    return x ^ (x >> 31);
}

}  // namespace

Draws::Draws(const Kernels& k, const LogitRow& row, std::vector<double> maxima, Weighing by, double number)
    : row_(row), by_(by), columns_(columns_of(row.size)), rows_((row.size + columns_ - 1) / columns_),
      start_(mixed(static_cast<uint64_t>(number * 0x1p53))) {
    if (maxima.empty()) return;
    const auto hot = std::min<size_t>(64, maxima.size());
    const double bound = nth_largest(maxima, hot);
    std::vector<size_t> hottest;
    for (size_t c = 0; c < maxima.size() && hottest.size() < hot; c++)
        if (maxima[c] >= bound) hottest.push_back(c);
    singles_.reserve(hot * static_cast<size_t>(rows_));
    for (const size_t c : hottest)
        for (auto i = static_cast<int64_t>(c); i < row.size; i += columns_) singles_.push_back(i);
    reached_.reserve(singles_.size() + maxima.size());
    for (const int64_t one : singles_) reached_.push_back(value_of(row, one));
    tops_ = std::move(maxima);
    for (std::vector<double>* some : {&tops_, &reached_})
        k.logits.exponentials(some->data(), static_cast<int64_t>(some->size()), by.largest, by.temperature);
    const size_t singles = reached_.size();
    reached_.insert(reached_.end(), tops_.begin(), tops_.end());
    for (size_t i = singles; i < reached_.size(); i++) reached_[i] *= static_cast<double>(rows_);
    for (const size_t c : hottest) reached_[singles + c] = 0;
    double sum = 0;
    for (double& one : reached_) one = (sum += one);
    last_ = std::lower_bound(reached_.begin(), reached_.end(), sum) - reached_.begin();
    possible_ = sum > 0 && sum <= std::numeric_limits<double>::max();
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
