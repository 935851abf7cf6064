// y[t, o] = act(W[o, :] . x[t, :]), W affine-quantised. x [R, IN] float, R at most TX, y [R, OUT] float; params: kind of
// activation, scale inside it. dims: R, IN, OUT, log2 of the group, lanes a row.
// A simdgroup makes 32 / lanes * ROWS outputs a row of x; grid (32, simdgroups, 1), threadgroup (32, 4, 1).
const uint lane = thread_index_in_simdgroup;
const uint count = uint(dims[0]);
const uint lanes = uint(dims[4]);
const uint side = 32u / lanes;
const Walk walk = {uint(dims[1]), uint(dims[3]), lanes, side, 0u, 0u};
const uint out = uint(dims[2]);
// Past the end the last rows are made once more, with the same result: every lane goes the same way.
const uint start = min(thread_position_in_grid.y * (side * ROWS), max(out, side * ROWS) - side * ROWS);
const uint first = min(start + lane / lanes, out - 1 - (ROWS - 1) * side);
uint offset[TX];
for (uint t = 0; t < TX; t++) {
  offset[t] = (t < count ? t : 0u) * walk.in;
}
float acc[ROWS * TX];
affine_rows<BITS, ROWS, TX, 1>(w, (const device ushort*)s, (const device ushort*)b, x, offset, first, lane, walk, acc);
if (lane % lanes == 0) {
  for (uint r = 0; r < ROWS; r++) {
    for (uint t = 0; t < TX; t++) {
      if (t < count) {
        y[size_t(t) * out + first + r * side] = activated(acc[r * TX + t], params[0], params[1]);
      }
    }
  }
}
