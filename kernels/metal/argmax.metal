// The largest of parts of a row, ties to the lowest index: best [R, parts] and index [R, parts]. Part p of values [R, N]
// holds every parts-th run of SG * 32. FIRST: indices are places; else they are read from `from` [R, N], and parts is 1.
// dims: N, parts. Grid (SG * 32, parts, R), threadgroup (SG * 32, 1, 1).
threadgroup float part[SG];
threadgroup int place[SG];
const uint t = thread_index_in_threadgroup;
const uint p = threadgroup_position_in_grid.y;
const uint r = threadgroup_position_in_grid.z;
const uint n = uint(dims[0]);
const uint parts = uint(dims[1]);
float top = as_type<float>(0xff800000u);  // less than all numbers
int at = 0x7fffffff;
for (uint i = p * SG * 32 + t; i < n; i += parts * SG * 32) {
  const float v = values[size_t(r) * n + i];
  const int id = FIRST ? int(i) : from[size_t(r) * n + i];
  if (v > top || (v == top && id < at)) {
    top = v;
    at = id;
  }
}
const float most = simd_max(top);
const int lowest = simd_min(top == most ? at : 0x7fffffff);
if (thread_index_in_simdgroup == 0) {
  part[simdgroup_index_in_threadgroup] = most;
  place[simdgroup_index_in_threadgroup] = lowest;
}
threadgroup_barrier(mem_flags::mem_threadgroup);
if (t == 0) {
  float found = part[0];
  int id = place[0];
  for (uint i = 1; i < SG; i++) {
    if (part[i] > found || (part[i] == found && place[i] < id)) {
      found = part[i];
      id = place[i];
    }
  }
  best[r * parts + p] = found;
  index[r * parts + p] = id;
}
