// Products through the matrix units: 16 rows of a matrix of 2-, 4- or 8-bit codes in groups of 64 at a time, by up to four
// rows of activations, which cost no more than one.
// Codes go in as they are: masked out of their words, two at a time, they are the bits of halves below the normal ones, that
// is, codes times 2^-24. Activations go in as two halves each, that and what the first one leaves, after they have been
// brought near 2^14 by a power of two for each group: 22 bits of the largest. Sums are in float, group by group, and then
// take scale and bias. So a row's result depends neither on how many rows there are nor on what they hold.
// A step is 128 columns: two groups, of which each of four lanes has 16 columns. KSPLIT simdgroups share the steps of a row.

#ifndef TILES_HERE
// Which of a tile's eight rows a lane has part in, and which pair of its columns.
METAL_FUNC uint tile_row(uint lane) { return ((lane / 4) & 4u) + (lane / 2) % 4; }
METAL_FUNC uint tile_pair(uint lane) { return ((lane / 4) & 2u) + lane % 2; }

// d [16 rows, 8] += codes [16 rows, 32] times activations [32, columns], columns repeated. Of d a lane has row
// tile_row in the columns of tile_pair, then the same eight rows further. a: pairs of codes of either row, by turns.
// unit: of each column, four pairs of halves for every tile_pair.
METAL_FUNC void multiply_tiles(thread float* d, const thread uint* a, const threadgroup uint4* unit, uint columns, uint lane) {
  const uint k = tile_row(lane);
  simdgroup_matrix<float, 8, 8> sum[2];
  for (uint i = 0; i < 2; i++) {
    sum[0].thread_elements()[i] = d[i];
    sum[1].thread_elements()[i] = d[2 + i];
  }
  for (uint m = 0; m < 4; m++) {
    simdgroup_matrix<float, 8, 8> upper, lower, right;
    for (uint i = 0; i < 2; i++) {
      const uint column = (tile_pair(lane) * 2 + i) % columns;
      const threadgroup ushort* at = (const threadgroup ushort*)(unit + column * 4 + k / 2);
      right.thread_elements()[i] = float(as_type<half>(at[m * 2 + k % 2]));
      upper.thread_elements()[i] = float((a[m * 2] >> (16 * i)) & 0xffffu) * 5.9604644775390625e-8f;
      lower.thread_elements()[i] = float((a[m * 2 + 1] >> (16 * i)) & 0xffffu) * 5.9604644775390625e-8f;
    }
    simdgroup_multiply_accumulate(sum[0], upper, right, sum[0]);
    simdgroup_multiply_accumulate(sum[1], lower, right, sum[1]);
  }
  for (uint i = 0; i < 2; i++) {
    d[i] = sum[0].thread_elements()[i];
    d[2 + i] = sum[1].thread_elements()[i];
  }
}
#endif

METAL_FUNC float upper_bf16(uint two) { return as_type<float>(two & 0xffff0000u); }
METAL_FUNC float lower_bf16(uint two) { return as_type<float>(two << 16); }

// The words of a lane's 16 codes.
template <int BITS> METAL_FUNC void lane_words(const device uint32_t* w, thread uint32_t* to) {
  if (BITS == 2) {
    to[0] = w[0];
  } else if (BITS == 4) {
    const uint2 two = *(const device uint2*)(w);
    to[0] = two.x;
    to[BITS / 2 - 1] = two.y;
  } else {
    const uint4 four = *(const device uint4*)(w);
    to[0] = four.x;
    to[BITS / 4 - 1] = four.y;
    to[BITS / 2 - 2] = four.z;
    to[BITS / 2 - 1] = four.w;
  }
}

// A matrix in memory, and its size.
struct Tiled {
  const device uint32_t* words;
  const device ushort* scales;
  const device ushort* biases;
};

struct Size {
  uint in;
  uint out;
};

// What is on its way: a step of two rows of each of EACH tiles, and scales and biases of SPAN steps, two to a word.
template <int EACH, int BITS> struct TileStep {
  uint32_t word[EACH * 2 * BITS];
};

template <int EACH, int SPAN> struct TileScales {
  uint32_t scale[EACH * 2 * SPAN];
  uint32_t bias[EACH * 2 * SPAN];
};

