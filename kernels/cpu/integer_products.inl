// Products of codes with activations that were rounded to integers. Included by multiply.inl.
//
// Within a group everything is an exact integer: sums of code * activation. What is rounded, and in which order, is one
// rule for every instruction set and every shape of tile, so that a product has the same bits whichever of them
// computes it, and prefill and decode agree:
//
//     chain[g % 4] += bias_g * sum_g                 (sum_g: the group's activations, as they were rounded)
//     chain[g % 4] += (scale_g * step_g) * float(integers_g)                  for g = 0, 1, 2, ...; both are fused
//     product = (chain[0] + chain[2]) + (chain[1] + chain[3])
//
// A few rows take four outputs at a time straight from the matrix, up to four rows together, so that codes, scales and
// biases are unpacked once for all of them. More rows take a panel of outputs.

constexpr int parts = 16 / lanes;  // vectors of a quad: four products of four groups
constexpr int part_groups = lanes / 4;

struct Quad {
    Float part[parts];
};

// Sums of 8 codes times activations in each lane, from a block of one output, for M inputs.
template <int M>
struct Sums {
    Int of[M];
};

template <int Bits, Precision P, int M, bool Tail>
ALWAYS_INLINE Sums<M> block_sums(const uint8_t* codes, const Inputs<M>& in, size_t b, int left) {
    const auto input = [&](int m, int j) {
        return With<P>::load_int(in.x[m] + b * block_bytes(P) + static_cast<size_t>(j) * 4 * lanes);
    };
    Sums<M> sum;
    const uint8_t* at = codes + b * (block_codes * Bits / 8);
    if constexpr (P == Precision::int16) {
        const Int v = With<P>::template words<Bits, Tail>(at, left);
        UNROLL(4)
        for (int j = 0; j < 4; j++) {
            const Int q = With<P>::template code_word<Bits>(v, j);
            UNROLL(4)
            for (int m = 0; m < M; m++)
                sum.of[m] = j == 0 ? With<P>::dot_words(q, input(m, j)) : With<P>::dot_words(sum.of[m], q, input(m, j));
        }
    } else {
        Int even, odd;
        With<P>::template bytes<Bits, Tail>(at, left, even, odd);
        UNROLL(4)
        for (int m = 0; m < M; m++) sum.of[m] = With<P>::dot_bytes(even, input(m, 0), odd, input(m, 1));
    }
    return sum;
}

// The sums of a block of four outputs, reduced: for each input [groups of the block or parts of one][output].
template <int Bits, Precision P, int M, bool Tail>
ALWAYS_INLINE Sums<M> four_outputs(const Strip<4>& strip, const Inputs<M>& in, size_t b, int left) {
    const Sums<M> s0 = block_sums<Bits, P, M, Tail>(strip.codes[0], in, b, left);
    const Sums<M> s1 = block_sums<Bits, P, M, Tail>(strip.codes[1], in, b, left);
    const Sums<M> s2 = block_sums<Bits, P, M, Tail>(strip.codes[2], in, b, left);
    const Sums<M> s3 = block_sums<Bits, P, M, Tail>(strip.codes[3], in, b, left);
    Sums<M> out;
    UNROLL(4)
    for (int m = 0; m < M; m++) out.of[m] = Isa::reduce(s0.of[m], s1.of[m], s2.of[m], s3.of[m]);
    return out;
}

// Blocks of a quad of groups. A block is one group or more, or half a group's partner: see Isa::join.
constexpr int quad_blocks(int group) { return quad_groups * group / block_codes; }

// Integers of the four groups that start at block b, of four outputs: [group][output], for each input. The matrix has
// `left` codes from there on; what is missing counts as zero.
template <int Bits, Precision P, int M, int Group, bool Tail>
ALWAYS_INLINE void quad_sums(const Strip<4>& strip, const Inputs<M>& in, size_t b, int left, Sums<M> (&out)[parts]) {
    constexpr int blocks = quad_blocks(Group);  // of 4, 2 or 1
    const auto block = [&](int i) {
        const int here = left - i * block_codes;
        if (!Tail || here >= block_codes) return four_outputs<Bits, P, M, false>(strip, in, b + static_cast<size_t>(i), block_codes);
        if (here > 0) return four_outputs<Bits, P, M, true>(strip, in, b + static_cast<size_t>(i), here);
        Sums<M> none;
        for (int m = 0; m < M; m++) none.of[m] = Isa::no_sums();
        return none;
    };
    UNROLL(2)
    for (int i = 0; i < parts; i++) {
        if constexpr (blocks == parts) out[i] = block(i);
        else {
            const Sums<M> low = block(2 * i), high = block(2 * i + 1);
            for (int m = 0; m < M; m++) out[i].of[m] = Isa::join(low.of[m], high.of[m]);
        }
    }
}

