"""Reading one expert record into a slot, and checking that it is what was written."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from cherenkov.errors import CorruptModel, DiskError
from cherenkov.packing.integrity import record_checksum

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["RecordReader"]

_ATTEMPTS = 2
"""A read that fails once may have met a passing fault; one that fails twice has not."""


class RecordReader:
    """Plain positional reads of fixed-size records.

    Args:
        path: `experts.bin`.
        stride_bytes: distance between records.
        experts: experts a layer, to name a record.
        checksums: uint64, one a record, or None to read unchecked.
        every_time: check a record whenever it is read, and not only the first time. Records do not change under an
            open store, and checking each read costs several per cent of decode when most experts miss.
    """

    def __init__(
        self,
        path: Path,
        stride_bytes: int,
        experts: int,
        checksums: NDArray[np.uint64] | None,
        *,
        every_time: bool = False,
    ) -> None:
        self.path = path
        self.stride_bytes = stride_bytes
        self.experts = experts
        self.checksums = checksums
        self.every_time = every_time
        self._sound: set[int] = set()  # records that were right when they were read
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise DiskError.wrap(error, path, "open the expert records") from error

    def read(self, record: int, slot: NDArray[np.uint8]) -> None:
        """Fill `slot` with a record.

        Raises:
            DiskError: the operating system failed twice; names the record.
            CorruptModel: the file ends early, or the record is not what was written.
        """
        for attempt in range(_ATTEMPTS):
            try:
                self._fill(record, slot.data)
                break
            except OSError as error:
                if attempt + 1 == _ATTEMPTS:
                    raise DiskError.wrap(error, self.path, f"read {self.name(record)}") from error
        if self.checksums is None or (record in self._sound and not self.every_time):
            return
        if record_checksum(slot.data) != int(self.checksums[record]):
            raise CorruptModel(
                self.path,
                "the checksum does not match",
                item=self.name(record),
                offset=record * self.stride_bytes,
                hint=f"remove {self.path.parent} and prepare the model again",
            )
        self._sound.add(record)

    def name(self, record: int) -> str:
        """A record as people know it."""
        layer, expert = divmod(record, self.experts)
        return f"record {record} (layer {layer}, expert {expert})"

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _fill(self, record: int, view: memoryview) -> None:
        start, done = record * self.stride_bytes, 0
        while done < self.stride_bytes:
            count = os.preadv(self._file, [view[done:]], start + done)
            if count == 0:
                raise CorruptModel(
                    self.path, "the file ends early", item=self.name(record), offset=start + done
                )
            done += count
