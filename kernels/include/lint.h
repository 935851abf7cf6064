// lint.h -- clang -fsyntax-only: real address spaces, native vectors.  Catches a missing or wrong
// device/constant/threadgroup qualifier, which the host and CUDA builds cannot see.
#ifndef CHERENKOV_LINT_H
#define CHERENKOV_LINT_H
#ifndef __clang__
#error "lint.h needs clang"
#endif
typedef signed char int8_t; typedef unsigned char uint8_t; typedef short int16_t; typedef unsigned short uint16_t;
typedef int int32_t; typedef unsigned int uint32_t; typedef long int64_t; typedef unsigned long uint64_t; typedef unsigned long size_t;
#define device __attribute__((address_space(1)))
#define constant __attribute__((address_space(2)))
#define threadgroup __attribute__((address_space(3)))
#define thread
#define METAL_FUNC inline __attribute__((always_inline))
#define MSL_TG_DECL(T, name, dims) static threadgroup T name dims
namespace metal {
typedef unsigned char uchar; typedef unsigned short ushort; typedef unsigned int uint; typedef unsigned long ulong;
struct half { half() = default; explicit half(float); operator float() const; };  // functions may not return __fp16
typedef __fp16 float16_t;
typedef __fp16 bfloat; typedef __fp16 bfloat16_t;  // only the type checks matter here
#define V(T, n)                                                                            \
  typedef T n##2 __attribute__((ext_vector_type(2))); typedef T n##3 __attribute__((ext_vector_type(3))); \
  typedef T n##4 __attribute__((ext_vector_type(4)));                                      \
  n##2 msl_make_##n##2(T); n##2 msl_make_##n##2(T, T); n##3 msl_make_##n##3(T); n##3 msl_make_##n##3(T, T, T); \
  n##4 msl_make_##n##4(T); n##4 msl_make_##n##4(T, T, T, T);
template <typename T, int N> using vec = T __attribute__((ext_vector_type(N)));
V(float, float) V(int, int) V(uint, uint) V(uchar, uchar) V(ushort, ushort)
#undef V
#define F(n) float n(float);
F(exp) F(exp2) F(log) F(log2) F(sqrt) F(rsqrt) F(tanh) F(sin) F(cos) F(fabs) F(floor) F(ceil) F(rint) F(trunc) F(abs)
#undef F
int abs(int); float pow(float, float); float fma(float, float, float); bool isnan(float); bool isinf(float);
float fmax(float, float); float fmin(float, float);
#define F(T) T max(T, T); T min(T, T); T clamp(T, T, T);
F(float) F(int) F(uint) F(long) F(ulong)
#undef F
float dot(float2, float2); float dot(float3, float3); float dot(float4, float4);
template <typename T> T select(T, T, bool);
template <typename To, typename From> To as_type(From);
namespace fast { using metal::exp; using metal::log; using metal::sqrt; using metal::rsqrt; using metal::tanh; }
namespace precise = fast;
enum class mem_flags : uint { mem_none, mem_device, mem_threadgroup };
void threadgroup_barrier(mem_flags); void simdgroup_barrier(mem_flags);
#define F(n) template <typename T> T n(T);
F(simd_sum) F(simd_product) F(simd_max) F(simd_min) F(simd_or) F(simd_and) F(simd_broadcast_first)
F(simd_prefix_inclusive_sum) F(simd_prefix_exclusive_sum)
#undef F
#define F(n) template <typename T> T n(T, ushort);
F(simd_shuffle) F(simd_broadcast) F(simd_shuffle_xor) F(simd_shuffle_down) F(simd_shuffle_up)
#undef F
bool simd_any(bool); bool simd_all(bool);
enum memory_order { memory_order_relaxed };
template <typename T> struct atomic { T v; };
template <typename T> T atomic_fetch_add_explicit(device atomic<T>*, T, memory_order);
template <typename T, int R, int C> struct simdgroup_matrix { T e[2]; simdgroup_matrix(); explicit simdgroup_matrix(T); T* thread_elements(); };
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
template <typename T> void simdgroup_load(simdgroup_matrix<T, 8, 8>&, const device T*, ulong = 8);
template <typename T> void simdgroup_load(simdgroup_matrix<T, 8, 8>&, const threadgroup T*, ulong = 8);
template <typename T> void simdgroup_store(const simdgroup_matrix<T, 8, 8>&, device T*, ulong = 8);
template <typename T> void simdgroup_store(const simdgroup_matrix<T, 8, 8>&, threadgroup T*, ulong = 8);
template <typename T> void simdgroup_multiply_accumulate(simdgroup_matrix<T, 8, 8>&, const simdgroup_matrix<T, 8, 8>&, const simdgroup_matrix<T, 8, 8>&, const simdgroup_matrix<T, 8, 8>&);
}
#endif
