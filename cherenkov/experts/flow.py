"""Streaming without the host: what a layer's missing experts need, done by the kernels while they run through layers.

At a layer that lacks experts, Python would empty slots, begin reads, predict the next layer's experts and hand out what
lands: a quarter of a millisecond, sixteen or forty-eight times a token. `cherenkov._native.Flow` does the same in C++, for
steps of few rows. Before a stretch, Python lends it what it needs: which slots may be emptied, in the policy's order, what
is coming, what was predicted. Afterwards it takes over what happened, event by event, and tells the policy. So policy
and counters stay here, and either side can go on where the other stopped: the kernels return at a layer whose experts they
cannot get, because the slots to empty have run out, a read failed, or the disk is slow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cherenkov.experts.coming import Coming

try:
    from cherenkov import _native
except ImportError:  # a build without kernels
    _native = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from cherenkov.experts.slots import Slots
    from cherenkov.experts.stats import ExpertStats

__all__ = ["Flow", "Gone"]

_EMPTIED, _ASKED, _PREDICTED, _LANDED, _CANCELLED, _REQUIRED = range(6)
_MOST_VICTIMS = 256
"""More than a step needs as a rule: a layer that finds none left comes back to Python."""
_COUNTED = ("predictions", "right_predictions", "predicted_asks", "useful_predictions", "joined")


class Gone:
    """What the kernels did, as far as the store counts it.

    Attributes:
        asks: distinct experts that layers asked for.
        misses: those that were not in memory.
        missed: their records.
        foreseen: records whose reads predictions began.
        expected: what is predicted for layers that have not run.
    """

    def __init__(self, native: _native.Flow, stats: ExpertStats) -> None:
        counts = native.counts
        self.asks, self.misses = counts["asks"], counts["misses"]
        self.missed, self.foreseen = native.missed, native.foreseen
        self.expected = {layer: set(records) for layer, records in native.expected}
        for name in _COUNTED:
            setattr(stats, name, getattr(stats, name) + counts[name])
        stats.stall_s += counts["stall_s"]
        stats.lower.hits += counts["lower_hits"]
        stats.lower.misses += counts["lower_misses"]


class Flow:
    """Slots, lent to the kernels for one stretch at a time."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._native: _native.Flow | None = None
        self._reads: object = None
        self._lent = False
        self._events = 0  # taken over already

    def lend(
        self, expected: dict[int, set[int]], *, ahead: bool, most_ahead: int, lower: bool
    ) -> Any:
        """What a stretch takes; None if it has to do without.

        Args:
            expected: records that were predicted, by layer.
            ahead: predict the next layer's experts where one lacks some, as `NextRouter` does.
            most_ahead: reads for predictions that may be under way at once.
            lower: read what is missing in fewer bits.
        """
        slots, reads = self._slots, self._slots.reads
        if _native is None or not isinstance(reads, _native.Reads):
            return None
        if self._native is None or self._reads is not reads:
            arrays = (slots.table, slots.record_in, slots.tags, slots.spared, slots.unasked)
            self._native, self._reads = _native.flow(reads, *arrays), reads
        most = min(_MOST_VICTIMS, len(slots.record_in) // 4)
        victims = slots.next_victims(most, most // 2)
        coming = [(c.record, c.slot, c.required, c.lower) for c in slots.awaiting.values()]
        foreseen = [(layer, list(records)) for layer, records in expected.items()]
        self._native.lend(victims.tolist(), coming, foreseen, ahead, most_ahead, lower)
        self._lent, self._events = True, 0
        return self._native

    def take_over(self, stats: ExpertStats) -> Gone | None:
        """What happened since `lend`; None if nothing was lent, or it was taken over already."""
        native = self._native
        if native is None or not self._lent:
            return None
        events = native.events
        while self._events < len(events):  # an interruption goes on here
            self._take(*events[self._events], stats)
            self._events += 1
        self._lent = False
        for _ in range(native.victims_used):
            self._slots.ranked.popleft()
        gone = Gone(native, stats)
        self._slots.promised &= set().union(*gone.expected.values())
        return gone

    def close(self) -> None:
        """Let go of the reads."""
        self._native = self._reads = None
        self._lent = False

    def _take(
        self, kind: int, record: int, slot: int, status: int, seconds: float, stats: ExpertStats
    ) -> None:
        slots = self._slots
        if kind in {_ASKED, _PREDICTED}:
            reads = stats.demand if kind == _ASKED else stats.prediction
            slots.note(Coming(record, slot, reads, kind == _ASKED, bool(status)))
        elif kind == _EMPTIED:
            slots.emptied(slot, wasted=bool(status))
        elif slot not in slots.awaiting:  # an interruption came after it was taken over
            return
        elif kind == _LANDED:
            slots.account(slots.awaiting[slot], status, seconds)
        elif kind == _CANCELLED:
            slots.cancelled(slot)
        else:
            slots.awaiting[slot].required = True
