"""How each kernel of `kernels/metal` is called: its inputs and outputs, its grid, and which shapes it takes.

Letters as in `cherenkov.backends.base`; P is pairs of a row and an expert. Activations are float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cherenkov.backends.kernel_catalogue import KERNELS
from cherenkov.backends.launches import Launch, dims, kind_of, numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    import mlx.core as mx

    from cherenkov.backends.mlx_matrices import Matrix
    from cherenkov.backends.operands import DeltaNet, Ple, SparseAttention

__all__ = [
    "Columns",
    "argmax",
    "attend",
    "block_keys",
    "causal_conv",
    "combine",
    "delta_step",
    "fits_attention",
    "fits_delta",
    "fits_route",
    "group_norm",
    "inject",
    "merge",
    "ple_gate",
    "prepare_heads",
    "reach_of",
    "route",
    "sample",
    "scores",
    "select",
]

_WARP = 32
_SIDE_BY_SIDE = 4
"""Simdgroups of a threadgroup that have nothing to do with each other."""
_WIDE = 256
"""Threads that go over a long row together."""
_MOST_THREADS = 512
_PARTS = 64
"""Parts that a row of logits is cut into."""
_SPAN = 32
"""Tokens of a part of a head's attention."""
_BLOCKS = 512
"""Blocks that are scored are a multiple of this."""
_MOST_EXPERTS = 4096
_MOST_HEAD = 512


class Columns(NamedTuple):
    """Columns of an array `[R, N]` from `start` on: what several products made at once, without a copy."""

    array: mx.array
    start: int = 0

    @property
    def place(self) -> tuple[int, int]:
        """How far apart rows are, and where the first begins."""
        return self.array.shape[1], self.start

    def rows(self, rows: slice) -> Columns:
        """Of some rows."""
        return Columns(self.array[rows], self.start)


# --- experts ------------------------------------------------------------------------------------------------------


def combine(
    y: mx.array,
    place: mx.array,
    weights: mx.array,
    shared: mx.array,
    control: Columns,
    gain: mx.array,
    wide: mx.array,
) -> Launch:
    """Experts' results by rank and the shared one, injected into the wide residual `[R, S*D]`. See `expert_sum.metal`."""
    rows, width = shared.shape
    sizes = dims(width, gain.shape[1], weights.shape[1], *control.place)
    inputs = [y, place, weights, shared, control.array, gain, wide, sizes]
    outputs = [("float32", tuple(wide.shape))]
    grid = (_rounded(width), rows, 1)
    return Launch(KERNELS["expert_sum"], inputs, outputs, grid, (_WARP, 1, 1))


def fits_route(experts: int) -> bool:
    """Is there a kernel for so many experts?"""
    return experts <= _MOST_EXPERTS


