// Down of experts in slots: y[p * TX + t, o] = D . h[p * TX + t], of the record in slot slots[p]. h [P * TX, IN],
// y [P * TX, OUT]; otherwise as expert_up.
const uint p = threadgroup_position_in_grid.z;
const uint lane = thread_index_in_simdgroup;
const uint lanes = uint(dims[4]);
const uint side = 32u / lanes;
const Walk walk = {uint(dims[1]), uint(dims[3]), lanes, side, 0u, 0u};
const uint out = uint(dims[2]);
const uint start = min(thread_position_in_grid.y * (side * ROWS), max(out, side * ROWS) - side * ROWS);
const uint first = min(start + lane / lanes, out - 1 - (ROWS - 1) * side);
const device uint32_t* rec = pool + size_t(slots[p]) * uint(dims[0]);
const int tag = tags[slots[p]];
uint offset[TX];
for (uint t = 0; t < TX; t++) {
  offset[t] = (p * TX + t) * walk.in;
}
float acc[ROWS * TX];
tagged_rows<WIDTH, ROWS, TX, 1>(tag, rec, 2u, walk.in * out, h, offset, first, lane, walk, acc);
if (lane % lanes == 0) {
  for (uint r = 0; r < ROWS; r++) {
    for (uint t = 0; t < TX; t++) {
      y[(size_t(p) * TX + t) * out + first + r * side] = acc[r * TX + t];
    }
  }
}
