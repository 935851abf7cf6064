"""How kernels multiply by matrices of codes: dense ones, and those of experts in slots.

Letters as in `cherenkov.backends.base`; P is pairs of a row and an expert. Activations are float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from cherenkov.backends.kernel_catalogue import KERNELS
from cherenkov.backends.launches import Launch, dims, kind_of, numbers

if TYPE_CHECKING:
    import mlx.core as mx

    from cherenkov.backends.mlx_matrices import Matrix
    from cherenkov.backends.shaders import Template
    from cherenkov.packing.layout import ExpertLayout

__all__ = [
    "IDENTITY",
    "MOST_ROWS",
    "Activation",
    "Shape",
    "expert_down",
    "expert_up",
    "fits_affine",
    "fits_records",
    "product",
    "residual_mix",
    "rows_at_once",
    "stored",
    "swiglu",
    "unfit",
]

MOST_ROWS = 4
"""Rows that a product takes at a time."""
_WARP = 32
_CHUNK = 32
"""Codes that a lane takes at a step."""
_SIDE_BY_SIDE = 4
"""Simdgroups of a threadgroup."""
_WORDS_AHEAD = 40
"""Words of codes that a lane may hold while it waits."""
_TILES = (32, 96, 192)
"""Chunks of a row of activations that lie in threadgroup memory at a time."""
_SMALL, _LARGE = 4096, 32_768
"""Outputs from which on a lane takes two rows of a matrix, and four."""
_SMALLEST = 8
_WIDTHS = (2, 3, 4, 8)
_TWO23 = 0x4B000000
"""The bits of 2**23, as kernels are given them."""
_GROUPS = {32: 5, 64: 6}
"""Groups that there are kernels for, and their logarithms."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How a product is cut.

    Attributes:
        lanes: that share a row of a matrix.
        rows: of a matrix, that a lane takes.
        ahead: steps whose codes are read before they are used.
        side: simdgroups of a threadgroup.
        tile: chunks of a row of activations in threadgroup memory.
    """

    lanes: int
    rows: int
    ahead: int
    side: int
    tile: int

    @property
    def threads(self) -> tuple[int, int, int]:
        """Of a threadgroup."""
        return _WARP, self.side, 1

    def grid(self, out: int, depth: int = 1) -> tuple[int, int, int]:
        """For so many outputs, `depth` times."""
        groups = -(-out // (self.rows * (_WARP // self.lanes)))
        return _WARP, -(-groups // self.side) * self.side, depth

    @property
    def template(self) -> Template:
        """Its part of a kernel's template."""
        return (
            ("ROWS", self.rows),
            ("LANES", self.lanes),
            ("AHEAD", self.ahead),
            ("TILE", self.tile),
            ("SG", self.side),
        )


class Activation(NamedTuple):
    """What a product goes through on its way out (`activations.h`): outputs from `split` on through another, if there is one."""

    kind: int = 0
    scale: float = 1.0
    other: int = 0
    split: int | None = None

    def operands(self, *sizes: int, out: int) -> list[mx.array]:
        """A kernel's `params` and `dims`, of which `split` comes last."""
        split = out if self.split is None else self.split
        return [numbers(self.kind, self.scale, self.other), dims(*sizes, split)]


IDENTITY = Activation()


