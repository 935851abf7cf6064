// Index scores: score[r, j] = sum over heads of relu(query[r, h] . keys[j]) for the blocks complete at row r's position
// from[0] + r, else -1, which no score is. query [R, heads, N] float, keys [>= J, N] T, scores [R, J]. dims: J, heads,
// tokens of a block.
// One simdgroup a block; grid (32, J rounded up to 4, R), threadgroup (32, 4, 1).
constexpr uint P = (N + 31) / 32;
const uint lane = thread_index_in_simdgroup;
const uint blocks = uint(dims[0]);
const uint heads = uint(dims[1]);
const uint block = uint(dims[2]);
const uint j = min(thread_position_in_grid.y, blocks - 1);
const uint r = threadgroup_position_in_grid.z;
float key[P];
for (uint i = 0; i < P; i++) {
  const uint at = i * 32 + lane;
  key[i] = at < N ? float(keys[size_t(j) * N + at]) : 0.0f;
}
float score = 0.0f;
for (uint h = 0; h < heads; h++) {
  float d = 0.0f;
  for (uint i = 0; i < P; i++) {
    const uint at = i * 32 + lane;
    d += at < N ? key[i] * query[(size_t(r) * heads + h) * N + at] : 0.0f;
  }
  score += max(simd_sum(d), 0.0f);
}
const uint complete = (uint(from[0]) + r + 1) / block;
if (lane == 0) {
  scores[size_t(r) * blocks + j] = j < complete ? score : -1.0f;
}
