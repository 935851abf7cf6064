"""Matrices as checkpoints hold them: plain or affine, whole, stacked by expert, or cut into row shards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cherenkov.checkpoint.affine import WIDTHS, HostMatrix
from cherenkov.checkpoint.names import expert_name, shard_name
from cherenkov.errors import CorruptModel, UnsupportedModel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from cherenkov.checkpoint.inventory import ExpertSpec, NgramSpec
    from cherenkov.checkpoint.shards import Stored, TensorTable

__all__ = [
    "Block",
    "Expert",
    "StoredExperts",
    "StoredMatrix",
    "StoredTable",
    "describe_formats",
    "find_experts",
    "find_matrix",
    "find_table",
    "nonfinite_row",
]

GROUPS = (8, 16, 32, 64)
"""Group sizes that can be read; matrices come in groups of 32 or 64, n-gram rows in any of these."""
_EXPONENT = np.uint16(0x7F80)


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """A matrix `[rows, width]` in a checkpoint; leading dimensions, if any, count as rows.

    Attributes:
        weight: codes, or BF16 values.
        scales: and `biases`: of affine codes, or None.
        bits: of a code; 16 for values.
        group: weights per scale; 0 for values.
    """

    weight: Stored
    scales: Stored | None
    biases: Stored | None
    rows: int
    width: int
    bits: int
    group: int

    def read(self, start: int, stop: int) -> HostMatrix:
        """Rows `start:stop`."""
        shape = (stop - start, self.width)
        if self.scales is None or self.biases is None:
            return HostMatrix(shape, 16, 0, self.weight.rows(start, stop))
        parts = (part.rows(start, stop) for part in (self.weight, self.scales, self.biases))
        return HostMatrix(shape, self.bits, self.group, *parts)


@dataclass(frozen=True, slots=True)
class Block:
    """Where one expert's matrix lies: rows of a stored matrix from `start` on."""

    matrix: StoredMatrix
    start: int
    rows: int

    def read(self) -> HostMatrix:
        """The matrix."""
        return self.matrix.read(self.start, self.start + self.rows)


Expert = tuple[Block, Block, Block]
"""One expert's gate, up and down matrix."""


