// A token of each row by its probability: the first whose running sum of exp((logit - largest) / temperature) exceeds
// draw[r] times the sum of all. logits [R, N], largest [R], draw [R] in [0, 1), inverse_temperature [R], dims[0] = N;
// token [R]. A thread sums a run of neighbours; grid (1024, R, 1), threadgroup (1024, 1, 1).
threadgroup float part[32];
threadgroup uint place[32];
const uint t = thread_index_in_threadgroup;
const uint sg = simdgroup_index_in_threadgroup;
const uint r = threadgroup_position_in_grid.y;
const uint n = uint(dims[0]);
const uint run = (n + 1023u) / 1024u;
const uint first = min(t * run, n);
const uint last = min(first + run, n);
const float by = inverse_temperature[r];
const float top = largest[r];
float sum = 0.0f;
for (uint i = first; i < last; i++) {
  sum += exp((logits[size_t(r) * n + i] - top) * by);
}
const float before = simd_prefix_exclusive_sum(sum);
const float all = simd_sum(sum);
if (thread_index_in_simdgroup == 0) {
  part[sg] = all;
}
threadgroup_barrier(mem_flags::mem_threadgroup);
float total = 0.0f;
float base = 0.0f;
for (uint i = 0; i < 32; i++) {
  base = i == sg ? total : base;
  total += part[i];
}
const float wanted = draw[r] * total;
const float begin = base + before;
// Rounding may leave a gap between two threads' runs, or two that claim the draw: the lowest claim counts.
uint found = 0xffffffffu;
if (last > first && begin + sum > wanted) {
  float running = begin;
  for (uint i = first; i < last; i++) {
    running += exp((logits[size_t(r) * n + i] - top) * by);
    if (running > wanted && found == 0xffffffffu) {
      found = i;
    }
  }
  found = found == 0xffffffffu ? last - 1 : found;
}
found = simd_min(found);
if (thread_index_in_simdgroup == 0) {
  place[sg] = found;
}
threadgroup_barrier(mem_flags::mem_threadgroup);
if (t == 0) {
  uint least = place[0];
  for (uint i = 1; i < 32; i++) {
    least = min(least, place[i]);
  }
  token[r] = int(least == 0xffffffffu ? n - 1 : least);
}
