// Passes over the logits of one position. Compiled for the plainest machine of its architecture, but for what kernels do.
#include <numeric>
#include <utility>

#include "logit_row.h"

namespace cherenkov::cpu {

namespace {

constexpr int64_t columns_at_least = 1024;
constexpr int64_t sampled = 1024;
constexpr int64_t gathered = 32;  // a pass over this many logits costs as much as looking for one anywhere

// Most likely first, ties by id.
bool first_of(const Token& a, const Token& b) { return a.value > b.value || (a.value == b.value && a.id < b.id); }

// The largest of data[c], data[c + columns], ... for each c; 0 < columns <= size. None if a logit is NaN.
std::vector<float> column_maxima(const Kernels& k, const LogitRow& row, int64_t columns) {
    std::vector<float> maxima(static_cast<size_t>(columns), -std::numeric_limits<float>::infinity());
    bool broken = false;
    for (int64_t start = 0; start < row.size; start += columns)
        broken = k.logits.raise(maxima.data(), row.data + start, std::min(columns, row.size - start)) || broken;
    if (broken) maxima.clear();
    return maxima;
}

// Calls f(id) for the logits that equal `value`, in order, until it returns false.
template <typename F>
void each_equal(const LogitRow& row, float value, F f) {
    int64_t next = 0;
    for (int64_t start = 0; start < row.size; start += logit_piece) {
        const int64_t end = std::min<int64_t>(start + logit_piece, row.size);
        int64_t found = count_that(row.data + start, end - start, [=](float l) { return l == value; });
        const int64_t from = next;
        for (; next < row.changed && row.ids[next] < end; next++) found += row.values[next] == value ? 1 : 0;
        if (found == 0) continue;
        for (int64_t i = start, j = from; i < end; i++) {
            const bool changed = j < next && row.ids[j] == i;
            const double here = changed ? row.values[j] : static_cast<double>(row.data[i]);
            j += changed ? 1 : 0;
            if (here == value && !f(i)) return;
        }
    }
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

}  // namespace

int64_t equal_before(const LogitRow& row, Token token) {
    const float plain = floor_of(token.value);
    int64_t found = 0;
    if (static_cast<double>(plain) == token.value)
        found = count_that(row.data, token.id, [=](float l) { return l == plain; });
    const int64_t end = changed_from(row, token.id);
    if (token.value == none) found -= end;  // these stand for changed ones among the floats
    return found + std::count(row.values, row.values + end, token.value);
}

Crest crest_of(const Kernels& k, const LogitRow& row) { return column_maxima(k, row, columns_of(row.size)); }

std::vector<double> whole_crest(const LogitRow& row, const Crest& crest) {
    std::vector<double> all(crest.begin(), crest.end());
    const auto columns = static_cast<int64_t>(crest.size());
    for (int64_t j = 0, start = 0; j < row.changed && columns > 0; j++) {
        while (row.ids[j] - start >= columns) start += columns;
        double& top = all[static_cast<size_t>(row.ids[j] - start)];
        top = row.values[j] > top ? row.values[j] : top;  // without a branch that nobody could predict
    }
    return all;
}

int64_t likeliest(const LogitRow& row, const Crest& crest) {
    if (crest.empty()) return -1;
    const float largest = largest_of(crest.data(), static_cast<int64_t>(crest.size()));
    const double value = std::max<double>(largest, largest_of(row.values, row.changed));
    if (!std::isfinite(value)) return -1;
    const double* const end = row.values + row.changed;
    const double* const changed = row.changed > 0 ? std::find(row.values, end, value) : end;
    int64_t id = changed != end ? row.ids[changed - row.values] : row.size;
    if (largest != value) return id;
    const auto columns = static_cast<int64_t>(crest.size());
    if (std::count(crest.begin(), crest.end(), largest) > columns / gathered)
        return std::min<int64_t>(id, std::find(row.data, row.data + id, largest) - row.data);
    for (int64_t c = 0; c < columns; c++) {
        if (crest[static_cast<size_t>(c)] != largest) continue;
        int64_t at = c;
        while (row.data[at] != largest) at += columns;
        id = std::min(id, at);
    }
    return id;
}

int64_t count_above(const LogitRow& row, double value) {
    const float bound = floor_of(value);
    return count_that(row.data, row.size, [=](float l) { return l > bound; }) +
           std::count_if(row.values, row.values + row.changed, [=](double v) { return v > value; });
}

bool looks_wide(const Kernels& k, const LogitRow& row, const std::vector<double>& maxima, Weighing by, int64_t count,
                double share, double least) {
    if (count >= static_cast<int64_t>(maxima.size())) return false;
    const double bound = nth_largest(maxima, static_cast<size_t>(count));
    std::vector<double> values;  // the maxima above the bound, then it so often that they are `count`, then a sample
    values.reserve(static_cast<size_t>(count + 4 * sampled));
    std::copy_if(maxima.begin(), maxima.end(), std::back_inserter(values), [=](double v) { return v > bound; });
    values.resize(static_cast<size_t>(count), bound);
    const int64_t stride = std::max<int64_t>(1, row.size / sampled);
    each_sampled(row.size, stride, [&](int64_t from, int64_t to) {
        for (int64_t i = from; i < to; i++) {
            const double value = value_of(row, i);
            if (value <= bound) values.push_back(value);
        }
    });
    k.logits.exponentials(values.data(), static_cast<int64_t>(values.size()), by.largest, by.temperature);
    const auto middle = values.begin() + count;
    const double first = std::accumulate(values.begin(), middle, 0.0);
    const double others = std::accumulate(middle, values.end(), 0.0) * static_cast<double>(stride);
    return values[static_cast<size_t>(count - 1)] >= least && first < share * (first + others);
}

double mass_of_floats(const Kernels& k, const LogitRow& row, Weighing by) {
    const double inverse = inverse_of(by);
    const FloatTop top = float_top(by, inverse);
    return k.logits.weigh(row.data, row.size, top.largest, inverse) * top.factor;
}

double mass_of_changed(const Kernels& k, const LogitRow& row, Weighing by) {
    return k.logits.weigh_doubles(row.values, row.changed, by.largest, inverse_of(by));
}

double mass(const Kernels& k, const LogitRow& row, Weighing by) {
    return mass_of_floats(k, row, by) + mass_of_changed(k, row, by);
}

Before before(const Kernels& k, const LogitRow& row, Weighing by, Token token, double& floats_mass) {
    const double inverse = inverse_of(by);
    const FloatTop top = float_top(by, inverse);
    const float bound = floor_of(token.value);
    const int64_t place = changed_from(row, token.id);
    const auto floats = [&](int64_t from, int64_t to) {
        return k.logits.tally(row.data + from, to - from, top.largest, inverse, bound);
    };
    const auto doubles = [&](int64_t from, int64_t to) {
        return k.logits.tally_doubles(row.values + from, to - from, by.largest, inverse, token.value);
    };
    const LogitTally f = floats(0, token.id), g = floats(token.id, row.size);
    const LogitTally d = doubles(0, place), e = doubles(place, row.changed);
    int64_t equal = d.equal + (static_cast<double>(bound) == token.value ? f.equal : 0);
    if (token.value == none) equal = equal_before(row, token);
    floats_mass = (f.mass + g.mass) * top.factor;
    return {floats_mass + d.mass + e.mass,
            (f.above_mass + g.above_mass) * top.factor + d.above_mass + e.above_mass, equal};
}

std::vector<Token> largest(const Kernels& k, const LogitRow& row, const Crest& crest, int64_t count) {
    // The largest logit of a column is one logit, so at least `count` reach the count-th largest of the columns'.
    if (crest.empty()) return {};
    const int64_t enough = std::min(row.size, std::max(columns_at_least, 4 * count));
    const bool has_enough = static_cast<int64_t>(crest.size()) >= enough;
    const std::vector<float> others = has_enough ? std::vector<float>() : column_maxima(k, row, enough);
    const std::vector<float>& maxima = has_enough ? crest : others;
    const auto columns = static_cast<int64_t>(maxima.size());
    const float bound = nth_largest(maxima, static_cast<size_t>(count));
    std::vector<Token> found;
    found.reserve(static_cast<size_t>(2 * count));
    const auto list = [&](int64_t id) { found.push_back({id, static_cast<double>(row.data[id])}); };
    if (count * (row.size / columns) * gathered < row.size) {
        for (int64_t c = 0; c < columns; c++)
            for (int64_t i = c; maxima[static_cast<size_t>(c)] > bound && i < row.size; i += columns)
                if (row.data[i] > bound) list(i);
    } else {
        constexpr int64_t block = 4096;
        int32_t places[block];
        for (int64_t start = 0; start < row.size; start += block) {
            const int64_t some = k.logits.above(row.data + start, std::min(block, row.size - start), bound,
                                                static_cast<int32_t>(start), places);
            std::for_each(places, places + some, list);
        }
    }
    for (int64_t j = 0; j < row.changed; j++)
        if (row.values[j] > static_cast<double>(bound)) found.push_back({row.ids[j], row.values[j]});
    const auto taken = std::min(count, static_cast<int64_t>(found.size()));
    if (taken < static_cast<int64_t>(found.size()))
        std::nth_element(found.begin(), found.begin() + taken, found.end(), first_of);
    std::sort(found.begin(), found.begin() + taken, first_of);
    found.resize(static_cast<size_t>(taken));
    if (taken < count)
        each_equal(row, bound, [&](int64_t id) {
            found.push_back({id, static_cast<double>(bound)});
            return static_cast<int64_t>(found.size()) < count;
        });
    return found;
}

LogitRow amend(const Kernels& k, const float* logits, int64_t size, Occurred seen, Penalties by, Biases biases,
               float* data, int64_t* ids, double* values, double* before, Crest& crest) {
    const int64_t columns = columns_of(size);
    std::vector<float> maxima(static_cast<size_t>(columns), -std::numeric_limits<float>::infinity());
    bool broken = false;
    int64_t changed = 0, s = 0, b = 0;
    std::vector<double> plain(logit_piece), punished(logit_piece);  // of a stretch
    const auto change = [&](int64_t end) {
        const int64_t from = s, stop = reached(seen, s, end);
        if (stop - from > static_cast<int64_t>(punished.size())) {
            plain.resize(static_cast<size_t>(stop - from));
            punished.resize(plain.size());
        }
        broken = k.logits.punish(logits, seen.ids + from, seen.counts + from, stop - from, by.factor, by.presence,
                                 by.frequency, plain.data(), punished.data()) ||
                 broken;
        const auto take = [&](int64_t to) {  // those that occurred, up to a place: often few
            for (; s < to; s++, changed++) {
                ids[changed] = seen.ids[s];
                values[changed] = punished[static_cast<size_t>(s - from)];
                if (before != nullptr) before[changed] = plain[static_cast<size_t>(s - from)];
            }
        };
        for (; b < biases.size && biases.ids[b] < end; b++) {
            const int64_t id = biases.ids[b];
            take(reached(seen, s, id));
            const bool both = s < stop && seen.ids[s] == id;
            const auto logit = static_cast<double>(logits[id]);
            broken = broken || logit != logit;
            ids[changed] = id;
            values[changed] = (both ? punished[static_cast<size_t>(s++ - from)] : logit) + biases.values[b];
            if (before != nullptr) before[changed] = logit;
            changed++;
        }
        take(stop);
    };
    // By stretches that stay in the nearest cache.
    constexpr int64_t stretch = 2048;
    for (int64_t start = 0, column = 0; start < size;) {
        const int64_t end = std::min({start + stretch, start + columns - column, size});
        std::copy(logits + start, logits + end, data + start);
        int64_t j = changed;
        change(end);
        for (; j < changed; j++) data[ids[j]] = -std::numeric_limits<float>::infinity();
        broken = k.logits.raise(maxima.data() + column, data + start, end - start) || broken;
        column = (column + end - start) % columns;
        start = end;
    }
    if (broken) maxima.clear();
    crest = std::move(maxima);
    return {data, size, ids, values, changed};
}

}  // namespace cherenkov::cpu
