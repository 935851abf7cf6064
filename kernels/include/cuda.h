// cuda.h -- MSL collectives, threadgroup memory and keywords for CUDA.  After shared.h.
namespace metal {
MSL_FN uint msl_tid() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
MSL_FN uint msl_ntid() { return blockDim.x * blockDim.y * blockDim.z; }
// Full-warp semantics only: the dialect forbids collectives under divergence.
template <typename T> MSL_FN T simd_shuffle(T v, ushort i) { return __shfl_sync(0xffffffffu, v, i); }
template <typename T> MSL_FN T simd_broadcast(T v, ushort i) { return __shfl_sync(0xffffffffu, v, i); }
template <typename T> MSL_FN T simd_broadcast_first(T v) { return __shfl_sync(0xffffffffu, v, 0); }
template <typename T> MSL_FN T simd_shuffle_xor(T v, ushort m) { return __shfl_xor_sync(0xffffffffu, v, m); }
template <typename T> MSL_FN T simd_shuffle_down(T v, ushort d) { return __shfl_down_sync(0xffffffffu, v, d); }
template <typename T> MSL_FN T simd_shuffle_up(T v, ushort d) { return __shfl_up_sync(0xffffffffu, v, d); }
#define MSL_RED(name, expr)                                  \
  template <typename T> MSL_FN T name(T v) {                 \
    _Pragma("unroll") for (int o = 1; o < 32; o <<= 1) {     \
      const T u = __shfl_xor_sync(0xffffffffu, v, o);        \
      v = expr;                                              \
    }                                                        \
    return v;                                                \
  }
MSL_RED(simd_sum, v + u) MSL_RED(simd_product, v * u) MSL_RED(simd_max, max(v, u)) MSL_RED(simd_min, min(v, u))
MSL_RED(simd_or, v | u) MSL_RED(simd_and, v & u)
#undef MSL_RED
MSL_FN bool simd_any(bool b) { return __any_sync(0xffffffffu, b); }
MSL_FN bool simd_all(bool b) { return __all_sync(0xffffffffu, b); }
template <typename T> MSL_FN T simd_prefix_inclusive_sum(T v) {
#pragma unroll
  for (uint o = 1; o < 32; o <<= 1) {
    const T u = __shfl_up_sync(0xffffffffu, v, o);
    if ((msl_tid() & 31u) >= o) v = v + u;
  }
  return v;
}
template <typename T> MSL_FN T simd_prefix_exclusive_sum(T v) {
  const T u = __shfl_up_sync(0xffffffffu, simd_prefix_inclusive_sum(v), 1);
  return (msl_tid() & 31u) ? u : T(0);
}
MSL_FN void threadgroup_barrier(mem_flags) { __syncthreads(); }
MSL_FN void simdgroup_barrier(mem_flags) { __syncwarp(); }
enum memory_order { memory_order_relaxed };
template <typename T> MSL_FN T atomic_fetch_add_explicit(T* p, T x, memory_order) { return atomicAdd(p, x); }

template <typename T, int R, int C> struct simdgroup_matrix {
  static_assert(R == 8 && C == 8, "8x8 only");
  T e[2];
  simdgroup_matrix() = default;
  MSL_FN explicit simdgroup_matrix(T s) : e{s, s} {}
  MSL_FN T* thread_elements() { return e; }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
namespace detail {
MSL_FN uint sm_row(uint l) { return ((l / 4) & 4) + (l / 2) % 4; }
MSL_FN uint sm_col(uint l) { return ((l / 4) & 2) * 2 + (l % 2) * 2; }
MSL_FN uint sm_lane(uint r, uint c) { return (r / 4) * 16 + (c / 4) * 8 + (r % 4) * 2 + (c % 4) / 2; }
}
template <typename T> MSL_FN void simdgroup_load(simdgroup_matrix<T, 8, 8>& m, const T* p, ulong ld = 8) {
  const uint l = msl_tid() & 31u;
#pragma unroll
  for (uint i = 0; i < 2; i++) m.e[i] = p[detail::sm_row(l) * ld + detail::sm_col(l) + i];
}
template <typename T> MSL_FN void simdgroup_store(const simdgroup_matrix<T, 8, 8>& m, T* p, ulong ld = 8) {
  const uint l = msl_tid() & 31u;
#pragma unroll
  for (uint i = 0; i < 2; i++) p[detail::sm_row(l) * ld + detail::sm_col(l) + i] = m.e[i];
}
template <typename T>
MSL_FN void simdgroup_multiply_accumulate(simdgroup_matrix<T, 8, 8>& d, const simdgroup_matrix<T, 8, 8>& a,
                                          const simdgroup_matrix<T, 8, 8>& b, const simdgroup_matrix<T, 8, 8>& c) {
  const uint l = msl_tid() & 31u, r = detail::sm_row(l), q = detail::sm_col(l);
  T s0 = c.e[0], s1 = c.e[1];
#pragma unroll
  for (uint k = 0; k < 8; k++) {
    const T x0 = __shfl_sync(0xffffffffu, a.e[0], detail::sm_lane(r, k)), x1 = __shfl_sync(0xffffffffu, a.e[1], detail::sm_lane(r, k));
    const T x = (k & 1) ? x1 : x0;
    s0 += x * __shfl_sync(0xffffffffu, b.e[0], detail::sm_lane(k, q));
    s1 += x * __shfl_sync(0xffffffffu, b.e[1], detail::sm_lane(k, q));
  }
  d.e[0] = s0;
  d.e[1] = s1;
}
// What tiles.h says in Metal, on the matrix units.
#define TILES_HERE
MSL_FN uint tile_row(uint lane) { return lane >> 2; }
MSL_FN uint tile_pair(uint lane) { return lane & 3u; }
MSL_FN void multiply_tiles(float* d, const uint* a, const uint4* unit, uint columns, uint lane) {
  const uint4 b = unit[tile_row(lane) % columns * 4 + tile_pair(lane)];
#define MSL_MMA(i, p, q)                                                                                            \
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                              \
      : "r"(a[i]), "r"(a[i + 1]), "r"(a[i + 2]), "r"(a[i + 3]), "r"(p), "r"(q))
  MSL_MMA(0, b.x, b.y);
  MSL_MMA(4, b.z, b.w);
#undef MSL_MMA
}
}  // namespace metal

