// Rows of an affine-quantised matrix times activations. value = scale * code + bias, BF16 both; codes little-endian in
// 32-bit words, 3-bit codes across word borders.
// A row is cut into chunks of 32 codes, which lie in one group. It is read by LANES neighbouring lanes, a chunk each at a
// step, so 32 / LANES rows go side by side, and every lane takes ROWS of them, `stride` apart, from each of SETS matrices
// alike. AHEAD steps are on their way while one is computed. The order of additions depends on none of the other rows.

METAL_FUNC float bf16(ushort bits) { return as_type<float>(uint(bits) << 16); }

// Code j of a chunk. Its bits, under the exponent of 2^23, are a number from which the code comes by one multiplication and
// subtraction, both exact: cheaper than a shift, a mask and a conversion. `two23` holds that exponent, 0x4b000000: were it known
// to the compiler, it would be a second constant beside the mask, for which there is no room in one instruction.
template <int BITS> METAL_FUNC float code(const thread uint32_t* w, uint j, uint two23) {
  constexpr uint WINDOW = BITS == 3 ? 21 : 16;  // bits that a word is moved by, so that codes stay below the exponent
  const uint start = j * BITS / WINDOW * WINDOW;
  const uint inner = j * BITS - start;
  uint v = w[start >> 5] >> (start & 31u);
  if ((start & 31u) + WINDOW > 32u && (start >> 5) + 1 < uint(BITS)) {
    v |= w[(start >> 5) + 1] << (32u - (start & 31u));
  }
  const float raised = as_type<float>((v & (((1u << BITS) - 1u) << inner)) | two23);
  return fma(raised, as_type<float>((127u - inner) << 23), -as_type<float>((150u - inner) << 23));
}

// The BITS words of a chunk.
template <int BITS> METAL_FUNC void chunk_words(const device uint32_t* w, thread uint32_t* to) {
  if (BITS == 3) {
    #pragma unroll
    for (uint k = 0; k < uint(BITS); k++) {
      to[k] = w[k];
    }
  } else if (BITS == 2) {
    const uint2 two = *(const device uint2*)(w);
    to[0] = two.x;
    to[BITS - 1] = two.y;
  } else {
    #pragma unroll
    for (uint k = 0; k + 3 < uint(BITS); k += 4) {
      const uint4 four = *(const device uint4*)(w + k);
      to[k] = four.x;
      to[k + 1] = four.y;
      to[k + 2] = four.z;
      to[k + 3] = four.w;
    }
  }
}

// A matrix in memory.
struct Codes {
  const device uint32_t* words;
  const device ushort* scales;
  const device ushort* biases;
};

// How matrices are read: their columns, the logarithm of their group, the distance between a lane's rows; and see `code`.
struct Walk {
  uint in;
  uint shift;
  uint stride;
  uint two23;
};

// What is on its way: a chunk of each of COUNT rows, with its scale and bias.
template <int COUNT, int BITS> struct Chunks {
  uint32_t word[COUNT * BITS];
  ushort scale[COUNT];
  ushort bias[COUNT];
};

template <int BITS, int ROWS, int LANES, int SETS>
METAL_FUNC void read_step(const thread Codes* codes, uint row0, uint step, uint lane, Walk walk, thread Chunks<SETS * ROWS, BITS>& to) {
  // places are 32-bit numbers: a matrix has fewer words than that
  const uint chunks = walk.in / 32;
  const uint i = step * LANES + lane % LANES;
  const uint chunk = min(i, chunks - 1);
  const uint group = chunk >> (walk.shift - 5);
  #pragma unroll
  for (uint r = 0; r < uint(SETS * ROWS); r++) {
    const Codes from = codes[r / ROWS];
    const uint row = row0 + r % ROWS * walk.stride;
    const uint number = row * (walk.in >> walk.shift) + group;
    chunk_words<BITS>(from.words + (row * (chunks * BITS) + chunk * BITS), to.word + r * BITS);
    // past the end: nothing, whatever the codes
    to.scale[r] = i < chunks ? from.scales[number] : ushort(0);
    to.bias[r] = i < chunks ? from.biases[number] : ushort(0);
  }
}