// One to three BF16 numbers in the lower words, and nothing past them is read.
ALWAYS_INLINE uint64_t few_words(const uint8_t* at, int count) {
    uint16_t word;
    uint32_t pair;
    memcpy(&word, at + 2 * (count - 1), 2);
    if (count == 1) return word;
    memcpy(&pair, at, 4);
    return count == 2 ? pair : pair | static_cast<uint64_t>(word) << 32;
}

// Scales or biases of the four groups from g on, for four products. In the Tail, fewer than four are there.
template <bool Tail>
ALWAYS_INLINE Quad spread(const uint8_t* const (&rows)[4], int g, int groups) {
    const size_t at = 2 * static_cast<size_t>(g);
    if constexpr (!Tail) {
        return Isa::template spread<Quad>(rows[0] + at, rows[1] + at, rows[2] + at, rows[3] + at);
    } else {
        uint64_t padded[4];
        UNROLL(4)
        for (int p = 0; p < 4; p++) padded[p] = few_words(rows[p] + at, groups - g);
        const auto* bytes = reinterpret_cast<const uint8_t*>(padded);
        return Isa::template spread<Quad>(bytes, bytes + 8, bytes + 16, bytes + 24);
    }
}

// The same for one quad of groups after the other, from the first on.
struct Spread {
    const uint8_t* const (&rows)[4];
    int groups;
    ALWAYS_INLINE Spread(const uint8_t* const (&at)[4], int count) : rows(at), groups(count) {}
    template <bool Tail>
    ALWAYS_INLINE Quad quad(int g) { return spread<Tail>(rows, g, groups); }
};

template <int Bits, Precision P, int M, int Group, bool Tail, typename Spread>
ALWAYS_INLINE void add_quad(const Strip<4>& strip, const Inputs<M>& in, int g, int groups, Spread& scales, Spread& biases,
                            Quad (&chains)[M]) {
    const auto b = static_cast<size_t>(g / quad_groups * quad_blocks(Group));
    Sums<M> sums[parts];
    quad_sums<Bits, P, M, Group, Tail>(strip, in, b, (groups - g) * Group, sums);
    const Quad scale = scales.template quad<Tail>(g), bias = biases.template quad<Tail>(g);
    UNROLL(2)
    for (int i = 0; i < parts; i++) {
        const size_t at = static_cast<size_t>(g + i * part_groups) * 4;
        UNROLL(4)
        for (int m = 0; m < M; m++) {
            const Float biased = Isa::fmadd(bias.part[i], Isa::load(in.sums[m] + at), chains[m].part[i]);
            const Float step = Isa::mul(scale.part[i], Isa::load(in.steps[m] + at));
            chains[m].part[i] = Isa::fmadd(step, With<P>::to_float(sums[i].of[m]), biased);
        }
    }
}

// Four outputs from n on, for M inputs.
template <int Bits, Precision P, int M, int Group>
ALWAYS_INLINE void integer_strip(const Weights& w, const Inputs<M>& in, int n, int last, int distance) {
    constexpr int R = 4;
    constexpr size_t quad_bytes = quad_groups * Group * Bits / 8;
    const Strip<R> strip = strip_of<R>(w, n, last);
    const int groups = w.cols / Group;
    prefetch_scales(w, n, last, R, distance);
    const uint8_t* ahead = codes_ahead(w, n, last);
    Quad chains[M];
    for (int m = 0; m < M; m++)
        for (int i = 0; i < parts; i++) chains[m].part[i] = Isa::zero();
    Isa::Spread<Quad, Spread> scales(strip.scales, groups), biases(strip.biases, groups);
    int g = 0;
    for (; g + quad_groups <= groups; g += quad_groups) {
        // Not row by row, as the codes are used: memory gives most to those who ask in order.
        const uint8_t* at = ahead + static_cast<size_t>(g / quad_groups) * quad_bytes * R;
        for (size_t line = 0; line < quad_bytes * R; line += 64) Isa::prefetch(at + line);
        add_quad<Bits, P, M, Group, false>(strip, in, g, groups, scales, biases, chains);
    }
    if (g < groups) {
        const size_t begin = static_cast<size_t>(g / quad_groups) * quad_bytes * R, end = w.codes_stride * R;
        for (size_t line = begin; line < end; line += 64) Isa::prefetch(ahead + line);
        add_quad<Bits, P, M, Group, true>(strip, in, g, groups, scales, biases, chains);
    }
    if (n + R <= last) {
        for (int m = 0; m < M; m++) Isa::fold(chains[m], in.y[m] + n);
        return;
    }
    for (int m = 0; m < M; m++) {
        float products[R];
        Isa::fold(chains[m], products);
        for (int r = 0; n + r < last; r++) in.y[m][n + r] = products[r];
    }
}

