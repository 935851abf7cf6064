// A head's attention from its parts, times the sigmoid of its gate: out[r, h, :]. sums [R * H, parts, N], tops [R * H, parts, 2]
// as qsa_attend leaves them, gate: the second half of each head of projected [R, H, 2, N]. dims: N, parts.
// One simdgroup a head; grid (32, R * H, 1), threadgroup (32, 1, 1).
const uint lane = thread_index_in_simdgroup;
const uint rh = threadgroup_position_in_grid.y;
const uint size = uint(dims[0]);
const uint parts = uint(dims[1]);
const size_t first = size_t(rh) * parts;
float top = -3.0e38f;
for (uint s = 0; s < parts; s++) {
  top = max(top, tops[(first + s) * 2]);
}
float weight = 0.0f;
for (uint s = 0; s < parts; s++) {
  weight += tops[(first + s) * 2 + 1] * exp(tops[(first + s) * 2] - top);
}
for (uint n = lane; n < size; n += 32) {
  float sum = 0.0f;
  for (uint s = 0; s < parts; s++) {
    sum += sums[(first + s) * size + n] * exp(tops[(first + s) * 2] - top);
  }
  out[size_t(rh) * size + n] = sum / weight * sigmoid(projected[(size_t(rh) * 2 + 1) * size + n]);
}
