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
float weigh_piece(const T* logits, int n, double largest, double inverse, float* weights) {
    exponents(logits, n, largest, inverse, weights);
    return exponentials(weights, 0.0F, n);
}

template <typename T>
LogitTally tally_piece(const T* logits, const float* weights, int n, T value) {
    float larger[logit_piece];  // 1 or 0 each
    int32_t equal = 0;
    for (int i = 0; i < n; i++) larger[i] = static_cast<float>(static_cast<int32_t>(logits[i] > value));
    for (int i = 0; i < n; i++) equal += static_cast<int32_t>(logits[i] == value);
    return {dot(weights, larger, n), equal};
}

template <typename T>
void raise_piece(T* maxima, const T* logits, int n) {
    for (int i = 0; i < n; i++) maxima[i] = logits[i] > maxima[i] ? logits[i] : maxima[i];
}

template <typename T>
constexpr LogitKernels<T> logit_kernels() { return {weigh_piece<T>, tally_piece<T>, raise_piece<T>}; }
