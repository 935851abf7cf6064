"""What a session keeps of the model's memory, so that it reads each token once.

The state holds exactly the tokens that were processed. A new prompt that begins with them goes on from there. Templates
may write an old answer differently than it was generated (without its thoughts, trimmed, cut into other tokens); and
recurrent states cannot be rewound. So there is a mark as well: a snapshot where the prompt of a turn stops being
certain, mostly where the answer begins. Then only what follows the mark is read again.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cherenkov.lane import Loaded
    from cherenkov.state import Snapshot, State

__all__ = ["Kept", "common_length"]


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences have in common at the beginning."""
    length = min(len(one), len(other))
    if list(one[:length]) == list(other[:length]):  # mostly so, and quick to find
        return length
    return sum(1 for _ in takewhile(bool, map(int.__eq__, one, other)))


class Kept:
    """One sequence, and the points that it can go back to."""

    def __init__(self, loaded: Loaded) -> None:
        """Keep nothing so far."""
        self._loaded = loaded
        self._state: State[Any] | None = None
        self._mark: Snapshot[Any] | None = None
        self._start: tuple[Snapshot[Any], Snapshot[Any] | None] | None = None
        self._is_open = False

    @property
    def tokens(self) -> int:
        """How many tokens were processed and are still there."""
        return 0 if self._state is None else self._state.position

    def begin(self, prompt: Sequence[int]) -> State[Any]:
        """A state that `prompt` continues by at least one token: the longest there is. `undo` comes back to here."""
        if (
            self._is_open
        ):  # whoever was there was interrupted before the undoing: who knows what the state holds
            self._is_open, self._state, self._mark, self._start = False, None, None, None
        state, mark, backend = self._state, self._mark, self._loaded.backend
        same = 0
        if state is not None:
            same = min(common_length(state.tokens, prompt), len(prompt) - 1)
        if state is not None and state.position <= same:
            self._start = (state.snapshot(backend), mark)
        elif state is not None and mark is not None and mark.position <= same:
            self._state = None  # half restored, it would be nothing to go on with
            state.restore(mark, backend)
            self._start = (mark, mark)
        else:
            self._state = self._mark = self._start = state = None  # gone before there is another
            state = self._loaded.network.new_state(self._loaded.context_tokens)
        self._state, self._is_open = state, True
        return state

    def mark(self) -> None:
        """Remember this point, in place of the one before."""
        assert self._state is not None
        self._mark = self._state.snapshot(self._loaded.backend)

    def settle(self) -> None:
        """The turn is over: there is no coming back."""
        self._is_open, self._start = False, None

    def undo(self) -> None:
        """Come back to where `begin` was, or to nothing if it began with nothing; do nothing after `settle`."""
        if not self._is_open:
            return
        state, start = self._state, self._start
        self._is_open, self._state, self._mark, self._start = False, None, None, None
        if state is not None and start is not None:
            point, mark = start
            state.restore(point, self._loaded.backend)
            self._state, self._mark = state, mark

    def copy(self) -> Kept:
        """The same, to go on apart."""
        other = Kept(self._loaded)
        if self._state is not None:
            other._state = self._state.copy(self._loaded.backend)
            other._mark = self._mark  # never written to
        return other
