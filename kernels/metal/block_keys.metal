// Keys of finished index blocks: out[j] = rotate(norm(mean of raw[(from[0] + j) * block + 0 .. block - 1])). raw [T, N] T,
// weight [N], cosine sine [J, half], params[0] = eps, out [J, N]. dims: block, half. Grid (32, J, 1), threadgroup (32, 1, 1).
threadgroup float mean[N];
const uint lane = thread_index_in_simdgroup;
const uint j = threadgroup_position_in_grid.y;
const uint block = uint(dims[0]);
const uint turned_half = uint(dims[1]);
const size_t at = (size_t(from[0]) + j) * block * N;
float s = 0.0f;
for (uint i = lane; i < N; i += 32) {
  float sum = 0.0f;
  for (uint k = 0; k < block; k++) {
    sum += float(raw[at + k * N + i]);
  }
  sum /= float(block);
  mean[i] = sum;
  s += sum * sum;
}
const float inverse = rsqrt(simd_sum(s) / float(N) + params[0]);
threadgroup_barrier(mem_flags::mem_threadgroup);
for (uint i = lane; i < N; i += 32) {
  float turned = mean[i] * inverse * weight[i];
  if (i < 2 * turned_half) {
    const uint pair = i < turned_half ? i : i - turned_half;
    const uint other = i < turned_half ? i + turned_half : i - turned_half;
    const float across = mean[other] * inverse * weight[other] * sine[j * turned_half + pair];
    turned = turned * cosine[j * turned_half + pair] + (i < turned_half ? -across : across);
  }
  out[j * N + i] = turned;
}