template <int BITS, int TILES, int SETS>
METAL_FUNC void read_tiles(const thread Tiled* of, uint row0, uint step, uint lane, Size size, thread TileStep<SETS * TILES, BITS>& to) {
  const uint steps = size.in / 128;
  #pragma unroll
  for (uint e = 0; e < uint(SETS * TILES * 2); e++) {
    const uint row = min(row0 + e % (2 * TILES) * 8 + tile_row(lane), size.out - 1);
    #pragma unroll
    for (uint g = 0; g < 2; g++) {
      const uint at = (row * (steps * 2) + min(step, steps - 1) * 2 + g) * (2 * BITS) + tile_pair(lane) * (BITS / 2);
      lane_words<BITS>(of[e / (2 * TILES)].words + at, to.word + (e * 2 + g) * (BITS / 2));
    }
  }
}

template <int SPAN> METAL_FUNC void span_words(const device ushort* numbers, uint at, thread uint32_t* to) {
  const device uint32_t* w = (const device uint32_t*)numbers + at;
  if (SPAN % 4 == 0) {
    #pragma unroll
    for (uint k = 0; k + 3 < uint(SPAN); k += 4) {
      const uint4 four = *(const device uint4*)(w + k);
      to[k] = four.x;
      to[k + 1] = four.y;
      to[k + 2] = four.z;
      to[k + 3] = four.w;
    }
  } else {
    #pragma unroll
    for (uint k = 0; k < uint(SPAN); k++) {
      to[k] = w[k];
    }
  }
}

// Of the steps from `step` on.
template <int TILES, int SETS, int SPAN>
METAL_FUNC void read_scales(const thread Tiled* of, uint row0, uint step, uint lane, Size size, thread TileScales<SETS * TILES, SPAN>& to) {
  const uint steps = size.in / 128;
  #pragma unroll
  for (uint e = 0; e < uint(SETS * TILES * 2); e++) {
    const Tiled from = of[e / (2 * TILES)];
    const uint row = min(row0 + e % (2 * TILES) * 8 + tile_row(lane), size.out - 1);
    const uint at = row * steps + min(step, steps - SPAN);
    span_words<SPAN>(from.scales, at, to.scale + e * SPAN);
    span_words<SPAN>(from.biases, at, to.bias + e * SPAN);
    if (step >= steps) {  // past the end: nothing, whatever the codes
      #pragma unroll
      for (uint k = 0; k < uint(SPAN); k++) {
        to.scale[e * SPAN + k] = 0u;
        to.bias[e * SPAN + k] = 0u;
      }
    }
  }
}

// Bring `count` steps of activations from step `start` on into threadgroup memory, as halves, and for each group and row what the
// sums are to be multiplied by and the sum of the activations. All threads of the threadgroup do it together.
template <int BITS, int TX>
METAL_FUNC void bring_tiles(const device float* x, const thread uint* offset, uint start, uint count, uint t, uint threads,
                            threadgroup uint4* stage, threadgroup float2* stats) {
  constexpr uint HALF = 16 / BITS;  // pairs in a word
  for (uint first = 0; first < count * (8 * TX); first += threads) {
    const bool mine = first + t < count * (8 * TX);
    const uint whole = mine ? first + t : 0u;
    const uint i = whole % (count * 8);
    const uint n = whole / (count * 8);
    uint row = offset[0];
    #pragma unroll
    for (uint k = 1; k < uint(TX); k++) {
      row = n == k ? offset[k] : row;
    }
    const device float4* from = (const device float4*)(x + row + start * 128 + i * 16);
    float v[16];
    float most = 0.0f;
    float sum = 0.0f;
    #pragma unroll
    for (uint j = 0; j < 4; j++) {
      const float4 four = from[j];
      v[4 * j] = four.x;
      v[4 * j + 1] = four.y;
      v[4 * j + 2] = four.z;
      v[4 * j + 3] = four.w;
      sum += (four.x + four.y) + (four.z + four.w);
      most = max(most, max(max(fabs(four.x), fabs(four.y)), max(fabs(four.z), fabs(four.w))));
    }
    #pragma unroll
    for (uint o = 1; o < 4; o <<= 1) {
      sum += simd_shuffle_xor(sum, ushort(o));
      most = max(most, simd_shuffle_xor(most, ushort(o)));
    }
    const uint exponent = clamp(as_type<uint>(most) >> 23, 14u, 243u);
    const float by = as_type<float>((267u - exponent) << 23);
    #pragma unroll
    for (uint u = 0; u < 2; u++) {
      uint top[4];
      uint rest[4];
      #pragma unroll
      for (uint m = 0; m < 4; m++) {
        const uint pair = u * 4 + m;
        const uint j = pair / HALF * (2 * HALF) + pair % HALF;
        const float shifted = by * as_type<float>((127u - pair % HALF * BITS % 8) << 23);
        const float one = v[j] * shifted;
        const float other = v[j + HALF] * shifted;
        const half one_top = half(one);
        const half other_top = half(other);
        top[m] = uint(as_type<ushort>(one_top)) | uint(as_type<ushort>(other_top)) << 16;
        rest[m] = uint(as_type<ushort>(half(one - float(one_top)))) | uint(as_type<ushort>(half(other - float(other_top)))) << 16;
      }
      if (mine) {
        const uint at = ((i / 4 * 2 + u) * (2 * TX) + 2 * n) * 4 + i % 4;
        stage[at] = uint4(top[0], top[1], top[2], top[3]);
        stage[at + 4] = uint4(rest[0], rest[1], rest[2], rest[3]);
      }
    }
    if (mine && i % 4 == 0) {
      stats[i / 4 * TX + n] = float2(as_type<float>((exponent + 11u) << 23), sum);
    }
  }
}

