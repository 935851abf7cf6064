"""The n-gram table: small rows fetched by number.

A small table is read whole when it is opened. A large one stays on disk: rows are asked for as soon as the tokens are
known, read by threads while the first layers compute, and kept in a small cache, least recently used out first.
"""

from __future__ import annotations

import errno
import os
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cherenkov.checkpoint.affine import HostMatrix, dequantise
from cherenkov.errors import CorruptModel, DiskError
from cherenkov.experts.reader import reads_into
from cherenkov.experts.reads import ENDS_EARLY, LANDED, begin
from cherenkov.packing.integrity import checksum
from cherenkov.units import MIB

try:
    from cherenkov import _native
except ImportError:  # a build without kernels
    _native = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from cherenkov.experts.reads import Reads
    from cherenkov.packing.integrity import NgramBlocks
    from cherenkov.packing.layout import NgramLayout

__all__ = ["CACHE_ROWS", "RESIDENT_BYTES", "Pending", "RowStats", "RowTable", "memory_bytes"]

RESIDENT_BYTES = 64 * MIB
"""Tables up to this size are read whole at open; larger ones are read row by row."""

CACHE_ROWS = 4096
"""Rows of a table on disk that stay in memory: those of some hundred tokens."""


def memory_bytes(layout: NgramLayout) -> int:
    """Memory that a table will hold."""
    if layout.total_bytes <= RESIDENT_BYTES:
        return layout.total_bytes
    return min(CACHE_ROWS, layout.rows) * layout.row_bytes


_FEW = 8
"""Tokens whose rows are not looked through for some that occur twice."""

_THREADS = (
    4  # a row is far smaller than what a disk reads at once, so it takes several to keep one busy
)


@dataclass(slots=True)
class RowStats:
    """Counters of a table on disk that only grow.

    Attributes:
        hits: rows found in the cache, or on their way already.
        reads: rows read.
        read_bytes: bytes of those.
        stall_s: seconds that somebody waited for rows.
    """

    hits: int = 0
    reads: int = 0
    read_bytes: int = 0
    stall_s: float = 0.0


