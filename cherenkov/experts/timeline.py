"""How an expert store fared over time: its counters after some of the steps, never too many of them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from cherenkov.experts.stats import ExpertStats

__all__ = ["MOST_POINTS", "Point", "Timeline"]

MOST_POINTS = 512
"""Points that are kept at most, the newest one apart."""


class Point(NamedTuple):
    """The counters after a step. All but `seconds` only count; the difference of two points is what happened between.

    Attributes:
        step: steps so far.
        tokens: rows of these steps.
        seconds: since the store was opened.
        hits: experts found in memory.
        misses: experts that were not.
        demand_bytes: bytes read for steps of few rows.
        prefill_bytes: bytes read for steps of many rows.
        prediction_bytes: bytes read ahead.
        stall_s: seconds that layers waited.
    """

    step: int
    tokens: int
    seconds: float
    hits: int
    misses: int
    demand_bytes: int
    prefill_bytes: int
    prediction_bytes: int
    stall_s: float


class Timeline:
    """Points at equal distances. When they become too many every second one goes, and the distance doubles.

    A step costs an addition and a comparison, and one in `every` of them a point, so it may run for ever.

    Args:
        stats: the counters to follow.
        clock: seconds.

    Attributes:
        steps: steps so far.
        tokens: rows of these steps.
        every: steps from one point to the next.
    """

    __slots__ = ("_begun", "_clock", "_due", "_points", "_stats", "every", "steps", "tokens")

    def __init__(self, stats: ExpertStats, clock: Callable[[], float] = time.perf_counter) -> None:
        self.steps = 0
        self.tokens = 0
        self.every = 1
        self._stats = stats
        self._clock = clock
        self._begun = clock()
        self._due = 1
        self._points: list[Point] = []

    def note(self, rows: int) -> None:
        """A step of so many rows is over."""
        self.steps += 1
        self.tokens += rows
        if self.steps == self._due:
            self._keep()

    def points(self) -> list[Point]:
        """What was kept, oldest first, and where things stand now."""
        now = self._now()
        if self._points and self._points[-1].step == self.steps:
            return [*self._points[:-1], now]  # with what landed since
        return [*self._points, now]

    def _keep(self) -> None:
        if len(self._points) == MOST_POINTS:
            del self._points[::2]  # those that stay are at multiples of the new distance
            self.every *= 2
            if self.steps % self.every:
                self._due = self.steps + self.every // 2
                return
        self._points.append(self._now())
        self._due = self.steps + self.every

    def _now(self) -> Point:
        stats = self._stats
        return Point(
            self.steps,
            self.tokens,
            self._clock() - self._begun,
            stats.hits,
            stats.misses,
            stats.demand.completed_bytes,
            stats.prefill.completed_bytes,
            stats.prediction.completed_bytes,
            stats.stall_s,
        )
