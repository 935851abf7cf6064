// What every isa_*.cpp starts from. C headers only: see multiply.inl.
#pragma once
#include <math.h>
#include <string.h>

#include "kernels.h"

#if defined(__GNUC__)
#define ALWAYS_INLINE inline __attribute__((always_inline))
#define PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define UNROLL(n) PRAGMA(unroll)
#else
#define UNROLL(n) PRAGMA(GCC unroll n)
#endif
#else
#define ALWAYS_INLINE inline
#define UNROLL(n)
#endif
