// Gate and up of experts in slots: h[p * TX + t, o] = silu(G . x[rows[p * TX + t]]) * (U . x[..]), of the record in slot
// slots[p]. pool [slots, words], tags the width of each slot's codes (looked at if WIDTH is 0), x [R, IN], h [P * TX, OUT].
// rows below 0 stand for none and are computed as row 0. dims: words of a slot, IN, OUT, log2 of the group, and
// the exponent of 2^23 (see `code`).
// Grid (32, simdgroups, P), threadgroup (32, SG, 1).
threadgroup float stage[TX * TILE * 36];
const uint p = threadgroup_position_in_grid.z;
const uint t = thread_index_in_threadgroup;
const uint lane = thread_index_in_simdgroup;
const uint side = 32 / LANES;
const Walk walk = {uint(dims[1]), uint(dims[3]), side, uint(dims[4])};
const uint out = uint(dims[2]);
const uint start = min(thread_position_in_grid.y * (side * ROWS), max(out, side * ROWS) - side * ROWS);
const uint first = min(start + lane / LANES, out - 1 - (ROWS - 1) * side);
const device uint32_t* rec = pool + size_t(slots[p]) * uint(dims[0]);
const int tag = tags[slots[p]];
uint offset[TX];
for (uint n = 0; n < TX; n++) {
  offset[n] = uint(max(rows[p * TX + n], 0)) * walk.in;
}
float acc[2 * ROWS * TX];  // gate, up
tagged_rows<WIDTH, ROWS, LANES, AHEAD, TX, 2, TILE>(tag, rec, 0u, walk.in * out, x, offset, first, t, SG * 32, walk, stage, acc);
if (lane % LANES == 0) {
  for (uint r = 0; r < ROWS; r++) {
    for (uint n = 0; n < TX; n++) {
      h[(size_t(p) * TX + n) * out + first + r * side] = silu(acc[r * TX + n]) * acc[(ROWS + r) * TX + n];
    }
  }
}
