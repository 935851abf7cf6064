// Passes over a row of logits. Included by isa_*.cpp, inside an anonymous namespace, after numbers.inl.

// Temperatures whose reciprocals serve in float; others scale in double.
ALWAYS_INLINE bool in_float(double inverse) { return inverse <= 1e3 && inverse >= 1e-6; }

constexpr float not_a_number = __builtin_nanf("");
constexpr double log2_e = 1.4426950408889634;

constexpr float magic = 12582912.0F + 127;  // 1.5 * 2^23: adding it leaves whole numbers, in the low bits

// 2^(n + r) for |r| <= 1/2, where `shifted` is n and the magic number, to less than four units of 2^-24.
ALWAYS_INLINE Float power_of_parts(Float shifted, Float r) {
    // Least relative error on [-1/2, 1/2]: 1.6 units of 2^-24. By pairs, so that less waits for what comes before.
    const Float square = Isa::mul(r, r);
    const Float high = Isa::fmadd(Isa::splat(1.326472725e-3F), r, Isa::splat(9.671512786e-3F));
    const Float middle = Isa::fmadd(Isa::splat(5.550733744e-2F), r, Isa::splat(2.402224208e-1F));
    const Float low = Isa::fmadd(Isa::splat(6.931469776e-1F), r, Isa::splat(1.0F));
    const Float p = Isa::fmadd(Isa::fmadd(high, square, middle), square, low);
    return Isa::mul(p, Isa::from_exponent(shifted));
}

// 2^x for x up to 127, as near. Below -126 it stays at 2^-126; NaN passes.
ALWAYS_INLINE Float power_of_two(Float x) {
    x = Isa::max(Isa::splat(-126.0F), x);
    const Float shifted = Isa::add(x, Isa::splat(magic));
    return power_of_parts(shifted, Isa::sub(x, Isa::sub(shifted, Isa::splat(magic))));
}

// Calls f(i, n) for pieces of a row.
template <typename F>
ALWAYS_INLINE void by_pieces(int64_t count, F f) {
    for (int64_t i = 0; i < count; i += logit_piece)
        f(i, static_cast<int>(count - i < logit_piece ? count - i : logit_piece));
}

// n < lanes numbers, and a filler for the others.
ALWAYS_INLINE Float load_filled(const float* at, int n, float filler) {
    float all[lanes];
    for (int i = 0; i < lanes; i++) all[i] = i < n ? at[i] : filler;
    return Isa::load(all);
}

// Calls f(w, l) with weights and the logits, in vectors; -inf stands for logits beyond the last. No weight is below about
// 2^-125, nor so small that it would slow down the sum.
template <typename F>
ALWAYS_INLINE void each_weight(const float* logits, int n, double largest, double scale, F f) {
    const Float top = Isa::splat(static_cast<float>(largest)), factor = Isa::splat(static_cast<float>(scale));
    const Float least = Isa::splat(static_cast<float>(-125 / scale)), shift = Isa::splat(magic);
    const auto one = [&](Float l) {
        const Float below = Isa::max(least, Isa::sub(l, top));
        const Float shifted = Isa::fmadd(below, factor, shift);
        f(power_of_parts(shifted, Isa::fmadd(below, factor, Isa::sub(shift, shifted))), l);
    };
    int i = 0;
    for (; i + lanes <= n; i += lanes) one(Isa::load(logits + i));
    if (i < n) one(load_filled(logits + i, n - i, -__builtin_inff()));
}

// Exponents of 2, for what does not go in float.
template <typename T>
ALWAYS_INLINE void exponents(const T* logits, int n, double largest, double scale, float* out) {
    for (int i = 0; i < n; i++) out[i] = static_cast<float>((static_cast<double>(logits[i]) - largest) * scale);
    for (int i = n; i % lanes != 0; i++) out[i] = -126;
}

template <typename T>
double weigh_in_double(const T* logits, int64_t count, double largest, double scale) {
    double sum = 0;
    by_pieces(count, [&](int64_t at, int n) {
        float x[logit_piece];
        exponents(logits + at, n, largest, scale, x);
        Float some = Isa::zero();
        for (int i = 0; i < n; i += lanes) some = Isa::add(some, power_of_two(Isa::load(x + i)));
        sum += static_cast<double>(Isa::sum(some));
    });
    return sum;
}

double weigh_doubles(const double* logits, int64_t count, double largest, double inverse) {
    return weigh_in_double(logits, count, largest, inverse * log2_e);
}

