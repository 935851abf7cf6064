// y[t, o] = act(W[o, :] . x[t, :]), W affine-quantised. x [R, IN] float, R at most TX, y [R, OUT] float; params: kind of
// activation, scale inside it, kind from output `split` on. dims: R, IN, OUT, log2 of the group, the exponent of 2^23 (see
// `code`), split.
// A simdgroup makes 32 / LANES * ROWS outputs a row of x; grid (32, simdgroups, 1), threadgroup (32, SG, 1).
threadgroup float stage[TX * TILE * 36];
const uint t = thread_index_in_threadgroup;
const uint lane = thread_index_in_simdgroup;
const uint count = uint(dims[0]);
const uint side = 32 / LANES;
const Walk walk = {uint(dims[1]), uint(dims[3]), side, uint(dims[4])};
const uint out = uint(dims[2]);
// Past the end the last rows are made once more, with the same result: every lane goes the same way.
const uint start = min(thread_position_in_grid.y * (side * ROWS), max(out, side * ROWS) - side * ROWS);
const uint first = min(start + lane / LANES, out - 1 - (ROWS - 1) * side);
uint offset[TX];
for (uint n = 0; n < TX; n++) {
  offset[n] = (n < count ? n : 0u) * walk.in;
}
float acc[ROWS * TX];
const Codes codes = {w, (const device ushort*)s, (const device ushort*)b};
affine_rows<BITS, ROWS, LANES, AHEAD, TX, 1, TILE>(&codes, x, offset, first, t, SG * 32, walk, stage, acc);
if (lane % LANES == 0) {
  for (uint r = 0; r < ROWS; r++) {
    for (uint n = 0; n < TX; n++) {
      if (n < count) {
        y[size_t(n) * out + first + r * side] = activated(acc[r * TX + n], params[first + r * side < uint(dims[5]) ? 0 : 2], params[1]);
      }
    }
  }
}
