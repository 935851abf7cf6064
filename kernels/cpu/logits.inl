// Passes over a row of logits. Included by isa_*.cpp, inside an anonymous namespace, after numbers.inl.

// Temperatures whose reciprocals serve in float; others scale in double.
ALWAYS_INLINE bool in_float(double inverse) { return inverse <= 1e3 && inverse >= 1e-6; }

constexpr float not_a_number = __builtin_nanf("");
constexpr double log2_e = 1.4426950408889634;

// 2^x for x up to 127, to less than two units of 2^-24. Below -126 it stays at 2^-126; NaN passes.
ALWAYS_INLINE Float power_of_two(Float x) {
    x = Isa::max(Isa::splat(-126.0F), x);
    const Float magic = Isa::splat(12582912.0F + 127);  // 1.5 * 2^23: adding it leaves whole numbers, in the low bits
    const Float shifted = Isa::add(x, magic), r = Isa::sub(x, Isa::sub(shifted, magic));
    Float p = Isa::splat(1.534581243e-4F);  // least relative error on [-1/2, 1/2]
    p = Isa::fmadd(p, r, Isa::splat(1.339993090e-3F));
    p = Isa::fmadd(p, r, Isa::splat(9.618489072e-3F));
    p = Isa::fmadd(p, r, Isa::splat(5.550328642e-2F));
    p = Isa::fmadd(p, r, Isa::splat(2.402264625e-1F));
    p = Isa::fmadd(p, r, Isa::splat(6.931471825e-1F));
    p = Isa::fmadd(p, r, Isa::splat(1.0F));
    return Isa::mul(p, Isa::from_exponent(shifted));
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

// Calls f(x, l) with exponents of 2 and the logits, in vectors; `filler` stands for logits beyond the last.
template <typename F>
ALWAYS_INLINE void each_exponent(const float* logits, int n, double largest, double scale, float filler, F f) {
    const Float top = Isa::splat(static_cast<float>(largest)), factor = Isa::splat(static_cast<float>(scale));
    const auto one = [&](Float l) { f(Isa::mul(Isa::sub(l, top), factor), l); };
    int i = 0;
    for (; i + lanes <= n; i += lanes) one(Isa::load(logits + i));
    if (i < n) one(load_filled(logits + i, n - i, filler));
}

// The same for what does not go in float: the exponents are found first.
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
        each_exponent(logits + at, n, largest, scale, -__builtin_inff(),
                      [&](Float x, Float) { some = Isa::add(some, power_of_two(x)); });
        sum += static_cast<double>(Isa::sum(some));
    });
    return sum;
}

// Sums over one piece. `All`: the lower bound leaves nothing out, and nothing is to be counted by it.
template <bool All>
struct PieceTally {
    Float mass = Isa::zero(), upper_mass = Isa::zero(), count = Isa::zero(), upper_count = Isa::zero(),
          equal = Isa::zero(), upper_equal = Isa::zero();

