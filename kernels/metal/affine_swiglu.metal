// h[t, o] = silu(G[o, :] . x[t, :]) * (U[o, :] . x[t, :]), both affine-quantised alike. x [R, IN], h [R, OUT] float.
// dims and grid as of affine_gemv.
threadgroup float stage[TX * TILE * 36];
const uint t = thread_index_in_threadgroup;
const uint lane = thread_index_in_simdgroup;
const uint count = uint(dims[0]);
const uint side = 32 / LANES;
const Walk walk = {uint(dims[1]), uint(dims[3]), side, uint(dims[4])};
const uint out = uint(dims[2]);
const uint start = min(thread_position_in_grid.y * (side * ROWS), max(out, side * ROWS) - side * ROWS);
const uint first = min(start + lane / LANES, out - 1 - (ROWS - 1) * side);
uint offset[TX];
for (uint n = 0; n < TX; n++) {
  offset[n] = (n < count ? n : 0u) * walk.in;
}
float acc[2 * ROWS * TX];  // gate, up
const Codes codes[2] = {{gw, (const device ushort*)gs, (const device ushort*)gb}, {uw, (const device ushort*)us, (const device ushort*)ub}};
affine_rows<BITS, ROWS, LANES, AHEAD, TX, 2, TILE>(codes, x, offset, first, t, SG * 32, walk, stage, acc);
if (lane % LANES == 0) {
  for (uint r = 0; r < ROWS; r++) {
    for (uint n = 0; n < TX; n++) {
      if (n < count) {
        h[size_t(n) * out + first + r * side] = silu(acc[r * TX + n]) * acc[(ROWS + r) * TX + n];
      }
    }
  }
}
