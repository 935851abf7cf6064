"""Reading a store back, byte by byte, against its checksums."""

from __future__ import annotations

import os
import time
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from cherenkov.checkpoint.documents import checked_path, is_there, read_bytes
from cherenkov.checkpoint.shards import vetted
from cherenkov.errors import (
    CherenkovError,
    ConfigError,
    CorruptModel,
    DiskError,
    ModelError,
    UnsupportedModel,
)
from cherenkov.events import Listener, Progress, ignore
from cherenkov.packing.integrity import checksum
from cherenkov.packing.lowbit import WIDTHS, Names, open_lowbit
from cherenkov.packing.parallel import in_parallel
from cherenkov.packing.store import PackedStore
from cherenkov.processors import processors
from cherenkov.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cherenkov.packing.integrity import Integrity
    from cherenkov.packing.lowbit import LowBit

__all__ = ["Problem", "Report", "verify"]

_REPORT_S = 0.1
_READ_BYTES = 4 * MIB
_THREADS = 4


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in a store that is not as it was written.

    Attributes:
        file: name of the file.
        item: the record, tensor or block, if one can be named.
        reason: what is wrong.
        offset: where it begins in the file.
    """

    file: str
    item: str
    reason: str
    offset: int | None = None

    def describe(self) -> str:
        """One line for people."""
        place = f"{self.file}: {self.item}" if self.item else self.file
        return f"{place}: {self.reason}" + (
            f" at byte {self.offset}" if self.offset is not None else ""
        )


@dataclass(frozen=True, slots=True)
class Report:
    """What was found.

    Attributes:
        path: the store.
        problems: everything that is wrong.
        checked_bytes: how much was read and compared.
        verifiable: whether the store has checksums; without them only lengths were compared.
    """

    path: Path
    problems: tuple[Problem, ...]
    checked_bytes: int
    verifiable: bool

    @property
    def ok(self) -> bool:
        """Nothing wrong was found. Of a store without checksums that says little."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A range of a file with a known checksum; None if it must be zeros."""

    path: Path
    item: str
    offset: int
    nbytes: int
    expected: int | None


def verify(path: str | os.PathLike[str], on_event: Listener = ignore) -> Report:
    """Compare every byte of a store with its checksums, and name what differs.

    Args:
        path: the store, as `PackedStore.open` takes it.
        on_event: hears progress.

    Raises:
        ModelNotFound: if there is no store.
        UnsupportedModel: if a later release wrote it.
        DiskError: if the system refuses to read.
    """
    path = Path(checked_path("path", path))
    try:
        store = PackedStore.open(path)
    except CorruptModel as error:
        broken = Problem(Path(error.path).name, error.item or "", str(error), error.offset)
        return Report(path, (broken,), 0, verifiable=False)
    if store.integrity is None:
        return Report(store.path, (), 0, verifiable=False)
    stretches = list(_stretches(store, store.integrity))
    problems = list(_small_files(store, store.integrity))
    for bits in WIDTHS:
        if any(is_there(store.path / name) for name in astuple(Names.of(bits))):
            try:
                stretches += _lowered(store, open_lowbit(store, bits))
            except (ModelError, ConfigError) as error:
                problems.append(Problem(_blamed(error, Names.of(bits)), "", str(error)))
    total, done = sum(s.nbytes for s in stretches), 0
    begin = last = time.monotonic()
    for stretch, problem in in_parallel(min(processors(), _THREADS), stretches, _compare):
        if problem is not None:
            problems.append(problem)
        done += stretch.nbytes
        now = time.monotonic()
        if done >= total or now - last >= _REPORT_S:
            last = now
            on_event(Progress(stretch.path.name, done, total, now - begin))
    problems.sort(key=lambda p: (p.file, p.offset or 0))
    return Report(store.path, tuple(problems), done, verifiable=True)


def _blamed(error: CherenkovError, names: Names) -> str:
    """The file that an error of `open_lowbit` is about."""
    if isinstance(error, CorruptModel):
        return Path(error.path).name
    return names.integrity if isinstance(error, UnsupportedModel) else names.experts


def _compare(stretch: _Stretch) -> Problem | None:
    """Read one stretch and compare it."""
    digest = xxhash.xxh3_64()
    zeros = True
    try:
        with stretch.path.open("rb", buffering=0) as file:
            for start in range(0, stretch.nbytes, _READ_BYTES):
                size = min(_READ_BYTES, stretch.nbytes - start)
                data = os.pread(file.fileno(), size, stretch.offset + start)
                digest.update(data)
                zeros = zeros and not any(data) if stretch.expected is None else zeros
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
        return Problem(stretch.path.name, stretch.item, reason, stretch.offset)
    if stretch.expected is None:
        reason = "" if zeros else "padding is not zero"
    else:
        reason = "" if digest.intdigest() == stretch.expected else "checksum does not match"
    return Problem(stretch.path.name, stretch.item, reason, stretch.offset) if reason else None


def _stretches(store: PackedStore, integrity: Integrity) -> Iterator[_Stretch]:
    """Every byte of the large files, each in exactly one stretch."""
    end = 0
    for entry in sorted(store.manifest.dense, key=lambda e: e.offset):
        if entry.offset > end:
            yield _Stretch(store.dense_path, f"before {entry.name}", end, entry.offset - end, None)
        expected = integrity.dense[entry.name]
        yield _Stretch(store.dense_path, entry.name, entry.offset, entry.nbytes, expected)
        end = entry.offset + entry.nbytes
    tail = store.dense_path.stat().st_size - end
    if tail:
        yield _Stretch(store.dense_path, "after the last tensor", end, tail, None)
    stride = store.expert_layout.stride_bytes
    yield from _records(store, store.experts_path, stride, integrity.records)
    for path, layout, part in zip(
        store.ngram_paths, store.ngram_layouts, integrity.ngrams, strict=True
    ):
        for index, expected in enumerate(part.blocks):
            start = index * part.block_rows
            rows = min(layout.rows, start + part.block_rows) - start
            item = f"block {index} (rows {start} to {start + rows - 1})"
            size = layout.row_bytes
            yield _Stretch(path, item, start * size, rows * size, expected)


def _lowered(store: PackedStore, low: LowBit) -> Iterator[_Stretch]:
    """Every byte of the experts in fewer bits."""
    yield from _records(store, low.path, low.layout.stride_bytes, low.records)


def _records(
    store: PackedStore, path: Path, stride: int, sums: tuple[int, ...]
) -> Iterator[_Stretch]:
    for index, expected in enumerate(sums):
        layer, expert = divmod(index, store.manifest.experts.experts)
        item = f"record {index} (layer {layer}, expert {expert})"
        yield _Stretch(path, item, index * stride, stride, expected)


def _small_files(store: PackedStore, integrity: Integrity) -> Iterator[Problem]:
    for name, expected in integrity.files.items():
        try:
            found = checksum(read_bytes(vetted(store.path, name)))
        except (CorruptModel, DiskError) as error:
            yield Problem(name, "", str(error))
            continue
        if found != expected:
            yield Problem(name, "", "checksum does not match")
