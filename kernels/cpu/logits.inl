// Passes over pieces of a row of logits, float or double, written once as plain loops that compilers turn into vectors of
// the instruction set. Included by isa_*.cpp, inside an anonymous namespace, after numbers.inl.

// Temperatures whose reciprocals serve in float; others scale in double.
constexpr double steepest_float = 1e3, flattest_float = 1e-6;

ALWAYS_INLINE void exponents(const float* logits, int n, double largest, double inverse, float* out) {
    if (inverse <= steepest_float && inverse >= flattest_float) {
        const auto top = static_cast<float>(largest), factor = static_cast<float>(inverse);
        for (int i = 0; i < n; i++) out[i] = (logits[i] - top) * factor;
    } else {
        for (int i = 0; i < n; i++) out[i] = static_cast<float>((static_cast<double>(logits[i]) - largest) * inverse);
    }
}

ALWAYS_INLINE void exponents(const double* logits, int n, double largest, double inverse, float* out) {
    for (int i = 0; i < n; i++) out[i] = static_cast<float>((logits[i] - largest) * inverse);
}

template <typename T>
float weigh_piece(const T* logits, int n, double largest, double inverse) {
    float weights[logit_piece];
    exponents(logits, n, largest, inverse, weights);
    return exponentials(weights, 0.0F, n);
}

template <typename T>
LogitTally tally_piece(const T* logits, int n, double largest, double inverse, T bound, T upper) {
    float weights[logit_piece], higher[logit_piece];  // 1 or 0 each
    LogitTally found{};
    for (int i = 0; i < n; i++) {
        found.count += static_cast<int32_t>(logits[i] > bound);
        found.equal += static_cast<int32_t>(logits[i] == bound);
        found.upper_count += static_cast<int32_t>(logits[i] > upper);
        found.upper_equal += static_cast<int32_t>(logits[i] == upper);
    }
    if (found.count == 0) return found;
    exponents(logits, n, largest, inverse, weights);
    // Not quite 0, but 128 of these are nothing beside the one that is above.
    if (found.count < n)
        for (int i = 0; i < n; i++) weights[i] = logits[i] > bound ? weights[i] : -1e3F;
    found.mass = exponentials(weights, 0.0F, n);
    if (found.upper_count == 0) return found;
    for (int i = 0; i < n; i++) higher[i] = static_cast<float>(static_cast<int32_t>(logits[i] > upper));
    found.upper_mass = dot(weights, higher, n);
    return found;
}

template <typename T>
bool raise_piece(T* maxima, const T* logits, int n) {
    int32_t broken = 0;
    for (int i = 0; i < n; i++) {
        broken |= static_cast<int32_t>(logits[i] != logits[i]);
        maxima[i] = logits[i] > maxima[i] ? logits[i] : maxima[i];
    }
    return broken != 0;
}

template <typename T>
LogitSplit split_piece(const T* logits, int n, T low, T high, uint8_t* flags) {
    int32_t above = 0, highest = 0, inside = 0, broken = 0, between[logit_piece];
    for (int i = 0; i < n; i++) {
        between[i] = static_cast<int32_t>(logits[i] > low) & static_cast<int32_t>(logits[i] < high);
        above += static_cast<int32_t>(logits[i] > high);
        highest += static_cast<int32_t>(logits[i] == high);
        broken += static_cast<int32_t>(logits[i] != logits[i]);
        inside += between[i];
    }
    for (int i = 0; i < n; i++) flags[i] = static_cast<uint8_t>(between[i]);
    return {above, highest, inside, broken};
}

template <typename T>
constexpr LogitKernels<T> logit_kernels() { return {weigh_piece<T>, tally_piece<T>, raise_piece<T>, split_piece<T>}; }
