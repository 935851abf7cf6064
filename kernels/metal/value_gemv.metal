// y[t, o] = act(W[o, :] . x[t, :]), W of values: w [OUT, IN] T, IN a multiple of 4. x [R, IN] float, R at most TX, y [R, OUT]
// float; params and split as of affine_gemv. dims: R, IN, OUT, split.
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
constexpr uint AHEAD = TX == 1 ? 5 : 2;  // steps that are read before they are used
for (uint start = lane * 4; start < in; start += AHEAD * 128) {
  vec<T, 4> four[AHEAD];
  float4 by[AHEAD * TX];
  #pragma unroll
  for (uint u = 0; u < AHEAD; u++) {
    const uint i = min(start + u * 128, in - 4);
    four[u] = *(const device vec<T, 4>*)(w + size_t(o) * in + i);
    #pragma unroll
    for (uint t = 0; t < TX; t++) {
      by[u * TX + t] = *(const device float4*)(x + (t < count ? t : 0u) * in + i);
    }
  }
  #pragma unroll
  for (uint u = 0; u < AHEAD; u++) {
    #pragma unroll
    for (uint t = 0; t < TX; t++) {
      const float4 v = by[u * TX + t];
      const float sum = (float(four[u].x) * v.x + float(four[u].y) * v.y) + (float(four[u].z) * v.z + float(four[u].w) * v.w);
      acc[t] += start + u * 128 < in ? sum : 0.0f;
    }
  }
}
for (uint t = 0; t < TX; t++) {
  const float sum = simd_sum(acc[t]);
  if (lane == 0 && t < count) {
    y[size_t(t) * out + o] = activated(sum, params[o < uint(dims[3]) ? 0 : 2], params[1]);
  }
}
