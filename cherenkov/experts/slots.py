"""What each slot of the pool holds, or awaits."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from cherenkov.experts.coming import NOTHING, Coming
from cherenkov.experts.flow import Flow
from cherenkov.experts.reads import LANDED, begin

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from numpy.typing import NDArray

    from cherenkov.backends.base import ExpertPool, Ids
    from cherenkov.experts.policy import Policy
    from cherenkov.experts.reader import RecordReader
    from cherenkov.experts.reads import Reads
    from cherenkov.experts.stats import ExpertStats, ReadStats

__all__ = ["NOTHING", "Coming", "Slots"]

_MOST_RANKED = 32


class Slots:
    """Records in slots, and reads into slots that were emptied for them.

    Args:
        pool: where the slots are.
        reader: the file.
        layers: record layers.
        experts: experts a layer.
        policy: decides which slots to empty.
        stats: where to count.
        tell: called before the policy is asked, to tell it of all uses.

    Only the thread that owns the store calls this. A slot that a read is under way into is never a victim; it holds
    its record from the moment that `land` reports it.

    Ctrl-C may strike between any two lines. What it leaves behind is at worst a slot that is thought empty, or a read
    that was noted but never begun, which `land` makes up for; never a table that points to a slot with something else.

    Attributes:
        table: int32 `[layers, experts]`, the slot of each record that is in memory, or -1.
        record_in: int64 `[slots]`, the record in each slot, or -1.
        coming: reads under way, by record.
        promised: records that predictions read for layers that have not run yet. Not emptied either, while others can be.
        unasked: uint8 `[layers * experts]`, 1 for records in memory that predictions brought and no layer has asked for yet.
        flow: how a backend does the same meanwhile; see `cherenkov.experts.flow`.
    """

    def __init__(
        self,
        pool: ExpertPool,
        reader: RecordReader,
        layers: int,
        experts: int,
        policy: Policy,
        stats: ExpertStats,
        tell: Callable[[], None],
    ) -> None:
        self.table: Ids = np.full((layers, experts), NOTHING, dtype=np.int32)
        self._slot_of = self.table.reshape(-1)
        self._starts = np.arange(0, layers * experts, experts, dtype=np.int32)[:, None, None]
        self.record_in: NDArray[np.int64] = np.full(pool.slots, NOTHING, dtype=np.int64)
        self.coming: dict[int, Coming] = {}
        self.promised: set[int] = set()
        self.unasked: NDArray[np.uint8] = np.zeros(layers * experts, dtype=np.uint8)
        self.flow = Flow(self)
        self.tags = pool.tags
        self._memory = pool.memory
        self._reader = reader
        self._policy = policy
        self._stats = stats
        self._tell = tell
        self._landed: Callable[[int], None] = pool.landed
        self._reads: Reads | None = None
        self.awaiting: dict[int, Coming] = {}  # by slot
        self.ranked: deque[int] = deque()  # what the policy would empty next, and
        self.spared: NDArray[np.uint8] = np.zeros(pool.slots, dtype=np.uint8)  # 1: used since
        self._settled: NDArray[np.bool_] = np.ones(pool.slots, dtype=np.bool_)  # nothing coming

    @property
    def ahead(self) -> int:
        """Reads under way that nobody has asked for yet."""
        return sum(not coming.required for coming in self.coming.values())

    def vacate(self, count: int, kept: list[int]) -> list[int]:
        """Empty up to `count` slots, the least worth keeping first, none of `kept` and none that a record is coming to."""
        slots = self._pick(count, kept)
        if len(slots) < count:
            self._rank(count - len(slots), [*kept, *slots])
            slots += self._pick(count - len(slots), kept)
        for slot in slots:
            record = int(self.record_in[slot])
            if record != NOTHING:
                self._empty(slot, record)
        return slots

    def spare(self, slots: list[int]) -> None:
        """These were used now: they are not among the next to be emptied, whatever the policy said before."""
        if self.ranked:
            self.spared[[slot for slot in slots if slot != NOTHING]] = 1

    def spare_experts(self, first_layer: int, ids: Ids) -> None:
        """The same for experts in memory: `[n, R, K]` of layers from `first_layer` on."""
        if self.ranked:
            records = ids + self._starts[first_layer : first_layer + len(ids)]
            self.spared[self._slot_of.take(records)] = 1

    def worthy(self, records: list[int], kept: list[int]) -> set[int]:
        """Those of some missing records that the policy would keep, in slots other than `kept`."""
        self._tell()
        allowed = self._settled.copy()
        allowed[kept] = False
        admitted, _ = self._policy.admits(np.array(records, dtype=np.int64), allowed)
        return set(admitted.tolist())

    def fetch(
        self,
        records: list[int],
        slots: list[int],
        kind: ReadStats,
        *,
        required: bool,
        lower: bool = False,
    ) -> None:
        """Begin to read records into empty slots, in fewer bits if so told."""
        reads = self._living()
        for record, slot in zip(records, slots, strict=True):
            self.note(Coming(record, slot, kind, required, lower))
        begin(reads, records, slots, required=required, lower=lower)

    def note(self, coming: Coming) -> None:
        """A record is on its way, or will be at once."""
        record, slot = coming.record, coming.slot
        self.awaiting[slot] = coming
        self._settled[slot] = False
        self.coming[record] = coming
        self._policy.arrived(slot, record, predicted=not coming.required)
        if not coming.required:
            self.promised.add(record)
        coming.kind.requested += 1
        coming.kind.requested_bytes += self._size(lower=coming.lower)

    def require(self, records: Collection[int]) -> None:
        """What a prediction has begun, or is waiting to, is asked for now."""
        for record in records:
            self.coming[record].required = True
        self._living().promote([self.coming[record].slot for record in records])

    def cancel(self, records: Iterable[int]) -> None:
        """Take back reads that have not begun; their slots are empty. Those that have begun land."""
        slots = [self.coming[record].slot for record in records]
        if not slots:
            return
        for slot in self._living().cancel(slots):
            self.cancelled(slot)

    def cancelled(self, slot: int) -> None:
        """The read into this slot was taken back."""
        self.awaiting[slot].kind.cancelled += 1
        self.end(slot)
        self._policy.left(slot)

    def give_up_predictions(self) -> None:
        """Take back every read ahead that has not begun; keep no slot for those that have."""
        self.promised.clear()
        self.cancel([c.record for c in self.coming.values() if not c.required])

    def land(self, *, wait: bool) -> list[Coming]:
        """What has landed since the last call, in its slot from now on, or failed. See `Reads.landed`."""
        reads = self._living()
        begun = time.perf_counter() if wait else 0.0
        landed = reads.landed(wait)
        if wait:
            self._stats.stall_s += time.perf_counter() - begun
            if not landed and self.awaiting:  # begun, but an interruption came first
                self._submit(reads)
        return [self._take(*read) for read in landed]

    def close(self) -> None:
        """Stop reading, and let go of the memory. What was under way is forgotten."""
        if self._reads is not None:
            self._reads.close()
            self._reads = None
        for slot in list(self.awaiting):
            self.end(slot)
            self._policy.left(slot)
        self.flow.close()
        self.table.fill(NOTHING)
        self.record_in.fill(NOTHING)
        self._memory = self._memory[:0].copy()  # a view would keep all of it
        self._landed = _nobody

    def _pick(self, count: int, kept: list[int]) -> list[int]:
        """Up to `count` of the ranked slots that may be emptied now."""
        found: list[int] = []
        while self.ranked and len(found) < count:
            slot = self.ranked.popleft()
            if not self.spared[slot] and slot not in kept and slot not in self.awaiting:
                found.append(slot)
        return found

    def next_victims(self, count: int, least: int) -> NDArray[np.int32]:
        """About `count` slots that may be emptied, in this order; the policy is asked if fewer than `least` are known."""
        if len(self.ranked) < least:
            self.ranked.clear()
            self._rank(count, [])
        return np.array(self.ranked, dtype=np.int32)

    @property
    def reads(self) -> Reads | None:
        """Reads with living threads, if any were begun."""
        return None if self._reads is None or self._reads.orphaned else self._reads

    def _rank(self, count: int, kept: list[int]) -> None:
        """Ask the policy for the next victims. For several layers at a time: it looks at every slot."""
        self._tell()
        allowed = self._settled.copy()
        allowed[kept] = False
        allowed[[slot for r in self.promised if (slot := self._slot_of[r]) != NOTHING]] = False
        count = max(count, min(_MOST_RANKED, len(allowed) // 8))
        self.ranked.extend(self._policy.victims(count, allowed).tolist())
        self.spared[:] = 0

    def _take(self, slot: int, status: int, seconds: float) -> Coming:
        coming = self.awaiting[slot]
        if not self.account(coming, status, seconds):
            return coming
        self.tags[slot] = coming.lower
        self.record_in[slot] = coming.record
        self._slot_of[coming.record] = slot  # last: see the class
        self.unasked[coming.record] = not coming.required
        return coming

    def account(self, coming: Coming, status: int, seconds: float) -> bool:
        """A read is over. Did it bring its record?"""
        size = self._size(lower=coming.lower)
        coming.status = status
        coming.kind.read_s += seconds
        self._stats.read_s += seconds
        self.end(coming.slot)
        if status != LANDED:
            coming.kind.failed += 1
            self._policy.left(coming.slot)
            return False
        self._landed(coming.slot)
        coming.kind.completed += 1
        coming.kind.completed_bytes += size
        self._stats.read_bytes += size
        if coming.lower:
            self._stats.lower.reads += 1
            self._stats.lower.read_bytes += size
        return True

    def _empty(self, slot: int, record: int) -> None:
        if self._slot_of[record] == slot:
            self._slot_of[record] = NOTHING  # first: see the class
        self.record_in[slot] = NOTHING
        wasted, self.unasked[record] = bool(self.unasked[record]), 0
        self.emptied(slot, wasted=wasted)

    def emptied(self, slot: int, *, wasted: bool) -> None:
        """A slot is empty now; nobody had asked for what it held if that is `wasted`."""
        self._policy.left(slot)
        if wasted:
            self._stats.wasted_bytes += self._reader.stride_bytes

    def end(self, slot: int) -> None:
        """Nothing is coming to this slot any more."""
        coming = self.awaiting[slot]
        if self.coming.get(coming.record) is coming:
            del self.coming[coming.record]
        self._settled[slot] = True
        del self.awaiting[slot]

    def _size(self, *, lower: bool) -> int:
        """Bytes of a record in the file that it is read from."""
        reader = self._reader.lower if lower else self._reader
        assert reader is not None
        return reader.stride_bytes

    def _living(self) -> Reads:
        """Reads with threads of their own: begun at first use, and again in a forked child, with all that was coming."""
        if self._reads is None:
            self._reads = self._reader.start(self._memory)
        elif self._reads.orphaned:
            self._reads = self._reader.start(self._memory)
            self._submit(self._reads)
        return self._reads

    def _submit(self, reads: Reads) -> None:
        """Begin all that is coming once more."""
        for required in (True, False):
            for lower in (False, True):
                again = [
                    c for c in self.awaiting.values() if (c.required, c.lower) == (required, lower)
                ]
                records, slots = [c.record for c in again], [c.slot for c in again]
                if records:
                    begin(reads, records, slots, required=required, lower=lower)


def _nobody(_slot: int) -> None:
    """Nobody is told any more."""
