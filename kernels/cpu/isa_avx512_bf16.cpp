#include "avx512_intrinsics.h"

#include "isa.h"
#define ISA_BF16 1

namespace cherenkov::cpu {
namespace {
#include "avx512.inl"
}  // namespace

const Kernels avx512_bf16_kernels = make_kernels("avx512_bf16", Precision::bf16);

}  // namespace cherenkov::cpu