double weigh(const float* logits, int64_t count, double largest, double inverse) {
    const double scale = inverse * log2_e;
    if (!in_float(inverse)) return weigh_in_double(logits, count, largest, scale);
    double sum = 0;
    by_pieces(count, [&](int64_t at, int n) {
        Float some = Isa::zero();
        each_weight(logits + at, n, largest, scale, [&](Float w, Float) { some = Isa::add(some, w); });
        sum += static_cast<double>(Isa::sum(some));
    });
    return sum;
}

// Sums over one piece.
struct PieceTally {
    Float mass = Isa::zero(), above_mass = Isa::zero(), equal = Isa::zero();

    ALWAYS_INLINE void add(Float weight, Float l, Float bound) {
        mass = Isa::add(mass, weight);
        above_mass = Isa::add(above_mass, Isa::where_above(l, bound, weight));
        equal = Isa::add(equal, Isa::where_equal(l, bound, Isa::splat(1.0F)));
    }
    ALWAYS_INLINE void add_to(LogitTally& all) const {
        all.mass += static_cast<double>(Isa::sum(mass));
        all.above_mass += static_cast<double>(Isa::sum(above_mass));
        all.equal += static_cast<int64_t>(Isa::sum(equal));
    }
};

// 1 for what is above a bound, 0 for what equals it, else -1; NaN beyond the last.
template <typename T>
ALWAYS_INLINE void signs(const T* logits, int n, T bound, float* out) {
    for (int i = 0; i < n; i++)
        out[i] = static_cast<float>(static_cast<int>(logits[i] > bound) - static_cast<int>(logits[i] < bound));
    for (int i = n; i % lanes != 0; i++) out[i] = not_a_number;
}

template <typename T>
LogitTally tally_in_double(const T* logits, int64_t count, double largest, double scale, T bound) {
    LogitTally all{};
    by_pieces(count, [&](int64_t at, int n) {
        float x[logit_piece], sides[logit_piece];
        exponents(logits + at, n, largest, scale, x);
        signs(logits + at, n, bound, sides);
        PieceTally some;
        for (int i = 0; i < n; i += lanes) some.add(power_of_two(Isa::load(x + i)), Isa::load(sides + i), Isa::zero());
        some.add_to(all);
    });
    return all;
}

LogitTally tally_doubles(const double* logits, int64_t count, double largest, double inverse, double bound) {
    return tally_in_double(logits, count, largest, inverse * log2_e, bound);
}

LogitTally tally(const float* logits, int64_t count, double largest, double inverse, float bound) {
    const double scale = inverse * log2_e;
    if (!in_float(inverse)) return tally_in_double(logits, count, largest, scale, bound);
    LogitTally all{};
    const Float low = Isa::splat(bound);
    by_pieces(count, [&](int64_t at, int n) {
        PieceTally some;
        // What stands for logits beyond the last is above no bound, and equals only that of -inf.
        each_weight(logits + at, n, largest, scale, [&](Float w, Float l) { some.add(w, l, low); });
        some.add_to(all);
    });
    return all;
}

bool raise(float* maxima, const float* logits, int64_t count) {
    int32_t broken = 0;
    for (int64_t i = 0; i < count; i++) {
        broken |= static_cast<int32_t>(logits[i] != logits[i]);
        maxima[i] = logits[i] > maxima[i] ? logits[i] : maxima[i];
    }
    return broken != 0;
}

// Calls f(i, word) for every 32 logits from i on, with what bits(...) says of each; fillers stand for those beyond the last.
template <typename B, typename F>
ALWAYS_INLINE void each_word(const float* logits, int64_t count, float filler, B bits, F f) {
    const auto word = [&](const float* at) {
        uint32_t all = 0;
        for (int j = 0; j < 32; j += lanes) all |= bits(Isa::load(at + j)) << j;
        return all;
    };
    int64_t i = 0;
    for (; i + 32 <= count; i += 32) f(i, word(logits + i));
    if (i == count) return;
    float rest[32];
    for (int j = 0; j < 32; j++) rest[j] = i + j < count ? logits[i + j] : filler;
    f(i, word(rest));
}

int64_t pack(const float* logits, int64_t count, float low, float* out) {
    const Float bottom = Isa::splat(low);
    int64_t kept = 0;
    const auto one = [&](Float l) { kept += Isa::keep(out + kept, l, Isa::bits_above(l, bottom)); };
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) one(Isa::load(logits + i));
    if (i < count) one(load_filled(logits + i, static_cast<int>(count - i), low));
    return kept;
}

