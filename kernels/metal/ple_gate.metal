// N-gram features into each stream: gate = sigmoid(signed root of (norm(key) . norm(query)) / sqrt(D)); gated = gate * value;
// base = wide + gated, normed = norm(gated) for the convolution. key wide base normed [R, S * D], value [R, D],
// norm_key norm_query norm_conv [S * D], params[0] = eps, dims: D, S. Grid (SG * 32, S, R), threadgroup (SG * 32, 1, 1).
threadgroup float part[4 * SG];
const uint t = thread_index_in_threadgroup;
const uint s = threadgroup_position_in_grid.y;
const uint r = threadgroup_position_in_grid.z;
const uint size = uint(dims[0]);
const size_t at = (size_t(r) * uint(dims[1]) + s) * size;
float kk = 0.0f;
float qq = 0.0f;
float kq = 0.0f;
float vv = 0.0f;
for (uint i = t; i < size; i += SG * 32) {
  const float k = key[at + i];
  const float q = wide[at + i];
  const float v = value[size_t(r) * size + i];
  kk += k * k;
  qq += q * q;
  kq += k * norm_key[s * size + i] * q * norm_query[s * size + i];
  vv += v * v;
}
kk = simd_sum(kk);
qq = simd_sum(qq);
kq = simd_sum(kq);
vv = simd_sum(vv);
if (thread_index_in_simdgroup == 0) {
  part[simdgroup_index_in_threadgroup * 4] = kk;
  part[simdgroup_index_in_threadgroup * 4 + 1] = qq;
  part[simdgroup_index_in_threadgroup * 4 + 2] = kq;
  part[simdgroup_index_in_threadgroup * 4 + 3] = vv;
}
threadgroup_barrier(mem_flags::mem_threadgroup);
float total[4] = {0.0f, 0.0f, 0.0f, 0.0f};
for (uint i = 0; i < SG; i++) {
  for (uint j = 0; j < 4; j++) {
    total[j] += part[i * 4 + j];
  }
}
const float score = total[2] * rsqrt(total[0] / float(size) + params[0]) * rsqrt(total[1] / float(size) + params[0]) * rsqrt(float(size));
const float root = sqrt(max(fabs(score), 1e-6f));
const float gate = sigmoid(score > 0.0f ? root : score < 0.0f ? -root : 0.0f);
const float inverse = rsqrt(gate * gate * total[3] / float(size) + params[0]);
for (uint i = t; i < size; i += SG * 32) {
  const float gated = gate * value[size_t(r) * size + i];
  base[at + i] = wide[at + i] + gated;
  normed[at + i] = gated * inverse * norm_conv[s * size + i];
}
