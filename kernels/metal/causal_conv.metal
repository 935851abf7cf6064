// Causal depthwise convolution of rows that follow a history: y[i] = silu(sum over taps k of in[i + k * dilation] * taps[c, k]),
// added to base if ADD, where `in` is history [keep, C] followed by x [n, C] and keep is (taps - 1) * dilation. after
// [keep + back, C] is the last keep + back rows of `in`. Row j of x begins at x[j * pitch + start]. dims: n, C, number of taps,
// dilation, pitch, start, back. Grid (C rounded up to 32, n + keep + back, 1), threadgroup (32, 1, 1).
const uint c = thread_position_in_grid.x;
const uint i = thread_position_in_grid.y;
const uint n = uint(dims[0]);
const uint width = uint(dims[1]);
const uint many = uint(dims[2]);
const uint dilation = uint(dims[3]);
const uint keep = (many - 1) * dilation;
const uint pitch = uint(dims[4]);
const device float* from = x + uint(dims[5]) + c;
if (c < width) {
  if (i < n) {
    float sum = 0.0f;
    for (uint k = 0; k < many; k++) {
      const uint j = i + k * dilation;
      const float v = j < keep ? history[size_t(j) * width + c] : from[size_t(j - keep) * pitch];
      sum += v * taps[c * many + k];
    }
    const size_t at = size_t(i) * width + c;
    y[at] = ADD ? base[at] + silu(sum) : silu(sum);
  } else {
    const uint j = i - uint(dims[6]);  // row i - n of the history afterwards is this row of `in`
    after[size_t(i - n) * width + c] = j < keep ? history[size_t(j) * width + c] : from[size_t(j - keep) * pitch];
  }
}
