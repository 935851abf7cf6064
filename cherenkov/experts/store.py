"""The expert store: which experts are in memory, and how the others come.

A layer asks for the experts its rows were routed to and gets a lease; what is missing is being read from then on,
by threads, into slots that were emptied for it. Iterating over the lease yields waves: first every expert that is
resident, then the missing ones as they land. A wave's slots are safe until the next wave is asked for, so a layer may
need more experts than there are slots, and one slot is enough; the answer does not depend on it.

Between two layers the network may say what the next one will likely ask for (`expect`). Those records are read when
no other reads wait, and given up where the layer turns out not to want them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from cherenkov.backends.base import ExpertPool, Ids, Wave
from cherenkov.experts.lease import Lease
from cherenkov.experts.lookahead import MOST_ROWS, Trial
from cherenkov.experts.policy import DEFAULT, POLICIES
from cherenkov.experts.reads import LANDED
from cherenkov.experts.slots import NOTHING, Slots
from cherenkov.experts.stats import MOST_NOTED_IDS, ExpertCounts, ExpertStats
from cherenkov.experts.timeline import Timeline

_native: ModuleType | None
try:
    import cherenkov._native as _kernels
except ImportError:  # a build without kernels
    _native = None
else:
    _native = _kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import ModuleType

    from cherenkov.backends.base import Floats
    from cherenkov.experts.policy import Policy
    from cherenkov.experts.reader import RecordReader
    from cherenkov.experts.stats import ReadStats

__all__ = ["ExpertStore", "Lease"]

_MOST_NOTED = 1024
_MOST_AHEAD = 32
_PREFILL_ROWS = 64
"""Steps of so many rows count as a prompt's."""


