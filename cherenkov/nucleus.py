"""The tokens that top-k, top-p and min-p leave, and a draw from them.

Each of the three keeps the most likely tokens up to some place, ties by id, so together they do. Few tokens are listed. Of
many it is enough to say whether one that was drawn from all is a member, which takes what comes before it: its rank, and
the sum of the larger weights, which is known first within a few millionths. That almost always settles the matter; where it
leaves a doubt, the exact sums are taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from cherenkov.passes import Foremost, how_many_above
from cherenkov.selection import Row, draws, place_of

if TYPE_CHECKING:
    from cherenkov.amended import Ids, Weights

__all__ = ["Nucleus", "nucleus_size"]

_NARROW = 256
"""Tokens listed at most for a draw. Most nuclei are smaller."""
_GROWTH = 8


def nucleus_size(reached: Weights, target: float) -> int:
    """How many weights, largest first, it takes to reach `target`; one more than there are if they do not.

    Args:
        reached: their sum up to and with each of them, `[C]`.
        target: what to reach.
    """
    return int(reached.searchsorted(target, side="left")) + 1


@dataclass(frozen=True, slots=True)
class _Listed:
    """The most likely tokens, `[C]`, their weights and the sums of these, and how many are members at least and at most."""

    ids: Ids
    weights: Weights
    reached: Weights
    least: int
    most: int


@dataclass(slots=True)
class Nucleus:
    """The tokens of one row that are left.

    Attributes:
        row: the logits, `[V]`.
        top_k: the k most likely, at most V; 0 is all.
        top_p: of these, the fewest most likely whose probabilities reach p; 1 is all.
        min_p: of these, those at least p times as likely as the most likely; 0 is all.
    """

    row: Row
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    _targets: tuple[float, float] | None = field(default=None, init=False)
    _foremost: Foremost | None = field(default=None, init=False)
    # Places `(-logit, id)`: up to here tokens are known to be in, from there on to be out.
    _inside: tuple[float, int] = field(default=(-math.inf, -1), init=False)
    _outside: tuple[float, int] = field(default=(math.inf, 2**62), init=False)

    def members(self) -> tuple[Ids, Weights]:
        """All tokens, most likely first, ties by id, and their weights. Many take a long sort."""
        count = _NARROW
        while True:
            found = self._among_first(count)
            if found is not None:
                left = found.least if found.least == found.most else self._settled(found)
                return found.ids[:left], found.weights[:left]
            count *= _GROWTH

    def draw(self, number: float) -> int:
        """A token by its weight, without sorting the members if they are many.

        Args:
            number: in [0, 1); decides everything.
        """
        tokens = draws(self.row, number)
        if self.top_p < 1 and self._seems_wide():
            return next(token for token in tokens if self.holds(token))
        found = self._among_first(_NARROW)
        if found is None:
            return next(token for token in tokens if self.holds(token))
        place = place_of(number, found.reached[: found.least])
        # The more members, the later the place: if it is the same for the least and the most there may be, that is it.
        if found.least != found.most and place != place_of(number, found.reached[: found.most]):
            place = place_of(number, found.reached[: self._settled(found)])
        return int(found.ids[place])

    def holds(self, token: int) -> bool:
        """Whether a token is a member."""
        place = self.row.place(token)
        if place <= self._inside:
            return True
        if place >= self._outside:
            return False
        held = self._holds(token)
        if held:
            self._inside = place
        else:
            self._outside = place
        return held

    def _holds(self, token: int) -> bool:
        if self.row.weight(token) < self.min_p:  # the most likely token weighs 1
            return False
        some = self._some()
        if some is not None and not some.holds(token):
            return False
        return self.top_p == 1 or self._falls_short(token)

    def _falls_short(self, token: int) -> bool:
        """Whether the tokens before one of the k do not reach what top-p asks for."""
        found = self.row.standing(token, self._some())
        low, high = self._targets = self.top_p * found.total.low, self.top_p * found.total.high
        return found.ahead.high < low or (
            found.ahead.low < high and self.row.mass_before(token) < self._target()
        )

    def _among_first(self, count: int) -> _Listed | None:
        """The tokens that come first; None if others are members too."""
        row, size = self.row, self.row.size
        left = min(self.top_k or size, size)
        listed = min(count, left)
        complete = listed == left
        if not complete and self._is_wide(listed):
            return None
        ids, values = row.first(listed)
        weights = row.weighed(values)
        reached = np.cumsum(weights)
        if self.min_p:
            likely = int(np.count_nonzero(weights >= self.min_p))
            left = likely if likely < listed else left
        least = most = left
        if self.top_p < 1:
            low, high = (
                (self.top_p * float(weights.sum()),) * 2 if complete else self._target_bounds()
            )
            least, most = (min(left, nucleus_size(reached, target)) for target in (low, high))
            if least <= listed < most:
                least = most = min(left, nucleus_size(reached, self._target()))
            if complete:
                least = most = min(least, listed)
        return _Listed(ids, weights, reached, least, most) if most <= listed else None

    def _settled(self, found: _Listed) -> int:
        """How many members there are, of the least and the most that the bounds allow. Slow."""
        return max(found.least, min(found.most, nucleus_size(found.reached, self._target())))

    def _seems_wide(self) -> bool:
        """Whether there may well be more members than are listed."""
        may_be = not self.top_k or self.top_k > _NARROW
        return may_be and self.row.looks_wide(_NARROW, self.top_p, self.min_p)

    def _is_wide(self, count: int) -> bool:
        """Whether a look tells that there are more members than so many, of which top-k leaves more."""
        row = self.row
        if self.top_p < 1 and self._target_bounds()[0] <= count:  # so many weigh at most `count`
            return False
        if not self.min_p:
            return True
        bound = row.largest + row.temperature * (math.log(self.min_p) + 1e-9)
        some, least = self._foremost, math.nextafter(bound, math.inf)
        above = how_many_above(row.logits, least) if some is None else some.how_many_above(least)
        return above > count

    def _target_bounds(self) -> tuple[float, float]:
        """Bounds of the sum of weights that top-p reaches."""
        if self._targets is None:
            total = self.row.bounds_of(self._some())
            self._targets = self.top_p * total.low, self.top_p * total.high
        return self._targets

    def _target(self) -> float:
        """That sum in float64. Slow."""
        return self.top_p * self.row.mass_of(self._some())

    def _some(self) -> Foremost | None:
        """The k most likely tokens; None if that is all."""
        if self._foremost is None and self.top_k:
            self._foremost = Foremost(self.row.logits, self.top_k)
        return self._foremost
