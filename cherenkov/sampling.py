"""Choosing the next token from its logits: pure functions over a frozen `Sampling`.

The order is

1. repetition penalty, then frequency and presence penalties, over the tokens of the prompt and the answer so far;
2. logit bias;
3. temperature;
4. top-k, then top-p, then min-p.

All of it in float64. Ties, everywhere, go to the lowest id. A greedy choice takes the most likely token after step 2 and
draws no random number, any other draws exactly one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from cherenkov.amended import Ids, Logits, Plain, Weights, whole
from cherenkov.errors import RequestError
from cherenkov.nucleus import Nucleus
from cherenkov.occurrences import Occurrences
from cherenkov.passes import amended, before_amending
from cherenkov.ranges import check_real, check_whole, checked_biases, is_real, refused
from cherenkov.selection import DRAW_AT_LEAST, Kept, Row, draws, likeliest, place_of

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "LEAST_REPETITION",
    "MAX_BIASES",
    "Candidates",
    "Occurrences",
    "Sampling",
    "candidates",
    "choose",
    "greedy",
    "penalised",
]

MAX_BIASES = 1024
LEAST_REPETITION = 1e-3
"""Logits are divided by it, and must stay numbers."""
_NOTHING = Occurrences()
_BIASES_KEPT = 64
_REALS = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen.

    Attributes:
        temperature: divides the logits; 0 is greedy, and then only penalties and biases matter.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set of most likely tokens whose probabilities reach p; 1 keeps all.
        seed: the same seed gives the same tokens; None takes one from the operating system.
        min_p: keep the tokens that are at least p times as likely as the most likely one; 0 keeps all.
        presence_penalty: subtracted from the logit of every token that occurred, -2 to 2.
        frequency_penalty: subtracted once for every occurrence, -2 to 2.
        repetition_penalty: divides the logits of tokens that occurred, or multiplies them if negative; 1 does nothing.
        logit_bias: added to the logits of tokens, -100 to 100 each. Given as a mapping from id to bias; kept as sorted pairs.

    Raises:
        RequestError: if a value is out of range, naming it in `param`.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        check_real("temperature", self.temperature, 0, math.inf, "a finite number, 0 or more")
        check_whole("top_k", self.top_k, 0, math.inf, "a whole number, 0 or more (0 keeps all)")
        if not is_real(self.top_p) or not 0 < self.top_p <= 1:
            raise refused("top_p", self.top_p, "a number above 0 and at most 1")
        if self.seed is not None:
            check_whole("seed", self.seed, 0, math.inf, "a whole number, 0 or more")
        check_real("min_p", self.min_p, 0, 1, "a number from 0 to 1 (0 keeps all)")
        for name in ("presence_penalty", "frequency_penalty"):
            check_real(name, getattr(self, name), -2, 2, "a number from -2 to 2")
        repetition = self.repetition_penalty
        if not is_real(repetition) or not LEAST_REPETITION <= repetition <= 10:
            words = f"a number from {LEAST_REPETITION:g} to 10 (1 does nothing)"
            raise refused("repetition_penalty", repetition, words)
        self._set("logit_bias", checked_biases(self.logit_bias, MAX_BIASES))
        for (
            name
        ) in _REALS:  # NumPy's and fractions too, as Python's own: they can be written to files
            self._set(name, float(getattr(self, name)))
        self._set("top_k", int(self.top_k))
        self._set("seed", None if self.seed is None else int(self.seed))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0

    @property
    def needs_occurrences(self) -> bool:
        """Whether it matters what occurred: a penalty is set."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1)

    def generator(self) -> np.random.Generator:
        """The random numbers of one answer: PCG64 from the seed."""
        return np.random.Generator(np.random.PCG64(self.seed))


@dataclass(frozen=True, slots=True)
class Candidates:
    """The tokens that may come next, C of them.

    Attributes:
        ids: `[C]`, most likely first; in the order of ids where nothing was to be left out.
        probabilities: `[C]`, summing to 1.
    """

    ids: Ids
    probabilities: Weights


