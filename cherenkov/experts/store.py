"""The expert store: which experts are in memory, and how the others come.

A layer asks for the experts its rows were routed to and gets a lease. Iterating over the lease yields waves:
first every expert that is resident, then the missing ones as they are read. A wave's slots are pinned until the
next wave is asked for, so a layer may need more experts than there are slots; the answer does not depend on it.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Self

import numpy as np

from cherenkov.backends.base import ExpertPool, Ids, Wave
from cherenkov.experts.stats import ExpertStats

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from numpy.typing import NDArray

    from cherenkov.experts.reader import RecordReader

__all__ = ["ExpertStore", "Lease"]


class ExpertStore:
    """A bounded pool of expert records over a file of all of them, least recently used out first.

    Not for use by several threads at once.

    Args:
        pool: the slots, made by the backend that will compute with them.
        reader: where records come from; closed with the store.
        layers: record layers: the trunk's, then the draft head's.
        experts: experts a layer.
    """

    def __init__(self, pool: ExpertPool, reader: RecordReader, layers: int, experts: int) -> None:
        self.pool = pool
        self.layers = layers
        self.experts = experts
        self.stats = ExpertStats()
        self._reader = reader
        # record -> slot, least recently used first
        self._slot_of: OrderedDict[int, int] = OrderedDict()
        self._free = list(range(pool.slots - 1, -1, -1))
        self._pinned: set[int] = set()

    @property
    def slots(self) -> int:
        """Records that fit in memory at once."""
        return self.pool.slots

    @property
    def resident(self) -> int:
        """Records in memory now."""
        return len(self._slot_of)

    def acquire(self, layer: int, ids: Ids) -> Lease:
        """Lease the experts `ids` (any shape, repeats allowed) of a layer."""
        return Lease(self, layer, _distinct(ids))

    def close(self) -> None:
        """Close the file. Slots are the backend's to free."""
        self._reader.close()

    # what a lease uses

    def waves(self, layer: int, ids: list[int]) -> Iterator[Wave]:
        """Resident experts, then the missing in groups that fit; see the module's description."""
        first, slot_of = layer * self.experts, self._slot_of
        here = [e for e in ids if first + e in slot_of]
        missing = [] if len(here) == len(ids) else [e for e in ids if first + e not in slot_of]
        if here:
            self.stats.hits += len(here)
            for e in here:
                slot_of.move_to_end(first + e)
            slots = [slot_of[first + e] for e in here]
            self._pinned.update(slots)
            yield _wave(here, slots)
        while missing:
            group, missing = missing[: self.slots], missing[self.slots :]
            self._pinned.clear()
            yield _wave(group, [self._fetch(first + e) for e in group])

    def release(self) -> None:
        """Unpin everything."""
        self._pinned.clear()

    def _fetch(self, record: int) -> int:
        slot = self._free.pop() if self._free else self._evict()
        self._pinned.add(slot)
        begun = time.perf_counter()
        try:
            self._reader.read(record, self.pool.memory[slot])
        except BaseException:
            # The slot holds nothing we can vouch for.
            self._free.append(slot)
            self._pinned.discard(slot)
            raise
        self._slot_of[record] = slot
        self.stats.misses += 1
        self.stats.read_bytes += self._reader.stride_bytes
        self.stats.read_s += time.perf_counter() - begun
        return slot

    def _evict(self) -> int:
        record = next(r for r, slot in self._slot_of.items() if slot not in self._pinned)
        return self._slot_of.pop(record)


class Lease:
    """Experts of one layer, on their way. Use it in a `with` block and iterate once."""

    def __init__(self, store: ExpertStore, layer: int, ids: list[int]) -> None:
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


def _wave(experts: list[int], slots: list[int]) -> Wave:
    return Wave(np.array(experts, dtype=np.int32), np.array(slots, dtype=np.int32))


def _distinct(ids: NDArray[np.int32]) -> list[int]:
    """Distinct ids in order of first appearance."""
    return list(dict.fromkeys(ids.ravel().tolist()))
