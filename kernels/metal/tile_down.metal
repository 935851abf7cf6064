// Down of experts in slots, as expert_down, through the matrix units. dims and grid as of tile_up.
threadgroup uint4 stage[BRING * 32 * TX];
threadgroup float2 stats[BRING * 2 * TX];
threadgroup float parts[KSPLIT > 1 ? SG * 64 * TILES : 1];
const uint p = threadgroup_position_in_grid.z;
const uint t = thread_index_in_threadgroup;
const uint lane = thread_index_in_simdgroup;
const Size size = {uint(dims[1]), uint(dims[2])};
const uint first = thread_position_in_grid.y / KSPLIT * (16 * TILES);
const device uint32_t* rec = pool + size_t(slots[p]) * uint(dims[0]);
uint offset[TX];
for (uint n = 0; n < TX; n++) {
  offset[n] = (p * TX + n) * size.in;
}
float acc[2 * TILES];
const Tiled of = tiled_record<BITS>(rec, 2u, size);
tile_rows<BITS, TILES, 1, KSPLIT, SPAN, AHEAD, TX, BRING, ONCE>(&of, h, offset, first, t, SG * 32, size, stage, stats, parts, acc);
const uint n = tile_pair(lane);
for (uint e = 0; e < 2 * TILES; e++) {
  const uint row = first + e * 8 + tile_row(lane);
  if (simdgroup_index_in_threadgroup % KSPLIT == 0 && n < TX && row < size.out) {
    y[(size_t(p) * TX + n) * size.out + row] = acc[e];
  }
}
