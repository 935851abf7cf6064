// A head's attention from its parts, times the sigmoid of its gate: out[r, h, :]. sums [R * H, parts, N], tops [R * H, parts, 2]
// as qsa_attend leaves them, gate: the second half of each head of projected, [H, 2, N] from projected[r * pitch + start] on.
// dims: N, parts, H, pitch, start.
// One simdgroup 32 numbers of a head; grid (N rounded up to 32, R * H, 1), threadgroup (32, 1, 1).
const uint lane = thread_index_in_simdgroup;
const uint rh = threadgroup_position_in_grid.y;
const uint size = uint(dims[0]);
const uint parts = uint(dims[1]);
const uint n = min(thread_position_in_grid.x, size - 1);
const size_t first = size_t(rh) * parts;
const uint heads = uint(dims[2]);
const float gate = projected[size_t(rh / heads) * uint(dims[3]) + uint(dims[4]) + (rh % heads * 2 + 1) * size + n];
float top = -3.0e38f;
for (uint s = lane; s < parts; s += 32) {
  top = max(top, tops[(first + s) * 2]);
}
top = simd_max(top);
float weight = 0.0f;
for (uint s = lane; s < parts; s += 32) {
  weight += tops[(first + s) * 2 + 1] * exp(tops[(first + s) * 2] - top);
}
weight = simd_sum(weight);
float sum = 0.0f;
for (uint s = 0; s < parts; s += 8) {
  float part[8];  // read together
  #pragma unroll
  for (uint u = 0; u < 8; u++) {
    const size_t from = first + min(s + u, parts - 1);
    part[u] = sums[from * size + n] * exp(tops[from * 2] - top);
  }
  #pragma unroll
  for (uint u = 0; u < 8; u++) {
    sum += s + u < parts ? part[u] : 0.0f;
  }
}
out[size_t(rh) * size + n] = sum / weight * sigmoid(gate);
