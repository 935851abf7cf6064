"""The tokens that top-k, top-p and min-p leave, and a draw from them.

Each of the three keeps the most likely tokens up to some place, ties by id, so together they do. Few tokens are listed. Of
many it is enough to say whether one that was drawn from all is a member, which takes what comes before it: its rank, and
the sum of the larger weights, which is known first within a few millionths. That almost always settles the matter; where it
leaves a doubt, the exact sums are taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from cherenkov.passes import nth_id
from cherenkov.selection import Row, draws, place_of

if TYPE_CHECKING:
    from cherenkov.amended import Ids, Weights

__all__ = ["Nucleus", "nucleus_size"]

_NARROW = 256
"""Tokens listed at most for a draw. Most nuclei are smaller."""
_GROWTH = 8


def nucleus_size(weights: Weights, target: float) -> int:
    """How many of the weights, largest first, it takes to reach `target`; one more than there are if they do not."""
    return int(np.searchsorted(np.cumsum(weights), target, side="left")) + 1


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
    _last: int | None = field(default=None, init=False)
    _deepest: int = field(default=0, init=False)  # members known to come before another
    # Places `(-logit, id)`: up to here tokens are known to be in, from there on to be out.
    _inside: tuple[float, int] = field(default=(-math.inf, -1), init=False)
    _outside: tuple[float, int] = field(default=(math.inf, 2**62), init=False)

    def members(self) -> tuple[Ids, Weights]:
        """All tokens, most likely first, ties by id, and their weights. Many take a long sort."""
        count = _NARROW
        while True:
            found = self._among_first(count)
            if found is not None:
                ids, weights, least, most = found
                left = least if least == most else self._settled(weights, least, most)
                return ids[:left], weights[:left]
            count *= _GROWTH

    def draw(self, number: float) -> int:
        """A token by its weight, without sorting the members if they are many.

        Args:
            number: in [0, 1); decides everything.
        """
        tokens = draws(self.row, number)
        if self.top_p < 1 and self._seems_wide():
            # A member that has so many before it settles it: there are more than can be listed.
            first = next(tokens)
            if self.holds(first) and self._deepest >= _NARROW:
                return first
            tokens = chain((first,), tokens)
        found = self._among_first(_NARROW)
        if found is None:
            return next(token for token in tokens if self.holds(token))
        ids, weights, least, most = found
        place = place_of(number, weights[:least])
        # The more members, the later the place: if it is the same for the least and the most there may be, that is it.
        if least != most and place != place_of(number, weights[:most]):
            place = place_of(number, weights[: self._settled(weights, least, most)])
        return int(ids[place])

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
        last = self._last_of_top_k()
        if last is not None and self.row.place(token) > self.row.place(last):
            return False
        return self.top_p == 1 or self._falls_short(token)

    def _falls_short(self, token: int) -> bool:
        """Whether the tokens before one of the k do not reach what top-p asks for."""
        found = self.row.standing(token, self._last_of_top_k())
        low, high = self._targets = self.top_p * found.total.low, self.top_p * found.total.high
        falls_short = found.ahead.high < low or (
            found.ahead.low < high and self.row.mass_before(token) < self._target()
        )
        if falls_short:
            self._deepest = max(self._deepest, found.rank)
        return falls_short

    def _among_first(self, count: int) -> tuple[Ids, Weights, int, int] | None:
        """Tokens, their weights, and how many of them are members at least and at most; None if others are too."""
        row, size = self.row, self.row.size
        left = min(self.top_k or size, size)
        listed = min(count, left)
        complete = listed == left
        if not complete and self._is_wide(listed):
            return None
        ids = row.first(listed)
        weights = row.weights(ids)
        if self.min_p:
            likely = int(np.count_nonzero(weights >= self.min_p))
            left = likely if likely < listed else left
        least = most = left
        if self.top_p < 1:
            low, high = (
                (self.top_p * float(weights.sum()),) * 2 if complete else self._target_bounds()
            )
            least, most = (min(left, nucleus_size(weights, target)) for target in (low, high))
            if least <= listed < most:
                least = most = min(left, nucleus_size(weights, self._target()))
            if complete:
                least = most = min(least, listed)
        return (ids, weights, least, most) if most <= listed else None

    def _settled(self, weights: Weights, least: int, most: int) -> int:
        """How many members there are, of the least and the most that the bounds allow. Slow."""
        return max(least, min(most, nucleus_size(weights, self._target())))

    def _seems_wide(self) -> bool:
        """Whether there may well be more members than are listed."""
        # Beside the most likely token, which weighs 1, the others make up far more than top-p leaves out.
        left_out = (1 - self.top_p) / self.top_p
        return (not self.top_k or self.top_k > _NARROW) and self.row.looks_flat(4 * left_out)

    def _is_wide(self, count: int) -> bool:
        """Whether a look tells that there are more members than so many, of which top-k leaves more."""
        row = self.row
        if self.top_p < 1 and self._target_bounds()[0] <= count:  # so many weigh at most `count`
            return False
        if not self.min_p:
            return True
        bound = row.largest + row.temperature * (math.log(self.min_p) + 1e-9)
        return row.how_many_above(math.nextafter(bound, math.inf)) > count

    def _target_bounds(self) -> tuple[float, float]:
        """Bounds of the sum of weights that top-p reaches."""
        if self._targets is None:
            last = self._last_of_top_k()
            row = self.row
            total = row.mass_bounds() if last is None else row.standing(last, last).total
            self._targets = self.top_p * total.low, self.top_p * total.high
        return self._targets

    def _target(self) -> float:
        """That sum in float64. Slow."""
        last = self._last_of_top_k()
        if last is None:
            return self.top_p * self.row.mass()
        return self.top_p * (self.row.mass_before(last) + self.row.weight(last))

    def _last_of_top_k(self) -> int | None:
        """The least likely of the k most likely tokens; None if that is all tokens."""
        if self._last is None and self.top_k:
            self._last = nth_id(self.row.logits, self.top_k)
        return self._last
