// Rows of an affine-quantised matrix times activations, for a simdgroup. value = scale * code + bias, BF16 both;
// codes little-endian in 32-bit words, 3-bit codes across word borders.
// A row is read by `lanes` neighbouring lanes, CHUNK codes each at a step, so 32 / lanes rows go side by side, and every
// lane takes ROWS of them, `stride` apart, from each of SETS matrices alike. The order of additions depends on none of the
// other rows.

METAL_FUNC float bf16(ushort bits) { return as_type<float>(uint(bits) << 16); }

template <int BITS> METAL_FUNC float code(const thread uint32_t* w, uint j) {
  const uint at = j * BITS;
  uint v = w[at >> 5] >> (at & 31u);
  if (BITS == 3 && (at & 31u) > 29u) {
    v |= w[(at >> 5) + 1] << (32u - (at & 31u));
  }
  return float(v & ((1u << BITS) - 1u));
}

// How a matrix is read: its columns, the logarithm of its group, lanes a row, the distance between a lane's rows, and that
// to the next matrix, in words of codes and in scales.
struct Walk {
  uint in;
  uint shift;
  uint lanes;
  uint stride;
  uint words;
  uint numbers;
};

// acc[(m * ROWS + r) * TX + t] = row (row0 + r * stride) of matrix m . x[offset[t]]: complete in each of the lanes that share
// a row.
template <int BITS, int ROWS, int TX, int SETS>
METAL_FUNC void affine_rows(const device uint32_t* w, const device ushort* s, const device ushort* b, const device float* x,
                            const thread uint* offset, uint row0, uint lane, Walk walk, thread float* acc) {
  constexpr uint CHUNK = BITS == 8 ? 8 : BITS == 3 ? 32 : 16;
  constexpr uint WORDS = CHUNK * BITS / 32;
  const size_t row_words = walk.in / 32 * BITS;
  const size_t row_groups = walk.in >> walk.shift;
  for (uint i = 0; i < SETS * ROWS * TX; i++) {
    acc[i] = 0.0f;
  }
  for (uint i = (lane % walk.lanes) * CHUNK; i < walk.in; i += walk.lanes * CHUNK) {
    uint32_t word[SETS * ROWS * WORDS];
    float scale[SETS * ROWS];
    float bias[SETS * ROWS];
    for (uint r = 0; r < SETS * ROWS; r++) {
      const size_t row = row0 + r % ROWS * walk.stride;
      const size_t at = r / ROWS * walk.words + row * row_words + i / CHUNK * WORDS;
      if (WORDS == 2) {
        const uint2 two = *(const device uint2*)(w + at);
        word[r * WORDS] = two.x;
        word[r * WORDS + WORDS - 1] = two.y;
      } else {
        for (uint k = 0; k < WORDS; k++) {
          word[r * WORDS + k] = w[at + k];
        }
      }
      const size_t number = r / ROWS * walk.numbers + row * row_groups + (i >> walk.shift);
      scale[r] = bf16(s[number]);
      bias[r] = bf16(b[number]);
    }
    float xv[TX * CHUNK];
    float xs[TX];
    for (uint t = 0; t < TX; t++) {
      xs[t] = 0.0f;
      for (uint j = 0; j < CHUNK; j += 4) {
        const float4 four = *(const device float4*)(x + offset[t] + i + j);
        xv[t * CHUNK + j] = four.x;
        xv[t * CHUNK + j + 1] = four.y;
        xv[t * CHUNK + j + 2] = four.z;
        xv[t * CHUNK + j + 3] = four.w;
        xs[t] += (four.x + four.y) + (four.z + four.w);
      }
    }
    for (uint r = 0; r < SETS * ROWS; r++) {
      float d[TX];
      for (uint t = 0; t < TX; t++) {
        d[t] = 0.0f;
      }
      for (uint j = 0; j < CHUNK; j++) {
        const float q = code<BITS>(word + r * WORDS, j);
        for (uint t = 0; t < TX; t++) {
          d[t] += xv[t * CHUNK + j] * q;
        }
      }
      for (uint t = 0; t < TX; t++) {
        acc[r * TX + t] += scale[r] * d[t] + bias[r] * xs[t];
      }
    }
  }
  for (uint o = 1; o < walk.lanes; o <<= 1) {
    for (uint i = 0; i < SETS * ROWS * TX; i++) {
      acc[i] += simd_shuffle_xor(acc[i], ushort(o));
    }
  }
}
