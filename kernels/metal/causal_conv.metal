// Causal depthwise convolution of rows that follow a history: y[i] = silu(sum over taps k of in[i + k * dilation] * taps[c, k]),
// added to base if ADD, where `in` is history [keep, C] followed by x [n, C] and keep is (taps - 1) * dilation. after
// [keep, C] is the last keep rows of `in`. dims: n, C, number of taps, dilation.
// Grid (C rounded up to 32, n + keep, 1), threadgroup (32, 1, 1).
const uint c = thread_position_in_grid.x;
const uint i = thread_position_in_grid.y;
const uint n = uint(dims[0]);
const uint width = uint(dims[1]);
const uint many = uint(dims[2]);
const uint dilation = uint(dims[3]);
const uint keep = (many - 1) * dilation;
if (c < width) {
  if (i < n) {
    float sum = 0.0f;
    for (uint k = 0; k < many; k++) {
      const uint j = i + k * dilation;
      const float v = j < keep ? history[size_t(j) * width + c] : x[size_t(j - keep) * width + c];
      sum += v * taps[c * many + k];
    }
    const size_t at = size_t(i) * width + c;
    y[at] = ADD ? base[at] + silu(sum) : silu(sum);
  } else {
    // row i - n of the history afterwards is row i of `in`
    after[size_t(i - n) * width + c] = i < keep ? history[size_t(i) * width + c] : x[size_t(i - keep) * width + c];
  }
}
