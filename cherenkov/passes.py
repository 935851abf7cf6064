"""Passes over the logits of one position: by the C++ kernels where they are built, else by NumPy.

Ids, counts and maxima are the same either way. Sums of weights are taken in float32, in different orders, and come as two
bounds that hold either way: whoever decides by them asks for the exact sum, in NumPy's float64, where they leave a doubt.
So what is chosen depends neither on which of the two ran, nor on the machine's instruction set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from types import ModuleType

_native: ModuleType | None
try:
    import cherenkov._native as _kernels
except ImportError:
    _native = None
else:
    _native = _kernels

__all__ = [
    "Before",
    "Ids",
    "Logits",
    "Weighed",
    "Weights",
    "before",
    "column_maxima",
    "largest_ids",
    "nth_id",
    "punished",
    "weigh",
]

Logits = NDArray[np.float32] | NDArray[np.float64]
Ids = NDArray[np.int64]
Weights = NDArray[np.float64]

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


@dataclass(frozen=True, slots=True)
class Weighed:
    """Weights of a row, `[V]` float32, and bounds of their sum."""

    weights: NDArray[np.float32]
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Before:
    """Bounds of the sum of the weights of the tokens before one, most likely first, ties by id."""

    low: float
    high: float


def weigh(logits: Logits, largest: float, temperature: float) -> Weighed:
    """Weights `exp((logit - largest) / temperature)` of all logits, `[V]`.

    Args:
        logits: none NaN.
        largest: the largest of them.
        temperature: at least 1e-300.
    """
    weights = np.empty(logits.size, np.float32)
    if _native is not None:
        row = np.ascontiguousarray(logits)
        total = _native.weigh(row, largest, temperature, weights, BEST)
    else:
        starts = range(0, logits.size, _CHUNK)
        total = sum(_weigh(logits, largest, temperature, weights, start) for start in starts)
    return Weighed(weights, total * (1 - _RELATIVE_ERROR), total * (1 + _RELATIVE_ERROR))


def _weigh(
    logits: Logits, largest: float, temperature: float, weights: NDArray[np.float32], start: int
) -> float:
    """Weigh a chunk; its sum."""
    chunk, out = logits[start : start + _CHUNK], weights[start : start + _CHUNK]
    with np.errstate(over="ignore"):
        if logits.dtype == np.float32 and _ORDINARY[0] <= temperature <= _ORDINARY[1]:
            np.subtract(chunk, np.float32(largest), out=out)
            if temperature != 1:
                out *= np.float32(1 / temperature)
        else:
            below = chunk.astype(np.float64) - largest
            out[:] = below * min(1 / temperature, _STEEPEST)
    np.exp(out, out=out)
    return float(out.sum())


def before(logits: Logits, weighed: Weighed, token: int, weight: float) -> Before:
    """What comes before `token`, whose weight in float64 is given."""
    if _native is not None:
        row = np.ascontiguousarray(logits)
        mass, equal = _native.before(row, weighed.weights, token, BEST)
    else:
        value = logits[token]
        equal = int(np.count_nonzero(logits[:token] == value))
        starts = range(0, logits.size, _CHUNK)
        masked = weighed.weights * (logits > value)
        mass = sum(float(masked[start : start + _CHUNK].sum()) for start in starts)
    ties = equal * weight
    low, high = mass * (1 - _RELATIVE_ERROR), mass * (1 + _RELATIVE_ERROR)
    return Before(low + ties, high + ties)


def column_maxima(logits: Logits, columns: int) -> Logits:
    """Maxima of the columns of the logits in rows of so many. The last row may be short."""
    if _native is not None:
        maxima: Logits = np.empty(columns, logits.dtype)
        _native.column_maxima(np.ascontiguousarray(logits), maxima, BEST)
        return maxima
    whole = logits.size // columns * columns
    maxima = logits[:whole].reshape(-1, columns).max(axis=0)
    rest = logits[whole:]
    np.maximum(maxima[: rest.size], rest, out=maxima[: rest.size])
    return maxima


def largest_ids(logits: Logits, count: int) -> Ids:
    """Ids of the `count` largest logits, or all, largest first, ties by id.

    The largest logit of a column is one logit, so at least `count` logits reach the `count`-th largest of the columns'.
    What exceeds that bound is a short list to sort, for one pass over the vocabulary; the lowest ids that equal it follow.
    """
    size = logits.size
    if count >= size:
        return np.argsort(-logits, kind="stable")
    if _native is not None:
        ids: Ids = np.empty(count, np.int64)
        _native.largest_ids(np.ascontiguousarray(logits), ids, BEST)
        return ids
    columns = max(_COLUMNS, 4 * count)
    source = column_maxima(logits, columns) if columns < size else logits
    bound = np.partition(source, source.size - count)[source.size - count]
    listed = np.flatnonzero(logits > bound)  # ascending, so that a stable sort keeps ties by id
    listed = listed[np.argsort(-logits[listed], kind="stable")[:count]]
    if listed.size < count:
        equal = np.flatnonzero(logits == bound)[: count - listed.size]
        listed = np.concatenate([listed, equal])
    return listed


def nth_id(logits: Logits, count: int) -> int:
    """The id of the last of the `count` largest logits, in the order of `largest_ids`, `count` being at most V."""
    if _native is not None:
        return int(_native.nth_id(np.ascontiguousarray(logits), count))
    value = np.partition(logits, logits.size - count)[logits.size - count]
    equal = np.flatnonzero(logits == value)
    return int(equal[count - np.count_nonzero(logits > value) - 1])


def punished(
    logits: Logits, ids: Ids, counts: Ids, factor: float, presence: float, frequency: float
) -> Weights:
    """The logits in float64, those of `ids` punished.

    These are divided by `factor` if positive, else multiplied, and then less `presence + frequency * counts`.
    """
    if _native is not None:
        changed: Weights = np.empty(logits.size, np.float64)
        row = np.ascontiguousarray(logits)
        _native.punish(row, ids, counts, factor, presence, frequency, changed)
        return changed
    changed = logits.astype(np.float64)
    found = changed[ids]
    found = np.where(found > 0, found / factor, found * factor)
    changed[ids] = found - (presence + frequency * counts)
    return changed