template <int Bits, Precision P, int M>
void integer_rows(const Weights& w, const Row* rows, int first, int last) {
    const Inputs<M> in = inputs_of<M>(rows, packed_layout(Packing::of(w, P), w.cols));
    const int distance = scales_ahead(w);
    if (w.group == 64)
        for (int n = first; n < last; n += 4) integer_strip<Bits, P, M, 64>(w, in, n, last, distance);
    else
        for (int n = first; n < last; n += 4) integer_strip<Bits, P, M, 32>(w, in, n, last, distance);
}

// --- rows of a single group ---------------------------------------------------------------------------------------------

// A matrix with a group of 64 in each row, row after row: low-rank factors are such. A quad would be mostly padding, so
// blocks are filled with neighbouring rows instead, one or two, and their sums are taken as many at a time as vectors
// have lanes.
constexpr int narrow_group = 64;
constexpr bool has_narrow = block_codes == narrow_group || block_codes == 2 * narrow_group;

inline bool is_narrow(const Weights& w) {
    return has_narrow && w.cols == narrow_group && w.group == narrow_group && w.scales_stride == 2 &&
           w.codes_stride == static_cast<size_t>(narrow_group * w.bits / 8);
}

// Sums of a block of codes, for M inputs: of one row's group, or of two rows' groups one behind the other.
template <int Bits, Precision P, int M>
ALWAYS_INLINE Sums<M> narrow_block(const uint8_t* codes, const Inputs<M>& in) {
    const auto input = [&](int m, int j) { return With<P>::load_group(in.x[m] + static_cast<size_t>(j) * 4 * lanes); };
    Sums<M> sum;
    if constexpr (P == Precision::int16) {
        const Int v = With<P>::template words<Bits, false>(codes, block_codes);
        UNROLL(4)
        for (int j = 0; j < 4; j++) {
            const Int q = With<P>::template code_word<Bits>(v, j);
            UNROLL(4)
            for (int m = 0; m < M; m++)
                sum.of[m] = j == 0 ? With<P>::dot_words(q, input(m, j)) : With<P>::dot_words(sum.of[m], q, input(m, j));
        }
    } else {
        Int even, odd;
        With<P>::template bytes<Bits, false>(codes, block_codes, even, odd);
        UNROLL(4)
        for (int m = 0; m < M; m++) sum.of[m] = With<P>::dot_bytes(even, input(m, 0), odd, input(m, 1));
    }
    return sum;
}

// As many outputs from n on as vectors have lanes: eight blocks.
template <int Bits, Precision P, int M>
ALWAYS_INLINE void narrow_strip(const Weights& w, const Inputs<M>& in, int n) {
    constexpr size_t size = block_codes * Bits / 8;
    const auto at = static_cast<size_t>(n);
    Sums<M> four[2];
    UNROLL(2)
    for (int half = 0; half < 2; half++) {
        const uint8_t* codes = w.codes + at * w.codes_stride + static_cast<size_t>(half) * 4 * size;
        const Sums<M> a = narrow_block<Bits, P>(codes, in), b = narrow_block<Bits, P>(codes + size, in);
        const Sums<M> c = narrow_block<Bits, P>(codes + 2 * size, in), d = narrow_block<Bits, P>(codes + 3 * size, in);
        UNROLL(4)
        for (int m = 0; m < M; m++) four[half].of[m] = Isa::reduce(a.of[m], b.of[m], c.of[m], d.of[m]);
    }
    const Float scale = Isa::load_bf16(w.scales + at * 2), bias = Isa::load_bf16(w.biases + at * 2);
    UNROLL(4)
    for (int m = 0; m < M; m++) {
        const Int sums = Isa::in_order(Isa::join(four[0].of[m], four[1].of[m]));
        const Float biased = Isa::fmadd(bias, Isa::splat(in.sums[m][0]), Isa::zero());
        const Float step = Isa::mul(scale, Isa::splat(in.steps[m][0]));
        // The other chains are zeros, which turn -0 to 0.
        Isa::store(in.y[m] + n, Isa::add(Isa::fmadd(step, With<P>::to_float(sums), biased), Isa::zero()));
    }
}

