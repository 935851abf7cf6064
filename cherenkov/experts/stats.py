"""What the expert store has done so far."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from cherenkov.backends.base import Ids

__all__ = ["MOST_NOTED_IDS", "ExpertCounts", "ExpertStats", "LowerStats", "ReadStats"]

_MOST_NOTED = 1024
MOST_NOTED_IDS = 1 << 20
"""Routed ids that wait to be counted, at most: a few megabytes. Long prompts have many times as many."""


@dataclass(slots=True)
class ReadStats:
    """Reads of one kind. Counters that only grow.

    Attributes:
        requested: reads asked for.
        completed: reads that brought their record.
        cancelled: reads taken back before they began.
        failed: reads that failed twice.
        requested_bytes: bytes of the reads asked for.
        completed_bytes: bytes of the reads that brought their record.
        read_s: seconds that reader threads spent on them; reads overlap.
    """

    requested: int = 0
    completed: int = 0
    cancelled: int = 0
    failed: int = 0
    requested_bytes: int = 0
    completed_bytes: int = 0
    read_s: float = 0.0

    def since(self, earlier: ReadStats) -> ReadStats:
        """What happened after `earlier` was copied."""
        return ReadStats(
            *(getattr(self, f.name) - getattr(earlier, f.name) for f in fields(ReadStats))
        )


@dataclass(slots=True)
class LowerStats:
    """What was done with records of fewer bits, where misses are read in them. Counters that only grow.

    Attributes:
        hits: experts found in memory in fewer bits.
        misses: experts that were not in memory, and were read in fewer bits.
        reads: reads of theirs that brought their record.
        read_bytes: bytes of these.
    """

    hits: int = 0
    misses: int = 0
    reads: int = 0
    read_bytes: int = 0

    def since(self, earlier: LowerStats) -> LowerStats:
        """What happened after `earlier` was copied."""
        return LowerStats(
            *(getattr(self, f.name) - getattr(earlier, f.name) for f in fields(LowerStats))
        )


@dataclass(slots=True)
class ExpertStats:
    """Counters that only grow.

    Attributes:
        hits: experts found in memory when their layer asked for them.
        misses: experts that were not, whether their read was under way or not.
        read_bytes: bytes read, of all kinds.
        read_s: seconds that reader threads spent reading and checking; reads overlap.
        stall_s: seconds that layers waited with nothing to compute.
        joined: misses whose read a prediction had begun.
        predictions: experts predicted for layers that have run since.
        right_predictions: those of them that the layer asked for.
        predicted_asks: experts that those layers asked for.
        useful_predictions: records that predictions read and a layer asked for before they left memory again.
        wasted_bytes: bytes of the records that predictions read and nobody had asked for when they left.
        cut: misses that were left out of the sum instead of being read.
        lower: what of all this was with records of fewer bits.
        demand: reads for steps of few rows.
        prefill: reads for steps of many rows.
        prediction: reads ahead.
    """

    hits: int = 0
    misses: int = 0
    read_bytes: int = 0
    read_s: float = 0.0
    stall_s: float = 0.0
    joined: int = 0
    predictions: int = 0
    right_predictions: int = 0
    predicted_asks: int = 0
    useful_predictions: int = 0
    wasted_bytes: int = 0
    cut: int = 0
    lower: LowerStats = field(default_factory=LowerStats)
    demand: ReadStats = field(default_factory=ReadStats)
    prefill: ReadStats = field(default_factory=ReadStats)
    prediction: ReadStats = field(default_factory=ReadStats)

    @property
    def hit_rate(self) -> float:
        """Share of experts that were in memory when asked for; 0 before any was."""
        return _share(self.hits, self.hits + self.misses)

    @property
    def precision(self) -> float:
        """Share of the predicted experts that were asked for."""
        return _share(self.right_predictions, self.predictions)

    @property
    def recall(self) -> float:
        """Share of the experts asked for that were predicted, in layers that had a prediction."""
        return _share(self.right_predictions, self.predicted_asks)

    def since(self, earlier: ExpertStats) -> ExpertStats:
        """What happened after `earlier` was copied."""
        parts: dict[str, Any] = {
            f.name: _difference(getattr(self, f.name), getattr(earlier, f.name))
            for f in fields(self)
        }
        return ExpertStats(**parts)

    def copy(self) -> ExpertStats:
        """The counters as they stand now."""
        nested = ("lower", "demand", "prefill", "prediction")
        return replace(self, **{name: replace(getattr(self, name)) for name in nested})


class ExpertCounts:
    """Counters by layer and expert, int64. What is noted shows after `settle`, which counts many notes at a time.

    Attributes:
        rows: `[layers, experts]`, rows routed there.
        misses: `[layers, experts]`, steps that asked for what was not in memory.
        predicted: `[layers, experts]`, reads ahead.
        asks: `[layers]`, distinct experts that steps asked for; hits are asks less misses.
    """

    def __init__(self, layers: int, experts: int) -> None:
        self.rows: NDArray[np.int64] = np.zeros((layers, experts), dtype=np.int64)
        self.misses: NDArray[np.int64] = np.zeros((layers, experts), dtype=np.int64)
        self.predicted: NDArray[np.int64] = np.zeros((layers, experts), dtype=np.int64)
        self.asks: NDArray[np.int64] = np.zeros(layers, dtype=np.int64)
        self._uses: dict[tuple[int, tuple[int, ...]], list[Ids]] = {}  # by first layer and shape
        self._noted = 0
        self._noted_ids = 0
        self._missed: list[int] = []
        self._predicted: list[int] = []

    def note(self, first_layer: int, ids: Ids) -> None:
        """Rows were routed, `[n, R, K]` of layers from `first_layer` on."""
        self._uses.setdefault((first_layer, ids.shape), []).append(ids)
        self._noted += 1
        self._noted_ids += ids.size
        if self._noted == _MOST_NOTED or self._noted_ids > MOST_NOTED_IDS:
            self.settle()

    def note_misses(self, records: list[int]) -> None:
        """Records were missing."""
        self._missed += records

    def note_predictions(self, records: list[int]) -> None:
        """Records are read ahead."""
        self._predicted += records

    def settle(self) -> None:
        """Count what was noted."""
        uses, self._uses, self._noted, self._noted_ids = self._uses, {}, 0, 0
        missed, self._missed = self._missed, []
        predicted, self._predicted = self._predicted, []
        for (first_layer, _), alike in uses.items():
            self._add(first_layer, np.stack(alike))
        np.add.at(self.misses.reshape(-1), missed, 1)
        np.add.at(self.predicted.reshape(-1), predicted, 1)

    def _add(self, first_layer: int, ids: Ids) -> None:
        """Of steps that were alike: `[steps, n, R, K]`."""
        steps, count, rows, k = ids.shape
        experts = self.rows.shape[1]
        at = ids + np.arange(0, count * experts, experts)[:, None, None]
        counts = np.bincount(at.reshape(-1), minlength=count * experts)
        here = slice(first_layer, first_layer + count)
        self.rows[here] += counts.reshape(count, experts)
        if rows == 1:
            self.asks[here] += steps * k
            return
        ordered = np.sort(ids.reshape(steps, count, -1), axis=2)
        self.asks[here] += steps + np.count_nonzero(np.diff(ordered, axis=2), axis=(0, 2))

    @property
    def hits(self) -> NDArray[np.int64]:
        """`[layers]`, asks that found their expert in memory."""
        hits: NDArray[np.int64] = self.asks - self.misses.sum(axis=1)
        return hits


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _difference(now: Any, then: Any) -> Any:
    return now.since(then) if isinstance(now, ReadStats | LowerStats) else now - then
