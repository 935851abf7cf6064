"""The n-gram table: small rows fetched by number."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from cherenkov.checkpoint.affine import HostMatrix, dequantise
from cherenkov.errors import CorruptModel, DiskError
from cherenkov.packing.integrity import checksum
from cherenkov.units import MIB

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from cherenkov.packing.integrity import NgramBlocks
    from cherenkov.packing.layout import NgramLayout

__all__ = ["RESIDENT_BYTES", "RowTable"]

_NIBBLES = (np.arange(256)[:, None] >> (0, 4) & 15).astype(np.float32)  # [byte, code]

RESIDENT_BYTES = 64 * MIB
"""Tables up to this size are read whole at open; larger ones are read row by row."""


class RowTable:
    """Rows of float32 values, read and dequantised on demand.

    Args:
        path: the file.
        layout: of its rows.
        checksums: of its blocks. They are compared when the table is read whole; a row alone cannot be checked.

    Raises:
        DiskError: if the file cannot be read.
        CorruptModel: if it ends early, or a block is not what was written.
    """

    def __init__(
        self, path: Path, layout: NgramLayout, checksums: NgramBlocks | None = None
    ) -> None:
        self.path = path
        self.layout = layout
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise DiskError.wrap(error, path, "open the n-gram table") from error
        self._resident: NDArray[np.uint8] | None = None
        try:
            if layout.total_bytes <= RESIDENT_BYTES:
                whole = self._read(0, layout.total_bytes)
                if checksums is not None:
                    self._check(whole, checksums)
                self._resident = whole.reshape(layout.rows, layout.row_bytes)
        except BaseException:
            self.close()
            raise

    @property
    def resident_bytes(self) -> int:
        """Memory the table holds."""
        return self._resident.nbytes if self._resident is not None else 0

    def gather(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Values of `rows` `[R, heads]`, side by side: float32 `[R, heads * dim]`."""
        if len(rows) == 1:  # heads have rows of their own: there is nothing twice
            return self._values(rows[0]).reshape(1, -1)
        distinct, where = np.unique(rows, return_inverse=True)
        return self._values(distinct)[where.reshape(rows.shape)].reshape(len(rows), -1)

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _values(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """float32 `[len(rows), dim]`."""
        if self._resident is not None:
            return self._decode(self._resident.take(rows, axis=0))
        size = self.layout.row_bytes
        return self._decode(np.stack([self._read(int(row) * size, size) for row in rows]))

    def _check(self, whole: NDArray[np.uint8], checksums: NgramBlocks) -> None:
        size = checksums.block_rows * self.layout.row_bytes
        for block, expected in enumerate(checksums.blocks):
            if checksum(whole[block * size : (block + 1) * size].data) != expected:
                raise CorruptModel(
                    self.path, "checksum does not match", item=f"block {block}", offset=block * size
                )

    def _decode(self, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        layout = self.layout
        shape = (len(raw), layout.dim)
        if layout.bits == 4:
            return self._decode_nibbles(raw)
        codes = np.ascontiguousarray(raw[:, : layout.weight_bytes])
        if layout.bits == 16:
            return dequantise(HostMatrix(shape, 16, 0, codes.view(np.uint16)))
        middle = layout.weight_bytes + layout.scale_bytes
        scales = np.ascontiguousarray(raw[:, layout.weight_bytes : middle]).view(np.uint16)
        biases = np.ascontiguousarray(raw[:, middle:]).view(np.uint16)
        return dequantise(
            HostMatrix(shape, layout.bits, layout.group, codes.view(np.uint32), scales, biases)
        )

    def _decode_nibbles(self, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        """The same values, by fewer and smaller operations: a step of one row decodes a few rows, in every layer."""
        layout, count = self.layout, len(raw)
        values = _NIBBLES.take(raw[:, : layout.weight_bytes], axis=0)
        values = values.reshape(count, -1, layout.group)
        words = raw[:, layout.weight_bytes :].copy().view(np.uint16).astype(np.uint32)
        factors = (words << 16).view(np.float32).reshape(count, 2, -1, 1)  # BF16 is float32's upper half
        values *= factors[:, 0]
        values += factors[:, 1]
        return values.reshape(count, layout.dim)

    def _read(self, offset: int, size: int) -> NDArray[np.uint8]:
        buffer = np.empty(size, dtype=np.uint8)
        view = buffer.data
        done = 0
        while done < size:
            try:
                count = os.preadv(self._file, [view[done:]], offset + done)
            except OSError as error:
                raise DiskError.wrap(error, self.path, "read the n-gram table") from error
            if count == 0:
                raise CorruptModel(
                    self.path, "the n-gram table ends early", offset=offset + done, expected=size
                )
            done += count
        return buffer
