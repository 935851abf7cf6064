"""Logits of one position, of which penalties and biases changed a few."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import cherenkov._native as _kernels

__all__ = ["Amended", "Ids", "Logits", "Plain", "Weights", "value_at", "values_at", "whole"]

Plain = NDArray[np.float32] | NDArray[np.float64]
Ids = NDArray[np.int64]
Weights = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Amended:
    """Logits `[V]` of which U were changed by penalties and biases. These few need the bits of float64, the others do not.

    Attributes:
        base: `[V]` float32, -inf where a logit was changed.
        ids: `[U]`, ascending.
        values: `[U]` float64.
        held: the same, as the kernels keep it.
        before: what the values were, `[U]`; None if nobody asked.
    """

    base: NDArray[np.float32]
    ids: Ids
    values: Weights
    held: _kernels.Logits
    before: Weights | None = None

    @property
    def size(self) -> int:
        """V."""
        return self.base.size


Logits = Plain | Amended


def whole(logits: Logits) -> Plain:
    """All of the logits in one array, `[V]`."""
    if not isinstance(logits, Amended):
        return logits
    if not logits.ids.size:
        return logits.base
    row = logits.base.astype(np.float64)
    row[logits.ids] = logits.values
    return row


def value_at(logits: Logits, token: int) -> float:
    """One of the logits."""
    if not isinstance(logits, Amended):
        return float(logits[token])
    value = float(logits.base[token])
    if value == -np.inf and logits.ids.size:
        place = int(logits.ids.searchsorted(token))
        if place < logits.ids.size and logits.ids[place] == token:
            return float(logits.values[place])
    return value


def values_at(logits: Logits, ids: Ids) -> Weights:
    """Some of the logits, in float64 and in the shape of `ids`."""
    if not isinstance(logits, Amended):
        return logits[ids].astype(np.float64)
    found = logits.base[ids].astype(np.float64)
    if not logits.ids.size:
        return found
    places = np.minimum(np.searchsorted(logits.ids, ids), logits.ids.size - 1)
    return np.where(logits.ids[places] == ids, logits.values[places], found)
