// shared.h -- the part of the MSL dialect that host C++ and CUDA share.
// Parsed by g++/clang++ (C++17), nvcc and NVRTC.  Never seen by the Metal compiler.
// Before inclusion: MSL_FN (function qualifier) must be defined, and `metal::half`,
// `metal::bfloat` exist (host: classes below in host.h; CUDA: __half/__nv_bfloat16).
#ifndef MSL_COMMON_H
#define MSL_COMMON_H

#ifdef __CUDACC__
#define MSL_RSQRT(x) ::rsqrtf(x)
#else
#define MSL_RSQRT(x) (1.0f / ::sqrtf(x))
#endif
namespace metal {

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;  // 64 bit in MSL and on LP64 hosts
static_assert(sizeof(ulong) == 8, "MSL long/ulong are 64-bit");

// ---- vectors: components x y z w only (no swizzles in the dialect) --------------------
template <typename T, int N> struct vec;
template <typename T> struct alignas(2 * sizeof(T)) vec<T, 2> {
  T x, y;
  vec() = default;
  MSL_FN explicit vec(T s) : x(s), y(s) {}
  MSL_FN vec(T a, T b) : x(a), y(b) {}
  template <typename U> MSL_FN explicit vec(const vec<U, 2>& v) : x(T(v.x)), y(T(v.y)) {}
  MSL_FN T& operator[](uint i) { return i == 0 ? x : y; }
  MSL_FN const T& operator[](uint i) const { return i == 0 ? x : y; }
};
template <typename T> struct alignas(4 * sizeof(T)) vec<T, 3> {  // MSL: 3-vectors are padded to 4
  T x, y, z;
  vec() = default;
  MSL_FN explicit vec(T s) : x(s), y(s), z(s) {}
  MSL_FN vec(T a, T b, T c) : x(a), y(b), z(c) {}
  template <typename U> MSL_FN explicit vec(const vec<U, 3>& v) : x(T(v.x)), y(T(v.y)), z(T(v.z)) {}
  MSL_FN T& operator[](uint i) { return i == 0 ? x : i == 1 ? y : z; }
  MSL_FN const T& operator[](uint i) const { return i == 0 ? x : i == 1 ? y : z; }
};
template <typename T> struct alignas(4 * sizeof(T)) vec<T, 4> {
  T x, y, z, w;
  vec() = default;
  MSL_FN explicit vec(T s) : x(s), y(s), z(s), w(s) {}
  MSL_FN vec(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
  template <typename U>
  MSL_FN explicit vec(const vec<U, 4>& v) : x(T(v.x)), y(T(v.y)), z(T(v.z)), w(T(v.w)) {}
  MSL_FN T& operator[](uint i) { return i == 0 ? x : i == 1 ? y : i == 2 ? z : w; }
  MSL_FN const T& operator[](uint i) const { return i == 0 ? x : i == 1 ? y : i == 2 ? z : w; }
};
#define MSL_VOP(op)                                                                              \
  template <typename T> MSL_FN vec<T, 2> operator op(vec<T, 2> a, vec<T, 2> b) {                 \
    return vec<T, 2>(a.x op b.x, a.y op b.y);                                                    \
  }                                                                                              \
  template <typename T> MSL_FN vec<T, 3> operator op(vec<T, 3> a, vec<T, 3> b) {                 \
    return vec<T, 3>(a.x op b.x, a.y op b.y, a.z op b.z);                                        \
  }                                                                                              \
  template <typename T> MSL_FN vec<T, 4> operator op(vec<T, 4> a, vec<T, 4> b) {                 \
    return vec<T, 4>(a.x op b.x, a.y op b.y, a.z op b.z, a.w op b.w);                            \
  }                                                                                              \
  template <typename T, int N> MSL_FN vec<T, N> operator op(vec<T, N> a, T b) {                  \
    return a op vec<T, N>(b);                                                                    \
  }                                                                                              \
  template <typename T, int N> MSL_FN vec<T, N> operator op(T a, vec<T, N> b) {                  \
    return vec<T, N>(a) op b;                                                                    \
  }                                                                                              \
  template <typename T, int N, typename U> MSL_FN vec<T, N>& operator op##=(vec<T, N>& a, U b) { \
    a = a op b;                                                                                  \
    return a;                                                                                    \
  }
MSL_VOP(+) MSL_VOP(-) MSL_VOP(*) MSL_VOP(/)
#undef MSL_VOP
template <typename T> MSL_FN T dot(vec<T, 2> a, vec<T, 2> b) { return a.x * b.x + a.y * b.y; }
template <typename T> MSL_FN T dot(vec<T, 3> a, vec<T, 3> b) { return a.x * b.x + a.y * b.y + a.z * b.z; }
template <typename T> MSL_FN T dot(vec<T, 4> a, vec<T, 4> b) {
  return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}
#define MSL_VTYPES(T, name) typedef vec<T, 2> name##2; typedef vec<T, 3> name##3; typedef vec<T, 4> name##4;
MSL_VTYPES(float, float) MSL_VTYPES(int, int) MSL_VTYPES(uint, uint)
MSL_VTYPES(uchar, uchar) MSL_VTYPES(ushort, ushort) MSL_VTYPES(half, half) MSL_VTYPES(bfloat, bfloat)
#undef MSL_VTYPES

// ---- scalar math, float only (the dialect computes in float) --------------------------
#define MSL_M1(name, impl) MSL_FN float name(float x) { return impl; }
MSL_M1(exp, ::expf(x)) MSL_M1(exp2, ::exp2f(x)) MSL_M1(log, ::logf(x)) MSL_M1(log2, ::log2f(x))
MSL_M1(sqrt, ::sqrtf(x)) MSL_M1(rsqrt, MSL_RSQRT(x)) MSL_M1(tanh, ::tanhf(x))
MSL_M1(sin, ::sinf(x)) MSL_M1(cos, ::cosf(x)) MSL_M1(fabs, ::fabsf(x)) MSL_M1(floor, ::floorf(x))
MSL_M1(ceil, ::ceilf(x)) MSL_M1(rint, ::rintf(x)) MSL_M1(trunc, ::truncf(x))
#undef MSL_M1
MSL_FN float pow(float a, float b) { return ::powf(a, b); }
MSL_FN float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
MSL_FN bool isnan(float x) { return x != x; }
MSL_FN bool isinf(float x) { return ::fabsf(x) > 3.402823466e+38f; }
// MSL min/max on floats follow fmin/fmax (a NaN operand is ignored)
MSL_FN float fmax(float a, float b) { return ::fmaxf(a, b); }
MSL_FN float fmin(float a, float b) { return ::fminf(a, b); }
MSL_FN float max(float a, float b) { return ::fmaxf(a, b); }
MSL_FN float min(float a, float b) { return ::fminf(a, b); }
#define MSL_MM(T) MSL_FN T max(T a, T b) { return a > b ? a : b; } MSL_FN T min(T a, T b) { return a < b ? a : b; }
MSL_MM(int) MSL_MM(uint) MSL_MM(long) MSL_MM(ulong)
#undef MSL_MM
template <typename T> MSL_FN T clamp(T x, T lo, T hi) { return min(max(x, lo), hi); }
template <typename T> MSL_FN T select(T a, T b, bool c) { return c ? b : a; }
MSL_FN int abs(int x) { return x < 0 ? -x : x; }
MSL_FN float abs(float x) { return ::fabsf(x); }
namespace precise { using metal::exp; using metal::log; using metal::sqrt; using metal::rsqrt; using metal::tanh; }
namespace fast { using metal::exp; using metal::log; using metal::sqrt; using metal::rsqrt; using metal::tanh; }

template <typename To, typename From> MSL_FN To as_type(const From& f) {
  static_assert(sizeof(To) == sizeof(From), "as_type: sizes differ");
  To t;
  memcpy(&t, &f, sizeof(To));
  return t;
}

enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };

}  // namespace metal
#endif
