"""How likely the model found its tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cherenkov.ranges import check_whole
from cherenkov.selection import Row

if TYPE_CHECKING:
    from cherenkov.amended import Plain

__all__ = ["TokenLogprobs", "checked_top_logprobs", "logprobs"]

MAX_TOP_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """How likely a token was, and what else might have come.

    Attributes:
        token: the token that was chosen.
        logprob: natural logarithm of its probability.
        top: the most likely tokens, `(id, logprob)`, most likely first, ties by id. The chosen one need not be there.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def logprobs(
    logits: Plain,
    token: int,
    top: int = 0,
    *,
    backend: str = "unknown",
    row: Row | None = None,
) -> TokenLogprobs:
    """How likely the model found a token: before penalties, biases and temperature.

    Args:
        logits: of one position, `[V]`, as the model gave them.
        token: the chosen one.
        top: how many alternatives to name, see `checked_top_logprobs`.
        backend: whose logits these are, for the error.
        row: the logits, if `choose` was given it too: then what it found need not be found again.

    Returns:
        Logarithms with an error below 1e-5.

    Raises:
        BackendError: if a logit is NaN or +inf, or all are -inf.
    """
    row = Row.of(logits, backend) if row is None else row.at(1.0)
    bounds = row.mass_bounds()
    total = row.largest + math.log((bounds.low + bounds.high) / 2)
    listed: tuple[tuple[int, float], ...] = ()
    if top:
        ids, values = row.first(top)
        listed = tuple(zip(ids.tolist(), (values - total).tolist(), strict=True))
    return TokenLogprobs(token, float(logits[token]) - total, listed)


def checked_top_logprobs(value: Any) -> int:
    """A count of alternatives, 0 to 20.

    Raises:
        RequestError: if it is anything else.
    """
    wanted = f"a whole number from 0 to {MAX_TOP_LOGPROBS}"
    check_whole("top_logprobs", value, 0, MAX_TOP_LOGPROBS, wanted)
    return int(value)
