// h[t, o] = silu(G[o, :] . x[t, :]) * (U[o, :] . x[t, :]), both affine-quantised alike. x [R, IN], h [R, OUT] float.
// dims and grid as of affine_gemv.
threadgroup float stage[TX * TILE * 36];
const uint t = thread_index_in_threadgroup;
const uint lane = thread_index_in_simdgroup;
const uint count = uint(dims[0]);
const uint lanes = uint(dims[4]);
const uint side = 32u / lanes;
const Walk walk = {uint(dims[1]), uint(dims[3]), lanes, side, 0u, 0u};
const uint out = uint(dims[2]);
const uint start = min(thread_position_in_grid.y * (side * ROWS), max(out, side * ROWS) - side * ROWS);
const uint first = min(start + lane / lanes, out - 1 - (ROWS - 1) * side);
uint offset[TX];
for (uint n = 0; n < TX; n++) {
  offset[n] = (n < count ? n : 0u) * walk.in;
}
float gate[ROWS * TX];
float up[ROWS * TX];
affine_rows<BITS, ROWS, AHEAD, TX, 1, TILE>(gw, (const device ushort*)gs, (const device ushort*)gb, x, offset, first, t, SG * 32, walk, stage,
                                           gate);
affine_rows<BITS, ROWS, AHEAD, TX, 1, TILE>(uw, (const device ushort*)us, (const device ushort*)ub, x, offset, first, t, SG * 32, walk, stage,
                                           up);
if (lane % lanes == 0) {
  for (uint r = 0; r < ROWS; r++) {
    for (uint n = 0; n < TX; n++) {
      if (n < count) {
        h[size_t(n) * out + first + r * side] = silu(gate[r * TX + n]) * up[r * TX + n];
      }
    }
  }
}
