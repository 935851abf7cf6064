// The gated read of a wide residual: out[t, d] = mean over streams s of sigmoid(U[s * D + d, :] . low[t, :]) * normed[t, s, d].
// U [S * D, IN] affine-quantised, low [R, IN], its rows `pitch` apart, R at most TX, normed [R, S * D], out [R, D]. dims: R, IN, D,
// log2 of the group, the exponent of 2^23, pitch. A simdgroup makes 32 / LANES places d; grid (32, simdgroups, 1), threadgroup (32, SG, 1).
threadgroup float stage[TX * TILE * 36];
const uint t = thread_index_in_threadgroup;
const uint lane = thread_index_in_simdgroup;
const uint count = uint(dims[0]);
const uint size = uint(dims[2]);
const Walk walk = {uint(dims[1]), uint(dims[3]), size, uint(dims[4])};
const uint d = min(thread_position_in_grid.y * (32 / LANES) + lane / LANES, size - 1);
uint offset[TX];
for (uint n = 0; n < TX; n++) {
  offset[n] = (n < count ? n : 0u) * uint(dims[5]);
}
float acc[S * TX];
const Codes codes = {w, (const device ushort*)s, (const device ushort*)b};
affine_rows<BITS, S, LANES, AHEAD, TX, 1, TILE>(&codes, low, offset, d, t, SG * 32, walk, stage, acc);
if (lane % LANES == 0) {
  for (uint n = 0; n < TX; n++) {
    if (n < count) {
      float sum = 0.0f;
      for (uint k = 0; k < S; k++) {
        sum += sigmoid(acc[k * TX + n]) * normed[(size_t(n) * S + k) * size + d];
      }
      out[size_t(n) * size + d] = sum / float(S);
    }
  }
}
