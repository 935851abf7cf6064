"""The expert store: which experts are in memory, and how the others come.

A layer asks for the experts its rows were routed to and gets a lease. Iterating over the lease yields waves:
first every expert that is resident, then the missing ones as they are read. A wave's slots are pinned until the
next wave is asked for, so a layer may need more experts than there are slots; the answer does not depend on it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

import numpy as np

from cherenkov.backends.base import ExpertPool, Ids, Wave
from cherenkov.experts.stats import ExpertStats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from cherenkov.experts.reader import RecordReader

__all__ = ["ExpertStore", "Lease"]

_NOTHING = -1
_NO_SLOTS: Ids = np.empty(0, dtype=np.int32)
_MOST_TOUCHED = 1024


class ExpertStore:
    """A bounded pool of expert records over a file of all of them, least recently used out first.

    Not for use by several threads at once.

    Args:
        pool: the slots, made by the backend that will compute with them.
        reader: where records come from; closed with the store.
        layers: record layers: the trunk's, then the draft head's.
        experts: experts a layer.

    Attributes:
        listener: if set, told the layer and the experts of its rows, `[R, K]`, whenever some are asked for.
        slot_table: int32 `[layers, experts]`: the slot an expert is in, -1 if in none. For readers; it changes when
            experts are asked for, and only then.
    """

    def __init__(self, pool: ExpertPool, reader: RecordReader, layers: int, experts: int) -> None:
        self.pool = pool
        self.layers = layers
        self.experts = experts
        self.stats = ExpertStats()
        self.listener: Callable[[int, Ids], None] | None = None
        self._reader = reader
        self.slot_table = np.full((layers, experts), _NOTHING, dtype=np.int32)
        self._record_in = np.full(pool.slots, _NOTHING, dtype=np.int64)
        self._used = np.full(pool.slots, _NOTHING, dtype=np.int64)  # when, by `_now`; see `_settle`
        self._now = 0
        self._touched: list[Ids] = []
        self._pinned: Ids = _NO_SLOTS

    @property
    def slots(self) -> int:
        """Records that fit in memory at once."""
        return self.pool.slots

    @property
    def resident(self) -> int:
        """Records in memory now."""
        return int(np.count_nonzero(self._record_in != _NOTHING))

    def acquire(self, layer: int, ids: Ids) -> Lease:
        """Lease the experts `ids` (any shape, repeats allowed) of a layer."""
        if self.listener is not None:
            self.listener(layer, ids)
        return Lease(self, layer, _distinct(ids))

    def used(self, first_layer: int, ids: Ids) -> None:
        """Count the use of experts `[layers, R, K]` of consecutive layers, which were computed where they are in memory."""
        if not len(ids):
            return
        if self.listener is not None:
            for i, routed in enumerate(ids):
                self.listener(first_layer + i, routed)
        flat = ids.reshape(len(ids), -1)
        slots = np.take_along_axis(
            self.slot_table[first_layer : first_layer + len(ids)], flat, axis=1
        )
        self._touched.append(slots.ravel())
        self.stats.hits += flat.size if ids.shape[1] == 1 else _distinct_in_rows(flat)
        if len(self._touched) >= _MOST_TOUCHED:
            self._settle()

    def close(self) -> None:
        """Close the file. Slots are the backend's to free."""
        self._reader.close()

    # what a lease uses

    def waves(self, layer: int, ids: Ids) -> Iterator[Wave]:
        """Resident experts, then the missing in groups that fit; see the module's description."""
        slots, missing = self.slot_table[layer].take(ids), ids[:0]
        if _NOTHING in slots.tolist():
            missing = ids[slots == _NOTHING]
            ids, slots = ids[slots != _NOTHING], slots[slots != _NOTHING]
        if len(ids):
            self.stats.hits += len(ids)
            self._pinned = slots
            self._touched.append(slots)
            if len(self._touched) == _MOST_TOUCHED:
                self._settle()
            yield Wave(ids, slots)
        while len(missing):
            group, missing = missing[: self.slots], missing[self.slots :]
            yield Wave(group, self._fetch(layer, group))

    def release(self) -> None:
        """Unpin everything."""
        self._pinned = _NO_SLOTS

    def _fetch(self, layer: int, group: Ids) -> Ids:
        """Read experts, one after the other; the slots they are in now."""
        slots = np.empty_like(group)
        for i, expert in enumerate(group.tolist()):
            self._pinned = slots[:i]
            slots[i] = self._read(layer, expert)
        self._pinned = slots
        return slots

    def _read(self, layer: int, expert: int) -> int:
        slot, record = self._vacate(), layer * self.experts + expert
        begun = time.perf_counter()
        self._reader.read(record, self.pool.memory[slot])  # if it fails, the slot stays empty
        self.slot_table[layer, expert] = slot
        self._record_in[slot] = record
        self._used[slot] = self._now
        self._now += 1
        self.stats.misses += 1
        self.stats.read_bytes += self._reader.stride_bytes
        self.stats.read_s += time.perf_counter() - begun
        return slot

    def _vacate(self) -> int:
        """An empty slot, or else the least recently used one that is not pinned, emptied."""
        self._settle()
        used = self._used.copy()
        used[self._pinned] = self._now
        slot = int(used.argmin())
        record = self._record_in[slot]
        if record != _NOTHING:
            self.slot_table.flat[record] = _NOTHING
            self._record_in[slot] = self._used[slot] = _NOTHING
        return slot

    def _settle(self) -> None:
        """Count what was touched, in that order. Done for many waves at a time: it costs as much as for one."""
        if self._touched:
            slots = np.concatenate(self._touched)
            end = self._now + len(slots)
            self._used[slots] = np.arange(self._now, end)  # of a slot's touches, the last counts
            self._now = end
            self._touched.clear()


class Lease:
    """Experts of one layer, on their way. Use it in a `with` block and iterate once."""

    __slots__ = ("_ids", "_layer", "_store")

    def __init__(self, store: ExpertStore, layer: int, ids: Ids) -> None:
        self._store = store
        self._layer = layer
        self._ids = ids

    @property
    def pool(self) -> ExpertPool:
        """Where the slots are."""
        return self._store.pool

    def __iter__(self) -> Iterator[Wave]:
        return self._store.waves(self._layer, self._ids)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._store.release()


def _distinct(ids: Ids) -> Ids:
    """Distinct ids in order of first appearance."""
    flat = ids.ravel()
    listed = flat.tolist()
    distinct = dict.fromkeys(listed)
    return flat if len(distinct) == len(listed) else np.array(list(distinct), dtype=np.int32)


def _distinct_in_rows(ids: Ids) -> int:
    """Sum over rows of how many different ids a row has."""
    ordered = np.sort(ids, axis=1)
    return len(ids) + int(np.count_nonzero(ordered[:, 1:] != ordered[:, :-1]))