class RowTable:
    """Rows of float32 values, read and dequantised on demand. One thread at a time.

    Args:
        path: the file.
        layout: of its rows.
        checksums: of its blocks. They are compared when the table is read whole; a row alone cannot be checked.
        cache_rows: rows of a large table that stay in memory, at least 1.

    Attributes:
        stats: what a table on disk had to do so far.

    Raises:
        DiskError: if the file cannot be read.
        CorruptModel: if it ends early, or a block is not what was written.
    """

    def __init__(
        self,
        path: Path,
        layout: NgramLayout,
        checksums: NgramBlocks | None = None,
        *,
        cache_rows: int = CACHE_ROWS,
    ) -> None:
        self.path = path
        self.layout = layout
        self.stats = RowStats()
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise DiskError.wrap(error, path, "open the n-gram table") from error
        self._resident: NDArray[np.uint8] | None = None
        self._cache: _RowCache | None = None
        try:
            if layout.total_bytes <= RESIDENT_BYTES:
                whole = self._read(0, layout.total_bytes)
                if checksums is not None:
                    self._check(whole, checksums)
                self._resident = whole.reshape(layout.rows, layout.row_bytes)
            else:
                self._cache = _RowCache(self._file, path, layout, cache_rows, self.stats)
        except BaseException:
            self.close()
            raise

    @property
    def resident_bytes(self) -> int:
        """Memory the table holds."""
        if self._cache is not None:
            return self._cache.memory.nbytes
        return self._resident.nbytes if self._resident is not None else 0

    @property
    def on_disk(self) -> bool:
        """Rows are read when they are asked for."""
        return self._cache is not None

    def begin(self, rows: NDArray[np.int64]) -> Pending:
        """Ask for `rows` `[R, heads]`: what must be read is being read from now on."""
        distinct, where = rows.ravel(), None
        # The heads of one token have rows of their own: there is nothing twice. In memory, a few rows twice are cheaper.
        if len(rows) > (1 if self._cache is not None else _FEW):
            distinct, where = np.unique(rows, return_inverse=True)
        if self._cache is not None:
            self._cache.want(distinct[: self._cache.rows].tolist())
        return Pending(self, rows.shape, distinct, where)

    def gather(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Values of `rows` `[R, heads]`, side by side: float32 `[R, heads * dim]`.

        Raises:
            DiskError, CorruptModel: a row cannot be read.
        """
        if self._cache is None and len(rows) <= _FEW:
            return self.values(rows.reshape(-1)).reshape(len(rows), -1)
        return self.begin(rows).take()

    def close(self) -> None:
        """Stop reading and close the file."""
        if self._cache is not None:
            self._cache.close()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def values(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """float32 `[len(rows), dim]`, once they are here."""
        if self._cache is None:
            assert self._resident is not None
            return self._decode(self._resident, rows)
        size = self._cache.rows
        pieces = []
        for at in range(0, len(rows), size):
            piece = rows[at : at + size].tolist()
            if at:
                self._cache.want(piece)
            slots = np.array(self._cache.slots(piece), dtype=np.int64)
            pieces.append(self._decode(self._cache.memory, slots))
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _check(self, whole: NDArray[np.uint8], checksums: NgramBlocks) -> None:
        size = checksums.block_rows * self.layout.row_bytes
        for block, expected in enumerate(checksums.blocks):
            if checksum(whole[block * size : (block + 1) * size].data) != expected:
                raise CorruptModel(
                    self.path, "checksum does not match", item=f"block {block}", offset=block * size
                )

    def _decode(self, memory: NDArray[np.uint8], rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Values of some rows of the bytes `[N, row_bytes]`."""
        layout = self.layout
        shape = (len(rows), layout.dim)
        if layout.bits == 4 and _native is not None:  # each token takes some: a tenth of the time
            values = np.empty(shape, dtype=np.float32)
            _native.nibble_rows(memory, layout.group, rows, values)
            return values
        raw = memory.take(rows, axis=0)
        codes = np.ascontiguousarray(raw[:, : layout.weight_bytes])
        if layout.bits == 16:
            return dequantise(HostMatrix(shape, 16, 0, codes.view(np.uint16)))
        middle = layout.weight_bytes + layout.scale_bytes
        scales = np.ascontiguousarray(raw[:, layout.weight_bytes : middle]).view(np.uint16)
        biases = np.ascontiguousarray(raw[:, middle:]).view(np.uint16)
        return dequantise(
            HostMatrix(shape, layout.bits, layout.group, codes.view(np.uint32), scales, biases)
        )

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


class Pending:
    """Rows that were asked for."""

    __slots__ = ("_distinct", "_shape", "_table", "_where")

    def __init__(
        self,
        table: RowTable,
        shape: tuple[int, ...],
        distinct: NDArray[np.int64],
        where: NDArray[np.int64] | None,
    ) -> None:
        self._table = table
        self._shape = shape
        self._distinct = distinct
        self._where = where

    def take(self) -> NDArray[np.float32]:
        """Their values side by side, float32 `[R, heads * dim]`. Waits for what has not landed.

        Raises:
            DiskError, CorruptModel: a row cannot be read.
        """
        values = self._table.values(self._distinct)
        if self._where is not None:
            values = values[self._where.reshape(self._shape)]
        return values.reshape(self._shape[0], -1)


class _RowCache:
    """Rows of a table on disk, in slots. A slot that is being read into is nobody's victim."""

    def __init__(
        self, file: int, path: Path, layout: NgramLayout, rows: int, stats: RowStats
    ) -> None:
        self.rows = min(rows, layout.rows)
        self.memory: NDArray[np.uint8] = np.zeros((self.rows, layout.row_bytes), dtype=np.uint8)
        self._file = file
        self._path = path
        self._stats = stats
        self._reads: Reads | None = None
        self._slot_of: OrderedDict[int, int] = OrderedDict()  # landed, the latest used last
        self._coming: dict[int, int] = {}  # slot by row
        self._row_in: dict[int, int] = {}  # row by slot, of those that come
        self._free = list(range(self.rows))
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(
                file, 0, 0, os.POSIX_FADV_RANDOM
            )  # what lies behind a row is of no use

    def want(self, rows: list[int]) -> None:
        """Begin to read those that are neither here nor on their way, as far as there are slots."""
        self._land()
        missing = []
        for row in rows:
            if row in self._slot_of:
                self._slot_of.move_to_end(row)
            elif row not in self._coming:
                missing.append(row)
        self._stats.hits += len(rows) - len(missing)
        self._submit(missing, set(rows))

    def slots(self, rows: list[int]) -> list[int]:
        """Where at most as many rows as fit lie in `memory`, until the next call of anything here.

        Raises:
            DiskError, CorruptModel: one cannot be read.
        """
        begun, wanted = None, set(rows)
        self._land()
        while missing := [row for row in rows if row not in self._slot_of]:
            begun = begun or time.perf_counter()
            self._submit([row for row in missing if row not in self._coming], wanted)
            self._land(wanted)
        if begun is not None:
            self._stats.stall_s += time.perf_counter() - begun
        return [self._slot_of[row] for row in rows]

    def close(self) -> None:
        """Stop reading."""
        self._file = -1
        if self._reads is not None:
            self._reads.close()
            self._reads = None

    def _submit(self, rows: list[int], kept: set[int]) -> None:
        reads = self._living()
        slots = [slot for slot in (self._vacate(kept) for _ in rows) if slot is not None]
        rows = rows[: len(slots)]
        self._coming.update(zip(rows, slots, strict=True))
        self._row_in.update(zip(slots, rows, strict=True))
        if rows:
            begin(reads, rows, slots, required=True)

    def _vacate(self, kept: set[int]) -> int | None:
        """A slot without a row, or that of the row used longest ago; None while all are needed."""
        if self._free:
            return self._free.pop()
        victim = next((row for row in self._slot_of if row not in kept), None)
        return None if victim is None else self._slot_of.pop(victim)

    def _land(self, wanted: set[int] | None = None) -> None:
        """Take over what has landed; of rows that somebody wants, wait for some, and tell what went wrong.

        What went wrong with others is forgotten: they are read again, and fail again, when they are needed.
        """
        if self._reads is None or self._reads.orphaned:  # whose locks may be in any state
            return
        failure = None
        landed = self._reads.landed(wanted is not None)
        if wanted is not None and not landed:
            self._begin_again()
        for slot, status, _ in landed:
            row = self._row_in.pop(slot)
            self._coming.pop(row, None)
            if status == LANDED:
                self._slot_of[row] = slot
                self._stats.reads += 1
                self._stats.read_bytes += self.memory.shape[1]
                continue
            self._free.append(slot)
            if wanted is not None and row in wanted:
                failure = self._failure(row, status)
        if failure is not None:
            raise failure

    def _begin_again(self) -> None:
        """Nothing is under way, whatever was noted: an interruption came before the reads could begin."""
        self._coming.clear()
        self._row_in.clear()
        held = set(self._slot_of.values())
        self._free = [slot for slot in range(self.rows) if slot not in held]

    def _failure(self, row: int, status: int) -> CorruptModel | DiskError:
        if status != ENDS_EARLY:
            return DiskError(self._path, f"read row {row} of the n-gram table", status)
        return CorruptModel(
            self._path,
            "the n-gram table ends early",
            item=f"row {row}",
            offset=os.fstat(self._file).st_size,
        )

    def _living(self) -> Reads:
        """Reads with threads of their own, made anew in a forked child, where nothing is on its way."""
        if self._file < 0:
            raise DiskError(self._path, "read the n-gram table", errno.EBADF)
        if self._reads is None or self._reads.orphaned:
            self._free += self._coming.values()
            self._coming.clear()
            self._row_in.clear()
            self._reads = reads_into(self.memory, self._file, -1, threads=_THREADS)
        return self._reads
