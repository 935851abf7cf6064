// cuda_types.h -- goes first in the `header` of mx.fast.cuda_kernel.
#define MSL_FN __device__ __forceinline__
namespace metal {
typedef ::__half half;
typedef ::__nv_bfloat16 bfloat;
typedef half float16_t;
typedef bfloat bfloat16_t;
}
