"""How kernels multiply by matrices of codes on matrix units (`kernels/metal/tiles.h`): dense ones, and those of experts in slots.

Letters as in `cherenkov.backends.base`; P is pairs of a row and an expert. Activations are float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cherenkov.backends.kernel_catalogue import KERNELS
from cherenkov.backends.launches import Launch, dims
from cherenkov.backends.product_calls import IDENTITY, Activation, rows_at_once

if TYPE_CHECKING:
    import mlx.core as mx

    from cherenkov.backends.mlx_matrices import Matrix
    from cherenkov.backends.shaders import Template
    from cherenkov.packing.layout import ExpertLayout

__all__ = [
    "Tiling",
    "expert_down",
    "expert_up",
    "fits_dense",
    "fits_records",
    "product",
    "tiling_of",
]

_WARP = 32
_ROWS = 16
"""Rows of a tile."""
_WIDTHS = (2, 4, 8)
_GROUP = 64
_STEP = 128
"""Columns that a simdgroup takes at a step."""
_STEP_BYTES = 528
"""Threadgroup memory that a row's activations of a step take."""
_BYTES = 25_600
"""Threadgroup memory for activations."""
_SHORT = 8
"""Steps up to which a simdgroup takes all of a row; of more, several share it, each with at least four."""
_FEWEST, _MANY, _LARGE = 1024, 8192, 32_768
"""Outputs of a dense matrix from which on this is used, from which on there are enough for two tiles a simdgroup, and from which
on there are enough for simdgroups that take a whole row each."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a product is cut.

    Attributes:
        tiles: of 16 rows, that a simdgroup takes.
        split: simdgroups that share the columns of a row.
        span: steps that each of them takes in turn.
        ahead: steps whose codes are read before they are used.
        side: how many such sets of simdgroups a threadgroup has.
    """

    tiles: int
    split: int
    span: int
    ahead: int
    side: int

    @property
    def threads(self) -> tuple[int, int, int]:
        """Of a threadgroup."""
        return _WARP, self.split * self.side, 1

    def grid(self, out: int, depth: int = 1) -> tuple[int, int, int]:
        """For so many outputs, `depth` times."""
        groups = -(-out // (_ROWS * self.tiles * self.side))
        return _WARP, groups * self.side * self.split, depth

    def template(self, bits: int, columns: int, many: int) -> Template:
        """A kernel's template."""
        steps = columns // _STEP
        unit = self.split * (self.span if self.span > 1 else self.ahead)
        room = max(1, _BYTES // (_STEP_BYTES * many) // unit)
        return (
            ("BITS", bits),
            ("TILES", self.tiles),
            ("KSPLIT", self.split),
            ("SPAN", self.span),
            ("ONCE", unit >= steps),
            ("AHEAD", self.ahead),
            ("BRING", unit * min(room, -(-steps // unit))),
            ("SG", self.split * self.side),
            ("TX", many),
        )


def tiling_of(matrix: tuple[int, int], *, sets: int = 1) -> Tiling:
    """How a product is cut best. Measured on an H200.

    It must not depend on how many rows of activations there are: who adds what decides the bits.

    Args:
        matrix: its rows and columns.
        sets: matrices that are read together.
    """
    out, columns = matrix
    steps = columns // _STEP
    if out >= _LARGE:
        return Tiling(1, 1, 2, 2, 8) if steps % 2 == 0 else Tiling(1, 1, 1, 2, 8)
    if steps <= _SHORT:
        return Tiling(1, 1, 1, 1, 4)
    split = next((n for n in (12, 8, 4, 5, 6, 3, 2) if steps % n == 0 and steps >= 4 * n), 1)
    tiles = 2 if out >= _MANY else 1
    return Tiling(tiles, split, 1, 1, 2 if tiles == 2 or sets == 2 else 1)


def fits_dense(matrix: Matrix) -> bool:
    """Is a dense matrix best multiplied by on matrix units?"""
    return matrix.shape[0] >= _FEWEST and _fits(matrix.bits, matrix.group, matrix.shape[1])


def fits_records(layout: ExpertLayout) -> bool:
    """Are experts in such records?"""
    return all(_fits(layout.bits, layout.group, n) for n in (layout.hidden, layout.inter))


def _fits(bits: int, group: int, columns: int) -> bool:
    return bits in _WIDTHS and group == _GROUP and columns % _STEP == 0


def product(
    x: mx.array, matrix: Matrix, act: Activation = IDENTITY, tiling: Tiling | None = None
) -> Launch:
    """As `product_calls.product`; cut as told, or else as is best."""
    assert matrix.scales is not None
    assert matrix.biases is not None
    rows, (out, columns) = x.shape[0], matrix.shape
    tiling = tiling or tiling_of(matrix.shape)
    inputs = [matrix.codes, matrix.scales, matrix.biases, x]
    inputs += act.operands(rows, columns, out, out=out)
    outputs, grid = [("float32", (rows, out))], tiling.grid(out)
    template = tiling.template(matrix.bits, columns, rows_at_once(rows))
    return Launch(KERNELS["tile_gemv"], inputs, outputs, grid, tiling.threads, template)


def expert_up(
    layout: ExpertLayout, pool: mx.array, slots: mx.array, rows: mx.array, x: mx.array
) -> Launch:
    """As `product_calls.expert_up`, of records that all have this layout."""
    return _expert(layout, [pool, slots, rows, x], "tile_up", rows.size // slots.size)


def expert_down(layout: ExpertLayout, pool: mx.array, slots: mx.array, h: mx.array) -> Launch:
    """As `product_calls.expert_down`, of records that all have this layout."""
    return _expert(layout, [pool, slots, h], "tile_down", h.shape[0] // slots.size)


def _expert(layout: ExpertLayout, inputs: list[mx.array], name: str, many: int) -> Launch:
    first = name == "tile_up"
    out, columns = (layout.inter, layout.hidden) if first else (layout.hidden, layout.inter)
    pairs = inputs[1].size
    tiling = tiling_of((out, columns), sets=1 + first)
    sizes = dims(inputs[0].shape[1], columns, out)
    outputs = [("float32", (pairs * many, out))]
    grid, template = tiling.grid(out, pairs), tiling.template(layout.bits, columns, many)
    return Launch(KERNELS[name], [*inputs, sizes], outputs, grid, tiling.threads, template)