// Outputs from `first` on, for M inputs; returns how far it came: the last few are left.
template <int Bits, Precision P, int M>
int narrow_rows(const Weights& w, const Row* rows, int first, int last) {
    constexpr size_t bytes = lanes * narrow_group * Bits / 8;
    const Inputs<M> in = inputs_of<M>(rows, packed_layout(Packing::of(w, P), w.cols));
    int n = first;
    for (; n + lanes <= last; n += lanes) {
        const uint8_t* ahead = codes_ahead(w, n, last);
        for (size_t line = 0; line < bytes; line += 64) Isa::prefetch(ahead + line);
        Isa::prefetch(w.scales + 2 * static_cast<size_t>(n) + 512);
        Isa::prefetch(w.biases + 2 * static_cast<size_t>(n) + 512);
        narrow_strip<Bits, P, M>(w, in, n);
    }
    return n;
}

// The same for each input, some at a time.
template <int Bits, Precision P>
int multiply_narrow(const Weights& w, const Row* rows, int count, int first, int last) {
    int n = first;
    by_fours(count, [&]<int M>(int m) { n = narrow_rows<Bits, P, M>(w, rows + m, first, last); });
    return n;
}

// --- panels: many rows ------------------------------------------------------------------------------------------------

constexpr int panel_vectors = 2;
constexpr int panel_outputs = panel_vectors * lanes;
constexpr int panel_rows = 64;  // of inputs at a time, which bounds the chains in flight

// A quad of groups of panel_outputs outputs, unpacked: [8 codes][4 pairs of them][outputs], and scales and biases.
template <int Group>
struct Panel {
    Int pairs[quad_groups * Group / 8][4][panel_vectors];
    float scales[quad_groups][panel_outputs];
    float biases[quad_groups][panel_outputs];
};

template <int Bits, int Group>
inline void unpack_panel(const Strip<panel_outputs>& strip, int g, int groups, Panel<Group>& panel) {
    constexpr Precision P = Precision::int16;
    const int present = groups - g < quad_groups ? groups - g : quad_groups;
    for (int i = 0; i < quad_blocks(Group); i++) {
        const int here = present * Group - i * block_codes;
        if (here <= 0) break;
        const size_t at = (static_cast<size_t>(g) * Group / block_codes + static_cast<size_t>(i)) * (block_codes * Bits / 8);
        for (int v = 0; v < panel_vectors; v++) {
            Int rows[lanes];
            for (int r = 0; r < lanes; r++) {
                const uint8_t* codes = strip.codes[v * lanes + r] + at;
                Isa::prefetch(codes + 512);
                rows[r] = here >= block_codes ? With<P>::template words<Bits, false>(codes, block_codes)
                                              : With<P>::template words<Bits, true>(codes, here);
            }
            Isa::transpose(rows);
            for (int l = 0; l < lanes; l++)
                for (int j = 0; j < 4; j++) panel.pairs[i * lanes + l][j][v] = With<P>::template code_word<Bits>(rows[l], j);
        }
    }
    for (int r = 0; r < panel_outputs; r += 4) {
        const uint8_t* const scales[4] = {strip.scales[r], strip.scales[r + 1], strip.scales[r + 2], strip.scales[r + 3]};
        const uint8_t* const biases[4] = {strip.biases[r], strip.biases[r + 1], strip.biases[r + 2], strip.biases[r + 3]};
        const Quad scale = present == quad_groups ? spread<false>(scales, g, groups) : spread<true>(scales, g, groups);
        const Quad bias = present == quad_groups ? spread<false>(biases, g, groups) : spread<true>(biases, g, groups);
        for (int i = 0; i < present; i++) {
            memcpy(panel.scales[i] + r, reinterpret_cast<const float*>(&scale) + 4 * i, 16);
            memcpy(panel.biases[i] + r, reinterpret_cast<const float*>(&bias) + 4 * i, 16);
        }
    }
}

// Chains of panel_rows inputs: [input][group % 4][outputs].
using Chains = float[panel_rows][quad_groups][panel_outputs];