// acc += a step of each tile, of whose span it is number j, times the same of activations.
template <int BITS, int EACH, int TX, int SPAN>
METAL_FUNC void take_tiles(const thread TileStep<EACH, BITS>& read, const thread TileScales<EACH, SPAN>& by_row, uint j,
                           const threadgroup uint4* stage, const threadgroup float2* stats, uint lane, thread float* acc) {
  constexpr uint HALF = 16 / BITS;
  constexpr uint MASK = ((1u << BITS) - 1u) * 0x00010001u;
  #pragma unroll
  for (uint g = 0; g < 2; g++) {
    float d[EACH * 4];
    #pragma unroll
    for (uint i = 0; i < uint(EACH * 4); i++) {
      d[i] = 0.0f;
    }
    #pragma unroll
    for (uint u = 0; u < 2; u++) {
      #pragma unroll
      for (uint e = 0; e < uint(EACH); e++) {
        uint a[8];
        #pragma unroll
        for (uint m = 0; m < 4; m++) {
          const uint pair = u * 4 + m;
          const uint from = pair % HALF * BITS;
          #pragma unroll
          for (uint r = 0; r < 2; r++) {
            const uint32_t w = read.word[((e * 2 + r) * 2 + g) * (BITS / 2) + pair / HALF];
            a[m * 2 + r] = (w >> (from / 8 * 8)) & (MASK << (from % 8));
          }
        }
        multiply_tiles(d + e * 4, a, stage + (g * 2 + u) * (8 * TX), 2 * TX, lane);
      }
    }
    const float2 by = stats[g * TX + tile_pair(lane) % TX];
    #pragma unroll
    for (uint e = 0; e < uint(EACH * 2); e++) {
      const float scale = g == 0 ? lower_bf16(by_row.scale[e * SPAN + j]) : upper_bf16(by_row.scale[e * SPAN + j]);
      const float bias = g == 0 ? lower_bf16(by_row.bias[e * SPAN + j]) : upper_bf16(by_row.bias[e * SPAN + j]);
      acc[e] += scale * (by.x * (d[e * 2] + d[e * 2 + 1])) + bias * by.y;
    }
  }
}

