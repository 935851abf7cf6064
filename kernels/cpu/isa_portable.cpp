// Plain C++ for any machine: the floor, and what other instruction sets are compared with. A vector is eight numbers;
// compilers turn it into what the target has. Activations stay float32.
#include "isa.h"
#define ISA_INTEGERS 0

namespace cherenkov::cpu {
namespace {

struct Isa {
    struct Float {
        float lane[8];
    };
    struct Int {
        uint32_t lane[8];
    };
    static constexpr int lanes = 8;
    static constexpr bool has_bf16 = false;
    static constexpr bool has_integers = ISA_INTEGERS;

    template <int Bits, Precision P, int M>
    static constexpr int rows_at_once() { return 1; }

    template <typename F>
    static ALWAYS_INLINE Float each(F f) {
        Float out;
        for (int i = 0; i < lanes; i++) out.lane[i] = f(i);
        return out;
    }
    static ALWAYS_INLINE Float zero() { return splat(0); }
    static ALWAYS_INLINE Float splat(float x) { return each([&](int) { return x; }); }
    static ALWAYS_INLINE Float load(const float* at) {
        Float out;
        memcpy(out.lane, at, sizeof out.lane);
        return out;
    }
    static ALWAYS_INLINE void store(float* at, const Float& x) { memcpy(at, x.lane, sizeof x.lane); }
    static ALWAYS_INLINE Float load_some(const float* at, int n) {
        Float out = zero();
        memcpy(out.lane, at, static_cast<size_t>(n) * 4);
        return out;
    }
    static ALWAYS_INLINE void store_some(float* at, const Float& x, int n) {
        memcpy(at, x.lane, static_cast<size_t>(n) * 4);
    }
    static ALWAYS_INLINE Float add(const Float& a, const Float& b) {
        return each([&](int i) { return a.lane[i] + b.lane[i]; });
    }
    static ALWAYS_INLINE Float sub(const Float& a, const Float& b) {
        return each([&](int i) { return a.lane[i] - b.lane[i]; });
    }
    static ALWAYS_INLINE Float mul(const Float& a, const Float& b) {
        return each([&](int i) { return a.lane[i] * b.lane[i]; });
    }
    static ALWAYS_INLINE Float div(const Float& a, const Float& b) {
        return each([&](int i) { return a.lane[i] / b.lane[i]; });
    }
    static ALWAYS_INLINE Float max(const Float& a, const Float& b) {  // b if either is NaN
        return each([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
    }
    static ALWAYS_INLINE Float min(const Float& a, const Float& b) {
        return each([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
    }
    // Rounded twice; where the machine fuses, the build does not let the compiler do so here.
    static ALWAYS_INLINE Float fmadd(const Float& a, const Float& b, const Float& c) {
        return each([&](int i) { return a.lane[i] * b.lane[i] + c.lane[i]; });
    }
    static ALWAYS_INLINE Float round(const Float& x) {  // ties to even; only for |x| < 2^22
        constexpr float magic = 12582912.0F;            // 1.5 * 2^23
        return each([&](int i) { return (x.lane[i] + magic) - magic; });
    }
    static ALWAYS_INLINE Float times_power_of_two(const Float& x, const Float& n) {
        return each([&](int i) {
            // NaN has no exponent to take; x is NaN as well then
            const int power = n.lane[i] == n.lane[i] ? static_cast<int>(n.lane[i]) : 0;
            return x.lane[i] * __builtin_bit_cast(float, static_cast<uint32_t>(power + 127) << 23);
        });
    }
    // Stores the lanes whose bits are set, one after the other, and something in the others' place; returns how many.
    static ALWAYS_INLINE int keep(float* at, const Float& x, uint32_t bits) {
        int kept = 0;
        for (int i = 0; i < lanes; i++) {
            at[kept] = x.lane[i];
            kept += static_cast<int>(bits >> i & 1);
        }
        return kept;
    }
    // The power of two whose exponent, with its offset, is what the low bits of x say.
    static ALWAYS_INLINE Float from_exponent(const Float& x) {
        return each([&](int i) {
            return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, x.lane[i]) << 23);
        });
    }
    // x where a > b, or where a = b; else 0. Nothing holds of NaN.
    static ALWAYS_INLINE Float where_above(const Float& a, const Float& b, const Float& x) {
        return each([&](int i) { return a.lane[i] > b.lane[i] ? x.lane[i] : 0.0F; });
    }
    static ALWAYS_INLINE Float where_equal(const Float& a, const Float& b, const Float& x) {
        return each([&](int i) { return a.lane[i] == b.lane[i] ? x.lane[i] : 0.0F; });
    }
    // Bit l: whether a > b in lane l.
    static ALWAYS_INLINE uint32_t bits_above(const Float& a, const Float& b) {
        uint32_t bits = 0;
        for (int i = 0; i < lanes; i++) bits |= static_cast<uint32_t>(a.lane[i] > b.lane[i]) << i;
        return bits;
    }
    static ALWAYS_INLINE float first(const Float& x) { return x.lane[0]; }
    static ALWAYS_INLINE float sum(const Float& x) {
        const float* l = x.lane;
        return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
    }
    static ALWAYS_INLINE float largest(const Float& x) {
        float top = x.lane[0];
        for (int i = 1; i < lanes; i++) top = top > x.lane[i] ? top : x.lane[i];
        return top;
    }
    static ALWAYS_INLINE void store_sums(float* at, const Float& a, const Float& b, const Float& c, const Float& d) {
        at[0] = sum(a), at[1] = sum(b), at[2] = sum(c), at[3] = sum(d);
    }
    static ALWAYS_INLINE void prefetch(const void* at) {
#if defined(__GNUC__)
        __builtin_prefetch(at);
#else
        (void)at;
#endif
    }

    static ALWAYS_INLINE float bf16(const uint8_t* at) {
        return __builtin_bit_cast(float, static_cast<uint32_t>(at[0]) << 16 | static_cast<uint32_t>(at[1]) << 24);
    }
    static ALWAYS_INLINE Float load_bf16(const uint8_t* at) {
        return each([&](int i) { return bf16(at + 2 * i); });
    }
    static ALWAYS_INLINE Float load_bf16_some(const uint8_t* at, int n) {
        return each([&](int i) { return i < n ? bf16(at + 2 * i) : 0.0F; });
    }
    static ALWAYS_INLINE Float splat_bf16(const uint8_t* at) { return splat(bf16(at)); }
    static ALWAYS_INLINE Float load_bytes(const uint8_t* at) {
        return each([&](int i) { return static_cast<float>(at[i]); });
    }

    // Lane l: codes 8l .. 8l+7 from bit 0 up, whatever the byte order of the machine.
    template <int Bits, bool Tail>
    static ALWAYS_INLINE Int dwords(const uint8_t* at, int left) {
        Int out;
        for (int l = 0; l < lanes; l++) {
            uint32_t word = 0;
            if (!Tail || 8 * l < left)
                for (int b = 0; b < Bits; b++) word |= static_cast<uint32_t>(at[l * Bits + b]) << (8 * b);
            out.lane[l] = word;
        }
        return out;
    }
    template <int Bits>
    static ALWAYS_INLINE Float code_float(const Int& v, int j) {
        return each([&](int i) {
            return static_cast<float>(static_cast<int32_t>(v.lane[i] >> (Bits * j) & ((1U << Bits) - 1)));
        });
    }

    struct Scales {
        size_t bytes;  // in a block
        int group;
        explicit Scales(int g) : bytes(128 / static_cast<size_t>(g)), group(g) {}
    };
    template <int R>
    struct ScaleRun {
        static constexpr size_t blocks = SIZE_MAX / 2;
        const Scales& scales;
        const uint8_t* const* rows;
        ALWAYS_INLINE ScaleRun(const Scales& s, const uint8_t* const (&r)[R], int) : scales(s), rows(r) {}
        ALWAYS_INLINE void start(size_t) {}
        template <bool Tail>
        ALWAYS_INLINE Float load(int r, size_t block, int left) const {
            const uint8_t* at = rows[r] + block * scales.bytes;
            const float low = bf16(at), high = scales.group == 64 ? low : Tail && left <= 32 ? 0.0F : bf16(at + 2);
            return each([&](int i) { return i < 4 ? low : high; });
        }
    };
};

#include "multiply.inl"
#include "numbers.inl"

}  // namespace

const Kernels portable_kernels = make_kernels("portable", Precision::float32);

}  // namespace cherenkov::cpu
