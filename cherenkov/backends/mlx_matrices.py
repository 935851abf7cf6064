"""Matrices as MLX arrays: dense ones, and those inside the records of a pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np

from cherenkov.backends.operands import ExpertPool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cherenkov.checkpoint.affine import HostMatrix
    from cherenkov.packing.layout import ExpertLayout

__all__ = ["Matrix", "Pool", "Records", "Stacks", "place", "rows_of", "times"]

_VALUES = 16
"""From so many bits on, a matrix is of values and not of codes."""


@dataclass(eq=False, slots=True)
class Matrix:
    """A matrix `[out, in]`, or a stack of them `[n, out, in]`.

    Attributes:
        codes: uint32 `[..., out, in * bits / 32]`, or BF16 or float32 values `[..., out, in]`.
        scales: BF16 `[..., out, in / group]`; None for values.
        biases: as `scales`.
    """

    shape: tuple[int, int]
    bits: int
    group: int
    codes: mx.array
    scales: mx.array | None = None
    biases: mx.array | None = None


def place(host: HostMatrix) -> Matrix:
    """A copy of a host matrix."""
    if host.scales is None or host.biases is None:
        values = mx.array(host.codes)
        return Matrix(host.shape, host.bits, 0, _bf16(values) if host.bits == _VALUES else values)
    return Matrix(
        host.shape,
        host.bits,
        host.group,
        mx.array(host.codes),
        _bf16(mx.array(host.scales)),
        _bf16(mx.array(host.biases)),
    )


def times(x: mx.array, matrix: Matrix, *, exact: bool = True) -> mx.array:
    """`x` `[..., R, in]` float32 times a matrix, transposed: `[..., R, out]` float32.

    Args:
        x: a stack of as many as the matrix is, or one.
        matrix: a matrix or a stack.
        exact: multiply in float32, else in BF16.
    """
    if matrix.scales is None or matrix.biases is None:
        return x @ mx.swapaxes(matrix.codes.astype(mx.float32), -1, -2)
    if matrix.group == matrix.shape[1]:  # MLX 0.32.4 gives noise for several rows on Hopper
        return x @ mx.swapaxes(_values_of(matrix), -1, -2)
    kind = mx.float32 if exact else mx.bfloat16
    out: mx.array = mx.quantized_matmul(
        x.astype(kind),
        matrix.codes,
        matrix.scales.astype(kind),
        matrix.biases.astype(kind),
        transpose=True,
        group_size=matrix.group,
        bits=matrix.bits,
    )
    return out.astype(mx.float32)


class Stacks:
    """Matrices that are multiplied by the same rows, one below the other, so that one call makes all their products.

    They become views of what holds them all: nothing is in memory twice.
    """

    def __init__(self) -> None:
        self._made: dict[int, tuple[tuple[Matrix, ...], Matrix | None]] = {}

    def clear(self) -> None:
        """Forget them."""
        self._made.clear()

    def of(self, *parts: Matrix) -> Matrix | None:
        """All of them in one; None if they are not stored alike. The first time, memory is moved."""
        known = self._made.get(id(parts[0]))
        if known is None:
            first = parts[0]
            alike = all(_kind(part) == _kind(first) for part in parts)
            known = self._made[id(first)] = (parts, _stacked(parts) if alike else None)
        return known[1]


def _kind(matrix: Matrix) -> tuple[int, int, int, bool]:
    return matrix.shape[1], matrix.bits, matrix.group, matrix.scales is None


def _stacked(parts: Sequence[Matrix]) -> Matrix:
    codes = mx.concatenate([part.codes for part in parts])
    scales = [part.scales for part in parts if part.scales is not None]
    biases = [part.biases for part in parts if part.biases is not None]
    whole = Matrix(
        (codes.shape[0], parts[0].shape[1]),
        parts[0].bits,
        parts[0].group,
        codes,
        mx.concatenate(scales) if scales else None,
        mx.concatenate(biases) if biases else None,
    )
    start = 0
    for part in parts:
        own = slice(start, start + part.shape[0])
        part.codes, start = codes[own], own.stop
        if whole.scales is not None and whole.biases is not None:
            part.scales, part.biases = whole.scales[own], whole.biases[own]
    made = [whole, *parts]
    mx.eval([a for m in made for a in (m.codes, m.scales, m.biases) if a is not None])
    return whole


def rows_of(matrix: Matrix, ids: mx.array) -> mx.array:
    """Rows of a matrix, float32 `[R, in]`."""
    if matrix.scales is None or matrix.biases is None:
        return matrix.codes[ids].astype(mx.float32)
    return mx.dequantize(
        matrix.codes[ids],
        matrix.scales[ids].astype(mx.float32),
        matrix.biases[ids].astype(mx.float32),
        group_size=matrix.group,
        bits=matrix.bits,
    ).astype(mx.float32)


def _values_of(matrix: Matrix) -> mx.array:
    """A matrix of codes in float32."""
    assert matrix.scales is not None
    assert matrix.biases is not None
    return mx.dequantize(
        matrix.codes,
        matrix.scales.astype(mx.float32),
        matrix.biases.astype(mx.float32),
        group_size=matrix.group,
        bits=matrix.bits,
    )


class Pool(ExpertPool):
    """Records in one MLX array, which reader threads fill through its memory.

    No operation ever writes to the array: that would put another buffer into its place while readers still write to
    the old one.

    Attributes:
        words: uint32 `[slots, stride / 4]`, which `memory` is a view of.
        widths: int32 `[slots]`: bits of the codes in each.
    """

    def __init__(self, layout: ExpertLayout, slots: int) -> None:
        words = mx.zeros((slots, layout.stride_bytes // 4), mx.uint32)
        widths = mx.full((max(slots, 8),), layout.bits, mx.int32)
        mx.eval(words, widths)
        self.words, self.widths = words, widths
        super().__init__(layout, np.array(words, copy=False).view(np.uint8))


@dataclass(frozen=True, slots=True)
class Records:
    """The three matrices of every record of a pool, each a stack over the slots, without a copy."""

    gate: Matrix
    up: Matrix
    down: Matrix

    @classmethod
    def of(cls, pool: Pool, layout: ExpertLayout | None = None) -> Records:
        """Views into a pool, of slots whose records have this layout, or the pool's."""
        layout = layout or pool.layout
        wide = (layout.inter, layout.hidden)
        return cls(
            _stack(pool, layout, "gate", wide),
            _stack(pool, layout, "up", wide),
            _stack(pool, layout, "down", (layout.hidden, layout.inter)),
        )


def _stack(pool: Pool, layout: ExpertLayout, name: str, shape: tuple[int, int]) -> Matrix:
    offsets = layout.offsets()
    start = offsets[f"{name}_w"]
    if layout.bits == _VALUES:
        halves = pool.words.view(mx.bfloat16)  # of the whole, which is contiguous
        part = halves[:, start // 2 : start // 2 + shape[0] * shape[1]]
        return Matrix(shape, _VALUES, 0, part.reshape(-1, *shape))

    def words(key: str, size: int) -> mx.array:
        begin = offsets[f"{name}_{key}"]
        return pool.words[:, begin // 4 : (begin + size) // 4]

    def numbers(key: str) -> mx.array:
        part = words(key, layout.scales_bytes).view(mx.bfloat16)
        return part.reshape(pool.slots, shape[0], -1)

    codes = words("w", layout.codes_bytes).reshape(pool.slots, shape[0], -1)
    return Matrix(shape, layout.bits, layout.group, codes, numbers("s"), numbers("b"))


def _bf16(halves: mx.array) -> mx.array:
    return halves.view(mx.bfloat16)
