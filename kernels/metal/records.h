// Where the matrices of an expert record lie, in 32-bit words: gate, up and down codes, then scales and biases of each.
// acc as of affine_rows, over SETS matrices of `size` numbers from 0 (gate), 1 (up) or 2 (down) on, of the record at `rec`.

template <int BITS, int ROWS, int LANES, int AHEAD, int TX, int SETS, int TILE>
METAL_FUNC void record_rows(const device uint32_t* rec, uint matrix, uint size, const device float* x, const thread uint* offset,
                            uint row0, uint t, uint threads, Walk walk, threadgroup float* stage, thread float* acc) {
  const uint codes = size / 32 * BITS;
  const uint numbers = size >> walk.shift;
  Codes of[SETS];
  #pragma unroll
  for (uint m = 0; m < uint(SETS); m++) {
    const device ushort* s = (const device ushort*)(rec + 3 * codes + (matrix + m) * numbers);
    of[m] = {rec + (matrix + m) * codes, s, s + numbers};
  }
  affine_rows<BITS, ROWS, LANES, AHEAD, TX, SETS, TILE>(of, x, offset, row0, t, threads, walk, stage, acc);
}

// At WIDTH bits a code, or, if that is 0, at the width of the record's tag.
template <int WIDTH, int ROWS, int LANES, int AHEAD, int TX, int SETS, int TILE>
METAL_FUNC void tagged_rows(int tag, const device uint32_t* rec, uint matrix, uint size, const device float* x,
                            const thread uint* offset, uint row0, uint t, uint threads, Walk walk, threadgroup float* stage, thread float* acc) {
  if (WIDTH == 2 || (WIDTH == 0 && tag == 2)) {
    record_rows<2, ROWS, LANES, AHEAD, TX, SETS, TILE>(rec, matrix, size, x, offset, row0, t, threads, walk, stage, acc);
  } else if (WIDTH == 3 || (WIDTH == 0 && tag == 3)) {
    record_rows<3, ROWS, LANES, AHEAD, TX, SETS, TILE>(rec, matrix, size, x, offset, row0, t, threads, walk, stage, acc);
  } else if (WIDTH == 8 || (WIDTH == 0 && tag == 8)) {
    record_rows<8, ROWS, LANES, AHEAD, TX, SETS, TILE>(rec, matrix, size, x, offset, row0, t, threads, walk, stage, acc);
  } else {
    record_rows<4, ROWS, LANES, AHEAD, TX, SETS, TILE>(rec, matrix, size, x, offset, row0, t, threads, walk, stage, acc);
  }
}
