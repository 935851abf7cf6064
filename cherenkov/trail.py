"""What the trunk left behind at the latest positions, for the draft head to read.

The head's row at position p is made of the trunk's residual at p and of the token at p + 1. So the head is always one
position behind until the next token is certain, and may be more: it need not run where nobody asks for its drafts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from cherenkov.backends.base import Backend

__all__ = ["MOST_BEHIND", "Trail"]

A = TypeVar("A")

MOST_BEHIND = 128
"""Positions that the head may be behind before it is made to catch up, though nobody asks for its drafts."""


class Trail(Generic[A]):
    """Residuals in pieces, each from a position on. Where a piece begins, those before it end: their rows were taken back."""

    def __init__(
        self, pieces: list[tuple[int, int, A]] | None = None, *, closed: bool = False
    ) -> None:
        self._closed = closed
        self._pieces: list[tuple[int, int, A]] = pieces or []  # first position, rows, [rows, S*D]

    @property
    def start(self) -> int:
        """The first position there is; what lies before was read or was never kept."""
        return self._pieces[0][0] if self._pieces else -1

    def add(self, position: int, rows: int, wide: A, read: int) -> None:
        """A step has run `rows` rows from `position` on, and left `wide` `[rows, S*D]`.

        The head has read what lies before `read`. If it lacks more than is here it is out of step, and stays so.
        """
        if self._closed or (not self._pieces and position > read):
            return
        pieces = self._pieces
        while pieces and pieces[-1][0] >= position:
            pieces.pop()
        if pieces and pieces[-1][0] + pieces[-1][1] < position:
            pieces.clear()  # a gap: what is before is of no use
        pieces.append((position, rows, wide))

    def close(self) -> None:
        """Nothing is kept any more: nobody will draft."""
        self._closed = True
        self._pieces.clear()

    def covers(self, first: int, last: int) -> bool:
        """There are residuals of positions `first:last`."""
        if not self._pieces or self._pieces[0][0] > first:
            return False
        start, rows, _ = self._pieces[-1]
        return start + rows >= last

    def between(self, first: int, last: int, backend: Backend[Any, A]) -> list[tuple[int, A]]:
        """The residuals of positions `first:last`, which it covers, in pieces: how many rows, and these."""
        start, rows, wide = self._pieces[-1]
        if start == first and start + rows == last:
            return [(rows, wide)]
        found: list[tuple[int, A]] = []
        stop = last
        for start, rows, wide in reversed(self._pieces):
            low, high = max(start, first) - start, min(stop, last) - start
            if low < high:
                whole = low == 0 and high == rows
                found.append((high - low, wide if whole else backend.take(wide, range(low, high))))
            if start <= first:
                break
            stop = start
        return found[::-1]

    def forget(self, before: int) -> None:
        """Let go of pieces that end before a position."""
        while len(self._pieces) > 1 and self._pieces[1][0] <= before:
            del self._pieces[0]

    def keep(self, first: int, last: int, backend: Backend[Any, A]) -> None:
        """Forget all but positions `first:last`, which become arrays of their own."""
        kept = [backend.copy(piece) for _, piece in self.between(first, last, backend)]
        self._pieces = [(first, last - first, backend.stack(kept))] if kept else []

    @property
    def size_bytes(self) -> int:
        """Memory of what is kept."""
        return sum(int(getattr(piece, "nbytes", 0)) for _, _, piece in self._pieces)

    @property
    def pieces(self) -> tuple[tuple[int, int, A], ...]:
        """First position, rows, and the residuals `[rows, S*D]`, in order; never written to."""
        return tuple(self._pieces)

    def copy(self) -> Trail[A]:
        """The same; what is in it never changes."""
        return Trail(list(self._pieces), closed=self._closed)
