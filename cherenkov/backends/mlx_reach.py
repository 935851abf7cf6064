"""How far the attention of some rows reaches: what depends on the position, apart from the arithmetic that does not.

What a trace depends on are numbers that stay the same for many tokens; what changes with each token is in arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import mlx.core as mx

from cherenkov.backends import kernel_calls as calls
from cherenkov.backends import mlx_layers as layers
from cherenkov.backends.launches import place

if TYPE_CHECKING:
    from collections.abc import Callable

    from cherenkov.backends.mlx_matrices import Matrix
    from cherenkov.backends.operands import AttentionState, Span, SparseAttention

__all__ = ["Reach", "Turns"]

_FIRST_TURNS = 4096

Turn = tuple[mx.array, mx.array]


@dataclass(frozen=True, slots=True)
class Reach:
    """Where rows stand.

    Attributes:
        parts: into which attention is cut.
        blocks: index blocks that are scored; 0 if all are attended to.
        finished: index blocks that the rows complete.
        position: int32 `[8]`: of the first row, first.
        first: as `position`: the first block that is completed.
        turn: cosines and sines of the rows.
        block_turn: those of the blocks.
    """

    parts: int
    blocks: int
    finished: int
    position: mx.array
    first: mx.array
    turn: Turn
    block_turn: Turn

    @property
    def key(self) -> tuple[int, int, int]:
        """What a trace depends on."""
        return self.parts, self.blocks, self.finished

    @property
    def arrays(self) -> list[mx.array]:
        """What it is given."""
        return [self.position, self.first, *self.turn, *self.block_turn]

    def given(self, arrays: list[mx.array]) -> Reach:
        """The same, with such arrays in place of its own."""
        position, first, cosine, sine, block_cosine, block_sine = arrays
        turn, block_turn = (cosine, sine), (block_cosine, block_sine)
        return Reach(self.parts, self.blocks, self.finished, position, first, turn, block_turn)


class Turns:
    """Cosines and sines of every position, kept on the device.

    Args:
        kept: puts an array where kernels read it best.
    """

    def __init__(self, kept: Callable[[mx.array], mx.array]) -> None:
        self._kept = kept
        self._tables: dict[tuple[float, int], Turn] = {}
        self._last: tuple[tuple[object, ...], Reach] | None = None

    def reach(
        self, w: SparseAttention[Matrix, mx.array], span: Span[AttentionState[mx.array]]
    ) -> Reach:
        """Of a span's rows. Layers that are alike share it."""
        start, count = span.position, span.stop - span.start
        room = span.state.block_keys.shape[0]
        same = (start, count, room, w.theta, w.rotary_dim, w.block, w.budget)
        if self._last is not None and self._last[0] == same:
            return self._last[1]
        stop = start + count
        parts, blocks = calls.reach_of(w, stop, room)
        first, last = start // w.block, stop // w.block
        cosine, sine = self._table(w, stop)
        finished = slice(first * w.block, max(last, first + 1) * w.block, w.block)
        reach = Reach(
            parts,
            blocks,
            last - first,
            place(start),
            place(first),
            (cosine[start:stop], sine[start:stop]),
            (cosine[finished], sine[finished]),
        )
        self._last = (same, reach)
        return reach

    def _table(self, w: SparseAttention[Matrix, mx.array], stop: int) -> Turn:
        key = (w.theta, w.rotary_dim)
        table = self._tables.get(key)
        if table is None or table[0].shape[0] < stop + w.block:
            size = _FIRST_TURNS
            while size < stop + w.block:
                size *= 2
            cosine, sine = layers.turns(w, 0, size)
            table = self._tables[key] = (self._kept(cosine), self._kept(sine))
        return table
