"""Choosing the next token from its logits: pure functions over a frozen `Sampling`.

The order is: temperature, top-k, top-p. Ties, everywhere, go to the lowest id. A greedy choice draws no random number,
any other draws exactly one.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cherenkov.errors import BackendError, RequestError

__all__ = ["Candidates", "Sampling", "candidates", "choose", "greedy"]

Logits = NDArray[np.float32]
Ids = NDArray[np.int64]
Weights = NDArray[np.float64]

_BLOCK = 256
"""Logits per block when looking for the largest: big enough that few maxima remain, small enough that few others do."""
_NUCLEUS_START = 64
"""Tokens looked at first for top-p. Most nuclei are smaller; each further round looks at 16 times as many."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen.

    Attributes:
        temperature: divides the logits; 0 is greedy, and then nothing below matters.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set of most likely tokens whose probabilities reach p; 1 keeps all.
        seed: the same seed gives the same tokens; None takes one from the operating system.

    Raises:
        RequestError: if a value is out of range, naming it in `param`.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        if not _is_real(self.temperature) or self.temperature < 0:
            raise _refused("temperature", self.temperature, "a finite number, 0 or more")
        if not _is_whole(self.top_k) or self.top_k < 0:
            raise _refused("top_k", self.top_k, "a whole number, 0 or more (0 keeps all)")
        if not _is_real(self.top_p) or not 0 < self.top_p <= 1:
            raise _refused("top_p", self.top_p, "a number above 0 and at most 1")
        if self.seed is not None and (not _is_whole(self.seed) or self.seed < 0):
            raise _refused("seed", self.seed, "a whole number, 0 or more")

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0

    def generator(self) -> np.random.Generator:
        """The random numbers of one answer: PCG64 from the seed."""
        return np.random.Generator(np.random.PCG64(self.seed))


@dataclass(frozen=True, slots=True)
class Candidates:
    """The tokens that may come next, C of them.

    Attributes:
        ids: `[C]`, most likely first; in the order of ids where neither top-k nor top-p cut any.
        probabilities: `[C]`, summing to 1.
    """

    ids: Ids
    probabilities: Weights


def choose(
    logits: Logits, sampling: Sampling, random: np.random.Generator, *, backend: str = "unknown"
) -> int:
    """Choose a token.

    Args:
        logits: of one position, `[V]`.
        sampling: how to choose.
        random: the generator of this answer, from `Sampling.generator`.
        backend: whose logits these are, for the error.

    Raises:
        BackendError: if a logit is NaN or +inf, or all are -inf.
    """
    if sampling.is_greedy:
        return greedy(logits, backend=backend)
    kept = candidates(logits, sampling, backend=backend)
    reached = np.cumsum(kept.probabilities)
    drawn = int(np.searchsorted(reached, random.random() * reached[-1], side="right"))
    # Rounding can put the draw at the very end: take the last token that has any probability.
    last = int(np.searchsorted(reached, reached[-1], side="left"))
    return int(kept.ids[min(drawn, last)])


def greedy(logits: Logits, *, backend: str = "unknown") -> int:
    """The token with the largest logit, `[V]`; the lowest id of several.

    Raises:
        BackendError: as `choose`.
    """
    _largest_logit(logits, backend)
    return int(np.argmax(logits))


def candidates(logits: Logits, sampling: Sampling, *, backend: str = "unknown") -> Candidates:
    """The tokens left after temperature, top-k and top-p, and their probabilities.

    Args:
        logits: of one position, `[V]`.
        sampling: its temperature must not be 0.
        backend: whose logits these are, for the error.

    Raises:
        BackendError: as `choose`.
    """
    largest = _largest_logit(logits, backend)

    def weigh(ids: Ids | slice) -> Weights:
        """Unnormalised probabilities in float64; the largest is 1."""
        below = logits[ids].astype(np.float64) - largest
        with np.errstate(
            over="ignore"
        ):  # a tiny temperature: everything below the largest is impossible
            weights: Weights = np.exp(below / sampling.temperature)
        return weights

    if 0 < sampling.top_k < logits.size:
        ids = _largest_ids(logits, sampling.top_k)
        weights = weigh(ids)
        if sampling.top_p < 1:
            ids, weights = _nucleus(ids, weights, sampling.top_p * weights.sum())
    elif sampling.top_p < 1:
        target = sampling.top_p * weigh(slice(None)).sum()
        count = _NUCLEUS_START
        while True:
            ids = _largest_ids(logits, count)
            weights = weigh(ids)
            if count >= logits.size or weights.sum() >= target:
                break
            count *= 16
        ids, weights = _nucleus(ids, weights, target)
    else:
        ids, weights = np.arange(logits.size), weigh(slice(None))
    return Candidates(ids, weights / weights.sum())


def _nucleus(ids: Ids, weights: Weights, target: float) -> tuple[Ids, Weights]:
    """The shortest beginning of the sorted tokens whose weights reach `target`."""
    count = int(np.searchsorted(np.cumsum(weights), target, side="left")) + 1
    return ids[:count], weights[:count]


def _largest_logit(logits: Logits, backend: str) -> float:
    if logits.ndim != 1 or not logits.size:
        raise BackendError(backend, "logits", f"shape {logits.shape} instead of [V]")
    largest = float(logits.max())  # NaN if any is
    if not math.isfinite(largest):
        worst = int(np.argmax(logits))
        raise BackendError(
            backend,
            "logits",
            f"the logit of token {worst} is {largest}: the weights may be damaged",
        )
    return largest


def _largest_ids(logits: Logits, count: int) -> Ids:
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


def _is_real(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, numbers.Real) and math.isfinite(value)


def _is_whole(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, numbers.Integral)


def _refused(param: str, value: object, wanted: str) -> RequestError:
    return RequestError(f"{param} = {value!r}: must be {wanted}", param=param)
