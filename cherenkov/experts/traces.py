"""Routing traces: which experts were asked for, in order. Recorded from a store, kept in a small file, replayed anywhere.

    recorder = Recorder(store.layers, store.experts)
    store.listener = recorder
    ...
    recorder.trace().save("prose.trace")

A file is a line of JSON (what it is, its version, its geometry, a checksum of what follows) and then, compressed
with zlib, three little-endian arrays: the layer of each event, its rows, and all ids in order.
"""

from __future__ import annotations

import itertools
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cherenkov.checkpoint.documents import read_bytes
from cherenkov.errors import CorruptModel, UnsupportedModel
from cherenkov.packing.durable import write_file
from cherenkov.packing.integrity import checksum

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Ids = NDArray[np.int32]

__all__ = ["Recorder", "Trace", "interleaved"]

KIND = "cherenkov routing trace"
VERSION = 1
_COUNTS = ("layers", "experts", "top_k", "events", "ids")
_LARGEST = 1 << 32  # of any count


@dataclass(frozen=True, slots=True)
class Trace:
    """Events in order, each a layer and the experts that its rows were routed to.

    Attributes:
        layers: record layers of the store.
        experts: experts a layer.
        top_k: experts a row.
        layer: uint16 `[N]`, the layer of each event.
        rows: uint32 `[N]`, its rows.
        ids: uint16 `[sum(rows) * top_k]`.
    """

    layers: int
    experts: int
    top_k: int
    layer: NDArray[np.uint16]
    rows: NDArray[np.uint32]
    ids: NDArray[np.uint16]

    def __len__(self) -> int:
        return len(self.layer)

    def __iter__(self) -> Iterator[tuple[int, Ids]]:
        """Layer and ids `[R, K]` of each event."""
        start = 0
        for layer, rows in zip(self.layer.tolist(), self.rows.tolist(), strict=True):
            stop = start + rows * self.top_k
            yield layer, self.ids[start:stop].reshape(rows, self.top_k).astype(np.int32)
            start = stop

    def steps(self) -> Iterator[Trace]:
        """Cut where the layers begin again: one forward pass each."""
        cuts = np.flatnonzero(np.diff(self.layer.astype(np.int64)) <= 0) + 1
        ends = np.concatenate([[0], np.cumsum(self.rows.astype(np.int64) * self.top_k)])
        for a, b in itertools.pairwise([0, *cuts.tolist(), len(self)]):
            part = self.layer[a:b], self.rows[a:b], self.ids[ends[a] : ends[b]]
            if b > a:
                yield Trace(self.layers, self.experts, self.top_k, *part)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace to a file, which is seen whole or not at all.

        Raises:
            DiskError: if it cannot be written.
        """
        body = zlib.compress(
            b"".join(
                (
                    self.layer.astype("<u2").tobytes(),
                    self.rows.astype("<u4").tobytes(),
                    self.ids.astype("<u2").tobytes(),
                )
            )
        )
        head = {
            "kind": KIND,
            "version": VERSION,
            "layers": self.layers,
            "experts": self.experts,
            "top_k": self.top_k,
            "events": len(self),
            "ids": len(self.ids),
            "checksum": f"{checksum(body):016x}",
        }
        write_file(Path(path), json.dumps(head).encode() + b"\n" + body)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trace:
        """Read what `save` wrote.

        Raises:
            CorruptModel: if the file is missing, damaged, or no trace.
            UnsupportedModel: if a later release wrote it.
            DiskError: if the system refuses to read.
        """
        path = Path(path)
        line, _, body = read_bytes(path).partition(b"\n")
        head = _head(path, line)
        if head["checksum"] != f"{checksum(body):016x}":
            raise CorruptModel(path, "the checksum does not match")
        events, ids = head["events"], head["ids"]
        sizes = (2 * events, 4 * events, 2 * ids)
        data = _inflated(path, body, sum(sizes))
        layer, rows, flat = (
            np.frombuffer(data, kind, count, sum(sizes[:i]))
            for i, (kind, count) in enumerate((("<u2", events), ("<u4", events), ("<u2", ids)))
        )
        trace = cls(head["layers"], head["experts"], head["top_k"], layer, rows, flat)
        trace._check(path)
        return trace

    def _check(self, path: Path) -> None:
        fits = self.rows.sum(dtype=np.int64) * self.top_k == len(self.ids)
        fits &= not len(self) or int(self.layer.max()) < self.layers
        fits &= not len(self.ids) or int(self.ids.max()) < self.experts
        if not fits:
            raise CorruptModel(path, "contradicts itself: its events do not fit its geometry")


class Recorder:
    """Collects events. Attach it as `ExpertStore.listener`; one model at a time."""

    def __init__(self, layers: int, experts: int) -> None:
        self.layers = layers
        self.experts = experts
        self._layer: list[int] = []
        self._rows: list[int] = []
        self._ids: list[NDArray[np.uint16]] = []
        self._top_k = 0

    def __call__(self, first_layer: int, ids: Ids) -> None:
        """Hear of ids `[R, K]` of a layer, or `[n, R, K]` of n layers in a row. They are copied."""
        ids = ids if ids.ndim == 3 else ids[None]
        count, rows, self._top_k = ids.shape
        self._layer += range(first_layer, first_layer + count)
        self._rows += [rows] * count
        self._ids.append(ids.astype(np.uint16).reshape(-1))

    def trace(self) -> Trace:
        """Everything heard so far."""
        return Trace(
            self.layers,
            self.experts,
            self._top_k,
            np.array(self._layer, np.uint16),
            np.array(self._rows, np.uint32),
            np.concatenate(self._ids) if self._ids else np.empty(0, np.uint16),
        )


def interleaved(traces: Sequence[Trace], longest_rows: int = 1) -> Trace:
    """The traces of several requests, as if they had been served together.

    Their passes of at most `longest_rows` rows share a step, rows side by side; longer ones, which read prompts, go
    alone, the others waiting. What a row is routed to does not depend on who shares its step.
    """
    queues = [list(trace.steps()) for trace in traces]
    recorder = Recorder(traces[0].layers, traces[0].experts)
    while any(queues):
        for queue in queues:
            while queue and int(queue[0].rows.max()) > longest_rows:
                for layer, ids in queue.pop(0):
                    recorder(layer, ids)
        together = [queue.pop(0) for queue in queues if queue]
        if together:
            for events in zip(*together, strict=True):
                recorder(events[0][0], np.concatenate([ids for _, ids in events]))
    return recorder.trace()


def _head(path: Path, line: bytes) -> dict[str, Any]:
    try:
        head = json.loads(line)
    except (ValueError, RecursionError):
        head = None
    if not isinstance(head, dict) or head.get("kind") != KIND:
        raise CorruptModel(path, "not a routing trace")
    if head.get("version") != VERSION:
        raise UnsupportedModel(
            f"{path}: a trace of version {head.get('version')!r:.20}", known=f"version {VERSION}"
        )
    for key in _COUNTS:
        value = head.get(key)
        if type(value) is not int or not 0 <= value < _LARGEST:
            raise CorruptModel(path, "not a count", item=key)
    return head


def _inflated(path: Path, body: bytes, size: int) -> bytes:
    """The arrays: exactly `size` bytes, whatever the file makes of them."""
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(body, size + 1)
    except zlib.error as error:
        raise CorruptModel(path, f"cannot be decompressed: {error}") from None
    if len(data) != size or stream.unconsumed_tail:
        raise CorruptModel(path, "longer or shorter than it says", expected=f"{size} bytes")
    return data