class ExpertStore:
    """A bounded pool of expert records over a file of all of them.

    Not for use by several threads at once; one lease at a time.

    Args:
        pool: the slots, made by the backend that will compute with them.
        reader: where records come from; closed with the store.
        layers: record layers: the trunk's, then the draft head's.
        experts: experts a layer.
        policy: makes what decides which records leave, for so many slots, layers and experts.
        lookahead: read what the next layer will likely need: `on`, `off`, or `auto` for while it pays.
        cut_weak: leave missing experts out whose weight is below this in every row, in steps of few rows. 0 is none.

    If the reader has records of fewer bits, what layers miss is read in those, and predictions in full. A prompt's
    misses are read in full as far as the policy would keep them. What the answer is then depends on what was in memory.

    Attributes:
        stats: what happened so far, in numbers.
        timeline: the same after some of the steps.
        holds_all: there is a slot for every record: none ever leaves.
        most_ahead: reads for predictions that may be under way at once; 0 for none.
        cut_weak: as the argument.
        listener: if set, told the layer and the experts of its rows, `[R, K]`, whenever some are asked for.
    """

    def __init__(
        self,
        pool: ExpertPool,
        reader: RecordReader,
        layers: int,
        experts: int,
        *,
        policy: Callable[[int, int, int], Policy] = POLICIES[DEFAULT],
        lookahead: str = "auto",
        cut_weak: float = 0.0,
    ) -> None:
        self.pool = pool
        self.layers = layers
        self.experts = experts
        self.holds_all = pool.slots >= layers * experts
        self.stats = ExpertStats()
        self.timeline = Timeline(self.stats)
        self.listener: Callable[[int, Ids], None] | None = None
        self._reader = reader
        self._policy = policy(pool.slots, layers, experts)
        self._slots = Slots(pool, reader, layers, experts, self._policy, self.stats, self._settle)
        self.cut_weak = cut_weak
        self._mixed = reader.lower is not None
        self._counts = ExpertCounts(layers, experts)
        self._uses: list[tuple[int, Ids]] = []  # not told to the policy yet; see `_settle`
        self._noted = 0  # ids in them
        self._expected: dict[int, set[int]] = {}  # records that a prediction named, by layer
        self._lease: Lease | None = None
        self._stepping = self._ahead = self._flows = False
        self._rows = 0
        self.most_ahead = min(_MOST_AHEAD, pool.slots // 4)
        self._trial = Trial(lookahead)

    @property
    def approximations(self) -> str:
        """What it does that answers depend on beside the prompt; empty if nothing: then all is exact."""
        lower = self.pool.lower
        fewer = "" if lower is None else f"misses in {lower.bits} bits "
        return fewer + (f"without misses below {self.cut_weak!r}" if self.cut_weak else "")

    @property
    def slots(self) -> int:
        """Records that fit in memory at once."""
        return len(self._slots.record_in)

    @property
    def resident(self) -> int:
        """Records in memory now."""
        return int(np.count_nonzero(self._slots.table != NOTHING))

    @property
    def slot_table(self) -> Ids:
        """int32 `[layers, experts]`: the slot of each record that is in memory, or -1.

        Changed only inside methods of this class: what reads have brought shows when the owner calls in.
        """
        return self._slots.table

    @property
    def counts(self) -> ExpertCounts:
        """What happened so far, by layer and expert."""
        self._settle()
        self._counts.settle()
        return self._counts

    @override
    def __repr__(self) -> str:
        records = self.layers * self.experts
        return f"<ExpertStore {self.slots} slots for {records} records, {self.resident} in memory>"

    def begin_step(self, rows: int, *, flows: bool = True) -> bool:
        """A step of so many rows begins. Is it worth while to tell what layers will likely ask for (`expect`)?

        Args:
            rows: tokens of the step.
            flows: a backend that knows how may bring missing experts itself (`flow`), and predict as `NextRouter` does.
        """
        self._take_over()
        self._rows, self._flows = rows, flows
        self._stepping = rows <= MOST_ROWS and self.most_ahead > 0 and not self.holds_all
        self._ahead = self._stepping and self._trial.begin()
        return self._ahead

    def flow(self) -> object:
        """What a backend needs to go on by itself at layers that lack experts; None if it shall return there."""
        self._take_over()
        if not (self._stepping and self._flows) or self.cut_weak:
            return None
        return self._slots.flow.lend(
            self._expected,
            ahead=self._ahead,
            most_ahead=self.most_ahead,
            lower=self._mixed,
        )

    def end_step(self) -> None:
        """The step is over."""
        self.timeline.note(self._rows)
        if self._stepping:
            self._trial.end(self._rows)

    def acquire(self, layer: int, ids: Ids, weights: Floats | None = None) -> Lease:
        """Lease the experts `ids` (`[R, K]`, or any shape for one row; repeats allowed) of a layer.

        The reads of those that are missing begin at once. `weights`, of the same shape, say which of them are weak.

        Raises:
            DiskError, CorruptModel: when iterating, if one cannot be read; names it. The store goes on.
        """
        self._take_over()
        if self._lease is not None:
            self.release(self._lease)
        self._note(layer, ids)
        distinct = _distinct(ids)
        if self._slots.coming or self._expected or self.stats.prediction.requested:
            self._confront(layer, distinct)
        slots = self._slots.table[layer].take(distinct)
        listed = slots.tolist()
        self._slots.spare(listed)
        if self._mixed:
            here = slots[slots != NOTHING]
            self.stats.lower.hits += int(np.count_nonzero(self.pool.tags[here]))
        if NOTHING not in listed:
            self.stats.hits += len(distinct)
            self._lease = Lease(self, self.stats.demand, Wave(distinct, slots))
        else:
            many = ids.ndim > 1 and len(ids) >= _PREFILL_ROWS
            kind = self.stats.prefill if many else self.stats.demand
            self._lease = self._begin(
                layer, distinct, slots, kind, set() if many else self._weak(ids, weights)
            )
        return self._lease

    def expect(self, layer: int, ids: Ids) -> None:
        """A layer that comes next will likely ask for `ids` (any shape, the likeliest first): read what is missing.

        Only so far as slots can be emptied and not too many such reads are under way.
        """
        self._take_over()
        distinct = _distinct(ids)
        records = (distinct + layer * self.experts).tolist()
        self._slots.promised -= self._expected.get(layer, set())
        self._expected[layer] = set(records)
        slots = self._slots.table[layer].take(distinct).tolist()
        missing = [
            record
            for record, slot in zip(records, slots, strict=True)
            if slot == NOTHING and record not in self._slots.coming
        ]
        count = min(len(missing), self.most_ahead - self._slots.ahead)
        if count <= 0:
            return
        kept = [slot for slot in slots if slot != NOTHING]
        if self._lease is not None:
            kept += self._lease.kept
        emptied = self._slots.vacate(count, kept)
        missing = missing[: len(emptied)]
        self._counts.note_predictions(missing)
        self._slots.fetch(missing, emptied, self.stats.prediction, required=False)

    def used(self, first_layer: int, ids: Ids) -> None:
        """Layers have run without a lease: int32 `[n, R, K]` of n layers in a row, on experts in memory or by a flow."""
        flowed = self._take_over()
        count, rows, _ = ids.shape
        if not count:
            return
        if flowed:
            self._note(first_layer, ids)
            return
        if self._expected or self.stats.prediction.requested:
            for i in range(count):
                self._confront(first_layer + i, _distinct(ids[i]))
        self._note(first_layer, ids)
        if not self.holds_all:
            self._slots.spare_experts(first_layer, ids)
        self.stats.hits += ids.size if rows == 1 else _distinct_in_each(ids)
        if self._mixed:
            for i, each in enumerate(ids):
                slots = self._slots.table[first_layer + i].take(np.unique(each))
                self.stats.lower.hits += int(np.count_nonzero(self.pool.tags[slots]))

    def made_do(self, layer: int, ids: Ids) -> None:
        """A layer has run with those of its experts, `[1, R, K]`, that were in memory: the others come for the next time."""
        if self.holds_all:
            self.used(layer, ids)
            return
        self._take_over()
        distinct = _distinct(ids)
        missing = distinct[self._slots.table[layer].take(distinct) == NOTHING]
        self._confront(layer, distinct)
        self._note(layer, ids)
        self._slots.spare_experts(layer, ids)
        self.stats.hits += len(distinct) - len(missing)
        if len(missing):
            self.stats.misses += len(missing)
            self._counts.note_misses((missing + layer * self.experts).tolist())
            self.expect(layer, ids)

    def close(self) -> None:
        """Stop reading, close the file, and let go of the pool's memory, also while something still holds the store."""
        self._take_over()
        self._slots.close()
        self._reader.close()
        lower = self.pool.lower
        self.pool = ExpertPool(self.pool.layout, self.pool.memory[:0].copy())
        self.pool.lower = lower

    def _take_over(self) -> bool:
        """What a flow did since it was lent what it needs. Was there one?"""
        gone = self._slots.flow.take_over(self.stats)
        if gone is None:
            return False
        self._expected = gone.expected
        self.stats.misses += gone.misses
        self.stats.hits += gone.asks - gone.misses
        self._counts.note_misses(gone.missed)
        self._counts.note_predictions(gone.foreseen)
        return True

    # what a lease uses

    def arrivals(self, lease: Lease) -> Iterator[Wave]:
        """Missing experts in groups, as they land; see the module's description."""
        while lease.missing or lease.ready:
            self._place(lease)
            self._land(wait=not lease.ready)
            if lease.failed:
                record, status = lease.failed[0]
                raise self._reader.failure(record, status, lower=record in lease.lower)
            if lease.ready:
                yield lease.take_ready(self.experts)
                lease.held = [slot for _, slot in lease.ready]

    def release(self, lease: Lease) -> None:
        """Unpin everything. What a layer that failed was still waiting for is not read if it has not begun."""
        if self._lease is lease:
            self._lease = None
            if lease.missing:
                self._slots.cancel([r for r in lease.missing if r in self._slots.coming])

    def _begin(
        self, layer: int, distinct: Ids, slots: Ids, kind: ReadStats, weak: set[int]
    ) -> Lease:
        """A lease for which something must be read, unless all that is missing is weak."""
        here = slots != NOTHING
        lease = Lease(self, kind, Wave(distinct[here], slots[here]))
        records = (distinct[~here] + layer * self.experts).tolist()
        if weak:
            records = self._leave_out(lease, layer, distinct[~here], weak)
        lease.missing.update(records)
        joined = [r for r in records if r in self._slots.coming]
        lease.unplaced = [r for r in records if r not in self._slots.coming]
        self.stats.hits += int(np.count_nonzero(here))
        self.stats.misses += len(records)
        self.stats.joined += len(joined)
        self._counts.note_misses(records)
        if joined:
            self._slots.require(joined)
        if self._mixed and lease.unplaced:
            lease.lower = self._in_fewer_bits(lease)
            self.stats.lower.misses += len(lease.lower)
        self._place(lease)
        return lease

    def _weak(self, ids: Ids, weights: Floats | None) -> set[int]:
        """Experts whose weight is small in every row."""
        if weights is None or not self.cut_weak:
            return set()
        flat = ids.ravel()
        return set(flat.tolist()) - set(flat[weights.ravel() >= self.cut_weak].tolist())

    def _leave_out(self, lease: Lease, layer: int, missing: Ids, weak: set[int]) -> list[int]:
        """The records to wait for, without those of weak experts."""
        cut = np.array([expert in weak for expert in missing.tolist()], dtype=np.bool_)
        if cut.any():
            lease.left_out = missing[cut]
            without = (lease.left_out + layer * self.experts).tolist()
            self.stats.cut += len(without)
            self.stats.misses += len(without)
            self._counts.note_misses(without)
        records: list[int] = (missing[~cut] + layer * self.experts).tolist()
        return records

    def _in_fewer_bits(self, lease: Lease) -> set[int]:
        """Those of a lease's missing records that are not worth reading in full."""
        lower = set(lease.unplaced)
        if lease.kind is self.stats.prefill:
            lower -= self._slots.worthy(lease.unplaced, lease.kept)
        return lower

    def _place(self, lease: Lease) -> None:
        """Begin the reads for which slots can be emptied."""
        if not lease.unplaced:
            return
        slots = self._slots.vacate(len(lease.unplaced), lease.kept)
        if len(slots) < len(lease.unplaced):
            self._slots.give_up_predictions()
            slots += self._slots.vacate(len(lease.unplaced) - len(slots), [*lease.kept, *slots])
        records, lease.unplaced = lease.unplaced[: len(slots)], lease.unplaced[len(slots) :]
        if not lease.lower:
            if records:
                self._slots.fetch(records, slots, lease.kind, required=True)
            return
        for lower in (False, True):
            some = [r for r in records if (r in lease.lower) is lower]
            if some:
                into, slots = slots[: len(some)], slots[len(some) :]
                self._slots.fetch(some, into, lease.kind, required=True, lower=lower)

    def _land(self, *, wait: bool) -> None:
        """Take over what has landed; what the lease waits for is ready, or has failed."""
        lease = self._lease
        for coming in self._slots.land(wait=wait):
            if lease is None or coming.record not in lease.missing:
                continue
            lease.missing.discard(coming.record)
            if coming.status == LANDED:
                lease.ready.append((coming.record, coming.slot))
                lease.held.append(coming.slot)
            else:
                lease.failed.append((coming.record, coming.status))

    def _confront(self, layer: int, distinct: Ids) -> None:
        """Take over what has landed, and compare what was predicted for a layer with what it asks for."""
        if self._slots.coming:
            self._land(wait=False)
        records = distinct + layer * self.experts
        asked = set(records.tolist())
        self.stats.useful_predictions += int(np.count_nonzero(self._slots.unasked[records]))
        self._slots.unasked[records] = 0
        expected = self._expected.pop(layer, None)
        if expected is None:
            return
        self._slots.promised -= expected
        self.stats.predictions += len(expected)
        self.stats.right_predictions += len(expected & asked)
        self.stats.predicted_asks += len(asked)
        if self._slots.coming:
            self._slots.cancel([r for r in expected - asked if r in self._slots.coming])

    def _note(self, first_layer: int, ids: Ids) -> None:
        if self.listener is not None:
            for i, each in enumerate(ids if ids.ndim == 3 else [ids]):
                self.listener(first_layer + i, each)
        if self.holds_all:  # nothing ever leaves: there is nothing to tell the policy
            self._counts.note(first_layer, _layered(ids))
            return
        self._uses.append((first_layer, ids))
        self._noted += ids.size
        if len(self._uses) == _MOST_NOTED or self._noted > MOST_NOTED_IDS:
            self._settle()

    def _settle(self) -> None:
        """Count uses and tell the policy. Done for many layers at a time: it costs as much as for one."""
        uses, self._uses, self._noted = self._uses, [], 0
        for first_layer, ids in _runs(uses):
            self._policy.used(first_layer, ids)
            self._counts.note(first_layer, ids)


def _distinct(ids: Ids) -> Ids:
    """Distinct ids in order of first appearance."""
    flat = ids.ravel()
    listed = flat.tolist()
    distinct = dict.fromkeys(listed)
    return flat if len(distinct) == len(listed) else np.array(list(distinct), dtype=np.int32)


def _layered(ids: Ids) -> Ids:
    """`[n, R, K]` of `[n, R, K]`, `[R, K]` or `[K]`."""
    return ids if ids.ndim == 3 else ids.reshape(1, -1, ids.shape[-1])


def _distinct_in_each(ids: Ids) -> int:
    """Distinct ids in each layer of `[n, R, K]`, all layers together."""
    if _native is not None:
        found: int = _native.distinct_in_each(ids)
        return found
    if ids.shape[1] <= MOST_ROWS:
        return sum(len(set(each)) for each in ids.reshape(len(ids), -1).tolist())
    ordered = np.sort(ids.reshape(len(ids), -1), axis=1)
    return len(ids) + int(np.count_nonzero(ordered[:, 1:] != ordered[:, :-1]))


def _runs(uses: Iterable[tuple[int, Ids]]) -> Iterator[tuple[int, Ids]]:
    """Join uses of layers that follow one another: first layer and ids `[n, R, K]`."""
    run: list[Ids] = []
    first, following = 0, -1
    for layer, ids in uses:
        block = _layered(ids)
        if run and (layer != following or block.shape[1:] != run[-1].shape[1:]):
            yield first, np.concatenate(run)
            run = []
        if not run:
            first = layer
        run.append(block)
        following = layer + len(block)
    if run:
        yield first, np.concatenate(run)
