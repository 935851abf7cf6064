"""From a checkpoint's tensors to the bytes of a store, one part at a time. Parts may run on any thread."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from cherenkov.checkpoint import affine
from cherenkov.checkpoint.affine import HostMatrix
from cherenkov.checkpoint.matrices import StoredMatrix, nonfinite_row
from cherenkov.errors import CorruptModel, DiskError
from cherenkov.packing.durable import flush
from cherenkov.packing.integrity import checksum, record_checksum
from cherenkov.packing.plan import ngram_block_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from cherenkov.checkpoint.matrices import Block, StoredTable
    from cherenkov.checkpoint.shards import Stored
    from cherenkov.checkpoint.source import Checkpoint
    from cherenkov.packing.layout import NgramLayout
    from cherenkov.packing.plan import DenseItem, Part, Plan

__all__ = ["Converter", "OutputFile", "Quantiser", "flush_all"]

_MATRICES = ("gate", "up", "down")
Locate = Callable[[int], tuple["Stored", str]]
"""From a row of what is in hand to the tensor it came from, and where in it; for messages."""


class Quantiser(Protocol):
    """What turns values into codes, scales and biases; see `affine.quantise`."""

    def __call__(
        self, values: NDArray[np.uint16], bits: int, group: int
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint16], NDArray[np.uint16]]:
        """Quantise BF16 bit patterns `[rows, width]`."""


class OutputFile:
    """A file of known length that several threads fill."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self.descriptor = os.open(path, flags, 0o644)
            os.ftruncate(self.descriptor, size)
        except OSError as error:
            raise DiskError.wrap(error, path, "create") from error

    def write(self, offset: int, data: NDArray[Any]) -> None:
        """Put an array's bytes at `offset`.

        Raises:
            DiskError: if the system refuses.
        """
        view = np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
        try:
            while view:
                count = os.pwrite(self.descriptor, view, offset)
                view, offset = view[count:], offset + count
        except OSError as error:
            raise DiskError.wrap(error, self.path, "write") from error

    def flush(self) -> None:
        """Force what was written onto the disk.

        Raises:
            DiskError: if the system refuses.
        """
        try:
            flush(self.descriptor)
        except OSError as error:
            raise DiskError.wrap(error, self.path, "flush") from error

    def close(self) -> None:
        """Close it. Whoever needs it on the disk has flushed it before."""
        os.close(self.descriptor)


def flush_all(files: Iterable[OutputFile]) -> None:
    """Force what was written to some files onto the disk. Raises as `OutputFile.flush`."""
    for file in files:
        file.flush()


