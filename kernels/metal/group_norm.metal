// RMS norm of each group by itself: out[r, g, :] = x[r, g, :] / sqrt(mean(x[r, g, :]^2) + eps) * weight[g, :].
// x [R, G * N], params[0] = eps, dims: N, G. Grid (SG * 32, G, R), threadgroup (SG * 32, 1, 1).
threadgroup float part[SG];
const uint t = thread_index_in_threadgroup;
const uint g = threadgroup_position_in_grid.y;
const uint n = uint(dims[0]);
const size_t at = (size_t(threadgroup_position_in_grid.z) * uint(dims[1]) + g) * n;
float s = 0.0f;
for (uint start = t; start < n; start += 5 * SG * 32) {
  float v[5];  // read together
  #pragma unroll
  for (uint u = 0; u < 5; u++) {
    const uint i = start + u * SG * 32;
    v[u] = i < n ? x[at + i] : 0.0f;
  }
  #pragma unroll
  for (uint u = 0; u < 5; u++) {
    s += v[u] * v[u];
  }
}
s = simd_sum(s);
if (thread_index_in_simdgroup == 0) {
  part[simdgroup_index_in_threadgroup] = s;
}
threadgroup_barrier(mem_flags::mem_threadgroup);
float total = 0.0f;
for (uint i = 0; i < SG; i++) {
  total += part[i];
}
const float inverse = rsqrt(total / float(n) + params[0]);
for (uint start = t; start < n; start += 5 * SG * 32) {
  float v[5];
  #pragma unroll
  for (uint u = 0; u < 5; u++) {
    const uint i = min(start + u * SG * 32, n - 1);
    v[u] = x[at + i] * weight[g * n + i];
  }
  #pragma unroll
  for (uint u = 0; u < 5; u++) {
    const uint i = start + u * SG * 32;
    if (i < n) {
      out[at + i] = v[u] * inverse;
    }
  }
}
