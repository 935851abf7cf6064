"""How many tokens of prompts a step may read, so that nobody else waits for long."""

from __future__ import annotations

__all__ = ["Pace"]

_FIRST_TOKENS = 128
_MOST_GROWTH = 2.0


class Pace:
    """The length of chunks.

    A prompt that has the model for itself is read in the largest ones. In company they begin small, and approach what takes
    as long as is allowed.

    Args:
        quantum: most tokens of a chunk.
        target_s: how long a chunk should take in company; 0 takes the quantum always.
    """

    def __init__(self, quantum: int, target_s: float) -> None:
        self.quantum = quantum
        self._target_s = target_s
        self._least = min(_FIRST_TOKENS, quantum) if target_s else quantum
        self._company = self._least

    def tokens(self, *, in_company: bool) -> int:
        """Tokens that the next chunk may have."""
        return self._company if in_company else self.quantum

    def note(self, tokens: int, seconds: float) -> None:
        """A chunk took so long. Those that are not full say little: a step has costs that are not the rows'."""
        if tokens < self._company or not self._target_s or seconds <= 0:
            return
        fits = min(tokens * self._target_s / seconds, tokens * _MOST_GROWTH)
        self._company = int(min(self.quantum, max(self._least, fits)))