@dataclass(frozen=True, slots=True)
class StoredExperts:
    """The routed experts of one layer, and every (bits, group) they come in."""

    prefix: str
    blocks: tuple[Expert, ...]
    formats: frozenset[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class StoredTable:
    """An n-gram table as row shards of equal height."""

    prefix: str
    shards: tuple[StoredMatrix, ...]

    @property
    def bits(self) -> int:
        """Bits of a code; 16 for values."""
        return self.shards[0].bits

    @property
    def group(self) -> int:
        """Weights per scale; 0 for values."""
        return self.shards[0].group

    def read(self, start: int, stop: int) -> HostMatrix:
        """Rows `start:stop` of the whole table."""
        height = self.shards[0].rows
        parts = []
        row = start
        while row < stop:
            index, inside = divmod(row, height)
            end = min(height, inside + stop - row)
            parts.append(self.shards[index].read(inside, end))
            row += end - inside
        return parts[0] if len(parts) == 1 else _stack(parts)


def nonfinite_row(matrix: HostMatrix) -> int | None:
    """The first row with a NaN or an infinity among its values, scales or biases; None if there is none."""
    found = []
    for part in (matrix.codes, matrix.scales, matrix.biases):
        if part is None or part.dtype == np.uint32:
            continue
        good = _finite(part)
        if not good.all():
            found.append(int(np.argmin(good.all(axis=1))))
    return min(found, default=None)


def find_matrix(
    tensors: TensorTable, name: str, shape: tuple[int, ...], *, suffix: str = ".weight"
) -> StoredMatrix:
    """The matrix `name`, checked: `shape` is that of its values, the last side being the width.

    Raises:
        CorruptModel: if it is absent or has another shape.
        UnsupportedModel: if it comes in a type or quantisation that is not read.
    """
    weight = tensors.need(name + suffix)
    width = shape[-1]
    rows = int(np.prod(shape[:-1], dtype=np.int64))
    scales, biases = tensors.get(name + ".scales"), tensors.get(name + ".biases")
    if scales is None:
        if weight.dtype != "BF16":
            raise UnsupportedModel(
                f"{weight.file.path}: {weight.name} is stored as {weight.dtype}",
                known="BF16, or MLX affine codes",
            )
        if weight.shape != shape:
            raise _misfit(weight, shape)
        return StoredMatrix(weight, None, None, rows, width, 16, 0)
    if biases is None or weight.dtype != "U32" or {scales.dtype, biases.dtype} != {"BF16"}:
        raise UnsupportedModel(
            f"{weight.file.path}: {weight.name} is quantised in a way that is not affine",
            known="MLX affine codes with BF16 scales and biases",
        )
    bits, group = _affine_format(weight, scales, biases, shape)
    return StoredMatrix(weight, scales, biases, rows, width, bits, group)


def find_experts(tensors: TensorTable, spec: ExpertSpec) -> StoredExperts:
    """One layer's experts: stacked as MLX does, fused as Hugging Face does, or one by one.

    Raises:
        ModelError: as `find_matrix`.
    """
    apart = expert_name(spec.prefix)
    if f"{apart}.gate_up_proj" in tensors:
        return _gather(spec, _fused(tensors, apart, spec))
    if f"{apart}.0.gate_proj.weight" in tensors:
        return _gather(spec, _apart(tensors, apart, spec))
    gate, up, down = (
        find_matrix(tensors, f"{spec.prefix}.{part}", (spec.experts, *shape))
        for part, shape in _shapes(spec)
    )
    blocks = (
        (
            Block(gate, e * spec.inter, spec.inter),
            Block(up, e * spec.inter, spec.inter),
            Block(down, e * spec.hidden, spec.hidden),
        )
        for e in range(spec.experts)
    )
    return _gather(spec, tuple(blocks))


def find_table(tensors: TensorTable, spec: NgramSpec) -> StoredTable:
    """An n-gram table, whole or in shards of equal height.

    Raises:
        ModelError: as `find_matrix`; also if the shards do not add up to the table.
    """
    names: list[str] = []
    while f"{shard_name(spec.prefix, len(names))}.weight" in tensors:
        names.append(shard_name(spec.prefix, len(names)))
    shards = []
    for name in names or [spec.prefix]:
        rows = tensors.need(name + ".weight").shape[:1]
        shards.append(find_matrix(tensors, name, (*rows, spec.dim)))
    heights = {shard.rows for shard in shards}
    if len(heights) != 1 or len(shards) * shards[0].rows != spec.rows:
        raise CorruptModel(
            tensors.folder,
            "its shards do not make up the table",
            item=spec.prefix,
            expected=f"{spec.rows} rows",
            found=f"{len(shards)} shards of {sorted(heights)} rows",
        )
    formats = {(shard.bits, shard.group) for shard in shards}
    if len(formats) != 1 or shards[0].bits not in {4, 16}:
        raise UnsupportedModel(
            f"{tensors.folder}: {spec.prefix} comes in {describe_formats(formats)}",
            known="4-bit or BF16",
        )
    return StoredTable(spec.prefix, tuple(shards))


def describe_formats(formats: set[tuple[int, int]]) -> str:
    """Quantisations, for people."""
    return " and ".join(
        "BF16" if bits == 16 else f"{bits}-bit in groups of {group}"
        for bits, group in sorted(formats)
    )


def _gather(spec: ExpertSpec, blocks: tuple[Expert, ...]) -> StoredExperts:
    formats = frozenset((b.matrix.bits, b.matrix.group) for expert in blocks for b in expert)
    return StoredExperts(spec.prefix, blocks, formats)


def _shapes(spec: ExpertSpec) -> tuple[tuple[str, tuple[int, int]], ...]:
    tall, wide = (spec.inter, spec.hidden), (spec.hidden, spec.inter)
    return ("gate_proj", tall), ("up_proj", tall), ("down_proj", wide)


def _apart(tensors: TensorTable, prefix: str, spec: ExpertSpec) -> tuple[Expert, ...]:
    experts = []
    for e in range(spec.experts):
        gate, up, down = (
            Block(find_matrix(tensors, f"{prefix}.{e}.{part}", shape), 0, shape[0])
            for part, shape in _shapes(spec)
        )
        experts.append((gate, up, down))
    return tuple(experts)


def _fused(tensors: TensorTable, prefix: str, spec: ExpertSpec) -> tuple[Expert, ...]:
    inter, hidden = spec.inter, spec.hidden
    both = find_matrix(
        tensors, f"{prefix}.gate_up_proj", (spec.experts, 2 * inter, hidden), suffix=""
    )
    down = find_matrix(tensors, f"{prefix}.down_proj", (spec.experts, hidden, inter), suffix="")
    return tuple(
        (
            Block(both, 2 * e * inter, inter),
            Block(both, (2 * e + 1) * inter, inter),
            Block(down, e * hidden, hidden),
        )
        for e in range(spec.experts)
    )


def _affine_format(
    weight: Stored, scales: Stored, biases: Stored, shape: tuple[int, ...]
) -> tuple[int, int]:
    lead, width = shape[:-1], shape[-1]
    fits = scales.shape == biases.shape and weight.shape[:-1] == scales.shape[:-1] == lead
    if not fits or not scales.shape[-1] or width % scales.shape[-1]:
        raise _misfit(weight, shape)
    bits, group = weight.shape[-1] * 32 // width, width // scales.shape[-1]
    if bits not in WIDTHS or weight.shape[-1] * 32 != bits * width or group not in GROUPS:
        raise _misfit(weight, shape)
    return bits, group


def _misfit(tensor: Stored, shape: tuple[int, ...]) -> CorruptModel:
    return CorruptModel(
        tensor.file.path,
        "wrong shape",
        item=tensor.name,
        expected=list(shape),
        found=f"{tensor.dtype} {list(tensor.shape)}",
    )


def _finite(part: NDArray[Any]) -> NDArray[np.bool_]:
    good: NDArray[np.bool_] = (
        np.isfinite(part) if part.dtype == np.float32 else (part & _EXPONENT) != _EXPONENT
    )
    return good


def _stack(parts: list[HostMatrix]) -> HostMatrix:
    first = parts[0]
    rows = sum(part.shape[0] for part in parts)
    codes = np.concatenate([part.codes for part in parts])
    if first.scales is None:
        return HostMatrix((rows, first.shape[1]), first.bits, first.group, codes)
    scales = np.concatenate([part.scales for part in parts if part.scales is not None])
    biases = np.concatenate([part.biases for part in parts if part.biases is not None])
    return HostMatrix((rows, first.shape[1]), first.bits, first.group, codes, scales, biases)
