"""Reads under way: threads that fill slots with records, what is required before what is only predicted.

Two classes do the same: `cherenkov._native.Reads`, in C++, and `ThreadedReads` here, for builds without kernels and as
the base of test doubles. The owner asks and takes what has landed; it alone decides which slot gets which record. A slot
belongs to the reads from `submit` until `landed` or `cancel` hands it back.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cherenkov.errors import CapacityError
from cherenkov.packing.integrity import record_checksum

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["ENDS_EARLY", "LANDED", "WRONG_CHECKSUM", "Lower", "Reads", "ThreadedReads", "begin"]

LANDED = 0
ENDS_EARLY = -1
WRONG_CHECKSUM = -2
"""What became of a read; a positive number is an errno."""

ALIGNMENT = 4096
"""Of offsets, sizes and memory, for reads past the page cache."""
_ATTEMPTS = 2
"""A read that fails once may have met a passing fault; one that fails twice has not."""


class Lower(NamedTuple):
    """A file of the same records in fewer bits, which fit in the same slots.

    Attributes:
        file: descriptor; stays the caller's.
        direct: another one, that goes past the page cache, or -1.
        stride_bytes: distance between records.
        checksums: uint64, one a record, or None to read unchecked.
    """

    file: int
    direct: int
    stride_bytes: int
    checksums: NDArray[np.uint64] | None


class Reads(Protocol):
    """Reads of one file into one pool. Not for use by several owners at once."""

    @property
    def orphaned(self) -> bool:
        """This process is a child of the one that began: no threads are left, and nothing lands any more."""

    @property
    def preads(self) -> int:
        """System calls so far."""

    @property
    def direct(self) -> bool:
        """Reads go past the page cache."""

    @property
    def outstanding(self) -> int:
        """Slots that were not handed back."""

    def submit(
        self, records: list[int], slots: list[int], required: bool, lower: bool = False, /
    ) -> None:
        """Read records into slots, in this order, from the file of fewer bits if so told. The first call starts the threads."""

    def promote(self, slots: list[int], /) -> None:
        """What is waiting among these becomes required."""

    def cancel(self, slots: list[int], /) -> list[int]:
        """Take back what has not begun, and return its slots. What has begun lands."""

    def landed(self, wait: bool) -> list[tuple[int, int, float]]:
        """Slot, what became of it, and seconds it took, of all that has landed since the last call.

        If nothing has, and `wait` is true, waits for the next while anything is under way.
        """

    def close(self) -> None:
        """End the reads under way, forget the others, join the threads."""


def begin(
    reads: Reads, records: list[int], slots: list[int], *, required: bool, lower: bool = False
) -> None:
    """`Reads.submit`, with an error of ours.

    Raises:
        CapacityError: if the system has no thread to read with. What was asked for is not under way.
    """
    try:
        reads.submit(records, slots, required, lower)
    except RuntimeError as error:
        raise CapacityError(f"cannot start a thread to read from disk: {error}") from error


class ThreadedReads:
    """Reads on Python threads. Arguments as of `cherenkov._native.Reads`.

    Args:
        file: descriptor of the records; stays the caller's.
        direct: another one, that goes past the page cache, or -1.
        memory: uint8 `[slots, stride_bytes]`.
        threads: most reads at a time.
        checksums: uint64, one a record, or None to read unchecked.
        every_time: check a record whenever it is read, and not only the first time.
        lower: the same records in fewer bits, if some are to be read in them.
    """

    def __init__(
        self,
        file: int,
        direct: int,
        memory: NDArray[np.uint8],
        threads: int,
        checksums: NDArray[np.uint64] | None,
        every_time: bool,
        lower: Lower | None = None,
    ) -> None:
        self.preads = 0
        self._memory = memory
        self._threads = threads
        self._every_time = every_time
        self._file = _File(Lower(file, direct, memory.shape[1], checksums), memory)
        self._lower = None if lower is None else _File(lower, memory)
        self._process = os.getpid()
        self._lock = threading.Condition()  # guards all below
        self._required: deque[_Read] = deque()
        self._predicted: deque[_Read] = deque()
        self._landed: list[tuple[int, int, float]] = []
        self._reading = 0
        self._stop = False
        self._workers: list[threading.Thread] = []

    @property
    def orphaned(self) -> bool:
        """See `Reads`."""
        return os.getpid() != self._process

    @property
    def direct(self) -> bool:
        """See `Reads`."""
        return self._file.direct >= 0

    @property
    def outstanding(self) -> int:
        """See `Reads`."""
        with self._lock:
            return len(self._required) + len(self._predicted) + len(self._landed) + self._reading

    def submit(
        self, records: list[int], slots: list[int], required: bool, lower: bool = False, /
    ) -> None:
        """See `Reads`."""
        if lower and self._lower is None:
            raise ValueError("there are no records of fewer bits")
        with self._lock:
            if not self._workers:
                self._start()
            queue = self._required if required else self._predicted
            queue.extend(_Read(*pair, lower) for pair in zip(records, slots, strict=True))
            self._lock.notify_all()

    def promote(self, slots: list[int], /) -> None:
        """See `Reads`."""
        with self._lock:
            self._required.extend(read for read in self._predicted if read.slot in slots)
            self._predicted = deque(read for read in self._predicted if read.slot not in slots)

    def cancel(self, slots: list[int], /) -> list[int]:
        """See `Reads`."""
        with self._lock:
            waiting = [r.slot for r in (*self._required, *self._predicted) if r.slot in slots]
            self._required = deque(read for read in self._required if read.slot not in slots)
            self._predicted = deque(read for read in self._predicted if read.slot not in slots)
            return waiting

    def landed(self, wait: bool) -> list[tuple[int, int, float]]:
        """See `Reads`."""
        with self._lock:
            while wait and not self._landed and self._busy():
                self._lock.wait(0.05)  # not for ever: Python looks at Ctrl-C in between
            found, self._landed = self._landed, []
            return found

    def close(self) -> None:
        """See `Reads`."""
        if self.orphaned:
            return
        with self._lock:
            self._stop = True
            self._required.clear()
            self._predicted.clear()
            workers, self._workers = self._workers, []
            self._lock.notify_all()
        for worker in workers:
            worker.join()
        self._stop = False

    def _start(self) -> None:
        for number in range(self._threads):
            name = f"cherenkov-reader-{number}"
            worker = threading.Thread(target=self._work, name=name, daemon=True)
            try:
                worker.start()
            except RuntimeError:
                if not self._workers:
                    raise
                break  # the system has no more to give; those that there are will do
            self._workers.append(worker)

    def _busy(self) -> bool:
        return bool(self._reading or self._required or self._predicted)

    def _work(self) -> None:
        while (read := self._next()) is not None:
            begun = time.perf_counter()
            status = self._read(read)
            with self._lock:
                self._reading -= 1
                self._landed.append((read.slot, status, time.perf_counter() - begun))
                self._lock.notify_all()

    def _next(self) -> _Read | None:
        with self._lock:
            while not (self._required or self._predicted):
                if self._stop:
                    return None
                self._lock.wait()
            self._reading += 1
            return self._required.popleft() if self._required else self._predicted.popleft()

    def _read(self, read: _Read) -> int:
        """Fill a slot and compare checksums; once more if that fails."""
        file = self._lower if read.lower else self._file
        assert file is not None
        slot = self._memory[read.slot].data[: file.stride]
        status = LANDED
        for _ in range(_ATTEMPTS):
            status = self._fill(file, read.record, slot)
            if status == LANDED and not file.is_sound(read.record, slot, self._every_time):
                status = WRONG_CHECKSUM
            if status == LANDED:
                break
        return status

    def _fill(self, file: _File, record: int, slot: memoryview) -> int:
        """Short reads go on where they ended; that is no aligned place as a rule, so through the page cache."""
        start, done = record * len(slot), 0
        while done < len(slot):
            direct = file.direct >= 0 and done == 0
            try:
                count = self._pread(file.direct if direct else file.file, slot[done:], start + done)
            except OSError as error:
                if direct and error.errno == errno.EINVAL:
                    file.direct = -1  # the file system wants another alignment than ours, or none
                elif error.errno != errno.EINTR:
                    return error.errno or errno.EIO
                continue
            if count == 0:
                return ENDS_EARLY
            done += count
        return LANDED

    def _pread(self, file: int, part: memoryview, offset: int) -> int:
        with self._lock:
            self.preads += 1
        return os.preadv(file, [part], offset)


class _Read(NamedTuple):
    record: int
    slot: int
    lower: bool


class _File:
    """One of the files, and which of its records were right when they were read."""

    def __init__(self, source: Lower, memory: NDArray[np.uint8]) -> None:
        self.file = source.file
        self.stride = source.stride_bytes
        self.direct = source.direct if _aligned(memory) and not self.stride % ALIGNMENT else -1
        self._checksums = source.checksums
        self._sound: set[int] = set()
        self._stamp = self._changed()

    def is_sound(self, record: int, slot: memoryview, every_time: bool) -> bool:
        """Records do not change under an open store, so each is checked when first read; after a change, again."""
        if self._checksums is None:
            return True
        stamp = self._changed()
        if stamp != self._stamp:
            self._stamp = stamp
            self._sound.clear()
        if record in self._sound and not every_time:
            return True
        if record_checksum(slot) != int(self._checksums[record]):
            return False
        self._sound.add(record)
        return True

    def _changed(self) -> tuple[int, int]:
        """Size, and time of the last change."""
        status = os.fstat(self.file)
        return status.st_size, status.st_mtime_ns


def _aligned(memory: NDArray[np.uint8]) -> bool:
    return memory.ctypes.data % ALIGNMENT == 0 and memory.shape[1] % ALIGNMENT == 0
