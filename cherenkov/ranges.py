"""Checks of numbers that requests bring: each refusal names the parameter, its value and what it must be."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Mapping
from typing import Any

from cherenkov.errors import RequestError

__all__ = ["check_real", "check_whole", "checked_biases", "is_real", "is_whole", "refused"]

_UNWRITABLE = 10**4000
"""Python refuses to write out numbers that are not much longer."""
_TOKENS = 1 << 32
"""Ids of tokens, in any vocabulary, are smaller."""


def is_real(value: object) -> bool:
    """A finite number that a float can hold, of Python or NumPy, and no bool."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False


def is_whole(value: object) -> bool:
    """A whole number, of Python or NumPy, that can be written down, and no bool."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        return False
    return -_UNWRITABLE < int(value) < _UNWRITABLE


def check_real(name: str, value: Any, low: float, high: float, wanted: str) -> None:
    """Refuse anything but a finite number from `low` to `high`, both included.

    Raises:
        RequestError: saying that it must be what `wanted` says.
    """
    if not is_real(value) or not low <= value <= high:
        raise refused(name, value, wanted)


def check_whole(name: str, value: Any, low: int, high: float, wanted: str) -> None:
    """Refuse anything but a whole number from `low` to `high`, both included.

    Raises:
        RequestError: saying that it must be what `wanted` says.
    """
    if not is_whole(value) or not low <= value <= high:
        raise refused(name, value, wanted)


def checked_biases(value: Any, most: int) -> tuple[tuple[int, float], ...]:
    """Biases of tokens as pairs sorted by id.

    Args:
        value: a mapping from id to bias, or pairs. Ids may be written in digits, as JSON must.
        most: how many there may be.

    Raises:
        RequestError: if it is anything else, or a bias is not from -100 to 100.
    """
    pairs = value.items() if isinstance(value, Mapping) else value
    if not isinstance(pairs, Iterable) or isinstance(pairs, str | bytes):
        raise refused("logit_bias", value, "a mapping from token id to bias")
    biases: dict[int, float] = {}
    for pair in pairs:
        token, bias = _pair(pair)
        check_real(f"logit_bias[{token}]", bias, -100, 100, "a number from -100 to 100")
        biases[token] = float(bias)
        if len(biases) > most:
            raise RequestError(f"logit_bias: more than {most} tokens", param="logit_bias")
    return tuple(sorted(biases.items()))


def refused(name: str, value: object, wanted: str) -> RequestError:
    """The error for a value out of range."""
    try:
        shown = f"{value!r:.80}"
    except ValueError:
        shown = "a number of thousands of digits"
    return RequestError(f"{name} = {shown}: must be {wanted}", param=name.partition("[")[0])


def _pair(pair: object) -> tuple[int, Any]:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise refused("logit_bias", pair, "a mapping from token id to bias")
    token, bias = pair
    if isinstance(token, str) and token.isascii() and token.isdecimal() and len(token) < 10:
        token = int(token)
    if not is_whole(token) or not 0 <= token < _TOKENS:
        raise refused("logit_bias", token, "a mapping from token id to bias")
    return int(token), bias
