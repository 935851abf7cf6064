// Which kernels this machine runs. Compiled for the plainest machine of its architecture.
#include <cstring>

#include "kernels.h"

namespace cherenkov::cpu {

namespace {

bool runs(const Kernels& k) {
#if defined(CHERENKOV_X86)
    __builtin_cpu_init();
    // Also what the operating system saves of the registers.
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni");
#if defined(CHERENKOV_EMULATE_AVX512)
    if (&k == &avx512_vnni_kernels || &k == &avx512_bf16_kernels) return avx2;
#endif
    if (&k == &avx512_bf16_kernels) return avx512 && __builtin_cpu_supports("avx512bf16");
    if (&k == &avx512_vnni_kernels) return avx512;
    if (&k == &avx2_kernels) return avx2;
#endif
    return &k == &portable_kernels;
}

const Kernels* const all_kernels[] = {  // fastest first
#if defined(CHERENKOV_X86)
    &avx512_bf16_kernels,
    &avx512_vnni_kernels,
    &avx2_kernels,
#endif
    &portable_kernels,
};

}  // namespace

int usable_kernels(const Kernels** out, int capacity) {
    int count = 0;
    for (const Kernels* k : all_kernels)
        if (count < capacity && runs(*k)) out[count++] = k;
    return count;
}

const Kernels* find_kernels(const char* name) {
    for (const Kernels* k : all_kernels)
        if (runs(*k) && (name[0] == '\0' || std::strcmp(k->name, name) == 0)) return k;
    return nullptr;
}

Precision offered(const Kernels& k, Precision asked) {
    // int8 falls back to int16, bf16 to int16 (which is the more exact of the two), everything to float32.
    const auto has = [&](Precision p) { return (k.precisions >> static_cast<int>(p) & 1) != 0; };
    if (has(asked)) return asked;
    return asked != Precision::float32 && has(Precision::int16) ? Precision::int16 : Precision::float32;
}

}  // namespace cherenkov::cpu