def choose(
    logits: Plain,
    sampling: Sampling,
    random: np.random.Generator,
    *,
    seen: Occurrences | None = None,
    backend: str = "unknown",
    kept: Kept | None = None,
) -> int:
    """Choose a token.

    Args:
        logits: of one position, `[V]`.
        sampling: how to choose.
        random: the generator of this answer, from `Sampling.generator`.
        seen: the tokens of prompt and answer so far, for the penalties; None is none.
        backend: whose logits these are, for the error.
        kept: filled with what is found out about the logits, for `logprobs`.

    Raises:
        BackendError: if a logit is NaN or +inf, or all are -inf.
        RequestError: if `logit_bias` names a token beyond the vocabulary.
    """
    changed = _amended(logits, sampling, seen, keep=kept is not None)
    if sampling.is_greedy and kept is None:
        return likeliest(changed, backend)
    row = Row.of(changed, backend)
    if kept is not None:
        plain = changed is logits
        kept.row = row if plain else Row.of(before_amending(changed, logits), backend)
    if sampling.is_greedy:
        return likeliest(row.logits, backend)
    row = row.at(sampling.temperature)
    if row.size < DRAW_AT_LEAST:
        left = _candidates(row, sampling)
        return int(left.ids[place_of(random.random(), np.cumsum(left.probabilities))])
    nucleus = _nucleus(row, sampling)
    return next(draws(row, random.random())) if nucleus is None else nucleus.draw(random.random())


def greedy(logits: Plain, *, backend: str = "unknown") -> int:
    """The token with the largest logit, `[V]`; the lowest id of several.

    Raises:
        BackendError: as `choose`.
    """
    return likeliest(logits, backend)


def penalised(logits: Plain, sampling: Sampling, seen: Occurrences | None = None) -> Plain:
    """The logits after penalties and biases, `[V]`: the same array if there are none, else a float64 copy.

    Source: repetition, Keskar et al., CTRL (2019); presence and frequency, the OpenAI API reference.

    Raises:
        RequestError: if `logit_bias` names a token beyond the vocabulary.
    """
    return whole(_amended(logits, sampling, seen))


def _amended(
    logits: Plain, sampling: Sampling, seen: Occurrences | None, *, keep: bool = False
) -> Logits:
    if seen is None or not sampling.needs_occurrences:
        if not sampling.logit_bias:
            return logits
        seen = _NOTHING
    if not seen.ids.size and not sampling.logit_bias:
        return logits
    tokens, biases = _arrays(cast("tuple[tuple[int, float], ...]", sampling.logit_bias))
    if tokens.size and tokens[-1] >= logits.size:
        raise RequestError(
            f"logit_bias: there is no token {tokens[-1]}, the last one is {logits.size - 1}",
            param="logit_bias",
        )
    factor, presence = sampling.repetition_penalty, sampling.presence_penalty
    penalties = (factor, presence, sampling.frequency_penalty)
    return amended(logits, seen.ids, seen.counts, penalties, tokens, biases, keep)


_known_biases: dict[int, tuple[tuple[tuple[int, float], ...], Ids, Weights]] = {}


def _arrays(pairs: tuple[tuple[int, float], ...]) -> tuple[Ids, Weights]:
    """Sorted pairs of a token and its bias, as arrays: they are the same for every token of an answer."""
    known = _known_biases.get(
        id(pairs)
    )  # hashing a thousand pairs takes longer than all of the rest
    if known is None or known[0] is not pairs:
        ids = np.array([token for token, _ in pairs], np.int64)
        known = pairs, ids, np.array([bias for _, bias in pairs], np.float64)
        if len(_known_biases) >= _BIASES_KEPT:
            _known_biases.clear()
        _known_biases[id(pairs)] = known
    return known[1:]


def candidates(logits: Plain, sampling: Sampling, *, backend: str = "unknown") -> Candidates:
    """The tokens left after temperature, top-k, top-p and min-p, and their probabilities.

    Args:
        logits: of one position, `[V]`, penalised already.
        sampling: its temperature must not be 0.
        backend: whose logits these are, for the error.

    Raises:
        BackendError: as `choose`.
    """
    return _candidates(Row.of(logits, backend, sampling.temperature), sampling)


def _candidates(row: Row, sampling: Sampling) -> Candidates:
    nucleus = _nucleus(row, sampling)
    if nucleus is None:
        ids, weights = np.arange(row.size), row.all_weights()
    else:
        ids, weights = nucleus.members()
    return Candidates(ids, weights / weights.sum())


def _nucleus(row: Row, sampling: Sampling) -> Nucleus | None:
    """What top-k, top-p and min-p leave; None if that is everything."""
    top_k = sampling.top_k if sampling.top_k < row.size else 0
    if not top_k and sampling.top_p == 1 and not sampling.min_p:
        return None
    return Nucleus(row, top_k, sampling.top_p, sampling.min_p)
