// How this processor rounds, which is a setting of each thread: a library compiled with -ffast-math, or a program that
// asks for it, makes a thread take tiny numbers for zero or round another way. New threads inherit what their creator had,
// so a row's bits would depend on which thread computed it, and on when the threads were started.
#pragma once
#include <cstdint>

#if defined(__x86_64__) || defined(_M_X64)
#include <xmmintrin.h>
#endif

namespace cherenkov::cpu {

// To the nearest, with subnormal numbers, and without traps, for as long as it lives; then as before.
class PlainRounding {
public:
    PlainRounding() : before_(get()) { set(plain); }
    ~PlainRounding() { set(before_); }
    PlainRounding(const PlainRounding&) = delete;
    PlainRounding& operator=(const PlainRounding&) = delete;

private:
#if defined(__x86_64__) || defined(_M_X64)
    using Setting = unsigned;
    static constexpr Setting plain = 0x1f80;
    static Setting get() { return _mm_getcsr(); }
    static void set(Setting setting) { _mm_setcsr(setting); }
#elif defined(__aarch64__) && !defined(_MSC_VER)
    using Setting = uint64_t;
    static constexpr Setting plain = 0;
    static Setting get() {
        Setting setting;
        asm volatile("mrs %0, fpcr" : "=r"(setting));
        return setting;
    }
    static void set(Setting setting) { asm volatile("msr fpcr, %0" ::"r"(setting) : "memory"); }
#else
    using Setting = int;
    static constexpr Setting plain = 0;
    static Setting get() { return 0; }
    static void set(Setting) {}
#endif
    const Setting before_;
};

}  // namespace cherenkov::cpu
