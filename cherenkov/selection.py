"""Finding, summing and drawing tokens among a quarter of a million, without touching most of them more than once.

Float64 exponentials of a large vocabulary take milliseconds, and sorting it tens. So the largest logits are found
through the maxima of blocks; the sum of all weights is taken in float32, with a bound on its error; and a draw from
the whole vocabulary is made by rejection, which needs weights of few tokens and is exact all the same.

A token's weight, everywhere, is `exp((logit - largest) / temperature)`: the most likely token weighs 1.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from cherenkov.errors import BackendError

__all__ = [
    "DRAW_AT_LEAST",
    "Ids",
    "Logits",
    "Weights",
    "draw",
    "largest_ids",
    "largest_logit",
    "mass",
    "mass_bounds",
    "weigh",
]

Logits = NDArray[np.float32] | NDArray[np.float64]
Ids = NDArray[np.int64]
Weights = NDArray[np.float64]

_BLOCK = 256
"""Logits per block when looking for the largest: big enough that few maxima remain, small enough that few others do."""
_CHUNK = 32_768
"""Logits weighed at a time: what they need along the way stays in the cache."""
_RELATIVE_ERROR = 4e-6
"""Of a sum of float32 weights. A weight's exponent x has a relative error of at most 3 roundings, and the exponential of
5, which makes (3 |x| + 5) of 2^-24. Over all weights, |x| averages at most ln V: it is the entropy less ln of the sum."""
_ORDINARY = (1e-3, 1e6)
"""Temperatures outside are weighed in float64: their reciprocals leave the range of float32 exponents."""
_ROWS = 64
_SINGLES = 64
_TRIALS = 128
DRAW_AT_LEAST = 16 * _ROWS
"""The fewest logits that `draw` takes."""


def largest_logit(logits: Logits, backend: str) -> float:
    """The largest of the logits, `[V]`.

    Raises:
        BackendError: naming `backend`, if a logit is NaN or +inf, or all are -inf.
    """
    if logits.ndim != 1 or not logits.size:
        raise BackendError(backend, "logits", f"shape {logits.shape} instead of [V]")
    worst = int(np.argmax(logits))  # the first NaN if there is one
    largest = float(logits[worst])
    if not math.isfinite(largest):
        reason = f"the logit of token {worst} is {largest}: the weights may be damaged"
        raise BackendError(backend, "logits", reason)
    return largest


def weigh(logits: Logits, largest: float, temperature: float) -> Weights:
    """Weights in float64, of any shape."""
    below = logits.astype(np.float64) - largest
    # A tiny temperature: everything below the largest is impossible.
    with np.errstate(over="ignore"):
        weights: Weights = np.exp(below / temperature)
    return weights


def mass(logits: Logits, largest: float, temperature: float) -> float:
    """The sum of all weights, `[V]`, in float64."""
    chunks = (logits[i : i + _CHUNK] for i in range(0, logits.size, _CHUNK))
    return math.fsum(float(weigh(chunk, largest, temperature).sum()) for chunk in chunks)


def mass_bounds(logits: Logits, largest: float, temperature: float) -> tuple[float, float]:
    """Two numbers, a few millionths apart, between which the sum of all weights, `[V]`, lies."""
    if not _ORDINARY[0] <= temperature <= _ORDINARY[1]:
        total = mass(logits, largest, temperature)
        return total, total
    scratch = np.empty(min(_CHUNK, logits.size), np.float32)
    scale, total = np.float32(1 / temperature), 0.0
    with np.errstate(over="ignore"):
        for i in range(0, logits.size, _CHUNK):
            chunk = logits[i : i + _CHUNK]
            weights = scratch[: chunk.size]
            np.subtract(chunk, chunk.dtype.type(largest), out=weights, casting="same_kind")
            weights *= scale
            np.exp(weights, out=weights)
            total += float(weights.sum(dtype=np.float64))
    return total * (1 - _RELATIVE_ERROR), total * (1 + _RELATIVE_ERROR)


def largest_ids(logits: Logits, count: int) -> Ids:
    """Ids of the `count` largest logits, largest first, ties by id.

    A block's maximum is one logit, so at least `count` logits reach the `count`-th largest maximum. That bound leaves a
    short list to sort, for one pass over the vocabulary.
    """
    size = logits.size
    if count >= size:
        return np.argsort(-logits, kind="stable")
    maxima = np.maximum.reduceat(logits, np.arange(0, size, _BLOCK))
    source = maxima if maxima.size >= count else logits
    bound = np.partition(source, source.size - count)[source.size - count]
    listed = np.flatnonzero(logits >= bound)  # ascending, so that a stable sort keeps ties by id
    return listed[np.argsort(-logits[listed], kind="stable")[:count]]


def draw(logits: Logits, largest: float, temperature: float, number: float) -> int:
    """Draw a token by its weight.

    Lay the logits out in rows; then every column weighs at most as much as its largest token, times the rows. The
    tokens of the columns with the largest maxima stand for themselves, every other column for that bound. One of them
    is drawn, and in a column one of its tokens, which is accepted as often as its weight is short of the column's
    largest. That leaves every token its exact probability; a trial succeeds at least once in as many as there are rows.

    Args:
        logits: `[V]`, at least `DRAW_AT_LEAST`.
        largest: the largest of them, finite.
        temperature: above 0.
        number: in [0, 1); decides everything.

    Source: von Neumann, Various techniques used in connection with random digits (1951).
    """
    columns = logits.size // _ROWS
    rows = -(-logits.size // columns)
    maxima = _column_maxima(logits, columns)
    bound = np.partition(maxima, columns - _singles(columns))[columns - _singles(columns)]
    hot = np.flatnonzero(maxima >= bound)[: _singles(columns)]
    ids = (hot[:, None] + columns * np.arange(rows)).ravel()
    ids = ids[ids < logits.size]
    tops = weigh(maxima, largest, temperature)
    bounds = tops * rows
    bounds[hot] = 0
    reached = np.cumsum(np.concatenate([weigh(logits[ids], largest, temperature), bounds]))
    last = int(np.searchsorted(reached, reached[-1]))  # the last that can be drawn at all
    trial = 0
    while True:
        where, place, luck = _numbers(number, trial)
        slots = np.minimum(np.searchsorted(reached, where * reached[-1], side="right"), last)
        single = slots < ids.size
        column = np.where(single, 0, slots - ids.size)
        tokens = column + columns * (place * rows).astype(np.int64)
        weights = weigh(logits[np.minimum(tokens, logits.size - 1)], largest, temperature)
        taken = single | ((tokens < logits.size) & (luck * tops[column] < weights))
        first = int(np.argmax(taken))
        if taken[first]:
            return int(ids[slots[first]] if single[first] else tokens[first])
        trial += _TRIALS


def _singles(columns: int) -> int:
    return min(_SINGLES, columns)


def _column_maxima(logits: Logits, columns: int) -> Logits:
    """Maxima of the columns of the logits in rows. The last row may be short."""
    whole = _ROWS * columns
    maxima: Logits = logits[:whole].reshape(_ROWS, columns).max(axis=0)
    rest = logits[whole:]
    for i in range(0, rest.size, columns):
        part = rest[i : i + columns]
        np.maximum(maxima[: part.size], part, out=maxima[: part.size])
    return maxima


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
