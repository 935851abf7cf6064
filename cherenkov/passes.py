"""Passes over the logits of one position: by the C++ kernels where they are built, else by NumPy.

Ids, counts and maxima are the same either way. Sums of weights are taken in float32, in different orders, and come as two
bounds that hold either way: whoever decides by them asks for the exact sum, in NumPy's float64, where they leave a doubt.
So what is chosen depends neither on which of the two ran, nor on the machine's instruction set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cherenkov.amended import Amended, Ids, Logits, Plain, Weights, value_at, whole

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from numpy.typing import NDArray

_native: ModuleType | None
try:
    import cherenkov._native as _kernels
except ImportError:
    _native = None
else:
    _native = _kernels

__all__ = [
    "Bounds",
    "Standing",
    "amended",
    "column_maxima",
    "drawer",
    "largest_ids",
    "mass",
    "nth_id",
    "standing",
]

BEST = ""
"""The instruction set for exponentials and sums: the best that the machine has."""

_COLUMNS = 1024
"""Columns, at least, when looking for the largest: few enough to sort, enough that few others reach their maxima."""
_CHUNK = 32_768
"""Logits weighed at a time: what they need along the way stays in the cache."""
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
        rank: how many they are.
        total: what all weigh.
    """

    ahead: Bounds
    rank: int
    total: Bounds


def amended(
    logits: Plain,
    ids: Ids,
    counts: Ids,
    factor: float,
    presence: float,
    frequency: float,
    biased: Ids,
    biases: Weights,
) -> Logits:
    """The logits, those of `ids` punished, and then those of `biased` moved. Both ascend, within the vocabulary.

    These are divided by `factor` if positive, else multiplied, and then less `presence + frequency * counts`.
    """
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
    penalties = (factor, presence, frequency)
    size = _native.amend(row, ids, counts, *penalties, biased, biases, base, places, values)
    return Amended(base, places[:size], values[:size])


def _parts(logits: Logits) -> tuple[NDArray[np.float32], Ids, Weights] | None:
    """What kernels take of a row; None if NumPy must do."""
    if isinstance(logits, Amended):
        return logits.base, logits.ids, logits.values
    if _native is None or logits.dtype != np.float32:
        return None
    return np.ascontiguousarray(logits), _NO_IDS, _NO_VALUES


def _bounds(total: float, beside: float = 0.0) -> Bounds:
    return Bounds(total * (1 - _RELATIVE_ERROR) + beside, total * (1 + _RELATIVE_ERROR) + beside)


def mass(logits: Logits, largest: float, temperature: float) -> Bounds:
    """Bounds of the sum of the weights `exp((logit - largest) / temperature)` of all logits.

    Args:
        logits: `[V]`, none NaN.
        largest: the largest of them.
        temperature: at least 1e-300.
    """
    parts = _parts(logits)
    if parts is None:
        return _bounds(_mass(whole(logits), largest, temperature))
    assert _native is not None
    return _bounds(_native.mass(*parts, largest, temperature, BEST))


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


def standing(
    logits: Logits, largest: float, temperature: float, token: int, last: int | None = None
) -> Standing:
    """What comes before a token, most likely first, ties by id, and what all tokens weigh, as for `mass`.

    Args:
        logits: as for `mass`.
        largest: as for `mass`.
        temperature: as for `mass`.
        token: which.
        last: a token that is not before it, beyond which nothing counts; None counts all.
    """
    value = value_at(logits, token)
    end, end_value = (logits.size, -np.inf) if last is None else (last, value_at(logits, last))
    parts = _parts(logits)
    if parts is not None:
        assert _native is not None
        places = end, end_value, token, value
        found = _native.before(*parts, largest, temperature, *places, BEST)
        total, _, others, sooner, rank, equal = found
    else:
        row = whole(logits)
        total, others = (
            _mass(row[row > end_value], largest, temperature),
            _equal(row, end_value, end),
        )
        sooner, equal = _mass(row[row > value], largest, temperature), _equal(row, value, token)
        rank = int(np.count_nonzero(row > value))
    with np.errstate(over="ignore"):
        weight, of_last = np.exp(np.array([value - largest, end_value - largest]) / temperature)
    ahead = _bounds(sooner, equal * float(weight))
    return Standing(ahead, rank + equal, _bounds(total, (others + 1) * float(of_last)))


def _equal(row: Plain, value: float, before: int) -> int:
    return int(np.count_nonzero(row[:before] == value))


def column_maxima(logits: Plain, columns: int) -> Plain:
    """Maxima of the columns of the logits in rows of so many. The last row may be short."""
    rows = logits.size // columns * columns
    maxima: Plain = logits[:rows].reshape(-1, columns).max(axis=0)
    rest = logits[rows:]
    np.maximum(maxima[: rest.size], rest, out=maxima[: rest.size])
    return maxima


def largest_ids(logits: Logits, count: int) -> Ids:
    """Ids of the `count` largest logits, or all, largest first, ties by id.

    The largest logit of a column is one logit, so at least `count` logits reach the `count`-th largest of the columns'.
    What exceeds that bound is a short list to sort, for one pass over the vocabulary; the lowest ids that equal it follow.
    """
    size = logits.size
    if count >= size:
        return np.argsort(-whole(logits), kind="stable")
    parts = _parts(logits)
    if parts is not None:
        assert _native is not None
        ids: Ids = np.empty(count, np.int64)
        _native.largest_ids(*parts, ids, BEST)
        return ids
    row = whole(logits)
    columns = max(_COLUMNS, 4 * count)
    source = column_maxima(row, columns) if columns < size else row
    bound = np.partition(source, source.size - count)[source.size - count]
    listed = np.flatnonzero(row > bound)  # ascending, so that a stable sort keeps ties by id
    listed = listed[np.argsort(-row[listed], kind="stable")[:count]]
    if listed.size < count:
        equal = np.flatnonzero(row == bound)[: count - listed.size]
        listed = np.concatenate([listed, equal])
    return listed


def nth_id(logits: Logits, count: int) -> int:
    """The id of the last of the `count` largest logits, in the order of `largest_ids`, `count` being at most V."""
    parts = _parts(logits)
    if parts is not None:
        assert _native is not None
        return int(_native.nth_id(*parts, count, BEST))
    row = whole(logits)
    value = np.partition(row, row.size - count)[row.size - count]
    equal = np.flatnonzero(row == value)
    return int(equal[count - np.count_nonzero(row > value) - 1])


def drawer(
    logits: Logits, largest: float, temperature: float, number: float
) -> Callable[[], int] | None:
    """What draws the next token, as `selection.draws` says; None if NumPy must do."""
    parts = _parts(logits)
    if parts is None:
        return None
    assert _native is not None
    draw: Callable[[], int] = _native.Draws(*parts, largest, temperature, number, BEST).next
    return draw
