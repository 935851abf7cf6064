"""Routed experts in stock MLX operations, straight from the records of a pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np

from cherenkov.backends.mlx_layers import silu
from cherenkov.backends.mlx_matrices import Matrix, Pool, Records
from cherenkov.backends.operands import LEFT_OUT

if TYPE_CHECKING:
    from cherenkov.backends.operands import Ids
    from cherenkov.packing.layout import ExpertLayout

__all__ = ["Gathering", "feed_forward", "rows_through"]

_AT_ONCE = 32
"""Experts whose scales or matrices are copied at a time, where that is necessary."""


class Gathering:
    """Results of experts for rows `[R, D]`, put together from waves.

    Each pair of a row and an expert is computed by itself, so a wave's bits do not depend on what else is in it.

    Attributes:
        complete: every pair is here.
    """

    def __init__(self, ids: Ids, x: mx.array, *, exact: bool) -> None:
        self._ids, self._x, self._exact = ids, x, exact
        self._left = np.ones(ids.size, np.bool_)
        self._order: list[Ids] = []
        self._parts: list[mx.array] = []
        self.complete = False

    def take(self, pool: Pool, experts: Ids, slots: Ids) -> list[mx.array]:
        """Compute the pairs of a wave, and give what is not computed yet. What is left out counts as nothing."""
        flat = self._ids.ravel()
        sort = np.argsort(experts)
        found = np.searchsorted(experts, flat, sorter=sort).clip(max=len(experts) - 1)
        at = sort[found]
        pairs = np.flatnonzero((experts[at] == flat) & self._left).astype(np.int32)
        if not len(pairs):
            return []
        self._left[pairs] = False
        self.complete = not self._left.any()
        rows, slots, made = pairs // self._ids.shape[1], slots[at[pairs]], []
        for layout, those in _by_layout(pool, slots):
            if layout is None:
                made.append(mx.zeros((len(those), pool.layout.hidden), mx.float32))
            else:
                made.append(self.compute(pool, layout, rows[those], slots[those]))
            self._order.append(pairs[those])
        self._parts += made
        return made

    def compute(self, pool: Pool, layout: ExpertLayout, rows: Ids, slots: Ids) -> mx.array:
        """Rows, each through the expert in a slot, whose records have this layout: `[P, D]`."""
        return rows_through(pool, layout, self._x, rows, slots, exact=self._exact)

    def each(self) -> mx.array:
        """All results, `[R, K, D]`."""
        order = np.concatenate(self._order)
        joined = self._parts[0] if len(self._parts) == 1 else mx.concatenate(self._parts)
        if not np.array_equal(order, np.arange(len(order))):
            joined = joined[mx.array(np.argsort(order).astype(np.int32))]
        return joined.reshape(*self._ids.shape, -1)


def _by_layout(pool: Pool, slots: Ids) -> list[tuple[ExpertLayout | None, Ids]]:
    """Which of the slots hold records of a layout; None for what is left out."""
    every = np.arange(len(slots), dtype=np.int32)
    if pool.lower is None and slots.min() >= 0:
        return [(pool.layout, every)]
    out = slots == LEFT_OUT
    low = (pool.tags[np.where(out, 0, slots)] != 0) & (pool.lower is not None) & ~out
    kinds = ((pool.layout, ~low & ~out), (pool.lower, low), (None, out))
    return [(layout, every[which]) for layout, which in kinds if which.any()]


def rows_through(
    pool: Pool, layout: ExpertLayout, x: mx.array, rows: Ids, slots: Ids, *, exact: bool
) -> mx.array:
    """Rows of `x`, each through the expert in a slot, `[P, D]`; both known to the host."""
    records = Records.of(pool, layout)
    if not exact and layout.bits < 16 and _takes_views():
        chosen = x[mx.array(rows)][:, None]
        return _ffn(records, chosen, mx.array(slots), exact=False)[:, 0]
    distinct, local = np.unique(slots, return_inverse=True)
    parts, order = [], []
    for start in range(0, len(distinct), _AT_ONCE):
        mine = np.flatnonzero((local >= start) & (local < start + _AT_ONCE)).astype(np.int32)
        here = mx.array(distinct[start : start + _AT_ONCE])
        some = Records(*(_taken(m, here) for m in (records.gate, records.up, records.down)))
        chosen = x[mx.array(rows[mine])][:, None]
        index = mx.array((local[mine] - start).astype(np.int32))
        parts.append(_ffn(some, chosen, index, exact=exact)[:, 0])
        order.append(mine)
    if len(parts) == 1:
        return parts[0]
    back = np.argsort(np.concatenate(order)).astype(np.int32)
    return mx.concatenate(parts)[mx.array(back)]


def feed_forward(pool: Pool, x: mx.array, slots: mx.array, *, exact: bool) -> mx.array:
    """Few rows through the experts in `slots` `[R, K]`, which the host has not seen: `[R, K, D]`."""
    records, (count, top) = Records.of(pool), (slots.shape[0], slots.shape[1])
    flat = slots.reshape(-1)
    chosen = mx.repeat(x, top, axis=0)[:, None]  # [P, 1, D]
    if exact or pool.layout.bits >= 16 or not _takes_views():
        records = Records(*(_taken(m, flat) for m in (records.gate, records.up, records.down)))
        flat = mx.arange(count * top)
    return _ffn(records, chosen, flat, exact=exact).reshape(count, top, -1)


def _takes_views() -> bool:
    """`gather_qmm` multiplies by matrices that lie apart, as those in records do; on NVIDIA it refuses them."""
    return not mx.cuda.is_available()


def _ffn(records: Records, x: mx.array, index: mx.array, *, exact: bool) -> mx.array:
    hidden = silu(_through(x, records.gate, index, exact=exact))
    hidden = hidden * _through(x, records.up, index, exact=exact)
    return _through(hidden, records.down, index, exact=exact)


def _through(x: mx.array, stack: Matrix, index: mx.array, *, exact: bool) -> mx.array:
    """`x` `[P, 1, in]`, each times the matrix of the stack that `index` `[P]` names: `[P, 1, out]`."""
    each = mx.arange(x.shape[0])
    if stack.scales is None or stack.biases is None:
        matrices = mx.swapaxes(stack.codes.astype(mx.float32), -1, -2)
        return mx.gather_mm(x, matrices, each, index)
    kind = mx.float32 if exact else mx.bfloat16
    return mx.gather_qmm(
        x.astype(kind),
        stack.codes,
        stack.scales.astype(kind),
        stack.biases.astype(kind),
        each,
        index,
        transpose=True,
        group_size=stack.group,
        bits=stack.bits,
    ).astype(mx.float32)


def _taken(stack: Matrix, slots: mx.array) -> Matrix:
    """The matrices of some slots, copied."""
    return Matrix(
        stack.shape,
        stack.bits,
        stack.group,
        stack.codes[slots],
        None if stack.scales is None else stack.scales[slots],
        None if stack.biases is None else stack.biases[slots],
    )
