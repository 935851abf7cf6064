"""The table with our kernels in place of MLX's operations: what `metal` and `cuda` have in common.

Few rows go through kernels, which read each weight once and keep activations in float32. Many rows (a prompt) multiply
by dense matrices through MLX, whose matrix units are made for that; their experts still go through our kernels, four rows of an
expert at a time, since a product must not depend on the wave it came in. What no kernel takes is left to `mlx`, which is
said once.
"""

from __future__ import annotations

import warnings
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
from typing_extensions import override

from cherenkov.backends import kernel_calls as calls
from cherenkov.backends import mlx_layers as layers
from cherenkov.backends import product_calls as products
from cherenkov.backends import tile_calls as tiles
from cherenkov.backends.kernel_calls import Columns
from cherenkov.backends.kernel_trial import tried
from cherenkov.backends.mlx import Mlx
from cherenkov.backends.mlx_back import EveryDelta, EveryPle
from cherenkov.backends.mlx_experts import Gathering
from cherenkov.backends.mlx_matrices import Stacks
from cherenkov.backends.mlx_owner import owned
from cherenkov.backends.mlx_reach import Reach, Turns
from cherenkov.backends.mlx_steps import joined, present
from cherenkov.backends.operands import DeltaNet
from cherenkov.backends.product_calls import IDENTITY, Activation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cherenkov.backends.base import (
        AttentionState,
        Block,
        DeltaState,
        GatedResidual,
        Head,
        Ids,
        Options,
        Ple,
        PleState,
        Router,
        SharedExpert,
        Span,
        SparseAttention,
    )
    from cherenkov.backends.launches import Launch, Launcher
    from cherenkov.backends.mlx_matrices import Matrix, Pool
    from cherenkov.backends.mlx_table import Array
    from cherenkov.packing.layout import ExpertLayout

__all__ = ["Fused"]

_FEW_ROWS = 16
"""Rows that go through our products, MOST_ROWS at a time; more are MLX's."""
_PAIR_ROWS = 8
"""Rows whose pairs with experts are computed one by one; those of more are, by expert, four at a time."""


