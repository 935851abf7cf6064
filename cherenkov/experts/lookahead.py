"""Reading ahead: which experts the next layer will likely ask for, and whether knowing it pays.

A predictor is a pure function of the residual. The one here asks the next layer's own router, with the residual as it
is before this layer's experts are added: what those experts and the next mixer will change is small beside what
is there already.

Reading ahead helps while the disk would be idle otherwise, and is right often enough. It costs a product with a router,
and bytes that nobody wanted, which hurts most where the disk is the bottleneck already. No formula knows all that, so
`Trial` measures: it does without for a few steps now and then, and goes on with what was faster.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from cherenkov.backends.base import Backend, Block, Ids

__all__ = ["NextRouter", "Predictor", "Trial"]

MOST_ROWS = 8
"""Steps of more rows ask for so many experts that nothing needs to be guessed."""
_WINDOW = 8
_LONGEST = 32
_WEIGHT = 0.3


class Predictor(Protocol):
    """Guesses a layer's experts before its input is known."""

    def __call__(self, block: Block[Any, Any], wide: Any) -> Ids:
        """The experts, in any shape, that a layer will likely ask for, the likeliest first; `wide` is the residual so far."""


class NextRouter:
    """The layer's own router, on the residual that there is: the upper three fifths of what it would choose.

    What it ranks low is wrong too often. On `m2`, of eight, the first is right in 94 of 100 cases, the fifth in 80, the last in 49:
    reading five instead of all eight wastes half as many bytes, and is as fast or faster. `kernels/cpu/foresight.cpp` does more.
    """

    def __init__(self, ops: Backend[Any, Any]) -> None:
        self._ops = ops

    def __call__(self, block: Block[Any, Any], wide: Any) -> Ids:
        """See `Predictor`. Column by column: the likeliest of all rows first."""
        ids = self._ops.likely(block.moe_read, block.router, wide)
        return ids.T[: -(-3 * ids.shape[1] // 5)]


class Trial:
    """Whether steps are faster with something than without, found by trying.

    Windows of eight steps are done one way. The first four alternate; then the faster way goes on, and the other is
    tried again for one window after 2, 4, 8, … up to 32 of them, from the start whenever the verdict changes. A way's
    time is a running mean of its windows' medians. So the slower way is taken in at most one step of 33 for long, and what
    it costs more is a thirtieth of the difference.

    Steps of different rows are not compared: those count that have as many as most have of late.

    Args:
        mode: `auto`, or `on` or `off` for no trial.
        clock: seconds.
    """

    def __init__(self, mode: str = "auto", clock: Callable[[], float] = time.perf_counter) -> None:
        self.mode = mode
        self._clock = clock
        self._on = mode != "off"
        self._times: list[float] = []  # of this window's steps
        self._means: dict[tuple[bool, int], float] = {}  # by rows
        self._rows, self._others = 1, 0
        self._windows = 0  # of this way, in a row
        self._pause = 2
        self._early = 4  # windows that alternate
        self._begun = 0.0

    @property
    def on(self) -> bool:
        """The next step is to be done with it."""
        return self._on

    def begin(self) -> bool:
        """A step begins; is it to be done with it?"""
        self._begun = self._clock()
        return self._on

    def end(self, rows: int = 1) -> None:
        """The step, of so many rows, is over."""
        if self.mode != "auto":
            return
        if rows != self._rows:
            self._others += 1
            if self._others <= _WINDOW:
                return
            self._rows = rows
            self._times.clear()
        self._others = 0
        self._times.append(self._clock() - self._begun)
        if len(self._times) == _WINDOW:
            self._judge()
            self._times.clear()

    def _judge(self) -> None:
        median = sorted(self._times)[_WINDOW // 2]
        way = self._on, self._rows
        before = self._means.get(way, median)
        self._means[way] = before + _WEIGHT * (median - before)
        other = self._means.get((not self._on, self._rows))
        if self._early > 1 or other is None:
            self._early -= 1
            self._on = not self._on
            return
        self._choose(bool(self._means[way] < other) == self._on)

    def _choose(self, best: bool) -> None:
        """Go on with the best way, or try the other if it is time."""
        if self._on != best:  # that was a trial, or the verdict changed
            changed = self._windows > 1
            self._pause = 2 if changed else min(2 * self._pause, _LONGEST)
            self._on, self._windows = best, 0
            return
        self._windows += 1
        if self._windows >= self._pause:
            self._on, self._windows = not best, 0