// Into mlx::core::cu by declaration: a directive would leave ::float4 and metal::float4 ambiguous.
#define MSL_V(n) using metal::n##2; using metal::n##3; using metal::n##4;
#define MSL_USINGS                                                                                              \
  using metal::uchar; using metal::ushort; using metal::uint; using metal::ulong; using metal::half;             \
  using metal::bfloat; using metal::float16_t; using metal::bfloat16_t; using metal::vec;                        \
  MSL_V(float) MSL_V(int) MSL_V(uint) MSL_V(uchar) MSL_V(ushort) MSL_V(half) MSL_V(bfloat)                       \
  using metal::exp; using metal::exp2; using metal::log; using metal::log2; using metal::sqrt; using metal::rsqrt; \
  using metal::tanh; using metal::sin; using metal::cos; using metal::fabs; using metal::floor; using metal::ceil; \
  using metal::rint; using metal::trunc; using metal::pow; using metal::fma; using metal::isnan; using metal::isinf; \
  using metal::fmax; using metal::fmin; using metal::max; using metal::min; using metal::clamp; using metal::select; \
  using metal::abs; using metal::dot; using metal::as_type; using metal::mem_flags;                              \
  using metal::simd_shuffle; using metal::simd_broadcast; using metal::simd_broadcast_first;                     \
  using metal::simd_shuffle_xor; using metal::simd_shuffle_down; using metal::simd_shuffle_up;                   \
  using metal::simd_sum; using metal::simd_product; using metal::simd_max; using metal::simd_min;                \
  using metal::simd_or; using metal::simd_and; using metal::simd_any; using metal::simd_all;                     \
  using metal::simd_prefix_inclusive_sum; using metal::simd_prefix_exclusive_sum;                                \
  using metal::threadgroup_barrier; using metal::simdgroup_barrier; using metal::memory_order_relaxed;           \
  using metal::atomic_fetch_add_explicit; using metal::simdgroup_matrix; using metal::simdgroup_float8x8;        \
  using metal::simdgroup_load; using metal::simdgroup_store; using metal::simdgroup_multiply_accumulate;         \
  using metal::tile_row; using metal::tile_pair; using metal::multiply_tiles;                                      \
  using metal::msl_tid; using metal::msl_ntid; namespace fast = metal::fast; namespace precise = metal::precise;
#define MSL_TG_DECL(T, name, dims) __shared__ T name dims
#define METAL_FUNC __device__ __forceinline__
// The address space words are removed by the generator, not by macros: nvcc defines
// __device__ as __location__(device), so `#define device` would break every later __device__.
