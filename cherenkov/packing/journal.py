"""Which parts of a store are finished, so that preparing can go on after the process was killed.

One line of JSON per finished part, appended only after the part's bytes are on the disk. A line that a crash cut
short fails its checksum; it and what follows count as not written.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Self

from cherenkov.errors import DiskError
from cherenkov.packing.durable import flush, write_file
from cherenkov.packing.integrity import checksum

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

__all__ = ["NAME", "Journal", "read_journal"]

NAME = "journal"


def read_journal(path: Path, key: Mapping[str, Any]) -> dict[int, list[int]] | None:
    """Finished parts and their checksums, or None if this is no journal of the work that `key` describes.

    Raises:
        DiskError: if the file exists but cannot be read.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DiskError.wrap(error, path, "read") from error
    if _decode(lines[0]) != {"key": dict(key)}:
        return None
    finished: dict[int, list[int]] = {}
    for line in lines[1:]:
        entry = _decode(line)
        if entry is None:
            break
        finished[entry["part"]] = entry["sums"]
    return finished


class Journal:
    """An open journal. `add` parts as they finish; `commit` makes them count."""

    def __init__(
        self, path: Path, key: Mapping[str, Any], finished: Mapping[int, Sequence[int]]
    ) -> None:
        lines = [_encode({"key": dict(key)})]
        lines += [_encode({"part": part, "sums": list(sums)}) for part, sums in finished.items()]
        self.path = path
        self._waiting: list[bytes] = []
        # Replaced as a whole, so that a torn last line cannot swallow what is appended to it.
        write_file(path, b"".join(lines))
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def add(self, part: int, sums: Sequence[int]) -> None:
        """Note a finished part. It counts from the next `commit` on."""
        self._waiting.append(_encode({"part": part, "sums": list(sums)}))

    def commit(self) -> None:
        """Write down every noted part. Call only once their bytes are on the disk."""
        if self._waiting:
            self._append(b"".join(self._waiting))
            self._waiting.clear()

    def _append(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._descriptor, data) :]
        flush(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)


def _encode(entry: Mapping[str, Any]) -> bytes:
    body = json.dumps(entry, sort_keys=True).encode()
    return b"%016x %s\n" % (checksum(body), body)


def _decode(line: bytes) -> dict[str, Any] | None:
    if line[:16] != b"%016x" % checksum(line[17:]):
        return None
    entry: dict[str, Any] = json.loads(line[17:])
    return entry
