// y[t, o] = act(W[o, :] . x[t, :]), W of values: w [OUT, IN] T. x [R, IN] float, R at most TX, y [R, OUT] float; params as
// of affine_gemv. dims: R, IN, OUT.
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
for (uint i = lane; i < in; i += 32) {
  const float v = float(w[size_t(o) * in + i]);
  for (uint t = 0; t < TX; t++) {
    acc[t] += v * x[(t < count ? t : 0u) * in + i];
  }
}
for (uint t = 0; t < TX; t++) {
  const float sum = simd_sum(acc[t]);
  if (lane == 0 && t < count) {
    y[size_t(t) * out + o] = activated(sum, params[0], params[1]);
  }
}
