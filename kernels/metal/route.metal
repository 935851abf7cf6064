// Softmax over a row's E scores and its K best, ties to the lower id: ids [R, K] by falling score, weights [R, K],
// which sum to 1 if dims[2]; places [R, K]: table[id] of each, or the id if there is no table (PLACED is false). scores [R, E] are
// `pitch` apart, E at most 32 * P, K at most 32 * Q. dims: E, K, normalise, pitch. One simdgroup a row; grid (32, R, 1), threadgroup (32, 1, 1).
const uint lane = thread_index_in_simdgroup;
const uint r = threadgroup_position_in_grid.y;
const uint experts = uint(dims[0]);
const uint count = uint(dims[1]);
float v[P];
float top = -3.0e38f;
for (uint i = 0; i < P; i++) {
  const uint e = i * 32 + lane;
  v[i] = e < experts ? scores[size_t(r) * uint(dims[3]) + e] : -3.0e38f;
  top = max(top, v[i]);
}
top = simd_max(top);
float sum = 0.0f;
for (uint i = 0; i < P; i++) {
  const uint e = i * 32 + lane;
  v[i] = e < experts ? exp(v[i] - top) : -1.0f;
  sum += e < experts ? v[i] : 0.0f;
}
sum = simd_sum(sum);
float mine[Q];  // what this lane will write: rank k in lane k % 32
uint which[Q];
for (uint i = 0; i < Q; i++) {
  mine[i] = 0.0f;
  which[i] = 0u;
}
float chosen = 0.0f;
for (uint k = 0; k < count; k++) {
  float best = -1.0f;
  uint id = 0xffffffffu;
  for (uint i = 0; i < P; i++) {
    if (v[i] > best) {
      best = v[i];
      id = i * 32 + lane;
    }
  }
  const float most = simd_max(best);
  const uint won = simd_min(best == most ? id : 0xffffffffu);
  for (uint i = 0; i < P; i++) {
    if (i * 32 + lane == won) {
      v[i] = -2.0f;
    }
  }
  chosen += most;
  for (uint i = 0; i < Q; i++) {
    if (i * 32 + lane == k) {
      mine[i] = most;
      which[i] = won;
    }
  }
}
for (uint i = 0; i < Q; i++) {
  const uint k = i * 32 + lane;
  if (k < count) {
    ids[r * count + k] = int(which[i]);
    places[r * count + k] = PLACED ? table[which[i]] : int(which[i]);
    weights[r * count + k] = mine[i] / (dims[2] != 0 ? chosen : sum);
  }
}
