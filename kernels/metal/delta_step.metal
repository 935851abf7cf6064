// Gated delta rule over consecutive rows of one sequence, then norm and gate. For each row: state = exp(decay) state;
// state += k (beta (v - k state))^T; out = q state. One threadgroup a value head, SLICES * DV threads: a thread holds the
// DK / SLICES state numbers of one value column in one slice of the keys.
// conv [n, C] after the convolution (query, key, value), a b [n, HV] products, a_log dt_bias [HV], z [n, HV * DV],
// norm [DV], before [HV, DK, DV]; y [n, HV * DV], after [n or 1, HV, DK, DV]: with SNAP, the state after every row.
// dims: n, then how far apart rows are and where the first begins, of a, b and z. params[0] = eps. Grid (SLICES * DV, HV, 1), threadgroup (SLICES * DV, 1, 1).
constexpr uint P = DK / SLICES;
constexpr uint C = 2 * HK * DK + HV * DV;
constexpr uint THREADS = SLICES * DV;
constexpr uint GROUPS = THREADS / 32;
threadgroup float query[DK];
threadgroup float key[DK];
threadgroup float part[THREADS];
threadgroup float sums[2 * GROUPS];
const uint h = threadgroup_position_in_grid.y;
const uint t = thread_index_in_threadgroup;
const uint v = t % DV;
const uint slice = t / DV;
const uint hk = h / (HV / HK);
const uint sg = simdgroup_index_in_threadgroup;
const uint rows = uint(dims[0]);
float state[P];
for (uint i = 0; i < P; i++) {
  state[i] = before[(size_t(h) * DK + slice * P + i) * DV + v];
}
for (uint n = 0; n < rows; n++) {
  // the row's query and key, of unit length
  float qq = 0.0f;
  float kk = 0.0f;
  for (uint i = t; i < DK; i += THREADS) {
    const float q = conv[size_t(n) * C + hk * DK + i];
    const float k = conv[size_t(n) * C + (HK + hk) * DK + i];
    query[i] = q;
    key[i] = k;
    qq += q * q;
    kk += k * k;
  }
  qq = simd_sum(qq);
  kk = simd_sum(kk);
  if (thread_index_in_simdgroup == 0) {
    sums[sg] = qq;
    sums[GROUPS + sg] = kk;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float q2 = 0.0f;
  float k2 = 0.0f;
  for (uint i = 0; i < GROUPS; i++) {
    q2 += sums[i];
    k2 += sums[GROUPS + i];
  }
  const float by_query = rsqrt(q2 + 1e-6f) * rsqrt(float(DK));
  const float by_key = rsqrt(k2 + 1e-6f);
  const float decay = exp(-exp(a_log[h]) * softplus(a[n * uint(dims[1]) + uint(dims[2]) + h] + dt_bias[h]));
  const float beta = sigmoid(b[n * uint(dims[3]) + uint(dims[4]) + h]);
  float recalled = 0.0f;
  for (uint i = 0; i < P; i++) {
    state[i] *= decay;
    recalled += state[i] * key[slice * P + i];
  }
  part[t] = recalled;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float total = 0.0f;
  for (uint i = 0; i < SLICES; i++) {
    total += part[i * DV + v];
  }
  const float value = conv[size_t(n) * C + 2 * HK * DK + h * DV + v];
  const float change = beta * (value - total * by_key) * by_key;
  float out = 0.0f;
  for (uint i = 0; i < P; i++) {
    state[i] += key[slice * P + i] * change;
    out += state[i] * query[slice * P + i];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  part[t] = out;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float mixed = 0.0f;
  for (uint i = 0; i < SLICES; i++) {
    mixed += part[i * DV + v];
  }
  mixed *= by_query;
  const float square = simd_sum(slice == 0 ? mixed * mixed : 0.0f);
  if (thread_index_in_simdgroup == 0) {
    sums[sg] = square;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float mean = 0.0f;
  for (uint i = 0; i < GROUPS; i++) {
    mean += sums[i];
  }
  if (slice == 0) {
    const size_t at = (size_t(n) * HV + h) * DV + v;
    const float g = z[size_t(n) * uint(dims[5]) + uint(dims[6]) + h * DV + v];
    y[at] = mixed * rsqrt(mean / float(DV) + params[0]) * norm[v] * (SILU ? silu(g) : sigmoid(g));
  }
  if (SNAP || n + 1 == rows) {
    const size_t at = SNAP ? size_t(n) * HV * DK * DV : 0;
    for (uint i = 0; i < P; i++) {
      after[at + (size_t(h) * DK + slice * P + i) * DV + v] = state[i];
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}