LogitSplit split(const float* logits, int64_t count, float low, float high, float* inside) {
    const Float bottom = Isa::splat(low), top = Isa::splat(high), one = Isa::splat(1.0F);
    LogitSplit all{};
    by_pieces(count, [&](int64_t at, int n) {
        Float above = Isa::zero();
        sweep(n, [&](int i, int m) {
            const float* l = logits + at + i;
            const Float some = m == lanes ? Isa::load(l) : load_filled(l, m, low);
            above = Isa::add(above, Isa::where_above(some, top, one));
            const uint32_t bits = Isa::bits_above(some, bottom) & ~Isa::bits_above(some, top);
            all.inside += Isa::keep(inside + all.inside, some, bits);
        });
        all.above += static_cast<int64_t>(Isa::sum(above));
    });
    return all;
}

bool punish(const float* logits, const int64_t* ids, const int64_t* counts, int64_t count, double factor, double presence,
            double frequency, double* before, double* out) {
    int64_t broken = 0;
    by_pieces(count, [&](int64_t at, int n) {
        double* const logit = before + at;
        double divided[logit_piece], multiplied[logit_piece], times[logit_piece];
        for (int i = 0; i < n; i++) logit[i] = static_cast<double>(logits[ids[at + i]]);
        for (int i = 0; i < n; i++) divided[i] = logit[i] / factor;
        for (int i = 0; i < n; i++) multiplied[i] = logit[i] * factor;
        // A count is below 2^52: with the exponent of that number it is that much more.
        for (int i = 0; i < n; i++)
            times[i] = __builtin_bit_cast(double, counts[at + i] | 0x4330000000000000) - 0x1p52;
        for (int i = 0; i < n; i++)
            out[at + i] = (logit[i] > 0 ? divided[i] : multiplied[i]) - (presence + frequency * times[i]);
        for (int i = 0; i < n; i++) broken |= static_cast<int64_t>(logit[i] != logit[i]);
    });
    return broken != 0;
}

int64_t above(const float* logits, int64_t count, float bound, int32_t first, int32_t* places) {
    const Float bottom = Isa::splat(bound);
    int64_t found = 0;
    each_word(
        logits, count, bound, [&](Float some) { return Isa::bits_above(some, bottom); },
        [&](int64_t i, uint32_t word) {
            for (; word != 0; word &= word - 1)
                places[found++] = first + static_cast<int32_t>(i) + __builtin_ctz(word);
        });
    return found;
}

// e^x for each, in steps that compilers turn into vectors: 2^n e^r with |r| <= ln 2 / 2, whose series ends below a rounding.
ALWAYS_INLINE void exponentials_of_some(double* x, int count) {
    constexpr double least = -708.0;
    double raised[logit_piece];
    for (int i = 0; i < count; i++) raised[i] = x[i] < least ? least : x[i];
    constexpr double shift = 0x1.8p52;  // adding it leaves whole numbers, in the low bits
    for (int i = 0; i < count; i++) {
        const double y = raised[i], shifted = y * log2_e + shift, n = shifted - shift;
        double r = y - n * 0x1.62e42feep-1;  // ln 2 in two parts, so that n * the first is exact
        r = r - n * 0x1.a39ef35793c76p-33;
        // By fours, so that less waits for what comes before.
        const double s = r * r, q = s * s;
        const double low = r + s * (0.5 + r * (1.0 / 6)), middle = 1.0 / 24 + r * (1.0 / 120) + s * (1.0 / 720 + r * (1.0 / 5040));
        const double high = 1.0 / 40320 + r * (1.0 / 362880) + s * (1.0 / 3628800 + r * (1.0 / 39916800));
        const double p = low + q * (middle + q * (high + q * (1.0 / 479001600 + r * (1.0 / 6227020800))));
        const uint64_t power = (__builtin_bit_cast(uint64_t, shifted) + 1023) << 52;
        x[i] = (p + 1) * __builtin_bit_cast(double, power);
    }
    for (int i = 0; i < count; i++) x[i] = raised[i] == least ? 0 : x[i];
}

void exponentials(double* x, int64_t count, double largest, double temperature) {
    by_pieces(count, [&](int64_t at, int n) {
        for (int i = 0; i < n; i++) x[at + i] = (x[at + i] - largest) / temperature;
        exponentials_of_some(x + at, n);
    });
}

constexpr LogitKernels logit_kernels = {weigh, weigh_doubles, tally, tally_doubles, raise, pack, split, above, punish, exponentials};
