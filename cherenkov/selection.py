"""Finding, summing and drawing tokens among a quarter of a million, without touching most of them more than once.

Float64 exponentials of a large vocabulary take milliseconds, and sorting it tens. So the largest logits are found
through the maxima of columns; sums of weights are taken in float32, with a bound on their error; and a draw from the whole
vocabulary is made by rejection, which needs float64 weights of few tokens and is exact all the same.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import numpy as np

from cherenkov.amended import Amended, Ids, Logits, Plain, Weights, value_at, values_at, whole
from cherenkov.errors import BackendError
from cherenkov.passes import (
    Bounds,
    Foremost,
    Standing,
    column_maxima,
    drawer,
    held,
    largest,
    likeliest_id,
    looks_wide,
    mass,
    standing,
    weight_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "DRAW_AT_LEAST",
    "Ids",
    "Kept",
    "Logits",
    "Row",
    "Weights",
    "draws",
    "largest_logit",
    "likeliest",
    "place_of",
]

_ROWS = 64
"""Rows for a draw: the fewer, the more trials succeed, and the more columns there are to weigh."""
_SINGLES = 64
"""Columns whose tokens stand for themselves."""
_TRIALS = 128
"""Trials made at a time."""
_CHUNK = 32_768
"""Float64 weights summed at a time: what they need along the way stays in the cache."""
_COLDEST = 1e-300
"""Temperatures below have no finite reciprocal to speak of."""
DRAW_AT_LEAST = 16 * _ROWS
"""The fewest logits to draw from; of fewer, weighing all is no work."""


@dataclass(slots=True)
class _Found:
    """What was found out about some logits: their first tokens, some values, and sums of weights by temperature."""

    first: tuple[Ids, Weights] | None = None
    values: dict[int, float] = field(default_factory=dict)
    masses: dict[float, Bounds] = field(default_factory=dict)


@dataclass(slots=True)
class Kept:
    """What choosing a token leaves for `logprobs`.

    Attributes:
        row: the logits as the model gave them, and what was found out about them; None before.
    """

    row: Row | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """The logits of one position, and what turns them into weights.

    A token's weight is `exp((logit - largest) / temperature)`: the most likely token weighs 1. What is found out is kept, so
    that choosing a token and saying how likely it was do not look for the same things twice.

    Attributes:
        logits: `[V]`; must not change.
        largest: the largest of them, finite.
        temperature: above 0.
    """

    logits: Logits
    largest: float
    temperature: float
    _found: _Found = field(default_factory=_Found, repr=False, compare=False)

    @classmethod
    def of(cls, logits: Logits, backend: str, temperature: float = 1.0) -> Self:
        """The row of some logits, `[V]`.

        Raises:
            BackendError: as `likeliest`.
        """
        kept = held(logits)
        return cls(kept, largest_logit(kept, backend), temperature)

    def at(self, temperature: float) -> Row:
        """The same logits at another temperature."""
        return Row(self.logits, self.largest, temperature, self._found)

    def first(self, count: int) -> tuple[Ids, Weights]:
        """Ids and logits of the `count` most likely tokens, or all, most likely first, ties by id."""
        known = self._found.first
        if known is None or known[0].size < min(count, self.logits.size):
            known = self._found.first = largest(self.logits, count)
        return known[0][:count], known[1][:count]

    @property
    def size(self) -> int:
        """V."""
        return self.logits.size

    def value(self, token: int) -> float:
        """The logit of a token."""
        values = self._found.values
        known = values.get(token)
        if known is None:
            known = values[token] = value_at(self.logits, token)
        return known

    def place(self, token: int) -> tuple[float, int]:
        """What tokens are sorted by, most likely first, ties by id."""
        return -self.value(token), token

    def weights(self, ids: Ids) -> Weights:
        """Weights of some tokens, in float64 and in the shape of `ids`."""
        return self.weighed(values_at(self.logits, ids))

    def all_weights(self) -> Weights:
        """Weights of all tokens, `[V]`, in float64. Slow."""
        return self.weighed(whole(self.logits).astype(np.float64))

    def weight(self, token: int) -> float:
        """The weight of a token, in float64."""
        return weight_of(self.value(token), self.largest, self.temperature)

    def weighed(self, values: Weights) -> Weights:
        """Weights of some logits, in float64."""
        # A tiny temperature: everything below the largest is impossible.
        with np.errstate(over="ignore"):
            weights: Weights = np.exp((values - self.largest) / self.temperature)
        return weights

    def mass(self) -> float:
        """The sum of all weights, in float64. Slow."""
        return self._mass(whole(self.logits))

    def _mass(self, logits: Plain) -> float:
        chunks = (logits[i : i + _CHUNK] for i in range(0, logits.size, _CHUNK))
        return math.fsum(float(self.weighed(one.astype(np.float64)).sum()) for one in chunks)

    def mass_bounds(self) -> Bounds:
        """Bounds of the sum of all weights, a few millionths apart."""
        known = self._found.masses.get(self.temperature)
        if known is None:
            if self.temperature >= _COLDEST:
                known = mass(self.logits, self.largest, self.temperature)
            else:
                known = Bounds(*(self.mass(),) * 2)
            self._found.masses[self.temperature] = known
        return known

    def standing(self, token: int, some: Foremost | None) -> Standing:
        """What comes before a token, and what all weigh, or only those of which the token is one."""
        if self.temperature >= _COLDEST:
            if some is not None:
                return some.standing(self.largest, self.temperature, token)
            found = standing(self.logits, self.largest, self.temperature, token)
        else:
            total, ahead = self.mass_of(some), self.mass_before(token)
            found = Standing(Bounds(ahead, ahead), Bounds(total, total))
        if some is None:
            self._found.masses[self.temperature] = found.total
        return found

    def bounds_of(self, some: Foremost | None) -> Bounds:
        """Bounds of the sum of the weights of some tokens; None is all."""
        if some is None:
            return self.mass_bounds()
        if self.temperature >= _COLDEST:
            return some.mass(self.largest, self.temperature)
        return Bounds(*(self.mass_of(some),) * 2)

    def mass_of(self, some: Foremost | None) -> float:
        """That sum in float64. Slow."""
        if some is None:
            return self.mass()
        logits = whole(self.logits)
        last = weight_of(some.value, self.largest, self.temperature)
        return self._mass(logits[logits > some.value]) + some.ties * last

    def looks_wide(self, count: int, share: float, least: float) -> bool:
        """Whether so many tokens, the most likely, seem to make up less than a share, and to weigh `least` or more. A guess."""
        if self.temperature < _COLDEST or self.size < DRAW_AT_LEAST:
            return False
        return looks_wide(self.logits, self.largest, self.temperature, count, share, least)

    def mass_before(self, token: int) -> float:
        """The sum of the weights of all tokens before one, in float64. Slow."""
        logits = whole(self.logits)
        value = logits[token]
        ties = np.count_nonzero(logits[:token] == value)
        return self._mass(logits[logits > value]) + ties * self.weight(token)


def likeliest(logits: Logits, backend: str) -> int:
    """The token with the largest of the logits, `[V]`, the lowest id of several.

    Raises:
        BackendError: naming `backend`, if a logit is NaN or +inf, or all are -inf.
    """
    if isinstance(logits, Amended):
        token = likeliest_id(logits)
        # The array says what is wrong.
        return token if token >= 0 else likeliest(whole(logits), backend)
    if logits.ndim != 1 or not logits.size:
        raise BackendError(backend, "logits", f"shape {logits.shape} instead of [V]")
    token = int(np.argmax(logits))  # the first NaN if there is one
    if not math.isfinite(logits[token]):
        reason = f"the logit of token {token} is {logits[token]}: the weights may be damaged"
        raise BackendError(backend, "logits", reason)
    return token


def largest_logit(logits: Logits, backend: str) -> float:
    """The largest of the logits, `[V]`.

    Raises:
        BackendError: as `likeliest`.
    """
    return value_at(logits, likeliest(logits, backend))


def place_of(number: float, reached: Weights) -> int:
    """The place where the running sum of some weights passes `number` times their sum.

    Args:
        number: in [0, 1).
        reached: `[C]`, that sum up to and with each weight; not all 0.
    """
    place = int(reached.searchsorted(number * reached[-1], side="right"))
    # Rounding can lead to the very end: take the last token that has any weight.
    return min(place, int(reached.searchsorted(reached[-1], side="left")))


def draws(row: Row, number: float) -> Iterator[int]:
    """Draw tokens by their weights, one after the other, independently.

    Lay the logits out in rows; then every column weighs at most as much as its largest token, times the rows. The
    tokens of the columns with the largest maxima stand for themselves, every other column for that bound. One of them
    is drawn, and in a column one of its tokens, which is accepted as often as its weight is short of the column's
    largest. That leaves every token its exact probability; a trial succeeds at least once in as many as there are rows.

    Args:
        row: at least `DRAW_AT_LEAST` logits.
        number: in [0, 1); decides everything.

    Source: von Neumann, Various techniques used in connection with random digits (1951).
    """
    native = drawer(row.logits, row.largest, row.temperature, number)
    if native is None:
        yield from _draws(row, number)
    else:
        while True:
            yield native()


def _draws(row: Row, number: float) -> Iterator[int]:
    logits = whole(row.logits)
    size = logits.size
    columns = size // _ROWS
    rows = -(-size // columns)
    maxima = column_maxima(logits, columns)
    hot = _hottest(maxima, min(_SINGLES, columns))
    ids = (hot[:, None] + columns * np.arange(rows)).ravel()
    ids = ids[ids < size]
    tops = Row(maxima, row.largest, row.temperature).all_weights()
    bounds = tops * rows
    bounds[hot] = 0
    reached = np.cumsum(np.concatenate([row.weights(ids), bounds]))
    last = int(np.searchsorted(reached, reached[-1]))  # the last that can be drawn at all
    for trial in itertools.count(0, _TRIALS):
        where, place, luck = _numbers(number, trial)
        slots = np.minimum(np.searchsorted(reached, where * reached[-1], side="right"), last)
        single = slots < ids.size
        column = np.where(single, 0, slots - ids.size)
        tokens = column + columns * (place * rows).astype(np.int64)
        tokens = np.where(single, ids[np.minimum(slots, ids.size - 1)], tokens)
        weights = row.weights(np.minimum(tokens, size - 1))
        accepted = single | ((tokens < size) & (luck * tops[column] < weights))
        yield from tokens[accepted].tolist()


def _hottest(maxima: Plain, count: int) -> Ids:
    """Some columns with the largest maxima, ascending."""
    bound = np.partition(maxima, maxima.size - count)[maxima.size - count]
    return np.flatnonzero(maxima >= bound)[:count]


def _numbers(number: float, trial: int) -> Weights:
    """Three rows of numbers in [0, 1), grown out of one.

    Source: Steele, Lea and Flood, Fast splittable pseudorandom number generators (2014).
    """
    step = np.uint64(0x9E3779B97F4A7C15)
    count = np.arange(3 * trial, 3 * (trial + _TRIALS), dtype=np.uint64) + np.uint64(1)
    mixed = np.full(count.size, int(number * 2**53), np.uint64)
    for salt in (np.uint64(0), count):
        mixed = mixed + salt * step
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    numbers: Weights = (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return numbers.reshape(3, _TRIALS)
