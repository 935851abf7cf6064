"""Drafts by the model's own head, a layer that was trained to guess the token after the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from cherenkov.state import Rows
from cherenkov.trail import MOST_BEHIND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cherenkov.architectures import Network
    from cherenkov.backends.base import Backend
    from cherenkov.state import State

__all__ = ["Head"]

A = TypeVar("A")


class Head(Generic[A]):
    """Runs the draft head of a network, for several sequences at once.

    Its cache is in step with a sequence when its rows are those of all positions but the last, whose following token is not
    certain. What a chain of drafts adds is taken off again.

    Attributes:
        rows: rows that it has run to draft.
    """

    def __init__(self, network: Network[A], backend: Backend[Any, A]) -> None:
        self._network = network
        self._backend = backend
        self.rows = 0

    def ran(
        self, state: State[A], rows: int, wide: A, *, certain: bool, soon: bool = False
    ) -> None:
        """The trunk has run the last `rows` positions and left `wide` `[rows, S*D]`; see `Speculation.ran`.

        What it lacks is read when it drafts, or when that is much; a prompt is read at once if it will draft `soon`.
        """
        assert state.draft is not None
        position, read = len(state.tokens), state.draft.length
        state.trail.add(position - rows, rows, wide, read)
        if certain and position - read > (1 if soon else MOST_BEHIND):
            self.catch_up(state)

    def can_draft(self, state: State[A]) -> bool:
        """Its cache is in step, or can be brought into it."""
        return state.trail.covers(min(state.draft_position, state.position - 1), state.position)

    def catch_up(self, state: State[A]) -> None:
        """Read all positions but the last. For prompts, and for whoever does without drafts for long."""
        first, last = state.draft_position, state.position - 1
        if not self.can_draft(state):
            return
        pieces = list(state.trail.between(first, last, self._backend))
        if last - first <= 2 * MOST_BEHIND and pieces:
            pieces = [(last - first, self._backend.stack([piece for _, piece in pieces]))]
        for rows, piece in pieces:
            at = state.draft_position + 1
            self._network.draft(Rows([(state, state.tokens[at : at + rows])]), piece, ())
        state.trail.keep(last, last + 1, self._backend)

    def draft(self, parts: Sequence[tuple[State[A], int]], depth: int) -> list[list[int]]:
        """Guess what comes after the next token.

        Args:
            parts: sequences in step, each with the token that follows it.
            depth: how many tokens to guess.

        Returns:
            The guesses of each, the most likely tokens one after the other.
        """
        backend = self._backend
        runs: list[tuple[State[A], list[int]]] = []
        pieces: list[A] = []
        for state, following in parts:
            tokens = state.tokens
            position = len(tokens)
            first = min(state.draft_position, position - 1)
            state.set_draft_position(first)
            runs.append((state, [*tokens[first + 1 :], following]))
            pieces += [piece for _, piece in state.trail.between(first, position, backend)]
        rows = Rows(runs)
        guesses = self._network.guess(rows, backend.stack(pieces), depth)
        self.rows += len(rows) + (depth - 1) * len(parts)
        for state, _ in parts:
            position = len(state.tokens)
            state.set_draft_position(position)
            state.trail.forget(position - 1)
        return guesses
