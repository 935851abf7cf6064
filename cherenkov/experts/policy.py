"""Who stays in memory: eviction and admission, as pure functions of events.

A policy hears what the store does, in this order, and answers two questions. It knows no clock and touches no file, so
the same events give the same decisions, in the store and in the simulator (`cherenkov.experts.simulator`).

    used(first_layer, ids)          rows of these layers were routed to these experts, whether here or not
    victims(count, allowed)         which slots to empty for records that must be here now
    admits(records, allowed)        which of the records that pass through deserve a slot, and whose
    arrived(slot, record), left(slot)   what the slots hold

Every policy here is one number for each record, its *worth*: the least worthy leave first, and what passes through
a prompt enters only in place of something worth less. Worth is kept for every record, not only for those in
memory, so a record that was missed often is welcome when it comes.

A hit costs a few NumPy calls for as many layers as the store reports at once; a decision is a pass over the slots.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

import numpy as np
from typing_extensions import override

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ids = NDArray[np.int32]
    Records = NDArray[np.int64]
    Slots = NDArray[np.int64]
    Mask = NDArray[np.bool_]

__all__ = ["DEFAULT", "POLICIES", "Frequency", "Lru", "Periodic", "Policy", "Worth"]

EMPTY = -1
_LARGEST = np.finfo(np.float64).max  # of a worth; what may not leave at all is infinite


class Policy(Protocol):
    """What the store needs of one. `Worth` is the way to write another."""

    def used(self, first_layer: int, ids: Ids) -> None:
        """Rows went through layers and were routed: `[R, K]` of one layer, `[n, R, K]` of n layers in a row.

        Called once a layer and step, before its victims are asked for.
        """

    def arrived(self, slot: int, record: int, *, predicted: bool = False) -> None:
        """A record is in a slot now, or being read into it. A predicted one was not asked for yet."""

    def left(self, slot: int) -> None:
        """A slot is empty now."""

    def victims(self, count: int, allowed: Mask) -> Slots:
        """Slots to empty, the least worthy first: `count` of them, or as many as `allowed` `[slots]` has.

        Empty slots that are allowed come before all others. The store tells `left` or `arrived` what becomes of them.
        """

    def admits(self, records: Records, allowed: Mask) -> tuple[Records, Slots]:
        """Of distinct records that are not here and pass through: those that should stay, each with the slot to take."""


class Worth(ABC):
    """A policy that is a number for each record.

    Args:
        slots: of the pool.
        layers: record layers.
        experts: experts a layer.
    """

    def __init__(self, slots: int, layers: int, experts: int) -> None:
        self.layers = layers
        self.experts = experts
        self.record_in = np.full(slots, EMPTY, dtype=np.int64)
        # One more than there are records, so that EMPTY finds the last, which nothing is worth less than.
        self._worth = np.full(layers * experts + 1, -np.inf)
        self._promised = np.zeros(layers * experts + 1, dtype=np.bool_)
        self._promises = 0
        self._clear()

    @property
    def table(self) -> NDArray[np.float64]:
        """Worth of each record, `[layers, experts]`; see `worth`."""
        return self._worth[:-1].reshape(self.layers, self.experts)

    @abstractmethod
    def _clear(self) -> None:
        """Begin: nothing was used yet. What is here is worth more than an empty slot, which is worth `-inf`."""

    @abstractmethod
    def _count(self, first_layer: int, ids: Ids) -> None:
        """Learn from `ids` `[n, R, K]` of n layers, and bring `table` up to date."""

    def worth(self, records: Records) -> NDArray[np.float64]:
        """How much each record deserves to be in memory; only the order counts. `EMPTY` is worth nothing."""
        return self._worth[records]

    def used(self, first_layer: int, ids: Ids) -> None:
        """See `Policy`."""
        ids = ids if ids.ndim == 3 else ids[None]
        if self._promises:  # kept or broken: the layer has run
            start, stop = first_layer * self.experts, (first_layer + len(ids)) * self.experts
            self._promises -= int(np.count_nonzero(self._promised[start:stop]))
            self._promised[start:stop] = False
        self._count(first_layer, ids)

    def arrived(self, slot: int, record: int, *, predicted: bool = False) -> None:
        """See `Policy`."""
        self.record_in[slot] = record
        if predicted and not self._promised[record]:
            self._promised[record] = True
            self._promises += 1

    def left(self, slot: int) -> None:
        """See `Policy`."""
        record = self.record_in[slot]
        if record != EMPTY and self._promised[record]:
            self._promised[record] = False
            self._promises -= 1
        self.record_in[slot] = EMPTY

    def victims(self, count: int, allowed: Mask) -> Slots:
        """See `Policy`."""
        worth = self.worth(self.record_in)
        if self._promises:
            worth[self._promised[self.record_in]] = _LARGEST
        worth[~allowed] = np.inf
        count = min(count, int(np.count_nonzero(allowed)))
        if count == 1:
            return worth.argmin().reshape(1)
        least = np.argpartition(worth, count - 1)[:count] if count < len(worth) else None
        if least is None:
            return np.argsort(worth, kind="stable")
        return least[np.argsort(worth[least], kind="stable")]

    def admits(self, records: Records, allowed: Mask) -> tuple[Records, Slots]:
        """See `Policy`."""
        worth = self.worth(records)
        best = np.argsort(-worth, kind="stable")
        slots = self.victims(len(records), allowed)
        best = best[: len(slots)]
        held = self.record_in[slots]
        better = (worth[best] > self.worth(held)) & ~self._promised[held]
        return records[best[better]], slots[better]


class Lru(Worth):
    """The least recently used leaves first. Everything enters: a prompt washes the pool out."""

    @override
    def _clear(self) -> None:
        self._now = 0
        self.table[:] = -1  # more than an empty slot

    @override
    def _count(self, first_layer: int, ids: Ids) -> None:
        starts = np.arange(first_layer, first_layer + len(ids)) * self.experts
        times = np.arange(self._now, self._now + ids.size)
        self._worth[(starts[:, None, None] + ids).reshape(-1)] = (
            times  # of several, the last counts
        )
        self._now += ids.size


class Frequency(Worth):
    """How often a record was used of late: a step of its layer counts `keeps` of what the next one does.

    A step adds the share of its rows that were routed to the expert, so worth estimates the chance that a row wants it.
    A prompt of R rows counts as min(R, `longest`) steps: it tells what the text is about, but an answer tells more.
    """

    keeps: tuple[float, ...] = (0.97,)
    weights: tuple[float, ...] = (1.0,)
    longest = 8

    @override
    def _clear(self) -> None:
        # Of each span, the means times its weight: worth is their sum.
        self._means = np.zeros((len(self.keeps), self.layers, self.experts))
        self.table[:] = 0

    @override
    def _count(self, first_layer: int, ids: Ids) -> None:
        layers, rows, _ = ids.shape
        at = ids + np.arange(0, layers * self.experts, self.experts)[:, None, None]
        counts = np.bincount(at.reshape(-1), minlength=layers * self.experts)
        counts = counts.reshape(layers, self.experts)
        worth = self.table[first_layer : first_layer + layers]
        worth[:] = 0
        for means, keep, weight in zip(self._means, self.keeps, self.weights, strict=True):
            kept = keep ** min(rows, self.longest)
            mean = means[first_layer : first_layer + layers]
            mean *= kept
            mean += counts * ((1 - kept) * weight / rows)
            worth += mean


class Periodic(Frequency):
    """The record whose next use is the farthest away leaves first, as far as frequencies and the order of layers tell.

    Layers run in turn. A record that a pass wants with chance p is expected to wait 1/p - 1 passes, and before them
    the part of a pass that is left until its layer runs again: of equals, what this layer has just used is
    the last to be needed. The chance blends what was used of late with what is used in the long run.
    """

    keeps = (0.9, 0.998)
    weights = (1 / 7, 6 / 7)
    floor = 1e-3
    """Chance of what was never seen."""

    @override
    def _clear(self) -> None:
        super()._clear()
        self._at = 0
        self._layer_of = np.append(np.repeat(np.arange(self.layers), self.experts), 0)
        self.table[:] = -1 / self.floor

    @override
    def worth(self, records: Records) -> NDArray[np.float64]:
        until = (np.arange(self.layers) - self._at - 1) % self.layers / self.layers
        worth: NDArray[np.float64] = self._worth[records] - until[self._layer_of[records]]
        return worth

    @override
    def _count(self, first_layer: int, ids: Ids) -> None:
        super()._count(first_layer, ids)
        rows = self.table[first_layer : first_layer + len(ids)]
        np.divide(-1, rows + self.floor, out=rows)
        self._at = first_layer + len(ids) - 1


POLICIES: dict[str, type[Worth]] = {"lru": Lru, "frequency": Frequency, "periodic": Periodic}
"""By the names that people know."""
DEFAULT = "periodic"
