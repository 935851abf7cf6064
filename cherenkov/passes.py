"""Passes over the logits of one position: by the C++ kernels where they are built, else by NumPy.

Ids, counts and maxima are the same either way. Sums of weights are taken in float32, in different orders, and come as two
bounds that hold either way: whoever decides by them asks for the exact sum, in NumPy's float64, where they leave a doubt.
So what is chosen depends neither on which of the two ran, nor on the machine's instruction set.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cherenkov.amended import Amended, Ids, Logits, Plain, Weights, value_at, whole

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_native: ModuleType | None
try:
    import cherenkov._native as _kernels
except ImportError:
    _native = None
else:
    _native = _kernels

__all__ = [
    "Bounds",
    "Foremost",
    "Standing",
    "amended",
    "before_amending",
    "column_maxima",
    "drawer",
    "held",
    "how_many_above",
    "largest",
    "likeliest_id",
    "looks_wide",
    "mass",
    "standing",
    "weight_of",
]

BEST = ""
"""The instruction set for exponentials and sums: the best that the machine has."""

_COLUMNS = 1024
"""Columns, at least, when looking for the largest: few enough to sort, enough that few others reach their maxima."""
_CHUNK = 32_768
"""Logits weighed at a time: what they need along the way stays in the cache."""
_SAMPLED = 1024
_RUN = 8
"""Logits that a guess looks at, about so many, in runs of neighbours."""
_RELATIVE_ERROR = 5e-6
"""Of a sum of float32 weights, 83 roundings of 2^-24. A weight's exponent x has a relative error of at most 3, and the
exponential of 5, which makes 3 |x| + 5; over all weights, or all above some value, |x| averages at most ln V, since it is
the entropy less ln of the sum. NumPy sums a chunk in pairs, in 27 steps at most, the kernels 128 in vectors, in fewer."""
_ORDINARY = (1e-3, 1e6)
"""Temperatures outside are divided by in float64: their reciprocals leave the range of float32 exponents."""
_STEEPEST = 1e300
"""The largest reciprocal of a temperature: 0 times it is still 0."""
_NO_IDS: Ids = np.empty(0, np.int64)
_NO_VALUES: Weights = np.empty(0, np.float64)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Two numbers, a few millionths apart, between which a sum of weights lies."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Standing:
    """A token among others, most likely first, ties by id.

    Attributes:
        ahead: what those before it weigh.
        total: what all weigh.
    """

    ahead: Bounds
    total: Bounds


def amended(
    logits: Plain,
    ids: Ids,
    counts: Ids,
    penalties: tuple[float, float, float],
    biased: Ids,
    biases: Weights,
    keep: bool = False,
) -> Logits:
    """The logits, those of `ids` punished, and then those of `biased` moved. Both ascend, within the vocabulary.

    The penalties are a factor, what is for presence and what for frequency: logits are divided by the factor if positive, else
    multiplied, and then less `presence + frequency * counts`. With `keep`, `before_amending` tells what they were.
    """
    factor, presence, frequency = penalties
    if _native is None or logits.dtype != np.float32:
        changed = logits.astype(np.float64)
        found = changed[ids]
        found = np.where(found > 0, found / factor, found * factor)
        changed[ids] = found - (presence + frequency * counts)
        changed[biased] += biases
        return changed
    base = np.empty(logits.size, np.float32)
    places = np.empty(ids.size + biased.size, np.int64)
    values = np.empty(places.size, np.float64)
    row = np.ascontiguousarray(logits)
    before = np.empty(places.size if keep else 0, np.float64)
    changes = biased, biases, base, places, values, before
    held = _native.amend(row, ids, counts, *penalties, *changes, BEST)
    size = held.changed
    return Amended(base, places[:size], values[:size], held, before[:size] if keep else None)


def held(logits: Logits) -> Logits:
    """The same logits, as the kernels keep them, if they can: what they find out once need not be found again."""
    if isinstance(logits, Amended) or _native is None or logits.dtype != np.float32:
        return logits
    if logits.ndim != 1 or not logits.size:
        return logits
    base = np.ascontiguousarray(logits, np.float32)
    return Amended(base, _NO_IDS, _NO_VALUES, _native.Logits(base, _NO_IDS, _NO_VALUES, BEST))


def _held(logits: Logits) -> _kernels.Logits | None:
    """What the kernels keep of a row; None if NumPy must do."""
    found = held(logits)
    return found.held if isinstance(found, Amended) else None


def before_amending(logits: Logits, plain: Plain) -> Logits:
    """What a row was before: `plain`, of which it was made, in what the kernels keep of both."""
    if not isinstance(logits, Amended) or logits.before is None:
        return plain
    held = logits.held.before_amending(logits.before)
    return Amended(logits.base, logits.ids, logits.before, held)


def likeliest_id(logits: Amended) -> int:
    """The id of the largest logit, the lowest of several; -1 if a logit is NaN, or the largest not finite."""
    return logits.held.likeliest()


def _bounds(total: float, beside: float = 0.0) -> Bounds:
    return Bounds(total * (1 - _RELATIVE_ERROR) + beside, total * (1 + _RELATIVE_ERROR) + beside)


def mass(logits: Logits, largest: float, temperature: float) -> Bounds:
    """Bounds of the sum of the weights `exp((logit - largest) / temperature)` of all logits.

    Args:
        logits: `[V]`, none NaN.
        largest: the largest of them.
        temperature: at least 1e-300.
    """
    kept = _held(logits)
    if kept is None:
        return _bounds(_mass(whole(logits), largest, temperature))
    return _bounds(kept.mass(largest, temperature))


def _mass(logits: Plain, largest: float, temperature: float) -> float:
    starts = range(0, logits.size, _CHUNK)
    return sum(_weigh(logits[start : start + _CHUNK], largest, temperature) for start in starts)


def _weigh(chunk: Plain, largest: float, temperature: float) -> float:
    """The sum of a chunk's weights."""
    with np.errstate(over="ignore"):
        if chunk.dtype == np.float32 and _ORDINARY[0] <= temperature <= _ORDINARY[1]:
            out = chunk - np.float32(largest)
            if temperature != 1:
                out *= np.float32(1 / temperature)
        else:
            below = chunk.astype(np.float64) - largest
            out = (below * min(1 / temperature, _STEEPEST)).astype(np.float32)
    np.exp(out, out=out)
    return float(out.sum())


