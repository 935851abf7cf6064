#include "avx512_intrinsics.h"

#include "isa.h"
#define ISA_INTEGERS 1
#define ISA_BF16 1

namespace cherenkov::cpu {
namespace {
#include "avx512.inl"
}  // namespace

// Not bf16: see the table of errors in kernels/README.md.
const Kernels avx512_bf16_kernels = make_kernels("avx512_bf16", Precision::int16);

}  // namespace cherenkov::cpu
