"""Drafts without a head: what followed the last time that the text said the same.

Answers repeat their prompts and themselves: names, code, quotations. The longest of a few endings that occurred before is
looked up, and what followed it then is the draft. It costs next to nothing and is often right where it applies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Lookup"]

LENGTHS = (4, 3, 2)
"""Endings that are looked up, longest first. One token alone occurs too often to say anything."""


class Lookup:
    """Where each ending of a sequence that grows occurred last."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._ends: tuple[dict[tuple[int, ...], int], ...] = tuple({} for _ in LENGTHS)

    def read(self, tokens: Sequence[int], last: int) -> None:
        """The sequence is `tokens`, then `last`, and continues what was read before: only what is new is read."""
        known = self._tokens
        for i in range(len(known), len(tokens) + 1):
            self._note()  # what ended before has a follower now
            known.append(tokens[i] if i < len(tokens) else last)

    def _note(self) -> None:
        known = self._tokens
        for length, ends in zip(LENGTHS, self._ends, strict=True):
            if len(known) >= length:
                ends[tuple(known[-length:])] = len(known)

    def guess(self, count: int) -> tuple[list[int], int]:
        """What may follow: at most `count` tokens, and how long the ending was that occurred before; ([], 0) if none did."""
        known = self._tokens
        for length, ends in zip(LENGTHS, self._ends, strict=True):
            at = ends.get(tuple(known[-length:])) if len(known) >= length else None
            if at is not None:
                return self._from(at, count), length
        return [], 0

    def _from(self, at: int, count: int) -> list[int]:
        """`count` tokens from a place on; beyond the end, what the draft itself says goes on."""
        known = self._tokens
        found = known[at : at + count]
        while len(found) < count:  # the end repeats itself with the period len(known) - at
            found.append(found[len(found) - (len(known) - at)])
        return found
