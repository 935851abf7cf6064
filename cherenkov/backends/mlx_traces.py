"""Parts of a layer that MLX traces once and runs again: building a call of a kernel costs the host more than running it.

Only what depends on arrays alone can be traced: not attention, whose grids grow with the sequence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx

from cherenkov.backends.mlx_steps import delta_of, present
from cherenkov.backends.operands import DeltaNet, DeltaState, Span

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cherenkov.backends.mlx import Mlx
    from cherenkov.backends.mlx_matrices import Matrix, Pool
    from cherenkov.backends.operands import Block, Memory

__all__ = ["Traces"]


class Traces:
    """Traced parts, by the weights and the number of rows that they were traced with."""

    def __init__(self) -> None:
        self._made: dict[tuple[object, ...], Callable[..., Any]] = {}

    def clear(self) -> None:
        """Forget them, and the weights that they hold."""
        self._made.clear()

    def mixed(
        self,
        ops: Mlx,
        block: Block[Matrix, mx.array],
        wide: mx.array,
        spans: Sequence[Span[Memory[mx.array]]],
    ) -> mx.array | None:
        """The residual after a DeltaNet; None if the block is not that alone, or for several sequences."""
        mixer = block.mixer
        if block.ple is not None or len(spans) != 1 or not isinstance(mixer, DeltaNet):
            return None
        span, state = spans[0], delta_of(spans[0].state.layers[block.index])

        def run(wide: mx.array, history: mx.array, matrix: mx.array) -> tuple[mx.array, ...]:
            inner = DeltaState(history, matrix)
            out = ops.mix_delta(block.mixer_read, mixer, wide, [Span(0, wide.shape[0], 0, inner)])
            return out, inner.history, inner.matrix

        key = ("delta", id(block), span.stop - span.start)
        wide, state.history, state.matrix = self._call(key, run, wide, state.history, state.matrix)
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
            x, gain = ops.read_residual(block.moe_read, wide)
            ids, weights = ops.best(block.router, x)
            target = (wide, present(gain))
            return ops.resident(block.shared, x, (ids, weights), slots[ids], pool, target), ids

        key = ("experts", id(block), wide.shape[0], id(pool))
        wide, ids = self._call(key, run, wide, slots)
        return wide, ids

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