def standing(logits: Logits, largest: float, temperature: float, token: int) -> Standing:
    """What comes before a token, most likely first, ties by id, and what all tokens weigh, as for `mass`.

    Args:
        logits: as for `mass`.
        largest: as for `mass`.
        temperature: as for `mass`.
        token: which.
    """
    value = value_at(logits, token)
    kept = _held(logits)
    if kept is not None:
        found = kept.before(largest, temperature, token, value)
    else:
        row = whole(logits)
        found = (_mass(row, largest, temperature), *_before(row, largest, temperature, token))
    return _standing(found, weight_of(value, largest, temperature))


def _before(row: Plain, largest: float, temperature: float, token: int) -> tuple[float, int]:
    """What the logits above a token's weigh, and how many equal ones have lower ids."""
    value = row[token]
    return _mass(row[row > value], largest, temperature), _equal(row, value, token)


def _standing(found: tuple[float, float, int], weight: float, last: float = 0.0) -> Standing:
    """Of a token that weighs `weight`; `last` are the weights beside the total that was found."""
    total, ahead, equal = found
    return Standing(_bounds(ahead, equal * weight), _bounds(total, last))


def weight_of(value: float, largest: float, temperature: float) -> float:
    """The weight of a logit, in float64."""
    return float(np.exp((value - largest) / temperature))


def how_many_above(logits: Logits, value: float) -> int:
    """How many logits exceed a value."""
    kept = _held(logits)
    if kept is not None:
        return kept.how_many_above(value)
    row = whole(logits)
    with np.errstate(over="ignore"):
        near = row.dtype.type(value)
    if float(near) > value:  # numbers of this type exceed the value if they exceed the next below
        near = np.nextafter(near, row.dtype.type(-math.inf))
    return int(np.count_nonzero(row > near))


