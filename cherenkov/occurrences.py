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
        ids: the U distinct tokens, `[U]` int64, ascending.
        counts: how often each occurred, `[U]` int64.
    """

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        found, counts = np.unique(np.fromiter(tokens, np.int64), return_counts=True)
        self._size = found.size
        self._table: NDArray[np.int64] = np.stack([found, counts])  # [2, at least U]

    @property
    def ids(self) -> NDArray[np.int64]:
        """The distinct tokens."""
        return self._table[0, : self._size]

    @property
    def counts(self) -> NDArray[np.int64]:
        """How often each occurred."""
        return self._table[1, : self._size]

    def add(self, token: int) -> None:
        """One more token."""
        size, place = self._size, int(np.searchsorted(self.ids, token))
        if place == size or self._table[0, place] != token:
            if size == self._table.shape[1]:
                self._table = np.pad(self._table, ((0, 0), (0, max(64, size))))  # doubled
            self._table[:, place + 1 : size + 1] = self._table[:, place:size].copy()
            self._table[:, place] = token, 0
            self._size += 1
        self._table[1, place] += 1

    def copy(self) -> Occurrences:
        """The same counts, to be continued apart."""
        other = Occurrences()
        other._table, other._size = self._table.copy(), self._size
        return other
