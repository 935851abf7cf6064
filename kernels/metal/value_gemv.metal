// y[t, o] = act(W[o, :] . x[t, :]), W of values: w [OUT, IN] T, IN a multiple of 4. x [R, IN] float, R at most TX, y [R, OUT]
// float; params as of affine_gemv. dims: R, IN, OUT.
// A simdgroup makes one output a row of x; grid (32, OUT rounded up to 4, 1), threadgroup (32, 4, 1).
const uint lane = thread_index_in_simdgroup;
const uint count = uint(dims[0]);
const uint in = uint(dims[1]);
const uint out = uint(dims[2]);
const uint o = min(thread_position_in_grid.y, out - 1);
float acc[TX];
for (uint t = 0; t < TX; t++) {
  acc[t] = 0.0f;
}
#pragma unroll(4)
for (uint i = lane * 4; i < in; i += 128) {
  const vec<T, 4> four = *(const device vec<T, 4>*)(w + size_t(o) * in + i);
  #pragma unroll
  for (uint t = 0; t < TX; t++) {
    const float4 by = *(const device float4*)(x + (t < count ? t : 0u) * in + i);
    acc[t] += (float(four.x) * by.x + float(four.y) * by.y) + (float(four.z) * by.z + float(four.w) * by.w);
  }
}
for (uint t = 0; t < TX; t++) {
  const float sum = simd_sum(acc[t]);
  if (lane == 0 && t < count) {
    y[size_t(t) * out + o] = activated(sum, params[0], params[1]);
  }
}
