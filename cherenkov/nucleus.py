"""Top-p over a whole vocabulary: the fewest most likely tokens whose probabilities reach p.

What it takes is the sum of all weights, which is known first within a few millionths. That almost always settles which
tokens are in; where it leaves a doubt, the exact sum is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cherenkov.selection import Row, draws, place_of

if TYPE_CHECKING:
    from cherenkov.selection import Ids, Weights

__all__ = ["Nucleus", "nucleus_size"]

_NARROW = 1024
"""Tokens looked at first. Most nuclei are smaller."""
_GROWTH = 8


def nucleus_size(weights: Weights, target: float) -> int:
    """How many of the weights, largest first, it takes to reach `target`; all if they do not."""
    reached = int(np.searchsorted(np.cumsum(weights), target, side="left"))
    return min(reached + 1, weights.size)


@dataclass(frozen=True, slots=True)
class Nucleus:
    """The nucleus of one row.

    Attributes:
        row: the logits, `[V]`.
        top_p: above 0, below 1.
        low, high: bounds of the sum of weights to reach.
    """

    row: Row
    top_p: float
    low: float
    high: float

    @classmethod
    def of(cls, row: Row, top_p: float) -> Nucleus:
        """Take the bounds."""
        low, high = row.mass_bounds()
        return cls(row, top_p, top_p * low, top_p * high)

    def members(self) -> tuple[Ids, Weights]:
        """All tokens, most likely first, ties by id, and their weights. A wide nucleus takes a long sort."""
        count = _NARROW
        while True:
            found = self._among_first(count)
            if found is not None:
                return found
            count *= _GROWTH

    def draw(self, number: float) -> int:
        """A token by its weight, without sorting the nucleus if it is wide.

        Args:
            number: in [0, 1); decides everything.
        """
        found = self._among_first(_NARROW)
        if found is not None:
            ids, weights = found
            return int(ids[place_of(number, weights)])
        return next(token for token in draws(self.row, number) if self.holds(token))

    def holds(self, token: int) -> bool:
        """Whether a token is a member: those before it do not reach p."""
        row, value = self.row, self.row.logits[token]
        before = Row(row.logits[row.logits > value], row.largest, row.temperature)
        ties = np.count_nonzero(row.logits[:token] == value)
        beside = ties * float(row.weights(slice(token, token + 1))[0])
        low, high = before.mass_bounds()
        if high + beside < self.low:
            return True
        if low + beside >= self.high:
            return False
        return bool(before.mass() + beside < self.top_p * row.mass())

    def size_among(self, weights: Weights) -> int:
        """How many of the most likely tokens are members, given their weights, largest first."""
        size = nucleus_size(weights, self.low)
        if size == nucleus_size(weights, self.high):
            return size
        return nucleus_size(weights, self.top_p * self.row.mass())

    def _among_first(self, count: int) -> tuple[Ids, Weights] | None:
        """All members, if they are among the `count` most likely tokens."""
        ids = self.row.first(count)
        weights = self.row.weights(ids)
        if ids.size == self.row.logits.size:
            size = nucleus_size(weights, self.top_p * float(weights.sum()))
        elif weights.sum() < self.high:
            return None
        else:
            size = self.size_among(weights)
        return ids[:size], weights[:size]
