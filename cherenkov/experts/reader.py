"""The file of expert records: opened, its records named, what went wrong with them told."""

from __future__ import annotations

import errno
import fcntl
import os
from typing import TYPE_CHECKING

from cherenkov.errors import CherenkovError, CorruptModel, DiskError
from cherenkov.experts.reads import ENDS_EARLY, WRONG_CHECKSUM, Lower, Reads, ThreadedReads

try:
    from cherenkov._native import Reads as _NativeReads
except ImportError:  # a build without kernels
    _NativeReads = None  # type: ignore[assignment,misc]

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["DEFAULT_READERS", "MOST_READERS", "RecordReader", "reads_into"]

DEFAULT_READERS = 3
MOST_READERS = 8


class RecordReader:
    """Positional reads of fixed-size records.

    Args:
        path: `experts.bin`.
        stride_bytes: distance between records.
        experts: experts a layer, to name a record.
        checksums: uint64, one a record, or None to read unchecked.
        every_time: check a record whenever it is read, and not only the first time. Records do not change under an
            open store, and checking each read costs several per cent of decode when most experts miss.
        threads: reads at a time, 1 to 8; 0 chooses.
        direct: read past the page cache where the file system can: that takes a fraction of the processor time, and
            leaves the memory to the pool.
        lower: reads the same records in fewer bits; closed with this one.

    Raises:
        DiskError: if the file cannot be opened.
    """

    def __init__(
        self,
        path: Path,
        stride_bytes: int,
        experts: int,
        checksums: NDArray[np.uint64] | None,
        *,
        every_time: bool = False,
        threads: int = 0,
        direct: bool = True,
        lower: RecordReader | None = None,
    ) -> None:
        self.lower = lower
        self.path = path
        self.stride_bytes = stride_bytes
        self.experts = experts
        self.checksums = checksums
        self.every_time = every_time
        self.threads = threads or DEFAULT_READERS
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise DiskError.wrap(error, path, "open the expert records") from error
        self._direct = _past_the_cache(path) if direct else -1

    def start(self, memory: NDArray[np.uint8]) -> Reads:
        """Reads into `memory`, uint8 `[slots, stride_bytes]`.

        Raises:
            DiskError: if the reader is closed.
        """
        if self._file < 0:
            raise DiskError(self.path, "read the expert records", errno.EBADF)
        return reads_into(
            memory,
            self._file,
            self._direct,
            threads=self.threads,
            checksums=self.checksums,
            every_time=self.every_time,
            lower=self.below,
        )

    @property
    def below(self) -> Lower | None:
        """The records in fewer bits, for `Reads`."""
        low = self.lower
        if low is None:
            return None
        return Lower(low._file, low._direct, low.stride_bytes, low.checksums)

    def failure(self, record: int, status: int, *, lower: bool = False) -> CherenkovError:
        """Why a record did not land, by what its read returned."""
        if lower and self.lower is not None:
            return self.lower.failure(record, status)
        name, offset = self.name(record), record * self.stride_bytes
        if status == ENDS_EARLY:
            found = os.fstat(self._file).st_size
            offset = max(offset, found)
            return CorruptModel(self.path, "the file ends early", item=name, offset=offset)
        if status == WRONG_CHECKSUM:
            hint = f"remove {self.path.parent} and prepare the model again"
            reason = "the checksum does not match"
            return CorruptModel(self.path, reason, item=name, offset=offset, hint=hint)
        return DiskError(self.path, f"read {name}", status)

    def name(self, record: int) -> str:
        """A record as people know it."""
        layer, expert = divmod(record, self.experts)
        return f"record {record} (layer {layer}, expert {expert})"

    def close(self) -> None:
        """Close the file, after the reads that were started."""
        for file in {self._file, self._direct} - {-1}:
            os.close(file)
        self._file = self._direct = -1
        if self.lower is not None:
            self.lower.close()


def reads_into(
    memory: NDArray[np.uint8],
    file: int,
    direct: int,
    *,
    threads: int,
    checksums: NDArray[np.uint64] | None = None,
    every_time: bool = False,
    lower: Lower | None = None,
) -> Reads:
    """Reads on threads of C++, or of Python where there is no extension. Arguments as of `ThreadedReads`."""
    make = ThreadedReads if _NativeReads is None else _NativeReads
    return make(file, direct, memory, threads, checksums, every_time, lower)


def _past_the_cache(path: Path) -> int:
    """A descriptor whose reads leave the page cache alone; -1 where there is no such thing."""
    flag = getattr(os, "O_DIRECT", 0)
    no_cache = getattr(fcntl, "F_NOCACHE", None)
    if not flag and no_cache is None:
        return -1
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flag)
    except OSError:  # the file system knows no such reads
        return -1
    if no_cache is not None:
        fcntl.fcntl(file, no_cache, 1)
    return file