// Chunks of activations lie in threadgroup memory, TILE of each row at a time, each with its sum behind it and 36 numbers
// after the one before, so that chunks of neighbouring lanes start in different banks.
// Bring `count` chunks from `start` on of each row; all threads of the threadgroup do it together.
template <int TX, int TILE>
METAL_FUNC void bring(const device float* x, const thread uint* offset, uint start, uint count, uint t, uint threads,
                      threadgroup float* stage) {
  for (uint first = 0; first < count * 8; first += threads) {
    const uint i = first + t;
    float4 four[TX];
    #pragma unroll
    for (uint n = 0; n < uint(TX); n++) {
      four[n] = *(const device float4*)(x + offset[n] + start * 32 + min(i, count * 8 - 1) * 4);
    }
    #pragma unroll
    for (uint n = 0; n < uint(TX); n++) {
      float sum = (four[n].x + four[n].y) + (four[n].z + four[n].w);
      sum += simd_shuffle_xor(sum, ushort(1));
      sum += simd_shuffle_xor(sum, ushort(2));
      sum += simd_shuffle_xor(sum, ushort(4));
      if (i < count * 8) {
        threadgroup float* to = stage + (n * TILE + i / 8) * 36;
        *(threadgroup float4*)(to + i % 8 * 4) = four[n];
        if (i % 8 == 0) {
          to[32] = sum;
        }
      }
    }
  }
}

// acc += a chunk of each row times the same of activations.
template <int BITS, int EACH, int TX, int TILE>
METAL_FUNC void take_step(const thread Chunks<EACH, BITS>& read, const threadgroup float* from, uint two23, thread float* acc) {
  float d[EACH * TX];
  #pragma unroll
  for (uint i = 0; i < uint(EACH * TX); i++) {
    d[i] = 0.0f;
  }
  #pragma unroll
  for (uint j = 0; j < 32; j += 4) {
    float4 four[TX];
    #pragma unroll
    for (uint n = 0; n < uint(TX); n++) {
      four[n] = *(const threadgroup float4*)(from + n * (TILE * 36) + j);
    }
    #pragma unroll
    for (uint r = 0; r < uint(EACH); r++) {
      const thread uint32_t* word = read.word + r * BITS;
      const float q0 = code<BITS>(word, j, two23);
      const float q1 = code<BITS>(word, j + 1, two23);
      const float q2 = code<BITS>(word, j + 2, two23);
      const float q3 = code<BITS>(word, j + 3, two23);
      #pragma unroll
      for (uint n = 0; n < uint(TX); n++) {
        d[r * TX + n] += four[n].x * q0;
        d[r * TX + n] += four[n].y * q1;
        d[r * TX + n] += four[n].z * q2;
        d[r * TX + n] += four[n].w * q3;
      }
    }
  }
  #pragma unroll
  for (uint r = 0; r < uint(EACH); r++) {
    const float scale = bf16(read.scale[r]);
    const float bias = bf16(read.bias[r]);
    #pragma unroll
    for (uint n = 0; n < uint(TX); n++) {
      acc[r * TX + n] += scale * d[r * TX + n] + bias * from[n * (TILE * 36) + 32];
    }
  }
}

// acc[(m * ROWS + r) * TX + n] = row (row0 + r * stride) of matrix m . x[offset[n]]: complete in each of the lanes that share
// a row. Thread `t` of `threads` in its threadgroup; all of them come here together. Where there are more chunks than TILE,
// LANES * AHEAD divides it.
template <int BITS, int ROWS, int LANES, int AHEAD, int TX, int SETS, int TILE>
METAL_FUNC void affine_rows(const thread Codes* codes, const device float* x, const thread uint* offset, uint row0, uint t,
                            uint threads, Walk walk, threadgroup float* stage, thread float* acc) {
  constexpr int EACH = SETS * ROWS;
  const uint lane = t % 32;
  const uint chunks = walk.in / 32;
  const uint steps = (chunks + LANES - 1) / LANES;
  #pragma unroll
  for (uint i = 0; i < uint(EACH * TX); i++) {
    acc[i] = 0.0f;
  }
  Chunks<EACH, BITS> read[AHEAD];
  #pragma unroll
  for (uint k = 0; k < uint(AHEAD); k++) {
    read_step<BITS, ROWS, LANES, SETS>(codes, row0, k, lane, walk, read[k]);
  }
  for (uint start = 0; start < chunks; start += TILE) {
    const uint count = min(uint(TILE), chunks - start);
    const uint last = (start + count + LANES - 1) / LANES;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    bring<TX, TILE>(x, offset, start, count, t, threads, stage);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint step = start / LANES; step < last; step += AHEAD) {
      #pragma unroll
      for (uint k = 0; k < uint(AHEAD); k++) {
        if (step + k < last) {
          const uint chunk = min((step + k) * LANES + lane % LANES - start, count - 1);
          take_step<BITS, EACH, TX, TILE>(read[k], stage + chunk * 36, walk.two23, acc);
          if (step + k + AHEAD < steps) {
            read_step<BITS, ROWS, LANES, SETS>(codes, row0, step + k + AHEAD, lane, walk, read[k]);
          }
        }
      }
    }
  }
  #pragma unroll
  for (uint o = 1; o < uint(LANES); o <<= 1) {
    #pragma unroll
    for (uint i = 0; i < uint(EACH * TX); i++) {
      acc[i] += simd_shuffle_xor(acc[i], ushort(o));
    }
  }
}
