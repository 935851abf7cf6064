// y[t, o] = act(W[o, :] . x[t, :]), as affine_gemv, through the matrix units: W in groups of 64, IN a multiple of 128.
// x [R, IN] float, R at most TX, y [R, OUT] float; params and split as of affine_gemv. dims: R, IN, OUT, split.
// KSPLIT simdgroups make 16 * TILES outputs a row of x; grid (32, simdgroups, 1), threadgroup (32, SG, 1).
threadgroup uint4 stage[BRING * 32 * TX];
threadgroup float2 stats[BRING * 2 * TX];
threadgroup float parts[KSPLIT > 1 ? SG * 64 * TILES : 1];
const uint t = thread_index_in_threadgroup;
const uint lane = thread_index_in_simdgroup;
const uint count = uint(dims[0]);
const Size size = {uint(dims[1]), uint(dims[2])};
const uint first = thread_position_in_grid.y / KSPLIT * (16 * TILES);
uint offset[TX];
for (uint n = 0; n < TX; n++) {
  offset[n] = (n < count ? n : 0u) * size.in;
}
float acc[2 * TILES];
const Tiled of = {w, (const device ushort*)s, (const device ushort*)b};
tile_rows<BITS, TILES, 1, KSPLIT, SPAN, AHEAD, TX, BRING, ONCE>(&of, x, offset, first, t, SG * 32, size, stage, stats, parts, acc);
const uint n = tile_pair(lane);
for (uint e = 0; e < 2 * TILES; e++) {
  const uint row = first + e * 8 + tile_row(lane);
  if (simdgroup_index_in_threadgroup % KSPLIT == 0 && n < min(count, uint(TX)) && row < size.out) {
    y[size_t(n) * size.out + row] = activated(acc[e], params[row < uint(dims[3]) ? 0 : 2], params[1]);
  }
}
