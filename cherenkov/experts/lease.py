"""Experts of one layer, on their way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np

from cherenkov.backends.base import ExpertPool, Wave
from cherenkov.backends.operands import LEFT_OUT

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from types import TracebackType
    from typing import Protocol

    from cherenkov.backends.base import Ids
    from cherenkov.experts.stats import ReadStats

    class Lessor(Protocol):
        """The store, as a lease sees it."""

        pool: ExpertPool

        def arrivals(self, lease: Lease) -> Iterator[Wave]:
            """The experts that were missing, as they land."""

        def release(self, lease: Lease) -> None:
            """The lease is over."""


__all__ = ["NO_WAVE", "Lease"]

NO_WAVE = Wave(np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int32))


class Lease:
    """What a layer asked for. Use it in a `with` block and iterate once.

    Attributes:
        kind: the counters of its reads.
        here: those that were in memory when the layer asked, and their slots.
        missing: records that were not and did not come yet.
        unplaced: those of them that have no slot yet.
        failed: those of them that cannot be read, and what became of the read.
        ready: records that landed and were not handed out yet, with their slots.
        held: slots of what has landed for it, which must stay as they are.
        left_out: experts that will not come.
        lower: those of the missing records that are read in fewer bits.
    """

    __slots__ = (
        "_store",
        "failed",
        "held",
        "here",
        "kind",
        "left_out",
        "lower",
        "missing",
        "ready",
        "unplaced",
    )

    def __init__(self, store: Lessor, kind: ReadStats, here: Wave) -> None:
        self._store = store
        self.kind = kind
        self.here = here
        self.missing: set[int] = set()
        self.unplaced: list[int] = []
        self.failed: list[tuple[int, int]] = []
        self.ready: list[tuple[int, int]] = []
        self.held: list[int] = []
        self.left_out: Ids | None = None
        self.lower: Collection[int] = ()

    @property
    def pool(self) -> ExpertPool:
        """Where the slots are."""
        return self._store.pool

    @property
    def steady(self) -> bool:
        """Every missing record has a slot by now, so none that this lease uses will be given to another."""
        return not self.unplaced

    @property
    def kept(self) -> list[int]:
        """Slots that nothing else may be read into now."""
        return [*self.here.slots.tolist(), *self.held]

    def __iter__(self) -> Iterator[Wave]:
        if self.left_out is not None:
            without = np.full(len(self.left_out), LEFT_OUT, dtype=np.int32)
            yield Wave(
                np.concatenate([self.here.experts, self.left_out]),
                np.concatenate([self.here.slots, without]),
            )
        elif len(self.here.experts):
            yield self.here
        self.here = NO_WAVE
        if self.missing or self.ready:
            yield from self._store.arrivals(self)

    def take_ready(self, experts: int) -> Wave:
        """A wave of what has landed; `experts` a layer. Only its slots are held from now on."""
        ready, self.ready = self.ready, []
        self.held = [slot for _, slot in ready]
        ids = [record % experts for record, _ in ready]
        return Wave(np.array(ids, dtype=np.int32), np.array(self.held, dtype=np.int32))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._store.release(self)
