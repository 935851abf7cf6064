"""What something took lately, and how sure that is."""

from __future__ import annotations

import math
from collections import deque

__all__ = ["Times"]

_WINDOW = 24
_MOST_TIMES = 2.5
_LATE = 4
"""Samples that may be missing from a mean of many: to weigh them all costs a hundredth of a small model's step."""


class Times:
    """The latest times of something. To wait for the disk is part of it; what is far above that was something else."""

    __slots__ = ("_doubt", "_late", "_mean", "_samples", "at")

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=_WINDOW)
        self._mean, self._doubt, self._late = -1.0, 0.0, 0
        self.at = 0  # of the latest, in steps

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._samples)

    @property
    def mean(self) -> float:
        """Of all, none counting as more than so many times the median; 0 if there are none."""
        if self._mean < 0:
            self._weigh()
        return self._mean

    @property
    def doubt(self) -> float:
        """The standard error of the mean, as a share of it; 0 if there are none."""
        if self._mean < 0:
            self._weigh()
        return self._doubt

    def _weigh(self) -> None:
        self._late = 0
        ordered = sorted(self._samples)
        count = max(1, len(ordered))
        most = _MOST_TIMES * ordered[(len(ordered) - 1) // 2] if ordered else 0.0
        kept = [min(each, most) for each in ordered]
        self._mean = mean = sum(kept) / count
        spread = sum((each - mean) ** 2 for each in kept)
        self._doubt = math.sqrt(spread / max(1, count - 1) / count) / mean if mean else 0.0

    def add(self, seconds: float, at: int = 0) -> None:
        """One more; the oldest goes."""
        self._samples.append(seconds)
        self.at = at
        self._late += 1
        if self._late == _LATE or len(self._samples) < _WINDOW // 2:
            self._mean = -1.0

    def renew(self) -> None:
        """Only what comes next counts: old times may belong to another state of the machine."""
        self._samples.clear()
        self._mean = -1.0
