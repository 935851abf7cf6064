"""How often each token occurred in prompt and answer, for the penalties."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

__all__ = ["Occurrences"]


class Occurrences:
    """Counts of the distinct tokens of a sequence that grows.

    Attributes:
        ids: the U distinct tokens, `[U]` int64, in no particular order.
        counts: how often each occurred, `[U]` int64.
    """

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        found, counts = np.unique(np.fromiter(tokens, np.int64), return_counts=True)
        self._table: NDArray[np.int64] = np.stack([found, counts])  # [2, at least U]
        self._places = {int(token): place for place, token in enumerate(found)}

    @property
    def ids(self) -> NDArray[np.int64]:
        """The distinct tokens."""
        return self._table[0, : len(self._places)]

    @property
    def counts(self) -> NDArray[np.int64]:
        """How often each occurred."""
        return self._table[1, : len(self._places)]

    def add(self, token: int) -> None:
        """One more token."""
        place = self._places.setdefault(token, len(self._places))
        if place == self._table.shape[1]:
            self._table = np.pad(self._table, ((0, 0), (0, max(64, place))))  # doubled
        self._table[0, place] = token
        self._table[1, place] += 1

    def copy(self) -> Occurrences:
        """The same counts, to be continued apart."""
        other = Occurrences()
        other._table, other._places = self._table.copy(), self._places.copy()
        return other