    ALWAYS_INLINE void add(Float x, Float l, Float bound, Float u, Float upper) {
        const Float weight = power_of_two(x), one = Isa::splat(1.0F);
        if constexpr (All) {
            mass = Isa::add(mass, weight);
        } else {
            mass = Isa::add(mass, Isa::where_above(l, bound, weight));
            count = Isa::add(count, Isa::where_above(l, bound, one));
            equal = Isa::add(equal, Isa::where_equal(l, bound, one));
        }
        upper_mass = Isa::add(upper_mass, Isa::where_above(u, upper, weight));
        upper_count = Isa::add(upper_count, Isa::where_above(u, upper, one));
        upper_equal = Isa::add(upper_equal, Isa::where_equal(u, upper, one));
    }
    ALWAYS_INLINE void add_to(LogitTally& all) const {
        all.mass += static_cast<double>(Isa::sum(mass));
        all.upper_mass += static_cast<double>(Isa::sum(upper_mass));
        all.upper_count += static_cast<int64_t>(Isa::sum(upper_count));
        all.upper_equal += static_cast<int64_t>(Isa::sum(upper_equal));
        if constexpr (All) return;
        all.count += static_cast<int64_t>(Isa::sum(count));
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
LogitTally tally_in_double(const T* logits, int64_t count, double largest, double scale, T bound, T upper) {
    LogitTally all{};
    by_pieces(count, [&](int64_t at, int n) {
        float x[logit_piece], lower[logit_piece], higher[logit_piece];
        exponents(logits + at, n, largest, scale, x);
        signs(logits + at, n, bound, lower);
        signs(logits + at, n, upper, higher);
        PieceTally<false> some;
        for (int i = 0; i < n; i += lanes)
            some.add(Isa::load(x + i), Isa::load(lower + i), Isa::zero(), Isa::load(higher + i), Isa::zero());
        some.add_to(all);
    });
    return all;
}

LogitTally tally_doubles(const double* logits, int64_t count, double largest, double inverse, double bound, double upper) {
    return tally_in_double(logits, count, largest, inverse * log2_e, bound, upper);
}

// Whether no logit exceeds a bound.
ALWAYS_INLINE bool is_below(const float* logits, int n, Float bound) {
    Float found = Isa::zero();
    int i = 0;
    for (; i + lanes <= n; i += lanes) {
        const Float l = Isa::load(logits + i);
        found = Isa::add(found, Isa::where_above(l, bound, Isa::splat(1.0F)));
    }
    for (; i < n; i++) found = Isa::add(found, Isa::where_above(Isa::splat(logits[i]), bound, Isa::splat(1.0F)));
    return Isa::sum(found) == 0;
}

template <bool All>
LogitTally tally_in_float(const float* logits, int64_t count, double largest, double scale, float bound, float upper) {
    LogitTally all{};
    const Float low = Isa::splat(bound), high = Isa::splat(upper);
    by_pieces(count, [&](int64_t at, int n) {
        if (!All && is_below(logits + at, n, low)) {
            for (int i = 0; i < n; i++) all.equal += static_cast<int64_t>(logits[at + i] == bound);
            for (int i = 0; i < n; i++) all.upper_equal += static_cast<int64_t>(logits[at + i] == upper);
            return;
        }
        PieceTally<All> some;
        each_exponent(logits + at, n, largest, scale, All ? -__builtin_inff() : not_a_number,
                      [&](Float x, Float l) { some.add(x, l, low, l, high); });
        some.add_to(all);
    });
    return all;
}

LogitTally tally(const float* logits, int64_t count, double largest, double inverse, float bound, float upper) {
    const double scale = inverse * log2_e;
    if (!in_float(inverse)) return tally_in_double(logits, count, largest, scale, bound, upper);
    // Logits of -inf weigh nothing, and of them nothing is counted.
    if (bound == -__builtin_inff() && upper > bound)
        return tally_in_float<true>(logits, count, largest, scale, bound, upper);
    return tally_in_float<false>(logits, count, largest, scale, bound, upper);
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

LogitSplit split(const float* logits, int64_t count, float low, float high, float* inside) {
    const Float bottom = Isa::splat(low), top = Isa::splat(high), one = Isa::splat(1.0F);
    LogitSplit all{};
    by_pieces(count, [&](int64_t at, int n) {
        Float above = Isa::zero(), numbers = Isa::zero();
        sweep(n, [&](int i, int m) {
            const float* l = logits + at + i;
            const Float some = m == lanes ? Isa::load(l) : load_filled(l, m, low);
            above = Isa::add(above, Isa::where_above(some, top, one));
            numbers = Isa::add(numbers, Isa::where_equal(some, some, one));
            const uint32_t bits = Isa::bits_above(some, bottom) & ~Isa::bits_above(some, top);
            all.inside += Isa::keep(inside + all.inside, some, bits);
        });
        all.above += static_cast<int64_t>(Isa::sum(above));
        all.broken += (n + lanes - 1) / lanes * lanes - static_cast<int64_t>(Isa::sum(numbers));
    });
    return all;
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
    constexpr double magic = 0x1.8p52;  // adding it leaves whole numbers, in the low bits
    for (int i = 0; i < count; i++) {
        const double y = raised[i], shifted = y * log2_e + magic, n = shifted - magic;
        double r = y - n * 0x1.62e42feep-1;  // ln 2 in two parts, so that n * the first is exact
        r = r - n * 0x1.a39ef35793c76p-33;
        double p = 1.0 / 6227020800;
        p = p * r + 1.0 / 479001600;
        p = p * r + 1.0 / 39916800;
        p = p * r + 1.0 / 3628800;
        p = p * r + 1.0 / 362880;
        p = p * r + 1.0 / 40320;
        p = p * r + 1.0 / 5040;
        p = p * r + 1.0 / 720;
        p = p * r + 1.0 / 120;
        p = p * r + 1.0 / 24;
        p = p * r + 1.0 / 6;
        p = p * r + 0.5;
        p = p * r * r + r;
        const uint64_t power = (__builtin_bit_cast(uint64_t, shifted) + 1023) << 52;
        x[i] = (p + 1) * __builtin_bit_cast(double, power);
    }
    for (int i = 0; i < count; i++) x[i] = raised[i] == least ? 0 : x[i];
}

void exponentials(double* x, int64_t count) {
    by_pieces(count, [&](int64_t at, int n) { exponentials_of_some(x + at, n); });
}

constexpr LogitKernels logit_kernels = {weigh, weigh_doubles, tally, tally_doubles, raise, split, above, exponentials};
