// wide + gain * (experts by rank, the shared one last), stream by stream. y [P, D] holds the result of row r's expert of
// rank k at place[r * K + k]; weights [R, K], shared [R, D], control[r * pitch + start] before its sigmoid, gain [R, S],
// wide and out [R, S * D]. dims: D, S, K, pitch, start. Grid (D rounded up to 32, R, 1), threadgroup (32, 1, 1).
const uint d = thread_position_in_grid.x;
const uint r = thread_position_in_grid.y;
const uint size = uint(dims[0]);
const uint streams = uint(dims[1]);
const uint top = uint(dims[2]);
if (d < size) {
  float sum = 0.0f;
  for (uint k = 0; k < top; k += 5) {
    float part[5];  // read together, added in order
    #pragma unroll
    for (uint u = 0; u < 5; u++) {
      const uint at = r * top + min(k + u, top - 1);
      part[u] = weights[at] * y[size_t(place[at]) * size + d];
    }
    #pragma unroll
    for (uint u = 0; u < 5; u++) {
      sum += k + u < top ? part[u] : 0.0f;
    }
  }
  sum += sigmoid(control[r * uint(dims[3]) + uint(dims[4])]) * shared[size_t(r) * size + d];
  for (uint s = 0; s < streams; s++) {
    const size_t at = (size_t(r) * streams + s) * size + d;
    out[at] = wide[at] + gain[r * streams + s] * sum;
  }
}