// acc[(m * TILES + i) * 2 + r] = row (row0 + 16 i + 8 r + tile_row) of matrix m . x[offset[tile_pair % TX]], complete in each of
// KSPLIT simdgroups that share its steps: by turns, or, if SPAN is not 1, SPAN of them by turns, whose scales are read at once;
// then SPAN divides their number, and AHEAD divides SPAN. AHEAD steps are on their way while one is computed. Thread `t` of
// `threads` in its threadgroup; all of them come here together. BRING steps of activations lie in threadgroup memory at a time, a
// multiple of what is taken in a turn; ONCE: there are no more than that.
template <int BITS, int TILES, int SETS, int KSPLIT, int SPAN, int AHEAD, int TX, int BRING, bool ONCE>
METAL_FUNC void tile_rows(const thread Tiled* of, const device float* x, const thread uint* offset, uint row0, uint t, uint threads,
                          Size size, threadgroup uint4* stage, threadgroup float2* stats, threadgroup float* parts, thread float* acc) {
  constexpr int EACH = SETS * TILES;
  constexpr uint TURN = SPAN > 1 ? SPAN : AHEAD;  // steps of a simdgroup
  constexpr uint APART = SPAN > 1 ? 1 : KSPLIT;
  const uint lane = t % 32;
  const uint own = t / 32 % KSPLIT * SPAN;
  const uint steps = size.in / 128;
  #pragma unroll
  for (uint i = 0; i < uint(EACH * 2); i++) {
    acc[i] = 0.0f;
  }
  TileStep<EACH, BITS> read[AHEAD];
  TileScales<EACH, SPAN> scales[SPAN > 1 ? 2 : AHEAD];
  #pragma unroll
  for (uint j = 0; j < uint(AHEAD); j++) {
    read_tiles<BITS, TILES, SETS>(of, row0, own + j * APART, lane, size, read[j]);
    if (SPAN == 1 || j == 0) {
      read_scales<TILES, SETS, SPAN>(of, row0, own + j * APART, lane, size, scales[j]);
    }
  }
  for (uint start = 0; start < steps; start += BRING) {
    const uint count = min(uint(BRING), steps - start);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    bring_tiles<BITS, TX>(x, offset, start, count, t, threads, stage, stats);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint first = 0; first < count; first += KSPLIT * TURN) {
      const uint following = start + first + KSPLIT * TURN;
      const bool more = !ONCE && following < steps;
      if (SPAN > 1 && more) {
        read_scales<TILES, SETS, SPAN>(of, row0, following + own, lane, size, scales[SPAN > 1 ? 1 : 0]);
      }
      #pragma unroll
      for (uint j = 0; j < TURN; j++) {
        if (SPAN > 1 || first + j * KSPLIT < count) {
          const uint at = min(first + own + j * APART, count - 1);
          take_tiles<BITS, EACH, TX, SPAN>(read[j % AHEAD], scales[SPAN > 1 ? 0 : j], SPAN > 1 ? j : 0u, stage + at * (32 * TX),
                                           stats + at * (2 * TX), lane, acc);
        }
        if (j + AHEAD < TURN) {
          read_tiles<BITS, TILES, SETS>(of, row0, start + first + own + (j + AHEAD) * APART, lane, size, read[j % AHEAD]);
        } else if (more) {
          const uint step = following + own + (j + AHEAD - TURN) * APART;
          read_tiles<BITS, TILES, SETS>(of, row0, step, lane, size, read[j % AHEAD]);
          if (SPAN == 1) {
            read_scales<TILES, SETS, SPAN>(of, row0, step, lane, size, scales[SPAN > 1 ? 0 : j]);
          }
        }
      }
      if (SPAN > 1) {
        scales[0] = scales[SPAN > 1 ? 1 : 0];
      }
    }
  }
  if (KSPLIT > 1) {
    #pragma unroll
    for (uint i = 0; i < uint(EACH * 2); i++) {
      parts[i * threads + t] = acc[i];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    #pragma unroll
    for (uint i = 0; i < uint(EACH * 2); i++) {
      acc[i] = 0.0f;
      #pragma unroll
      for (uint k = 0; k < uint(KSPLIT); k++) {
        acc[i] += parts[i * threads + t - own / SPAN * 32 + k * 32];
      }
    }
  }
}

// Matrix 0 (gate), 1 (up) or 2 (down) of the record at `rec`; see records.h.
template <int BITS> METAL_FUNC Tiled tiled_record(const device uint32_t* rec, uint matrix, Size size) {
  const uint codes = size.in * size.out / 32 * BITS;
  const uint numbers = size.in * size.out / 64;
  const device ushort* s = (const device ushort*)(rec + 3 * codes + matrix * numbers);
  const Tiled of = {rec + matrix * codes, s, s + numbers};
  return of;
}
