// Norm and rotation of heads: out[r, u, :] = rotate(norm(in[r * pitch + start + u * step + :])): of the first 2 * half dimensions,
// one half against the other. weight [N], cosine sine [R, half], params[0] = eps, out [R, units, N]. dims: N, units, pitch,
// step, half, start. One simdgroup a head; grid (32, units, R), threadgroup (32, 1, 1).
const uint lane = thread_index_in_simdgroup;
const uint u = threadgroup_position_in_grid.y;
const uint r = threadgroup_position_in_grid.z;
const uint n = uint(dims[0]);
const uint turned_half = uint(dims[4]);
const size_t from = size_t(r) * uint(dims[2]) + uint(dims[5]) + u * uint(dims[3]);
const size_t to = (size_t(r) * uint(dims[1]) + u) * n;
float s = 0.0f;
for (uint i = lane; i < n; i += 32) {
  const float v = in[from + i];
  s += v * v;
}
const float inverse = rsqrt(simd_sum(s) / float(n) + params[0]);
for (uint i = lane; i < n; i += 32) {
  const float v = in[from + i] * inverse * weight[i];
  float turned = v;
  if (i < 2 * turned_half) {
    const uint pair = i < turned_half ? i : i - turned_half;
    const uint other = i < turned_half ? i + turned_half : i - turned_half;
    const float w = in[from + other] * inverse * weight[other];
    const float across = w * sine[r * turned_half + pair];
    turned = v * cosine[r * turned_half + pair] + (i < turned_half ? -across : across);
  }
  out[to + i] = turned;
}
