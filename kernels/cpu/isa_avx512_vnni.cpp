#include "avx512_intrinsics.h"

#include "isa.h"
#define ISA_INTEGERS 1
#define ISA_BF16 0

namespace cherenkov::cpu {
namespace {
#include "avx512.inl"
}  // namespace

const Kernels avx512_vnni_kernels = make_kernels("avx512_vnni", Precision::int16);

}  // namespace cherenkov::cpu
