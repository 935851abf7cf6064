"""A disk for tests: slow, out of order, and faulty as told."""

from __future__ import annotations

import errno
import os
import random
import threading
import time
from dataclasses import dataclass, field

from cherenkov.experts.reader import RecordReader
from cherenkov.experts.reads import ThreadedReads

__all__ = ["FaultyDisk"]


@dataclass
class FaultyDisk:
    """What the disk does.

    Attributes:
        delay_s: reads take up to so long, at random: they complete in another order than they were asked for.
        errors: errnos of the next calls, in order; None lets one through.
        broken: errno of every call, while set.
        most: bytes that a call delivers at most.
        flipped: records of which a bit is wrong, and how often it still will be.
        gate: reads wait for it.
        calls: records of the system calls so far.
        low_calls: those of them that were read in fewer bits.
    """

    delay_s: float = 0.0
    seed: int = 0
    errors: list[int | None] = field(default_factory=list)
    broken: int | None = None
    most: int | None = None
    flipped: dict[int, int] = field(default_factory=dict)
    gate: threading.Event = field(default_factory=threading.Event)
    calls: list[int] = field(default_factory=list)
    low_calls: list[int] = field(default_factory=list)

    def __post_init__(self):
        self.gate.set()
        self._random = random.Random(self.seed)
        self._lock = threading.Lock()

    def reader(self, *args, **options):
        """A `RecordReader` whose file lies on this disk."""
        disk = self

        class Reader(RecordReader):
            def start(self, memory):
                super().start(memory).close()  # refuses when it is closed
                arguments = (self._file, self._direct, memory, self.threads)
                return _Reads(disk, *arguments, self.checksums, self.every_time, self.below)

        return Reader(*args, **options)

    def reads_into(
        self, memory, file, direct, *, threads, checksums=None, every_time=False, lower=None
    ):
        """What `cherenkov.experts.reader.reads_into` is, on this disk."""
        return _Reads(self, file, direct, memory, threads, checksums, every_time, lower)

    def pread(self, read, record, part):
        """One system call."""
        with self._lock:
            self.calls.append(record)
            delay = self._random.random() * self.delay_s
            error = self.broken or (self.errors.pop(0) if self.errors else None)
            flip = self.flipped.get(record, 0)
            self.flipped[record] = flip - 1
        self.gate.wait()
        if delay:
            time.sleep(delay)
        if error is not None:
            raise OSError(error, os.strerror(error))
        count = read(part if self.most is None else part[: self.most])
        if flip > 0:
            part[7] ^= 16
        return count


class _Reads(ThreadedReads):
    def __init__(self, disk, *args):
        super().__init__(*args)
        self._disk = disk

    def _pread(self, file, part, offset):
        lower = self._lower
        low = lower is not None and file in {lower.file, lower.direct}
        record = offset // (lower.stride if low else self._memory.shape[1])
        if low:
            self._disk.low_calls.append(record)
        through = super()._pread
        return self._disk.pread(lambda some: through(file, some, offset), record, part)


EIO = errno.EIO
