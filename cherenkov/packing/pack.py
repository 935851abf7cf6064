"""Preparing a checkpoint: from published tensors to a packed store, streamed, resumable, all or nothing.

Everything is written into `.NAME.partial` beside the target. The work is cut into parts that depend on nothing but
the checkpoint; a journal remembers the finished ones, so that after a kill the next call goes on where this one was.
At the end the files are flushed, manifest.json is written last, and the folder gets its name in one rename.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from cherenkov.checkpoint import affine
from cherenkov.checkpoint.shards import fingerprint
from cherenkov.errors import Cancelled, ConfigError, CorruptModel, DiskError
from cherenkov.events import Listener, Note, ignore
from cherenkov.packing import integrity as checksums
from cherenkov.packing.companions import companions
from cherenkov.packing.convert import Converter, OutputFile, Quantiser, flush_all
from cherenkov.packing.durable import FolderLock, require_space, write_file
from cherenkov.packing.integrity import Integrity, NgramBlocks, checksum
from cherenkov.packing.journal import Journal
from cherenkov.packing.meter import Meter
from cherenkov.packing.parallel import in_parallel
from cherenkov.packing.plan import Plan, make_plan, ngram_block_rows
from cherenkov.packing.store import DENSE, EXPERTS, MANIFEST
from cherenkov.packing.workspace import Workspace, parents
from cherenkov.processors import processors
from cherenkov.units import GB, MIB, format_bytes
from cherenkov.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cherenkov.checkpoint.source import Checkpoint

__all__ = ["AT_RISK_BYTES", "pack"]

AT_RISK_BYTES = 512 * MIB
"""Output between two entries of the journal: what a power failure may cost."""
_RESERVE_BYTES = 2 * GB
_READ_BYTES = 8 * MIB
_MOST_THREADS = 32  # each holds about 25 MB; together they stay well under 1.5 GB


def pack(  # noqa: PLR0913 - options, each by its name
    checkpoint: Checkpoint,
    output: str | os.PathLike[str],
    *,
    bits: int | None = None,
    group: int | None = None,
    threads: int = 0,
    on_event: Listener = ignore,
    allow_nonfinite: bool = False,
    wait_for_other: bool = False,
    at_risk_bytes: int = AT_RISK_BYTES,
    quantise: Quantiser = affine.quantise,
) -> Path:
    """Make a packed store of a checkpoint.

    Args:
        checkpoint: opened and checked.
        output: folder of the store; absent, empty, or already the store of this very checkpoint.
        bits: of matrices: 4, 8, or 16 to keep BF16; None takes 4, or what the checkpoint comes quantised to, for what
            comes quantised is copied as it is.
        group: weights per scale, 64 or 32; None takes 64 where it divides, else 32.
        threads: that convert; 0 takes one for each core.
        on_event: hears progress and notes, on the calling thread.
        allow_nonfinite: copy NaN and infinities instead of refusing them.
        wait_for_other: if another process is preparing `output`, wait instead of refusing.
        at_risk_bytes: output between two entries of the journal.
        quantise: replaces the quantiser; must give the same bits.

    Returns:
        The folder of the store.

    Raises:
        ConfigError: if the options do not fit the checkpoint, or `output` holds something else.
        CapacityError: if another process is preparing `output`.
        CorruptModel: if a weight is not finite, or the checkpoint changes meanwhile.
        DiskError: if there is no space, or reading or writing fails. Nothing is left behind.
        Cancelled: passed on from `on_event`; the next call resumes.
    """
    if threads < 0:
        raise ConfigError("threads", threads, "must be 1 or more, or 0 for one a core")
    target = _target(output)
    for note in checkpoint.notes:
        on_event(note)
    plan = make_plan(checkpoint, bits, group)
    key = {
        "fingerprint": checkpoint.fingerprint,
        "bits": plan.bits,
        "group": plan.group,
        "allow_nonfinite": allow_nonfinite,
    }
    space = Workspace(target, key)
    job = _Job(checkpoint, plan, space, on_event, at_risk_bytes)
    with parents(space.target), FolderLock(space.lock, space.target, wait=wait_for_other):
        job.run(threads or processors(), quantise)
    return space.target


def _target(output: str | os.PathLike[str]) -> Path:
    """The folder that the store will be, absolute."""
    try:
        os.fsencode(output)
        target = Path(os.path.abspath(output))  # noqa: PTH100 - links stay links
    except ValueError:  # half a surrogate pair
        raise ConfigError("output", str(output), "no folder can have this name") from None
    except OSError as error:  # the current folder is gone
        raise DiskError.wrap(error, output, "find the folder of") from error
    if not target.name or "\0" in str(target):
        raise ConfigError("output", str(target), "no store can have this name")
    return target


class _Job:
    """One preparation, from an empty or half-filled working folder to one that only lacks its name."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        plan: Plan,
        space: Workspace,
        on_event: Listener,
        at_risk_bytes: int,
    ) -> None:
        self.checkpoint = checkpoint
        self.plan = plan
        self.space = space
        self.on_event = on_event
        self.at_risk_bytes = at_risk_bytes
        self.small = companions(checkpoint)

    def run(self, threads: int, quantise: Quantiser) -> None:
        """Do what is left to do, or leave nothing behind. The caller holds the lock."""
        if self.space.finished():
            self.on_event(
                Note(
                    f"{self.space.target} is already prepared: its small files and all lengths were checked just now, "
                    f"the weights were not (cherenkov verify {self.space.target})"
                )
            )
            return
        self._check_space()
        try:
            if not self.space.complete():
                self._seal(self._convert(min(threads, _MOST_THREADS), quantise))
            self.space.publish()
        except Cancelled:
            raise
        except Exception:
            with contextlib.suppress(OSError):  # the first failure is the one to report
                self.space.discard()
            raise

    def _check_space(self) -> None:
        """Refuse what the disk could not hold. What a killed call left is kept: more space may come."""
        needed = self.plan.total_bytes + sum(map(len, self.small.values()))
        require_space(
            self.space.target.parent,
            max(0, needed - self.space.written_bytes()),
            min(_RESERVE_BYTES, needed // 10),
        )

    def _convert(self, threads: int, quantise: Quantiser) -> dict[int, list[int]]:
        """Run every part that is not finished yet. Returns the checksums of all."""
        done = self.space.resume()
        parts = self.plan.parts
        todo = [index for index in range(len(parts)) if index not in done]
        if done:
            before = sum(parts[index].out_bytes for index in done)
            self.on_event(Note(f"resuming: {format_bytes(before)} were already written"))
        with contextlib.ExitStack() as stack:
            files = {}
            for name, size in self._lengths():
                files[name] = OutputFile(self.space.working / name, size)
                stack.callback(files[name].close)
            journal = stack.enter_context(Journal(self.space.journal, self.space.key, done))
            converter = Converter(
                self.checkpoint,
                self.plan,
                files,
                quantise=quantise,
                allow_nonfinite=self.space.key["allow_nonfinite"],
            )
            meter = Meter(sum(parts[index].out_bytes for index in todo), self.on_event)
            at_risk = 0
            for index, sums in in_parallel(threads, todo, lambda i: converter.run(parts[i])):
                done[index] = sums
                journal.add(index, sums)
                at_risk += parts[index].out_bytes
                if at_risk >= self.at_risk_bytes:
                    flush_all(files.values())
                    journal.commit()
                    at_risk = 0
                meter.add(parts[index].stage, parts[index].out_bytes)
            flush_all(files.values())
        return done

    def _lengths(self) -> Iterator[tuple[str, int]]:
        manifest = self.plan.manifest
        yield DENSE, manifest.dense_bytes
        yield EXPERTS, manifest.experts.records * manifest.experts.layout.stride_bytes
        for section in manifest.ngrams:
            yield section.file, section.layout.total_bytes

    def _seal(self, sums: Mapping[int, Sequence[int]]) -> None:
        """Write the small files, the checksums, and last the manifest."""
        if fingerprint(self.checkpoint.folder) != self.checkpoint.fingerprint:
            raise CorruptModel(self.checkpoint.folder, "changed while it was being prepared")
        working, manifest = self.space.working, self.plan.manifest.to_bytes()
        for name, data in self.small.items():
            write_file(working / name, data)
        files = {name: checksum(data) for name, data in {**self.small, MANIFEST: manifest}.items()}
        document = Integrity(
            tool=f"cherenkov {__version__}",
            fingerprint=self.checkpoint.fingerprint,
            options=dict(self.space.key),
            records=tuple(self._gather(sums, "experts", 0)),
            dense=self._dense_sums(),
            ngrams=tuple(
                NgramBlocks(
                    section.file,
                    ngram_block_rows(section.layout),
                    tuple(self._gather(sums, "ngram", index)),
                )
                for index, section in enumerate(self.plan.manifest.ngrams)
            ),
            files=files,
        )
        write_file(working / checksums.NAME, document.to_bytes())
        write_file(working / MANIFEST, manifest)

    def _gather(self, sums: Mapping[int, Sequence[int]], stage: str, table: int) -> Iterator[int]:
        """Checksums in the order of the file: all layers' records, or one table's blocks."""
        for index, part in enumerate(self.plan.parts):
            if part.stage == stage and (stage == "experts" or part.table == table):
                yield from sums[index]

    def _dense_sums(self) -> dict[str, int]:
        """Checksums of the dense tensors, as they came back from the disk."""
        path = self.space.working / DENSE
        sums = {}
        try:
            with path.open("rb", buffering=0) as file:
                for entry in self.plan.manifest.dense:
                    digest = xxhash.xxh3_64()
                    for start in range(0, entry.nbytes, _READ_BYTES):
                        size = min(_READ_BYTES, entry.nbytes - start)
                        digest.update(os.pread(file.fileno(), size, entry.offset + start))
                    sums[entry.name] = digest.intdigest()
        except OSError as error:
            raise DiskError.wrap(error, path, "read") from error
        return sums