def route(
    scores: mx.array,
    experts: int,
    top: int,
    *,
    normalise: bool,
    table: mx.array | None = None,
) -> Launch:
    """The best experts of each row of scores `[R, E or more]`, before their softmax: ids, weights, and places in a table.

    Args:
        scores: of experts, first.
        experts: how many there are.
        top: how many are wanted.
        normalise: the weights' sum is 1.
        table: int32 `[E]`: the place of each; it is its id if left out.
    """
    rows, placed = scores.shape[0], table is not None
    template = (("P", -(-experts // _WARP)), ("Q", -(-top // _WARP)), ("PLACED", placed))
    outputs = [("int32", (rows, top)), ("float32", (rows, top)), ("int32", (rows, top))]
    sizes = dims(experts, top, int(normalise), scores.shape[1])
    inputs = [scores, sizes if table is None else table, sizes]
    return Launch(KERNELS["route"], inputs, outputs, (_WARP, rows, 1), (_WARP, 1, 1), template)


# --- the residual -------------------------------------------------------------------------------------------------


def _together(width: int) -> int:
    """Simdgroups that go over a row: 1 or 8, so that there are few kernels to compile."""
    return 8 if width >= 8 * _WARP else 1


def group_norm(x: mx.array, weight: mx.array, groups: int, eps: float) -> Launch:
    """RMS norm of each of the groups of each row."""
    rows, width = x.shape
    count = _together(width // groups)
    inputs = [x, weight, numbers(eps), dims(width // groups, groups)]
    grid, threads = (count * _WARP, groups, rows), (count * _WARP, 1, 1)
    outputs = [("float32", (rows, width))]
    return Launch(KERNELS["group_norm"], inputs, outputs, grid, threads, (("SG", count),))


def inject(wide: mx.array, block: mx.array, gain: mx.array) -> Launch:
    """`wide` + `gain` times `block`, stream by stream."""
    rows, width = block.shape
    inputs = [wide, block, gain, dims(width, gain.shape[1])]
    outputs = [("float32", tuple(wide.shape))]
    return Launch(
        KERNELS["gated_inject"], inputs, outputs, (_rounded(width), rows, 1), (_WARP, 1, 1)
    )


# --- DeltaNet and n-gram features ---------------------------------------------------------------------------------


def causal_conv(
    x: Columns,
    history: mx.array,
    taps: mx.array,
    dilation: int,
    base: mx.array | None = None,
    *,
    back: int = 0,
) -> Launch:
    """Silu of the convolution of rows `[n, C]` after a history, on top of `base` if given; and the history after.

    `back`: more rows that the history has then, to be able to go back.
    """
    rows, (keep, channels) = x.array.shape[0], history.shape
    sizes = dims(rows, channels, taps.shape[1], dilation, *x.place, back)
    inputs = [x.array, history, taps, x.array if base is None else base, sizes]
    grid = (_rounded(channels), rows + keep + back, 1)
    outputs = [("float32", (rows, channels)), ("float32", (keep + back, channels))]
    template = (("ADD", base is not None),)
    return Launch(KERNELS["causal_conv"], inputs, outputs, grid, (_WARP, 1, 1), template)


def _slices(key_dim: int, value_dim: int) -> int:
    """Slices of the keys, so many that a thread holds at most 32 numbers of the state; 0 if there are none."""
    for count in (1, 2, 4, 8, 16):
        if key_dim % count == 0 and key_dim // count <= _WARP:
            return count if count * value_dim <= _MOST_THREADS else 0
    return 0


def fits_delta(w: DeltaNet[Matrix, mx.array]) -> bool:
    """Is there a kernel for these heads?"""
    return w.value_dim % _WARP == 0 and _slices(w.key_dim, w.value_dim) > 0


def delta_step(
    w: DeltaNet[Matrix, mx.array],
    conv: mx.array,
    sides: Sequence[Columns],
    before: mx.array,
    *,
    every: bool = False,
) -> Launch:
    """Rows of one sequence through the recurrence, norm and gate: `[n, Hv*dv]`, and the state after them.

    Args:
        w: the layer.
        conv: `[n, C]`, convolved.
        sides: products with `w.a` and `w.b`, Hv each, and with `w.z`, Hv*dv.
        before: `[Hv, dk, dv]`.
        every: give the state after every row, `[n, Hv, dk, dv]`, to be able to go back.
    """
    rows, slices = conv.shape[0], _slices(w.key_dim, w.value_dim)
    template = (
        ("HK", w.key_heads),
        ("HV", w.value_heads),
        ("DK", w.key_dim),
        ("DV", w.value_dim),
        ("SLICES", slices),
        ("SILU", w.gate != "sigmoid"),
        ("SNAP", every),
    )
    a, b, z = sides
    sizes = dims(rows, *a.place, *b.place, *z.place)
    inputs = [conv, a.array, b.array, w.a_log, w.dt_bias, z.array, w.norm, before]
    inputs += [numbers(w.eps), sizes]
    state = tuple(before.shape)
    outputs = [
        ("float32", (rows, w.value_heads * w.value_dim)),
        ("float32", (rows, *state) if every else state),
    ]
    threads = slices * w.value_dim
    grid = (threads, w.value_heads, 1)
    return Launch(KERNELS["delta_step"], inputs, outputs, grid, (threads, 1, 1), template)


def ple_gate(w: Ple[Matrix, mx.array], key: mx.array, wide: mx.array, value: mx.array) -> Launch:
    """The residual with gated features, and their norm for the convolution, both `[R, S*D]`."""
    rows, width = value.shape
    count = _together(width)
    sizes = dims(width, w.streams)
    inputs = [key, wide, value, w.norm_key, w.norm_query, w.norm_conv, numbers(w.eps), sizes]
    grid, threads = (count * _WARP, w.streams, rows), (count * _WARP, 1, 1)
    outputs = [("float32", tuple(wide.shape))] * 2
    return Launch(KERNELS["ple_gate"], inputs, outputs, grid, threads, (("SG", count),))


# --- attention ----------------------------------------------------------------------------------------------------


def fits_attention(w: SparseAttention[Matrix, mx.array]) -> bool:
    """Is there a kernel for these heads?"""
    return w.head_dim <= _MOST_HEAD and w.index_dim <= _MOST_HEAD and w.heads % w.kv_heads == 0


def reach_of(w: SparseAttention[Matrix, mx.array], stop: int, room: int) -> tuple[int, int]:
    """How many parts attention up to `stop` is cut into, and how many blocks are scored (0: all are attended to).

    Rounded up, so that both stay the same for many tokens: what is traced depends on them. `room`: blocks in the cache.
    """
    parts = -(-min(stop, w.budget + w.block - 1) // _SPAN)
    most = -(-(w.budget + w.block - 1) // _SPAN)
    parts = min(1 << (parts - 1).bit_length(), most)
    blocks = stop // w.block
    if blocks <= w.budget // w.block:
        return parts, 0
    return parts, min(-(-blocks // _BLOCKS) * _BLOCKS, room)


def prepare_heads(
    projected: Columns,
    weight: mx.array,
    turn: tuple[mx.array, mx.array],
    heads: tuple[int, int],
    eps: float,
) -> Launch:
    """Norm and rotation of heads: `[R, units, N]`.

    Args:
        projected: heads one after the other.
        weight: `[N]`.
        turn: cosines and sines `[R, rotary / 2]`.
        heads: how many, and how far apart.
        eps: of the norm.
    """
    rows, (units, step), size = projected.array.shape[0], heads, weight.size
    pitch, start = projected.place
    sizes = dims(size, units, pitch, step, turn[0].shape[1], start)
    inputs = [projected.array, weight, turn[0], turn[1], numbers(eps), sizes]
    outputs = [("float32", (rows, units, size))]
    return Launch(KERNELS["qsa_prepare"], inputs, outputs, (_WARP, units, rows), (_WARP, 1, 1))


def block_keys(
    w: SparseAttention[Matrix, mx.array],
    raw: mx.array,
    first: mx.array,
    turn: tuple[mx.array, mx.array],
) -> Launch:
    """Keys `[J, di]` of index blocks from `first` (see `launches.place`) on, as many as there are turns, from raw index keys `[T, di]`."""
    count = turn[0].shape[0]
    template = (("T", kind_of(raw)), ("N", w.index_dim))
    sizes = dims(w.block, turn[0].shape[1])
    inputs = [raw, w.index_k_norm, turn[0], turn[1], numbers(w.eps), first, sizes]
    outputs = [("float32", (count, w.index_dim))]
    grid = (_WARP, count, 1)
    return Launch(KERNELS["block_keys"], inputs, outputs, grid, (_WARP, 1, 1), template)


def scores(
    w: SparseAttention[Matrix, mx.array],
    query: mx.array,
    keys: mx.array,
    position: mx.array,
    blocks: int,
) -> Launch:
    """Index scores `[R, blocks]` of queries `[R, Hi, di]`, the first at `position`; -1 for blocks not complete there."""
    rows = query.shape[0]
    template = (("T", kind_of(keys)), ("N", w.index_dim))
    grid = (_WARP, -(-blocks // _SIDE_BY_SIDE) * _SIDE_BY_SIDE, rows)
    inputs = [query, keys, position, dims(blocks, w.index_heads, w.block)]
    outputs = [("float32", (rows, blocks))]
    return Launch(KERNELS["qsa_scores"], inputs, outputs, grid, (_WARP, _SIDE_BY_SIDE, 1), template)


def select(found: mx.array, keep: int) -> Launch:
    """The best blocks of each row of scores, in rising order, -1 behind them: int32 `[R, keep]`."""
    rows, blocks = found.shape
    inputs, outputs = [found, dims(blocks, keep)], [("int32", (rows, keep))]
    grid, template = (_WIDE, rows, 1), (("SG", _WIDE // _WARP),)
    return Launch(KERNELS["qsa_select"], inputs, outputs, grid, (_WIDE, 1, 1), template)


def attend(
    w: SparseAttention[Matrix, mx.array],
    query: mx.array,
    caches: tuple[mx.array, mx.array],
    chosen: mx.array,
    position: mx.array,
    parts: int,
) -> Launch:
    """Parts of the attention of queries `[R, H, d]`, the first at `position`; see `qsa_attend.metal`."""
    rows, keep = query.shape[0], w.budget // w.block
    template = (("T", kind_of(caches[0])), ("N", w.head_dim))
    sizes = dims(parts, w.heads, w.kv_heads, w.block, keep, _SPAN)
    inputs = [query, caches[0], caches[1], chosen, numbers(w.head_dim**-0.5), position, sizes]
    outputs = [
        ("float32", (rows * w.heads, parts, w.head_dim)),
        ("float32", (rows * w.heads, parts, 2)),
    ]
    grid = (_WARP, parts, rows * w.heads)
    return Launch(KERNELS["qsa_attend"], inputs, outputs, grid, (_WARP, 1, 1), template)


def merge(
    w: SparseAttention[Matrix, mx.array], sums: mx.array, tops: mx.array, projected: Columns
) -> Launch:
    """Heads from their parts, gated: `[R, H*d]`. `projected` has queries and gates, head by head, H*2*d."""
    heads, parts, size = sums.shape
    outputs = [("float32", (projected.array.shape[0], w.heads * size))]
    inputs = [sums, tops, projected.array, dims(size, parts, w.heads, *projected.place)]
    return Launch(KERNELS["qsa_merge"], inputs, outputs, (_rounded(size), heads, 1), (_WARP, 1, 1))


# --- vocabularies -------------------------------------------------------------------------------------------------


def argmax(values: mx.array, ids: mx.array | None = None) -> Launch:
    """The largest of parts of each row `[R, N]`, or, of those and their `ids`, the largest: `[R, parts]`, `[R, parts]`."""
    rows, count = values.shape
    parts = _PARTS if ids is None else 1
    template = (("SG", _WIDE // _WARP), ("FIRST", ids is None))
    outputs = [("float32", (rows, parts)), ("int32", (rows, parts))]
    inputs = [values, dims(0) if ids is None else ids, dims(count, parts)]
    return Launch(KERNELS["argmax"], inputs, outputs, (_WIDE, parts, rows), (_WIDE, 1, 1), template)


def sample(
    logits: mx.array, largest: mx.array, draw: mx.array, inverse_temperature: mx.array
) -> Launch:
    """A token of each row of logits `[R, N]`; its largest, a number in [0, 1) and 1 / temperature are `[R]` each."""
    rows, count = logits.shape
    inputs = [logits, largest, draw, inverse_temperature, dims(count)]
    outputs = [("int32", (rows,))]
    return Launch(KERNELS["sample"], inputs, outputs, (1024, rows, 1), (1024, 1, 1))


def _rounded(width: int) -> int:
    return -(-width // _WARP) * _WARP