class Fused(Mlx):
    """MLX with kernels. `precision` is of products of many rows: `bf16`, or `float32`."""

    def __init__(self, launcher: Launcher, options: Options | None = None) -> None:
        super().__init__(options)
        self.exact = self.options.precision == "float32"
        self._launch = launcher
        self._stacks = Stacks()
        self.turns = Turns(self.kept)
        self._said: set[str] = set()

    @override
    def close(self) -> None:
        self._stacks.clear()
        super().close()

    @owned
    @override
    def trial(self) -> str:
        return tried(self._launch)

    # operations

    @owned
    @override
    def read_residual(
        self, w: GatedResidual[Matrix, Array], wide: Array
    ) -> tuple[Array, Array | None]:
        if wide.shape[0] > _FEW_ROWS or w.up.scales is None or not products.fits_affine(w.up):
            return super().read_residual(w, wide)
        (normed,) = self._launch(calls.group_norm(wide, w.norm, w.streams, w.eps))
        low, gain = self._low_and_gain(w, normed)

        def mixed(rows: slice) -> Launch:
            return products.residual_mix(low[rows], w.up, normed[rows], w.streams)

        return self._few(wide.shape[0], mixed), gain

    def _low_and_gain(
        self, w: GatedResidual[Matrix, Array], normed: Array
    ) -> tuple[Array, Array | None]:
        """What the gates are made of `[R, r]`, which may have more columns, and what a block's result is multiplied by."""
        low, gain = (Activation(kind, 1 / w.streams) for kind in (1, 2))
        if w.inject is None:
            return self._product(normed, w.down, low), None
        rank = w.down.shape[0]
        both = self._stacks.of(w.down, w.inject)
        if both is None or both.shape[0] % 4 or not products.fits_affine(both):
            return self._product(normed, w.down, low), self._product(normed, w.inject, gain)
        act = Activation(low.kind, low.scale, gain.kind, rank)
        made = self._product(normed, both, act)
        return made, made[:, rank:]

    @owned
    @override
    def inject(self, wide: Array, block: Array, gain: Array) -> Array:
        return self._launch(calls.inject(wide, block, gain))[0]

    @owned
    @override
    def delta_net(
        self, w: DeltaNet[Matrix, Array], x: Array, spans: Sequence[Span[DeltaState[Array]]]
    ) -> Array:
        if not calls.fits_delta(w):
            self._left("delta_net", f"value heads of {w.value_dim}, key heads of {w.key_dim}")
            return super().delta_net(w, x, spans)
        channels, z, a, b = self._side_by_side(x, w.qkv, w.z, w.a, w.b)
        parts = []
        for span in spans:
            rows, state = slice(span.start, span.stop), span.state
            conv, state.history = self._launch(
                calls.causal_conv(
                    channels.rows(rows), state.history, w.conv, 1, back=_back(span, EveryDelta)
                )
            )
            own = [each.rows(rows) for each in (a, b, z)]
            every = isinstance(state, EveryDelta)
            step = calls.delta_step(w, conv, own, state.matrix, every=every)
            mixed, state.matrix = self._launch(step)
            parts.append(mixed)
        return self.times(joined(parts), w.out)

    @owned
    @override
    def sparse_attention(
        self,
        w: SparseAttention[Matrix, Array],
        x: Array,
        spans: Sequence[Span[AttentionState[Array]]],
    ) -> Array:
        if not calls.fits_attention(w):
            self._left("sparse_attention", f"heads of {w.head_dim}, index heads of {w.index_dim}")
            return super().sparse_attention(w, x, spans)
        out = self.attended(w, x, spans, [self.turns.reach(w, span) for span in spans])
        for span in spans:
            span.state.length = span.position + span.stop - span.start
        return out

    def attended(
        self,
        w: SparseAttention[Matrix, Array],
        x: Array,
        spans: Sequence[Span[AttentionState[Array]]],
        reaches: Sequence[Reach],
    ) -> Array:
        """`sparse_attention` of rows that reach so far. Of `spans`, positions are not looked at."""
        projected, keys, valued, index = self._projected(w, x)
        width, head, start = w.kv_heads * w.head_dim, w.head_dim, valued.start
        values = valued.array[:, start : start + width].reshape(-1, w.kv_heads, head)
        start = index.start + w.index_heads * w.index_dim
        raw = index.array[:, start : start + w.index_dim]
        parts = []
        for span, reach in zip(spans, reaches, strict=True):
            own, turn = slice(span.start, span.stop), reach.turn
            (query,) = self._launch(
                calls.prepare_heads(projected.rows(own), w.q_norm, turn, (w.heads, 2 * head), w.eps)
            )
            (key,) = self._launch(
                calls.prepare_heads(keys.rows(own), w.k_norm, turn, (w.kv_heads, head), w.eps)
            )
            self._append(w, span.state, (key, values[own], raw[own]), reach)
            chosen = self._chosen(w, span.state, index.rows(own), reach)
            caches = (span.state.keys, span.state.values)
            sums, tops = self._launch(
                calls.attend(w, query, caches, chosen, reach.position, reach.parts)
            )
            parts += self._launch(calls.merge(w, sums, tops, projected.rows(own)))
        return self._biased(joined(parts), w.o, w.o_bias)

    def _projected(self, w: SparseAttention[Matrix, Array], x: Array) -> list[Columns]:
        """Queries with gates, keys, values, index queries with the index key."""
        matrices, biases = (w.q, w.k, w.v, w.index), (w.q_bias, w.k_bias, w.v_bias)
        if all(bias is None for bias in biases):
            return self._side_by_side(x, *matrices)
        made = [self._biased(x, m, b) for m, b in zip(matrices, (*biases, None), strict=True)]
        return [Columns(each) for each in made]

    @owned
    @override
    def ple(
        self,
        w: Ple[Matrix, Array],
        wide: Array,
        features: Array,
        spans: Sequence[Span[PleState[Array]]],
    ) -> Array:
        key, value = self.times(features, w.key), self.times(features, w.value)
        base, normed = self._launch(calls.ple_gate(w, key, wide, value))
        parts = []
        for span in spans:
            rows, state = slice(span.start, span.stop), span.state
            out, state.history = self._launch(
                calls.causal_conv(
                    Columns(normed[rows]),
                    state.history,
                    w.conv,
                    w.dilation,
                    base[rows],
                    back=_back(span, EveryPle),
                )
            )
            parts.append(out)
        return joined(parts)

    @override
    def best(self, w: Router[Matrix], x: Array) -> tuple[Array, Array]:
        if not calls.fits_route(w.gate.shape[0]):
            self._left("route", f"{w.gate.shape[0]} experts")
            return super().best(w, x)
        experts = w.gate.shape[0]
        launch = calls.route(self.times(x, w.gate), experts, w.top_k, normalise=w.normalise)
        ids, weights, _ = self._launch(launch)
        return ids, weights

    @override
    def all_here(
        self, block: Block[Matrix, Array], wide: Array, table: Array, pool: Pool
    ) -> tuple[Array, Array]:
        router, shared, experts = block.router, block.shared, block.router.gate.shape[0]
        both = self._stacks.of(router.gate, shared.switch)
        if both is None or not calls.fits_route(experts) or not self._takes(pool.layout):
            return super().all_here(block, wide, table, pool)
        x, gain = self.read_residual(block.moe_read, wide)
        scores = self.times(x, both)
        ids, weights, slots = self._launch(
            calls.route(scores, experts, router.top_k, normalise=router.normalise, table=table)
        )
        rows, top = slots.shape
        each = self._pairs(pool, x, slots.reshape(-1), _rows_of_pairs(rows, top))
        control = Columns(scores, experts)
        own = self.times(self._shared(shared, x), shared.down)
        y, place = each.reshape(rows * top, -1), _places(rows * top)
        launch = calls.combine(y, place, weights, own, control, present(gain), wide)
        return self._launch(launch)[0], ids

    @override
    def resident(
        self,
        shared: SharedExpert[Matrix],
        x: Array,
        weights: Array,
        slots: Array,
        pool: Pool,
        target: tuple[Array, Array],
    ) -> Array:
        if not self._takes(pool.layout):
            return super().resident(shared, x, weights, slots, pool, target)
        rows, top = slots.shape
        each = self._pairs(pool, x, slots.reshape(-1), _rows_of_pairs(rows, top))
        return self._summed(shared, x, weights, each.reshape(rows, top, -1), target)

    @override
    def chosen(self, w: Head[Matrix, Array], wide: Array) -> Array:
        best, places = self._launch(calls.argmax(self.scored(w, wide)))
        return self._launch(calls.argmax(best, places))[1].reshape(-1)

    @override
    def _make_ready(self, block: Block[Matrix, Array]) -> None:
        for read in (block.mixer_read, block.moe_read):
            if read.inject is not None:
                self._stacks.of(read.down, read.inject)
        mixer = block.mixer
        if isinstance(mixer, DeltaNet):
            self._stacks.of(mixer.qkv, mixer.z, mixer.a, mixer.b)
        elif mixer.q_bias is None and mixer.k_bias is None and mixer.v_bias is None:
            self._stacks.of(mixer.q, mixer.k, mixer.v, mixer.index)
        self._stacks.of(block.router.gate, block.shared.switch)

    # products

    @override
    def times(self, x: Array, matrix: Matrix) -> Array:
        return self._many(x, matrix) if x.shape[0] > _FEW_ROWS else self._product(x, matrix)

    def _many(self, x: Array, matrix: Matrix) -> Array:
        """A product of many rows."""
        return super().times(x, matrix)

    def _product(self, x: Array, matrix: Matrix, act: Activation = IDENTITY) -> Array:
        """A product of few rows."""
        if not products.fits_affine(matrix):
            if reason := products.unfit(matrix):
                self._left("products", reason)
            out = self._many(x, matrix)
            if act.kind == 1:
                return layers.silu(out * act.scale)
            return 2 * layers.sigmoid(out * act.scale) if act.kind else out
        tiled = self._launch.tiles and tiles.fits_dense(matrix)
        multiply = tiles.product if tiled else products.product
        return self._few(x.shape[0], lambda rows: multiply(x[rows], matrix, act))

    def _side_by_side(self, x: Array, *matrices: Matrix) -> list[Columns]:
        """Products with several matrices, in one call where that can be."""
        whole = self._stacks.of(*matrices)
        if whole is None:
            return [Columns(self.times(x, matrix)) for matrix in matrices]
        made, starts = self.times(x, whole), np.cumsum([0, *(m.shape[0] for m in matrices[:-1])])
        return [Columns(made, int(start)) for start in starts]

    def _few(self, rows: int, made: Callable[[slice], Launch]) -> Array:
        """Rows, as many at a time as a kernel takes."""
        step = products.MOST_ROWS
        if rows <= step:
            return self._launch(made(slice(0, rows)))[0]
        starts = range(0, rows, step)
        return mx.concatenate([self._launch(made(slice(s, s + step)))[0] for s in starts])

    # attention

    def _append(
        self,
        w: SparseAttention[Matrix, Array],
        state: AttentionState[Array],
        new: tuple[Array, Array, Array],
        reach: Reach,
    ) -> None:
        """Put keys, values and raw index keys of new tokens into the cache, and finish the blocks that they complete."""
        keys, values, raw = new
        state.keys = layers.put(state.keys, keys, reach.position)
        state.values = layers.put(state.values, values, reach.position)
        state.index_keys = layers.put(state.index_keys, raw, reach.position)
        if reach.finished:
            (made,) = self._launch(
                calls.block_keys(w, state.index_keys, reach.first, reach.block_turn)
            )
            state.block_keys = layers.put(state.block_keys, made, reach.first)

    def _chosen(
        self,
        w: SparseAttention[Matrix, Array],
        state: AttentionState[Array],
        index: Columns,
        reach: Reach,
    ) -> Array:
        """The blocks that each row attends to, if there is a choice; else anything."""
        if not reach.blocks:
            return _nothing()
        (query,) = self._launch(
            calls.prepare_heads(
                index, w.index_q_norm, reach.turn, (w.index_heads, w.index_dim), w.eps
            )
        )
        cache = state.block_keys
        (found,) = self._launch(calls.scores(w, query, cache, reach.position, reach.blocks))
        return self._launch(calls.select(found, w.budget // w.block))[0]

    # experts

    @override
    def _gathering(self, ids: Ids, x: Array) -> Gathering:
        return _KernelGathering(self, ids, x)

    def _pairs(
        self, pool: Pool, x: Array, slots: Array, rows: Array, layout: ExpertLayout | None = None
    ) -> Array:
        """Rows `[P * TX]` of `x` through the experts in slots `[P]`, in records of this layout or the pool's: `[P * TX, D]`."""
        words, widths, layout = pool.words, pool.widths, layout or pool.layout
        if self._launch.tiles and tiles.fits_records(layout):
            (h,) = self._launch(tiles.expert_up(layout, words, slots, rows, x))
            return self._launch(tiles.expert_down(layout, words, slots, h))[0]
        (h,) = self._launch(products.expert_up(layout, words, widths, slots, rows, x))
        return self._launch(products.expert_down(layout, words, widths, slots, h))[0]

    @override
    def _summed(
        self,
        shared: SharedExpert[Matrix],
        x: Array,
        weights: Array,
        each: Array,
        target: tuple[Array, Array] | None,
    ) -> Array:
        if target is None:
            return super()._summed(shared, x, weights, each, target)
        rows, top, width = each.shape
        control = Columns(self.times(x, shared.switch))
        own = self.times(self._shared(shared, x), shared.down)
        y, place = each.reshape(rows * top, width), _places(rows * top)
        return self._launch(calls.combine(y, place, weights, own, control, target[1], target[0]))[0]

    def _shared(self, shared: SharedExpert[Matrix], x: Array) -> Array:
        """The shared expert's hidden activations `[R, Is]`."""
        gate, up = shared.gate, shared.up
        fits = gate.scales is not None and products.fits_affine(gate) and gate.bits == up.bits
        if x.shape[0] > _FEW_ROWS or not fits or gate.group != up.group:
            return layers.silu(self.times(x, gate)) * self.times(x, up)
        return self._few(x.shape[0], lambda rows: products.swiglu(x[rows], gate, up))

    def _takes(self, layout: ExpertLayout) -> bool:
        """Do kernels take experts in such records?"""
        fits = products.fits_records(layout)
        if not fits:
            self._left("experts", products.stored(layout.bits, layout.group))
        return fits

    def _left(self, operation: str, reason: str) -> None:
        """Say once that an operation is left to MLX."""
        if operation not in self._said:
            self._said.add(operation)
            text = f"backend {self.name}: {operation}: no kernel for {reason}; stock operations instead"
            warnings.warn(text, RuntimeWarning, stacklevel=3)


class _KernelGathering(Gathering):
    """Waves through kernels."""

    def __init__(self, ops: Fused, ids: Ids, x: Array) -> None:
        super().__init__(ids, x, exact=ops.exact)
        self._ops = ops

    @override
    def compute(self, pool: Pool, layout: ExpertLayout, rows: Ids, slots: Ids) -> Array:
        if not self._ops._takes(layout):
            return super().compute(pool, layout, rows, slots)
        if len(self._ids) <= _PAIR_ROWS:
            return self._ops._pairs(pool, self._x, mx.array(slots), mx.array(rows), layout)
        tiles, listed, places = _tiles(rows, slots)
        made = self._ops._pairs(pool, self._x, mx.array(tiles), mx.array(listed), layout)
        return made[mx.array(places)]


def _tiles(rows: Ids, slots: Ids) -> tuple[Ids, Ids, Ids]:
    """Pairs by slot, up to MOST_ROWS in a tile.

    Returns:
        The slot of each tile `[n]`, its rows `[n * MOST_ROWS]` (-1: none), and where each pair has gone `[P]`.
    """
    size = products.MOST_ROWS
    order = np.argsort(slots, kind="stable")
    sorted_slots = slots[order]
    starts = np.flatnonzero(np.diff(sorted_slots, prepend=-1))
    counts = np.diff(starts, append=len(order))
    each = -(-counts // size)  # tiles of a slot
    first = np.cumsum(each) - each
    within = np.arange(len(order)) - np.repeat(starts, counts)
    place = np.repeat(first * size, counts) + within
    listed = np.full(int(each.sum()) * size, -1, np.int32)
    listed[place] = rows[order]
    places = np.empty(len(order), np.int32)
    places[order] = place
    tiles = np.repeat(sorted_slots[starts], each).astype(np.int32)
    return tiles, listed, places


def _back(span: Span[Any], every: type[EveryDelta | EveryPle]) -> int:
    """Rows that a history has more afterwards, to be able to go back."""
    return span.stop - span.start - 1 if isinstance(span.state, every) else 0


@lru_cache(maxsize=64)
def _rows_of_pairs(rows: int, top: int) -> Array:
    return _made(np.repeat(np.arange(rows, dtype=np.int32), top))


@lru_cache(maxsize=64)
def _places(count: int) -> Array:
    return _made(np.arange(count, dtype=np.int32))


@lru_cache(maxsize=1)
def _nothing() -> Array:
    return _made(np.zeros(8, np.int32))


def _made(values: Ids) -> Array:
    made = mx.array(values)
    mx.eval(made)
    return made
