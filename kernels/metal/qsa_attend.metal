// A part of a head's attention over chosen blocks and the tokens after the last complete one. Row r stands at position
// dims[0] + r. Its tokens, in order: the blocks chosen[r, :] if there are more complete blocks than `keep`, else all complete
// blocks; then the rest up to itself. Part s takes tokens s * span and on.
// query [R, H, N] float, keys values [T, HKV, N] T; sums [R * H, parts, N] not divided yet, tops [R * H, parts, 2]: the
// largest score and the sum of weights. params[0] scales scores. dims: position of row 0, parts, H, HKV, tokens of a block,
// keep, span. One simdgroup a part of a head; grid (32, parts, R * H), threadgroup (32, 1, 1).
constexpr uint P = (N + 31) / 32;
const uint lane = thread_index_in_simdgroup;
const uint s = threadgroup_position_in_grid.y;
const uint rh = threadgroup_position_in_grid.z;
const uint heads = uint(dims[2]);
const uint kv_heads = uint(dims[3]);
const uint block = uint(dims[4]);
const uint keep = uint(dims[5]);
const uint span = uint(dims[6]);
const uint r = rh / heads;
const uint kv = rh % heads / (heads / kv_heads);
const uint position = uint(dims[0]) + r;
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
for (uint j = s * span; j < end; j++) {
  uint token = j;
  if (sparse) {
    token = j < from_blocks ? uint(chosen[r * keep + j / block]) * block + j % block : complete * block + j - from_blocks;
  }
  const size_t at = (size_t(token) * kv_heads + kv) * N;
  float d = 0.0f;
  for (uint i = 0; i < P; i++) {
    const uint n = i * 32 + lane;
    d += n < N ? q[i] * float(keys[at + n]) : 0.0f;
  }
  d = simd_sum(d);
  const float higher = max(top, d);
  const float shrink = exp(top - higher);
  const float weight = exp(d - higher);
  top = higher;
  sum = sum * shrink + weight;
  for (uint i = 0; i < P; i++) {
    const uint n = i * 32 + lane;
    acc[i] = acc[i] * shrink + (n < N ? weight * float(values[at + n]) : 0.0f);
  }
}
const size_t part = size_t(rh) * uint(dims[1]) + s;
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
