// out[r, s, d] = wide[r, s, d] + gain[r, s] * block[r, d]. dims: D, S. Grid (D rounded up to 32, R, 1), threadgroup (32, 1, 1).
const uint d = thread_position_in_grid.x;
const uint r = thread_position_in_grid.y;
const uint size = uint(dims[0]);
const uint streams = uint(dims[1]);
if (d < size) {
  const float v = block[size_t(r) * size + d];
  for (uint s = 0; s < streams; s++) {
    const size_t at = (size_t(r) * streams + s) * size + d;
    out[at] = wide[at] + gain[r * streams + s] * v;
  }
}