class Converter:
    """Runs the parts of a plan.

    Args:
        checkpoint: where tensors come from.
        plan: what to make of them.
        files: open outputs by file name.
        quantise: the quantiser.
        allow_nonfinite: copy NaN and infinities instead of refusing them.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        plan: Plan,
        files: Mapping[str, OutputFile],
        *,
        quantise: Quantiser = affine.quantise,
        allow_nonfinite: bool = False,
    ) -> None:
        self.checkpoint = checkpoint
        self.plan = plan
        self.files = files
        self.quantise = quantise
        self.allow_nonfinite = allow_nonfinite

    def run(self, part: Part) -> list[int]:
        """Write a part. Returns the checksums of its records or blocks; none for dense parts.

        Raises:
            CorruptModel: if a weight is not finite, named with its tensor and row.
            DiskError: if reading or writing fails.
        """
        if part.stage == "experts":
            return [self._record(part.table, e) for e in range(part.start, part.stop)]
        if part.stage == "ngram":
            return [self._block(part.table, b) for b in range(part.start, part.stop)]
        for item in part.items:
            if isinstance(item.source, StoredMatrix):
                self._dense_matrix(item, item.source, part.start, part.stop or item.source.rows)
            else:
                self._dense_tensor(item, item.source)
        return []

    def _dense_matrix(self, item: DenseItem, source: StoredMatrix, start: int, stop: int) -> None:
        matrix = source.read(start, stop)
        if item.bits:
            matrix = self._quantised(
                matrix, item.bits, item.group, partial(_in_rows, source, start)
            )
        else:
            self._check(matrix, partial(_in_rows, source, start))
        file = self.files["dense.bin"]
        parts = [p for p in (matrix.codes, matrix.scales, matrix.biases) if p is not None]
        for entry, values in zip(item.entries, parts, strict=True):
            file.write(entry.offset + start * (entry.nbytes // source.rows), values)

    def _dense_tensor(self, item: DenseItem, source: Stored) -> None:
        values = source.read()
        (entry,) = item.entries
        if entry.dtype != "I64":
            wide = affine.bf16_to_float32(values) if source.dtype == "BF16" else values
            finite = np.isfinite(wide)
            if not (self.allow_nonfinite or finite.all()):
                place = int(np.argmin(finite.reshape(-1)))
                if wide.ndim == 2:
                    raise _not_finite(source, f"row {place // wide.shape[1]}")
                raise _not_finite(source, f"element {place}")
            if item.add:
                values = wide.astype(np.float32) + np.float32(item.add)
                values = values if entry.dtype == "F32" else affine.float32_to_bf16(values)
        self.files["dense.bin"].write(entry.offset, values)

    def _record(self, layer: int, expert: int) -> int:
        layout = self.plan.manifest.experts.layout
        offsets = layout.offsets()
        record = np.zeros(layout.stride_bytes, np.uint8)
        blocks = self.checkpoint.experts[layer].blocks[expert]
        for name, block in zip(_MATRICES, blocks, strict=True):
            matrix = self._expert_matrix(block, expert)
            parts = {"w": matrix.codes, "s": matrix.scales, "b": matrix.biases}
            for part, values in parts.items():
                if values is not None:
                    flat = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
                    start = offsets[f"{name}_{part}"]
                    record[start : start + len(flat)] = flat
        index = layer * self.plan.manifest.experts.experts + expert
        self.files["experts.bin"].write(index * layout.stride_bytes, record)
        return record_checksum(record.data)

    def _expert_matrix(self, block: Block, expert: int) -> HostMatrix:
        matrix, layout = block.read(), self.plan.manifest.experts.layout
        locate = partial(_in_expert, block, expert)
        if matrix.bits == 16 and layout.bits != 16:
            return self._quantised(matrix, layout.bits, layout.group, locate)
        self._check(matrix, locate)
        return matrix

    def _block(self, index: int, block: int) -> int:
        section = self.plan.manifest.ngrams[index]
        layout, height = section.layout, ngram_block_rows(section.layout)
        start, stop = block * height, min(layout.rows, (block + 1) * height)
        rows = self._ngram_rows(self.checkpoint.ngrams[index], layout, start, stop)
        self.files[section.file].write(start * layout.row_bytes, rows)
        return checksum(rows.data)

    def _ngram_rows(
        self, table: StoredTable, layout: NgramLayout, start: int, stop: int
    ) -> NDArray[np.uint8]:
        """Rows as they lie in the file: codes, scales and biases of each side by side."""
        matrix, locate = table.read(start, stop), partial(_in_table, table, start)
        if layout.bits != matrix.bits:
            matrix = self._quantised(matrix, layout.bits, layout.group, locate)
        else:
            self._check(matrix, locate)
        rows = np.empty((stop - start, layout.row_bytes), np.uint8)
        column = 0
        for values in (matrix.codes, matrix.scales, matrix.biases):
            if values is not None:
                octets = np.ascontiguousarray(values).view(np.uint8)
                rows[:, column : column + octets.shape[1]] = octets
                column += octets.shape[1]
        return rows

    def _quantised(self, matrix: HostMatrix, bits: int, group: int, locate: Locate) -> HostMatrix:
        try:
            codes, scales, biases = self.quantise(matrix.codes, bits, group)  # type: ignore[arg-type]
        except ValueError as error:
            row = nonfinite_row(matrix)
            source, where = locate(row or 0)
            if row is not None:
                raise _not_finite(source, where) from None
            raise CorruptModel(
                source.file.path, f"cannot be quantised: {error}", item=source.name
            ) from None
        return HostMatrix(matrix.shape, bits, group, codes, scales, biases)

    def _check(self, matrix: HostMatrix, locate: Locate) -> None:
        row = None if self.allow_nonfinite else nonfinite_row(matrix)
        if row is not None:
            raise _not_finite(*locate(row))


def _in_rows(source: StoredMatrix, start: int, row: int) -> tuple[Stored, str]:
    return source.weight, f"row {start + row}"


def _in_expert(block: Block, expert: int, row: int) -> tuple[Stored, str]:
    return block.matrix.weight, f"expert {expert}, row {row}"


def _in_table(table: StoredTable, start: int, row: int) -> tuple[Stored, str]:
    shard, inside = divmod(start + row, table.shards[0].rows)
    return table.shards[shard].weight, f"row {inside}"


def _not_finite(source: Stored, where: str) -> CorruptModel:
    return CorruptModel(source.file.path, "holds NaN or infinity", item=f"{source.name} ({where})")
