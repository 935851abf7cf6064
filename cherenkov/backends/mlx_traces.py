"""Parts of a layer that MLX traces once and runs again: building a call of a kernel costs the host more than running it.

What is traced depends on arrays alone. Attention, whose grids grow with the sequence, is traced once for lengths that have the
same grids (`mlx_reach`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx

from cherenkov.backends.fused import Fused
from cherenkov.backends.kernel_calls import fits_attention
from cherenkov.backends.mlx_back import EveryDelta, EveryPle, kept_of
from cherenkov.backends.mlx_steps import cache_of, delta_of, present
from cherenkov.backends.operands import AttentionState, DeltaNet, DeltaState, PleState, Span

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cherenkov.backends.mlx import Mlx
    from cherenkov.backends.mlx_matrices import Matrix, Pool
    from cherenkov.backends.operands import (
        Block,
        Embedding,
        GatedResidual,
        Head,
        Memory,
        Ple,
        Router,
        SharedExpert,
        SparseAttention,
    )

__all__ = ["Traces"]


class Traces:
    """Traced parts, by the weights and the number of rows that they were traced with."""

    def __init__(self) -> None:
        self._made: dict[tuple[object, ...], Callable[..., Any]] = {}

    def clear(self) -> None:
        """Forget them, and the weights that they hold."""
        self._made.clear()

    def embedded(self, ops: Mlx, w: Embedding[Matrix], tokens: mx.array) -> mx.array:
        """See `Table.embedded`."""

        def run(tokens: mx.array) -> tuple[mx.array, ...]:
            return (ops.embedded(w, tokens),)

        return self._call(("embed", id(w.table), tokens.shape), run, tokens)[0]

    def scored(self, ops: Mlx, w: Head[Matrix, mx.array], wide: mx.array) -> mx.array:
        """See `Table.scored`."""

        def run(wide: mx.array) -> tuple[mx.array, ...]:
            return (ops.scored(w, wide),)

        return self._call(("scored", id(w.mixer), wide.shape), run, wide)[0]

    def chosen(self, ops: Mlx, w: Head[Matrix, mx.array], wide: mx.array) -> mx.array:
        """See `Table.chosen`."""

        def run(wide: mx.array) -> tuple[mx.array, ...]:
            return (ops.chosen(w, wide),)

        return self._call(("chosen", id(w.mixer), wide.shape), run, wide)[0]

    def features(
        self,
        ops: Mlx,
        w: Ple[Matrix, mx.array],
        at: int,
        wide: mx.array,
        span: Span[Memory[mx.array]],
        features: mx.array,
    ) -> mx.array:
        """The residual with a layer's n-gram features."""
        state, kept, rows = span.state.ple[at], kept_of(span), wide.shape[0]

        def run(wide: mx.array, features: mx.array, history: mx.array) -> tuple[mx.array, ...]:
            inner = (EveryPle if kept is not None else PleState)(history)
            return ops.ple(w, wide, features, [Span(0, rows, 0, inner)]), inner.history

        key = ("ple", id(w), rows, kept is not None)
        wide, history = self._call(key, run, wide, features, state.history)
        if kept is not None:
            kept.add_ple(at, EveryPle(history), state)
        else:
            state.history = history
        return wide

    def mixed(
        self,
        ops: Mlx,
        block: Block[Matrix, mx.array],
        wide: mx.array,
        spans: Sequence[Span[Memory[mx.array]]],
    ) -> mx.array | None:
        """The residual after a mixer; None for several sequences, or if there is no kernel for it."""
        mixer = block.mixer
        if len(spans) != 1:
            return None
        if not isinstance(mixer, DeltaNet):
            return self._attended(ops, block, mixer, wide, spans[0])
        span, state = spans[0], delta_of(spans[0].state.layers[block.index])

        kept = kept_of(span)

        def run(wide: mx.array, history: mx.array, matrix: mx.array) -> tuple[mx.array, ...]:
            inner = (EveryDelta if kept is not None else DeltaState)(history, matrix)
            out = ops.mix_delta(block.mixer_read, mixer, wide, [Span(0, wide.shape[0], 0, inner)])
            return out, inner.history, inner.matrix

        key = ("delta", id(block), span.stop - span.start, kept is not None)
        wide, history, matrix = self._call(key, run, wide, state.history, state.matrix)
        if kept is not None:
            kept.add_delta(block.index, EveryDelta(history, matrix), state)
        else:
            state.history, state.matrix = history, matrix
        return wide

    def _attended(
        self,
        ops: Mlx,
        block: Block[Matrix, mx.array],
        mixer: SparseAttention[Matrix, mx.array],
        wide: mx.array,
        whole: Span[Memory[mx.array]],
    ) -> mx.array | None:
        if not isinstance(ops, Fused) or not fits_attention(mixer):
            return None
        state, rows = cache_of(whole.state.layers[block.index]), whole.stop - whole.start
        reach = ops.turns.reach(mixer, Span(0, rows, whole.position, state))

        def run(wide: mx.array, *arrays: mx.array) -> tuple[mx.array, ...]:
            keys, values, index, blocks = arrays[:4]
            inner = AttentionState(keys, values, index, blocks, block=state.block)
            span = Span(0, rows, 0, inner)
            x, gain = ops.read_residual(block.mixer_read, wide)
            made = ops.attended(mixer, x, [span], [reach.given(list(arrays[4:]))])
            out = ops.inject(wide, made, present(gain))
            return out, inner.keys, inner.values, inner.index_keys, inner.block_keys

        key = ("attention", id(block), rows, reach.key)
        caches = state.keys, state.values, state.index_keys, state.block_keys
        wide, *after = self._call(key, run, wide, *caches, *reach.arrays)
        state.keys, state.values, state.index_keys, state.block_keys = after
        state.length = whole.position + rows
        return wide

    def experts(
        self,
        ops: Mlx,
        block: Block[Matrix, mx.array],
        wide: mx.array,
        slots: mx.array,
        pool: Pool,
    ) -> tuple[mx.array, mx.array]:
        """The residual after a layer's experts, all in memory, and their ids; `slots` `[E]` says where each is."""

        def run(wide: mx.array, slots: mx.array) -> tuple[mx.array, ...]:
            return ops.all_here(block, wide, slots, pool)

        key = ("experts", id(block), wide.shape[0], id(pool))
        wide, ids = self._call(key, run, wide, slots)
        return wide, ids

    def routes(
        self,
        ops: Mlx,
        read: GatedResidual[Matrix, mx.array],
        router: Router[Matrix],
        wide: mx.array,
    ) -> tuple[mx.array, mx.array, mx.array, mx.array]:
        """What a layer's experts get, the gain of their results, ids and weights."""

        def run(wide: mx.array) -> tuple[mx.array, ...]:
            x, gain = ops.read_residual(read, wide)
            return x, present(gain), *ops.best(router, x)

        x, gain, ids, weights = self._call(("routes", id(router), wide.shape[0]), run, wide)
        return x, gain, ids, weights

    def resident(
        self,
        ops: Mlx,
        shared: SharedExpert[Matrix],
        x: mx.array,
        weights: mx.array,
        slots: mx.array,
        pool: Pool,
        target: tuple[mx.array, mx.array],
    ) -> mx.array:
        """See `Mlx.resident`."""

        def run(
            x: mx.array, weights: mx.array, slots: mx.array, wide: mx.array, gain: mx.array
        ) -> tuple[mx.array, ...]:
            return (ops.resident(shared, x, weights, slots, pool, (wide, gain)),)

        key = ("resident", id(shared), slots.shape, id(pool))
        return self._call(key, run, x, weights, slots, *target)[0]

    def _call(
        self,
        key: tuple[object, ...],
        function: Callable[..., tuple[mx.array, ...]],
        *arrays: mx.array,
    ) -> tuple[mx.array, ...]:
        if key not in self._made:
            self._made[key] = mx.compile(function)
        made: tuple[mx.array, ...] = self._made[key](*arrays)
        return made
