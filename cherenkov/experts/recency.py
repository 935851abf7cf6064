"""The plainest eviction: least recently used out first. And what the store asks of any other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from cherenkov.backends.base import Ids

__all__ = ["Eviction", "Recency"]

_EMPTY = -1


class Eviction(Protocol):
    """Decides which slots to empty."""

    def used(self, first_layer: int, ids: Ids) -> None:
        """Rows were routed: `[R, K]` of one layer, `[n, R, K]` of n layers in a row. Before their victims are asked for."""

    def arrived(self, slot: int, record: int, *, predicted: bool = False) -> None:
        """A record is in a slot now, or being read into it. A predicted one was not asked for yet."""

    def left(self, slot: int) -> None:
        """A slot is empty now."""

    def victims(self, count: int, allowed: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Slots to empty, empty ones first: `count` of them, or as many as `allowed` `[slots]` has."""


class Recency:
    """Least recently used out first; a prediction counts as a use when it is made."""

    def __init__(self, slots: int, layers: int, experts: int) -> None:
        self._experts = experts
        self._record_in = np.full(slots, _EMPTY, dtype=np.int64)
        self._last = np.zeros(layers * experts, dtype=np.int64)  # when, by `_now`
        self._now = 1

    def used(self, first_layer: int, ids: Ids) -> None:
        """See `Eviction`."""
        ids = ids.reshape(-1, *ids.shape[-2:])
        layers = np.arange(first_layer, first_layer + len(ids))[:, None, None]
        records = (layers * self._experts + ids).reshape(-1)
        self._last[records] = np.arange(self._now, self._now + len(records))
        self._now += len(records)

    def arrived(self, slot: int, record: int, *, predicted: bool = False) -> None:
        """See `Eviction`."""
        self._record_in[slot] = record
        if predicted:
            self._last[record] = self._now
            self._now += 1

    def left(self, slot: int) -> None:
        """See `Eviction`."""
        self._record_in[slot] = _EMPTY

    def victims(self, count: int, allowed: NDArray[np.bool_]) -> NDArray[np.int64]:
        """See `Eviction`."""
        slots: NDArray[np.int64] = np.flatnonzero(allowed)
        records = self._record_in[slots]
        last = self._last[records]
        last[records == _EMPTY] = 0
        if count == 1 and len(slots):
            return slots[[last.argmin()]]
        if count < len(slots):
            least = np.argpartition(last, count - 1)[:count]
            slots, last = slots[least], last[least]
        ordered: NDArray[np.int64] = slots[np.argsort(last, kind="stable")]
        return ordered