def shape_of(
    bits: int, matrix: tuple[int, int], many: int, *, sets: int = 1, pairs: int = 1, rows: int = 0
) -> Shape:
    """How a product is cut best.

    Where there are few outputs, each step waits for memory, and much is read ahead; where there are many, other simdgroups
    run meanwhile, and a lane that takes several rows reads activations less often. Measured on an H200.

    Args:
        bits: of a code.
        matrix: its rows and columns.
        many: rows of activations.
        sets: matrices that are read together.
        pairs: how often such a product is made.
        rows: of the matrix that a lane takes, if that is given.
    """
    out, columns = matrix
    chunks, work = columns // _CHUNK, out * pairs
    lanes = 8 if out >= _LARGE and chunks % 8 == 0 else _lanes(chunks)
    side, ahead = _SIDE_BY_SIDE, 5
    if work >= _SMALL:
        each, ahead = (4, 1) if work >= _LARGE else (2, 3 - sets)
    else:
        each, side = 1, _SIDE_BY_SIDE * (3 - sets)
    if many > 1:
        each, ahead = min(each, 2), 1
    while each * (_WARP // lanes) > out and each > 1:
        each //= 2
    rows = rows or each
    tile = _TILES[0] if many > 1 else next((t for t in _TILES if t >= chunks), _TILES[-1])
    steps = -(-chunks // lanes)
    most = min(steps, ahead, max(1, _WORDS_AHEAD // (rows * sets * bits)))
    most = -(-steps // -(-steps // most))  # alike in every round
    ahead = next(n for n in range(most, 0, -1) if chunks <= tile or tile // lanes % n == 0)
    return Shape(lanes, rows, ahead, side, tile)


def _lanes(chunks: int) -> int:
    """As many as have the same to do, or, where that is one, as many as have something to do."""
    powers = [n for n in (32, 16, 8, 4, 2) if n <= chunks]
    return next((n for n in powers if chunks % n == 0), powers[0] if powers else 1)


def rows_at_once(rows: int) -> int:
    """Rows of activations that a kernel is made for."""
    return 1 if rows == 1 else MOST_ROWS


# --- dense --------------------------------------------------------------------------------------------------------


def fits_affine(matrix: Matrix) -> bool:
    """Is there a kernel for products with this matrix?"""
    if matrix.scales is None:
        return matrix.shape[1] % 4 == 0
    return matrix.bits in _WIDTHS and matrix.group in _GROUPS and matrix.scales.size >= _SMALLEST


def unfit(matrix: Matrix) -> str:
    """What about this matrix no kernel takes; nothing if one does, or if it is left to MLX for being tiny."""
    if matrix.scales is None:
        return "" if fits_affine(matrix) else f"{matrix.shape[1]} columns of values"
    known = matrix.bits in _WIDTHS and matrix.group in _GROUPS
    return "" if known else stored(matrix.bits, matrix.group)


def stored(bits: int, group: int) -> str:
    """How values are stored, in words."""
    return f"{bits} bits in groups of {group}" if bits < 16 else f"{bits} bits a value"


def product(x: mx.array, matrix: Matrix, act: Activation = IDENTITY) -> Launch:
    """`x` `[R, in]`, at most MOST_ROWS rows, times a matrix, through an activation."""
    (out, columns), rows = matrix.shape, x.shape[0]
    outputs, many = [("float32", (rows, out))], rows_at_once(rows)
    if matrix.scales is None or matrix.biases is None:
        template: Template = (("T", kind_of(matrix.codes)), ("TX", many))
        grid = (_WARP, -(-out // _SIDE_BY_SIDE) * _SIDE_BY_SIDE, 1)
        inputs = [matrix.codes, x, *act.operands(rows, columns, out, out=out)]
        threads = (_WARP, _SIDE_BY_SIDE, 1)
        return Launch(KERNELS["value_gemv"], inputs, outputs, grid, threads, template)
    shape = shape_of(matrix.bits, (out, columns), many)
    template = (("BITS", matrix.bits), *shape.template, ("TX", many))
    inputs = [matrix.codes, matrix.scales, matrix.biases, x]
    inputs += act.operands(rows, columns, out, _GROUPS[matrix.group], _TWO23, out=out)
    grid = shape.grid(out)
    return Launch(KERNELS["affine_gemv"], inputs, outputs, grid, shape.threads, template)


def swiglu(x: mx.array, gate: Matrix, up: Matrix) -> Launch:
    """silu(gate . x) * (up . x) `[R, out]`, of two matrices of codes alike."""
    assert gate.scales is not None
    assert gate.biases is not None
    assert up.scales is not None
    assert up.biases is not None
    (out, columns), rows = gate.shape, x.shape[0]
    shape = shape_of(gate.bits, (out, columns), rows_at_once(rows), sets=2)
    template = (("BITS", gate.bits), *shape.template, ("TX", rows_at_once(rows)))
    sizes = dims(rows, columns, out, _GROUPS[gate.group], _TWO23)
    inputs = [gate.codes, gate.scales, gate.biases, up.codes, up.scales, up.biases, x, sizes]
    outputs, grid = [("float32", (rows, out))], shape.grid(out)
    return Launch(KERNELS["affine_swiglu"], inputs, outputs, grid, shape.threads, template)


def residual_mix(low: mx.array, up: Matrix, normed: mx.array, streams: int) -> Launch:
    """The mean over streams of sigmoid(up . low) * normed: `[R, D]`. Of `low` the first columns count; it has a multiple of four."""
    assert up.scales is not None
    assert up.biases is not None
    rows, width = low.shape[0], up.shape[0] // streams
    shape = shape_of(up.bits, (width, up.shape[1]), rows_at_once(rows), rows=streams)
    template = (
        ("BITS", up.bits),
        ("S", streams),
        *(pair for pair in shape.template if pair[0] != "ROWS"),
        ("TX", rows_at_once(rows)),
    )
    sizes = dims(rows, up.shape[1], width, _GROUPS[up.group], _TWO23, low.shape[1])
    inputs = [up.codes, up.scales, up.biases, low, normed, sizes]
    one = Shape(shape.lanes, 1, shape.ahead, shape.side, shape.tile)
    outputs, grid = [("float32", (rows, width))], one.grid(width)
    return Launch(KERNELS["residual_mix"], inputs, outputs, grid, shape.threads, template)


# --- experts ------------------------------------------------------------------------------------------------------


def fits_records(layout: ExpertLayout) -> bool:
    """Is there a kernel for experts in such records?"""
    return layout.bits in _WIDTHS and layout.group in _GROUPS


def expert_up(
    layout: ExpertLayout,
    pool: mx.array,
    tags: mx.array,
    slots: mx.array,
    rows: mx.array,
    x: mx.array,
    *,
    mixed: bool = False,
) -> Launch:
    """Gate and up of experts in slots.

    Args:
        layout: of the records; of any of them, if `mixed`.
        pool: uint32 `[slots, words]`.
        tags: int32 `[slots]`: bits of the codes in each, if `mixed`.
        slots: int32 `[P]`.
        rows: int32 `[P * TX]`: which rows of `x` go through each; below 0 for none.
        x: `[R, D]`.
        mixed: records differ in the width of their codes.
    """
    many = rows.size // slots.size
    return _expert(layout, [pool, tags, slots, rows, x], "expert_up", many, mixed=mixed)


def expert_down(
    layout: ExpertLayout,
    pool: mx.array,
    tags: mx.array,
    slots: mx.array,
    h: mx.array,
    *,
    mixed: bool = False,
) -> Launch:
    """Down of experts in slots: `h` `[P * TX, inter]` to `[P * TX, D]`. As `expert_up`."""
    many = h.shape[0] // slots.size
    return _expert(layout, [pool, tags, slots, h], "expert_down", many, mixed=mixed)


def _expert(
    layout: ExpertLayout, inputs: list[mx.array], name: str, many: int, *, mixed: bool
) -> Launch:
    first = name == "expert_up"
    out, columns = (layout.inter, layout.hidden) if first else (layout.hidden, layout.inter)
    pairs = inputs[2].size
    bits = max(_WIDTHS) if mixed else layout.bits  # what is read ahead at any width fits
    shape = shape_of(bits, (out, columns), many, sets=1 + first, pairs=pairs)
    template = (("WIDTH", 0 if mixed else layout.bits), *shape.template, ("TX", many))
    sizes = dims(inputs[0].shape[1], columns, out, _GROUPS[layout.group], _TWO23)
    outputs = [("float32", (pairs * many, out))]
    grid = shape.grid(out, pairs)
    return Launch(KERNELS[name], [*inputs, sizes], outputs, grid, shape.threads, template)