def looks_wide(
    logits: Logits, largest: float, temperature: float, count: int, share: float, least: float
) -> bool:
    """Whether the most likely tokens seem to make up less than a share, and to weigh no less than `least` each.

    A guess, from the maxima of columns and a sample, in float64: the same with kernels and without.

    Args:
        logits: as for `mass`; no fewer than 128.
        largest: as for `mass`.
        temperature: as for `mass`.
        count: how many are meant, above 0.
        share: from 0 to 1.
        least: a weight.
    """
    kept = _held(logits)
    if kept is not None:
        return kept.looks_wide(largest, temperature, count, share, least)
    row = whole(logits)
    maxima = column_maxima(row, row.size // 64)
    if count >= maxima.size:
        return False
    bound = np.partition(maxima, maxima.size - count)[maxima.size - count]
    first = np.full(count, bound)
    above = maxima[maxima > bound]
    first[: above.size] = above
    stride = max(1, row.size // _SAMPLED)
    starts = np.arange(stride // 2 * _RUN, row.size, stride * _RUN)
    places = (starts[:, None] + np.arange(_RUN)).ravel()
    sample = row[places[places < row.size]]
    with np.errstate(over="ignore"):
        weights, others = (
            np.exp((some.astype(np.float64) - largest) / temperature)
            for some in (first, sample[sample <= bound])
        )
    made_up = float(weights.sum())
    return bool(weights[-1] >= least and made_up < share * (made_up + float(others.sum()) * stride))


class Foremost:
    """The most likely tokens, ties by id, so many that they are not listed.

    Attributes:
        value: the logit of the last.
        ties: how many of them have that logit.
    """

    def __init__(self, logits: Logits, count: int) -> None:
        """Find the `count` most likely, 1 to V."""
        self._logits, self._count = logits, count
        kept = _held(logits)
        self._kept: _kernels.Foremost | None = None
        self.value: float
        self.ties: int
        if kept is not None:
            assert _native is not None
            self._kept = _native.Foremost(kept, count)
            self.value, self.ties = self._kept.value, self._kept.ties
            return
        row = whole(logits)
        self.value = float(np.partition(row, row.size - count)[row.size - count])
        self.ties = count - int(np.count_nonzero(row > self.value))

    def mass(self, largest: float, temperature: float) -> Bounds:
        """Bounds of the sum of their weights, as `mass`."""
        if self._kept is not None:
            above = self._kept.mass(largest, temperature)
        else:
            above = _mass(self._above(), largest, temperature)
        return _bounds(above, self._ties_weigh(largest, temperature))

    def standing(self, largest: float, temperature: float, token: int) -> Standing:
        """What comes before one of them, and what they weigh, as the function."""
        value = value_at(self._logits, token)
        if self._kept is not None:
            found = self._kept.before(largest, temperature, token, value)
        else:
            total = _mass(self._above(), largest, temperature)
            found = total, *_before(whole(self._logits), largest, temperature, token)
        weight = weight_of(value, largest, temperature)
        return _standing(found, weight, self._ties_weigh(largest, temperature))

    def how_many_above(self, value: float) -> int:
        """How many of them have a logit above a value."""
        if value < self.value:
            return self._count
        if self._kept is not None:
            return self._kept.how_many_above(value)
        return how_many_above(self._logits, value)

    def holds(self, token: int) -> bool:
        """Whether a token is one of them."""
        value = value_at(self._logits, token)
        if value != self.value:
            return value > self.value
        if self._kept is not None:
            return self._kept.holds(token, value)
        return _equal(whole(self._logits), value, token) < self.ties

    def _above(self) -> Plain:
        row = whole(self._logits)
        return row[row > self.value]

    def _ties_weigh(self, largest: float, temperature: float) -> float:
        return self.ties * weight_of(self.value, largest, temperature)


def _equal(row: Plain, value: float, before: int) -> int:
    return int(np.count_nonzero(row[:before] == value))


def column_maxima(logits: Plain, columns: int) -> Plain:
    """Maxima of the columns of the logits in rows of so many. The last row may be short."""
    rows = logits.size // columns * columns
    maxima: Plain = logits[:rows].reshape(-1, columns).max(axis=0)
    rest = logits[rows:]
    np.maximum(maxima[: rest.size], rest, out=maxima[: rest.size])
    return maxima


def largest(logits: Logits, count: int) -> tuple[Ids, Weights]:
    """Ids of the `count` largest logits, or all, largest first, ties by id, and these logits.

    The largest logit of a column is one logit, so at least `count` logits reach the `count`-th largest of the columns'.
    What exceeds that bound is a short list to sort, for one pass over the vocabulary; the lowest ids that equal it follow.
    """
    size = logits.size
    if count >= size:
        row = whole(logits)
        ids: Ids = np.argsort(-row, kind="stable")
        return ids, row[ids].astype(np.float64)
    kept = _held(logits)
    if kept is not None:
        ids = np.empty(count, np.int64)
        values: Weights = np.empty(count, np.float64)
        kept.largest(ids, values)
        return ids, values
    row = whole(logits)
    columns = max(_COLUMNS, 4 * count)
    source = column_maxima(row, columns) if columns < size else row
    bound = np.partition(source, source.size - count)[source.size - count]
    listed = np.flatnonzero(row > bound)  # ascending, so that a stable sort keeps ties by id
    listed = listed[np.argsort(-row[listed], kind="stable")[:count]]
    if listed.size < count:
        equal = np.flatnonzero(row == bound)[: count - listed.size]
        listed = np.concatenate([listed, equal])
    return listed, row[listed].astype(np.float64)


def drawer(
    logits: Logits, largest: float, temperature: float, number: float
) -> Callable[[], int] | None:
    """What draws the next token, as `selection.draws` says; None if NumPy must do."""
    kept = _held(logits)
    if kept is None:
        return None
    assert _native is not None
    drawn: _kernels.Draws = _native.Draws(kept, largest, temperature, number)
    return drawn.next
