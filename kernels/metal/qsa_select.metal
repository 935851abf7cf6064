// The `keep` best of a row's scores, ties to the lowest index, in rising order: chosen [R, keep], -1 where there are fewer.
// scores [R, J], -1 for blocks that are not complete. dims: J, keep. Floats that are not negative sort as their bits.
// Grid (SG * 32, R, 1), threadgroup (SG * 32, 1, 1).
threadgroup uint part[SG];
const uint t = thread_index_in_threadgroup;
const uint lane = thread_index_in_simdgroup;
const uint sg = simdgroup_index_in_threadgroup;
const uint r = threadgroup_position_in_grid.y;
const uint blocks = uint(dims[0]);
const uint keep = uint(dims[1]);
const size_t at = size_t(r) * blocks;
// the largest bound that at least `keep` scores reach, bit by bit; 0 if all do
uint bound = 0u;
for (uint bit = 0; bit < 32; bit++) {
  const uint trial = bound | (1u << (31u - bit));
  uint reach = 0u;
  for (uint j = t; j < blocks; j += SG * 32) {
    const float s = scores[at + j];
    reach += s >= 0.0f && as_type<uint>(s + 0.0f) >= trial ? 1u : 0u;
  }
  reach = simd_sum(reach);
  if (lane == 0) {
    part[sg] = reach;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint all = 0u;
  for (uint i = 0; i < SG; i++) {
    all += part[i];
  }
  if (all >= keep) {
    bound = trial;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}
uint above = 0u;
for (uint j = t; j < blocks; j += SG * 32) {
  const float s = scores[at + j];
  above += s >= 0.0f && as_type<uint>(s + 0.0f) > bound ? 1u : 0u;
}
above = simd_sum(above);
if (lane == 0) {
  part[sg] = above;
}
threadgroup_barrier(mem_flags::mem_threadgroup);
uint room = keep;
for (uint i = 0; i < SG; i++) {
  room -= part[i];
}
threadgroup_barrier(mem_flags::mem_threadgroup);
// in order: those above, and the first `room` that equal the bound
uint taken = 0u;
uint equals = 0u;
for (uint start = 0; start < blocks; start += SG * 32) {
  const uint j = start + t;
  const float s = j < blocks ? scores[at + j] : -1.0f;
  const uint bits = as_type<uint>(s + 0.0f);
  const uint same = s >= 0.0f && bits == bound ? 1u : 0u;
  const uint same_before = simd_prefix_exclusive_sum(same);
  const uint same_all = simd_sum(same);
  if (lane == 0) {
    part[sg] = same_all;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint rank = equals + same_before;
  for (uint i = 0; i < SG; i++) {
    rank += i < sg ? part[i] : 0u;
    equals += part[i];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint mine = (s >= 0.0f && bits > bound) || (same == 1u && rank < room) ? 1u : 0u;
  const uint before = simd_prefix_exclusive_sum(mine);
  const uint mine_all = simd_sum(mine);
  if (lane == 0) {
    part[sg] = mine_all;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint to = taken + before;
  for (uint i = 0; i < SG; i++) {
    to += i < sg ? part[i] : 0u;
    taken += part[i];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (mine == 1u) {
    chosen[r * keep + to] = int(j);
  }
}
for (uint i = taken + t; i < keep; i += SG * 32) {
  chosen[r * keep + i] = -1;
}
