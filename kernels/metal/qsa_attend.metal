// A part of a head's attention over chosen blocks and the tokens after the last complete one. Row r stands at position
// from[0] + r. Its tokens, in order: the blocks chosen[r, :] if there are more complete blocks than `keep`, else all complete
// blocks; then the rest up to itself. Part s takes tokens s * span and on, and may be empty.
// query [R, H, N] float, keys values [T, HKV, N] T; sums [R * H, parts, N] not divided yet, tops [R * H, parts, 2]: the
// largest score and the sum of weights. params[0] scales scores. dims: parts, H, HKV, tokens of a block, keep, span.
// One simdgroup a part of a head; grid (32, parts, R * H), threadgroup (32, 1, 1).
constexpr uint P = (N + 31) / 32;
constexpr uint MANY = 8;  // tokens that are read side by side
const uint lane = thread_index_in_simdgroup;
const uint s = threadgroup_position_in_grid.y;
const uint rh = threadgroup_position_in_grid.z;
const uint heads = uint(dims[1]);
const uint kv_heads = uint(dims[2]);
const uint block = uint(dims[3]);
const uint keep = uint(dims[4]);
const uint span = uint(dims[5]);
const uint r = rh / heads;
const uint kv = rh % heads / (heads / kv_heads);
const uint position = uint(from[0]) + r;
const uint complete = (position + 1) / block;
const bool sparse = complete > keep;
const uint from_blocks = (sparse ? keep : complete) * block;
const uint total = from_blocks + position + 1 - complete * block;
float q[P];
float acc[P];
for (uint i = 0; i < P; i++) {
  const uint at = i * 32 + lane;
  q[i] = at < N ? query[size_t(rh) * N + at] * params[0] : 0.0f;
  acc[i] = 0.0f;
}
float top = -3.0e38f;
float sum = 0.0f;
const uint end = min(total, (s + 1) * span);
for (uint j = s * span; j < end; j += MANY) {
  size_t at[MANY];
  float d[MANY];
  #pragma unroll
  for (uint u = 0; u < MANY; u++) {
    const uint k = min(j + u, end - 1);
    uint token = k;
    if (sparse) {
      token = k < from_blocks ? uint(chosen[r * keep + k / block]) * block + k % block : complete * block + k - from_blocks;
    }
    at[u] = (size_t(token) * kv_heads + kv) * N;
    d[u] = 0.0f;
    #pragma unroll
    for (uint i = 0; i < P; i++) {
      const uint n = i * 32 + lane;
      d[u] += n < N ? q[i] * float(keys[at[u] + n]) : 0.0f;
    }
  }
  float higher = top;
  #pragma unroll
  for (uint u = 0; u < MANY; u++) {
    d[u] = simd_sum(d[u]);
    higher = j + u < end ? max(higher, d[u]) : higher;
  }
  const float shrink = exp(top - higher);
  top = higher;
  sum *= shrink;
  #pragma unroll
  for (uint i = 0; i < P; i++) {
    acc[i] *= shrink;
  }
  #pragma unroll
  for (uint u = 0; u < MANY; u++) {
    const float weight = j + u < end ? exp(d[u] - higher) : 0.0f;
    sum += weight;
    #pragma unroll
    for (uint i = 0; i < P; i++) {
      const uint n = i * 32 + lane;
      acc[i] += n < N ? weight * float(values[at[u] + n]) : 0.0f;
    }
  }
}
const size_t part = size_t(rh) * uint(dims[0]) + s;
for (uint i = 0; i < P; i++) {
  const uint n = i * 32 + lane;
  if (n < N) {
    sums[part * N + n] = acc[i];
  }
}
if (lane == 0) {
  tops[part * 2] = top;
  tops[part * 2 + 1] = sum;
}