// Adds `present` groups of a panel to the chains of M inputs.
template <int M, int Group>
inline void add_panel(const Panel<Group>& panel, const PackedLayout& layout, const Row* rows, int g, int present,
                      float (*chains)[quad_groups][panel_outputs]) {
    constexpr Precision P = Precision::int16;
    constexpr int eights = Group / 8;
    for (int i = 0; i < present; i++) {
        Int sum[panel_vectors][M];
        for (int v = 0; v < panel_vectors; v++)
            for (int m = 0; m < M; m++) sum[v][m] = Isa::no_sums();
        for (int d = i * eights; d < (i + 1) * eights; d++) {
            const int whole = g * eights + d;  // eights from the row's start
            const size_t at = static_cast<size_t>(whole / lanes) * block_bytes(P) + static_cast<size_t>(whole % lanes) * 4;
            UNROLL(4)
            for (int j = 0; j < 4; j++) {
                UNROLL(8)
                for (int m = 0; m < M; m++) {
                    const Int x = With<P>::splat_pair(static_cast<const unsigned char*>(rows[m].x) + at + static_cast<size_t>(j) * 4 * lanes);
                    UNROLL(2)
                    for (int v = 0; v < panel_vectors; v++)
                        sum[v][m] = With<P>::dot_words(sum[v][m], panel.pairs[d][j][v], x);
                }
            }
        }
        UNROLL(8)
        for (int m = 0; m < M; m++) {
            const auto* base = static_cast<const unsigned char*>(rows[m].x);
            const size_t at = static_cast<size_t>(g + i) * 4;
            const Float x_sum = Isa::splat(reinterpret_cast<const float*>(base + layout.sums)[at]);
            const Float x_step = Isa::splat(reinterpret_cast<const float*>(base + layout.steps)[at]);
            UNROLL(2)
            for (int v = 0; v < panel_vectors; v++) {
                float* chain = chains[m][i] + v * lanes;
                const Float biased = Isa::fmadd(Isa::load(panel.biases[i] + v * lanes), x_sum, Isa::load(chain));
                const Float step = Isa::mul(Isa::load(panel.scales[i] + v * lanes), x_step);
                Isa::store(chain, Isa::fmadd(step, With<P>::to_float(sum[v][m]), biased));
            }
        }
    }
}

template <int Bits, int Group>
inline void multiply_panel(const Weights& w, const PackedLayout& layout, const Row* rows, int count, int n, int last) {
    alignas(64) Chains chains;
    alignas(64) Panel<Group> panel;
    const Strip<panel_outputs> strip = strip_of<panel_outputs>(w, n, last);
    memset(chains, 0, static_cast<size_t>(count) * sizeof chains[0]);
    const int groups = w.cols / Group;
    for (int g = 0; g < groups; g += quad_groups) {
        const int present = groups - g < quad_groups ? groups - g : quad_groups;
        unpack_panel<Bits, Group>(strip, g, groups, panel);
        by_tiles<Isa::tile_rows>(count, [&]<int M>(int m) { add_panel<M, Group>(panel, layout, rows + m, g, present, chains + m); });
    }
    const int outputs = last - n < panel_outputs ? last - n : panel_outputs;
    for (int m = 0; m < count; m++)
        for (int v = 0; v < panel_vectors; v++) {
            const auto chain = [&](int c) { return Isa::load(chains[m][c] + v * lanes); };
            const Float product = Isa::add(Isa::add(chain(0), chain(2)), Isa::add(chain(1), chain(3)));
            const int here = outputs - v * lanes;
            if (here >= lanes) Isa::store(rows[m].y + n + v * lanes, product);
            else if (here > 0) Isa::store_some(rows[m].y + n + v * lanes, product, here);
        }
}

template <int Bits>
void multiply_panels(const Weights& w, const Row* rows, int count, int first, int last) {
    const PackedLayout layout = packed_layout(Packing::of(w, Precision::int16), w.cols);
    for (int m = 0; m < count; m += panel_rows) {
        const int here = count - m < panel_rows ? count - m : panel_rows;
        for (int n = first; n < last; n += panel_outputs) {
            if (w.group == 64) multiply_panel<Bits, 64>(w, layout, rows + m, here, n, last);
            else multiply_panel<Bits, 32>(w, layout, rows + m, here, n, last);
        }
    }
}

template <int Bits, Precision P>
void multiply_integers(const Weights& w, const Row* rows, int count, int first, int last) {
    if constexpr (P == Precision::int16)
        if (count >= Isa::panel_from) return multiply_panels<Bits>(w, rows, count, first, last);
    if constexpr (has_narrow)
        if (is_narrow(w)) first = multiply_narrow<Bits, P>(w, rows, count, first, last);
    by_fours(count, [&]<int M>(int m) { integer_rows<Bits, P, M>(w, rows + m, first, last); });
}
