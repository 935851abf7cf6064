"""Making experts in fewer bits: every width that is asked for in one pass over the records, in parallel, resumable.

The files are written in place under their own names; while they lack a manifest they do not count. A journal in the store's
folder remembers finished parts, so that after a kill the next call goes on where this one was. The base store is never touched.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from cherenkov.errors import Cancelled, CherenkovError, ConfigError, DiskError
from cherenkov.events import Listener, Note, ignore
from cherenkov.packing.convert import OutputFile, flush_all
from cherenkov.packing.durable import FolderLock, flush_folder, require_space, write_file
from cherenkov.packing.integrity import Integrity, checksum, record_checksum
from cherenkov.packing.journal import Journal, read_journal
from cherenkov.packing.lowbit import (
    DERIVATIONS,
    REFIT,
    TRUNCATE,
    WIDTHS,
    Names,
    base_mark,
    document,
    lower_layout,
    open_lowbit,
)
from cherenkov.packing.lower_record import RecordLowerer
from cherenkov.packing.meter import Meter
from cherenkov.packing.pack import AT_RISK_BYTES
from cherenkov.packing.parallel import in_parallel
from cherenkov.packing.store import PackedStore
from cherenkov.packing.workspace import Workspace
from cherenkov.processors import processors
from cherenkov.units import GB, format_bytes
from cherenkov.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from cherenkov.checkpoint.source import Checkpoint
    from cherenkov.packing.layout import ExpertLayout

__all__ = ["JOURNAL", "lower"]

JOURNAL = ".lowbit.journal"
_RECORDS = 8
"""In one part."""
_RESERVE_BYTES = 2 * GB


def lower(
    path: str | os.PathLike[str],
    widths: Iterable[int],
    *,
    derivation: str = REFIT,
    source: Checkpoint | None = None,
    threads: int = 0,
    on_event: Listener = ignore,
    wait_for_other: bool = False,
    at_risk_bytes: int = AT_RISK_BYTES,
) -> Path:
    """Make a store's experts in fewer bits, those that are not there yet, beside its own.

    Args:
        path: the store.
        widths: 3, 2 or both.
        derivation: `refit`, the scale and bias of each group that minimise the squared error; or `truncate`, the
            Rust engine's files byte for byte, which only it computes with.
        source: the checkpoint that the store was prepared from; if its experts are BF16, `refit` begins with those.
        threads: that work; 0 takes one for each core.
        on_event: hears progress and notes, on the calling thread.
        wait_for_other: if another process is at work on the store, wait instead of refusing.
        at_risk_bytes: output between two entries of the journal.

    Returns:
        The folder of the store.

    Raises:
        ConfigError: if a width or the derivation makes no sense for this store.
        CapacityError: if another process is at work on it.
        CorruptModel: if a record of the store is not what was written.
        DiskError: if there is no space, or reading or writing fails. What was half built is removed.
        Cancelled: passed on from `on_event`; the next call resumes.
    """
    store = PackedStore.open(path)
    if derivation not in DERIVATIONS:
        raise ConfigError("lowbit", derivation, f"must be {' or '.join(DERIVATIONS)}")
    wanted = sorted(set(widths), reverse=True)
    layouts = {bits: lower_layout(store.expert_layout, bits) for bits in wanted}
    if derivation == TRUNCATE and store.expert_layout.bits != 4:
        raise ConfigError("lowbit", derivation, "only 4-bit experts can be truncated")
    if derivation == TRUNCATE or (source is not None and source.expert_format is not None):
        source = None
    whole = source is not None or store.expert_layout.bits == 16
    origin = "bf16" if whole else f"{store.expert_layout.bits} bits"
    maker = RecordLowerer(store, derivation, source)
    with FolderLock(Workspace(store.path, {}).lock, store.path, wait=wait_for_other):
        job = _Job(store, maker, layouts, origin, on_event, at_risk_bytes)
        job.run(threads or processors())
    return store.path


class _Job:
    """The work on one store, from what is there to all that was asked for. The caller holds the lock."""

    def __init__(
        self,
        store: PackedStore,
        maker: RecordLowerer,
        layouts: Mapping[int, ExpertLayout],
        origin: str,
        on_event: Listener,
        at_risk_bytes: int,
    ) -> None:
        self.store = store
        self.maker = maker
        self.origin = origin
        self.on_event = on_event
        self.at_risk_bytes = at_risk_bytes
        self.layouts = layouts
        self.journal = store.path / JOURNAL
        self._parts = -(-store.records // _RECORDS)

    def run(self, threads: int) -> None:
        """Make what is missing."""
        pending = [bits for bits in self.layouts if not self._usable(bits)]
        if not pending:
            self.journal.unlink(missing_ok=True)  # of a call that was killed at the very end
            self.on_event(Note(f"{self.store.path}: the experts that were asked for are there"))
            return
        self._check_space(pending)
        try:
            found = self._resumable(pending)
            if found is None:
                self._invalidate(pending)
            widths, done = found or (pending, {})
            if len(done) < self._parts:
                self._convert(pending, done, threads)
            parts = [_by_width(sums, widths) for _, sums in sorted(done.items())]
            for bits in pending:
                self._publish(bits, [value for part in parts for value in part[bits]])
            self.journal.unlink(missing_ok=True)
        except Cancelled:
            raise
        except OSError as error:
            self._discard(pending)
            raise DiskError.wrap(error, self.store.path, "write") from error
        except Exception:
            self._discard(pending)
            raise

    def _usable(self, bits: int) -> bool:
        try:
            low = open_lowbit(self.store, bits)
        except CherenkovError:
            return False  # missing, half built, stale, damaged or foreign: all the same here
        return low.derivation == self.maker.derivation and low.origin in {self.origin, "bf16"}

    def _key(self, widths: Sequence[int]) -> dict[str, Any]:
        return {
            "base": base_mark(self.store),
            "widths": list(widths),
            "derivation": self.maker.derivation,
            "origin": self.origin,
            "fingerprint": self.maker.source.fingerprint if self.maker.source else "",
            "part": _RECORDS,
        }

    def _resumable(self, pending: list[int]) -> tuple[list[int], dict[int, list[int]]] | None:
        """Widths and finished parts of the work that a killed call left behind.

        A kill between two manifests leaves a finished journal of more widths than are pending.
        """
        for widths in (pending, list(WIDTHS)):
            done = read_journal(self.journal, self._key(widths))
            complete = done is not None and len(done) == self._parts
            if done is None or not (complete or widths == pending):
                continue
            if all(self._whole(bits) for bits in pending):
                return widths, done
        return None

    def _whole(self, bits: int) -> bool:
        path = self.store.path / Names.of(bits).experts
        return path.is_file() and not path.is_symlink() and path.stat().st_size == self._size(bits)

    def _size(self, bits: int) -> int:
        return self.store.records * self.layouts[bits].stride_bytes

    def _check_space(self, pending: Sequence[int]) -> None:
        needed = 0
        for bits in pending:
            path = self.store.path / Names.of(bits).experts
            held = path.stat().st_blocks * 512 if path.is_file() else 0
            needed += max(0, self._size(bits) - held)
        require_space(self.store.path, needed, min(_RESERVE_BYTES, needed // 10))

    def _invalidate(self, pending: Sequence[int]) -> None:
        """What is about to be overwritten no longer counts."""
        for bits in pending:
            names = Names.of(bits)
            for name in (names.manifest, names.integrity, names.experts):
                (self.store.path / name).unlink(missing_ok=True)
        flush_folder(self.store.path)

    def _convert(self, pending: Sequence[int], done: dict[int, list[int]], threads: int) -> None:
        """Run every part that is not finished, and add its checksums to `done`."""
        todo = [part for part in range(self._parts) if part not in done]
        part_bytes = _RECORDS * sum(self.layouts[bits].stride_bytes for bits in pending)
        if done:
            self.on_event(Note(f"resuming: {format_bytes(len(done) * part_bytes)} were written"))
        with contextlib.ExitStack() as stack:
            base = os.open(self.store.experts_path, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, base)
            files = {}
            for bits in pending:
                path = self.store.path / Names.of(bits).experts
                files[bits] = OutputFile(path, self._size(bits))
                stack.callback(files[bits].close)
            journal = stack.enter_context(Journal(self.journal, self._key(pending), done))
            meter, at_risk = Meter(len(todo) * part_bytes, self.on_event), 0
            for part, sums in in_parallel(threads, todo, lambda p: self._part(p, base, files)):
                done[part] = sums
                journal.add(part, sums)
                at_risk += part_bytes
                if at_risk >= self.at_risk_bytes:
                    flush_all(files.values())
                    journal.commit()
                    at_risk = 0
                meter.add("experts", part_bytes)
            flush_all(files.values())
            journal.commit()

    def _part(self, part: int, base: int, files: Mapping[int, OutputFile]) -> list[int]:
        """Write some records in every width. Returns their checksums, width after width."""
        sums: dict[int, list[int]] = {bits: [] for bits in files}
        layouts = {bits: self.layouts[bits] for bits in files}
        for index in range(part * _RECORDS, min(self.store.records, (part + 1) * _RECORDS)):
            for bits, record in self.maker.record(base, index, layouts).items():
                files[bits].write(index * len(record), record)
                sums[bits].append(record_checksum(record.data))
        return [value for each in sums.values() for value in each]

    def _publish(self, bits: int, sums: Sequence[int]) -> None:
        """Write the checksums, and last the manifest: from then on the records count."""
        names, layout = Names.of(bits), self.layouts[bits]
        manifest = document(layout, self.store.records, self.maker.derivation)
        options = {
            "bits": bits,
            "derivation": self.maker.derivation,
            "origin": self.origin,
            "base": base_mark(self.store),
        }
        summed = Integrity(
            tool=f"cherenkov {__version__}",
            fingerprint=self.store.integrity.fingerprint if self.store.integrity else "",
            options=options,
            records=tuple(sums),
            files={names.manifest: checksum(manifest)},
        )
        write_file(self.store.path / names.integrity, summed.to_bytes())
        write_file(self.store.path / names.manifest, manifest)

    def _discard(self, pending: Sequence[int]) -> None:
        """Remove what is half built; the first failure is the one to report."""
        with contextlib.suppress(OSError):
            self.journal.unlink(missing_ok=True)
            for bits in pending:
                names = Names.of(bits)
                if not (self.store.path / names.manifest).exists():
                    for name in (names.experts, names.integrity):
                        (self.store.path / name).unlink(missing_ok=True)


def _by_width(sums: Sequence[int], widths: Sequence[int]) -> dict[int, list[int]]:
    each = len(sums) // len(widths)
    return {bits: list(sums[i * each : (i + 1) * each]) for i, bits in enumerate(widths)}
