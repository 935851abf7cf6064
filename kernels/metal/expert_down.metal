// Down of experts in slots: y[p * TX + t, o] = D . h[p * TX + t], of the record in slot slots[p]. h [P * TX, IN],
// y [P * TX, OUT]; otherwise as expert_up.
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
  offset[n] = (p * TX + n) * walk.in;
}
float acc[ROWS * TX];
tagged_rows<WIDTH, ROWS, LANES, AHEAD, TX, 1, TILE>(tag, rec, 2u, walk.in * out, h, offset, first, t, SG * 32, walk, stage, acc);
if (lane % LANES == 0) {
  for (uint r = 0; r < ROWS; r++) {
    for (uint n = 0; n < TX; n++) {
      y[(size_t(p) * TX + n) * out + first + r * side] = acc[r * TX + n];
    }
  }
}
