// Gate and up of experts in slots, as expert_up, through the matrix units. dims: words of a slot, IN, OUT.
// KSPLIT simdgroups make 16 * TILES outputs of a pair; grid (32, simdgroups, P), threadgroup (32, SG, 1).
threadgroup uint4 stage[BRING * 32 * TX];
threadgroup float2 stats[BRING * 2 * TX];
threadgroup float parts[KSPLIT > 1 ? SG * 128 * TILES : 1];
const uint p = threadgroup_position_in_grid.z;
const uint t = thread_index_in_threadgroup;
const uint lane = thread_index_in_simdgroup;
const Size size = {uint(dims[1]), uint(dims[2])};
const uint first = thread_position_in_grid.y / KSPLIT * (16 * TILES);
const device uint32_t* rec = pool + size_t(slots[p]) * uint(dims[0]);
uint offset[TX];
for (uint n = 0; n < TX; n++) {
  offset[n] = uint(max(rows[p * TX + n], 0)) * size.in;
}
float acc[4 * TILES];  // gate, up
const Tiled of[2] = {tiled_record<BITS>(rec, 0u, size), tiled_record<BITS>(rec, 1u, size)};
tile_rows<BITS, TILES, 2, KSPLIT, SPAN, AHEAD, TX, BRING, ONCE>(of, x, offset, first, t, SG * 32, size, stage, stats, parts, acc);
const uint n = tile_pair(lane);
for (uint e = 0; e < 2 * TILES; e++) {
  const uint row = first + e * 8 + tile_row(lane);
  if (simdgroup_index_in_threadgroup % KSPLIT == 0 && n < TX && row < size.out) {
    h[(size_t(p) * TX + n) * size.out + row] = silu(acc[e]) * acc[2 * TILES + e];
  }
}
