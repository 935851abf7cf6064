"""The memory of a sequence, and the rows of a step.

A `State` is everything a model keeps about one sequence: its tokens and, layer by layer, what the operations
left behind. A `Rows` is what one forward pass works on: consecutive tokens of one or of several sequences.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from typing_extensions import NamedTuple

from cherenkov.backends.base import AttentionState, DeltaState, PleState, Span
from cherenkov.trail import Trail

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from cherenkov.backends.base import Backend

__all__ = ["Rows", "Snapshot", "State"]

A = TypeVar("A")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Snapshot(Generic[A]):
    """A point that a sequence can go back to. Only what does not grow with the sequence is kept apart.

    Attributes:
        position: tokens of the sequence then.
        recurrent: copies of the recurrent states, by the name of their part.
        lengths: entries in each attention cache, by the name of its part.
        trail: what the draft head had not read then.
    """

    position: int
    recurrent: dict[str, Any]
    lengths: dict[str, int]
    trail: Trail[A] = field(default_factory=Trail)


@dataclass(slots=True)
class HeadMemory(Generic[A]):
    """The draft head's memory as a backend's `Memory`: one layer, without n-gram features."""

    layers: tuple[AttentionState[A]]
    ple: dict[int, PleState[A]] = field(default_factory=dict)
    bound: object = None


@dataclass(slots=True)
class State(Generic[A]):
    """One sequence. `layers` holds each trunk layer's state; `ple` and `draft` that of the parts beside it.

    `bound` is the backend's: how it keeps these arrays at hand. Whoever replaces one empties it. `trail` is what the draft
    head has still to read. `settled` is the earliest position that the sequence can go back to without a snapshot.
    """

    layers: tuple[DeltaState[A] | AttentionState[A], ...]
    ple: dict[int, PleState[A]]
    draft: AttentionState[A] | None
    context_tokens: int
    tokens: list[int] = field(default_factory=list)
    bound: object = field(default=None, compare=False, repr=False)
    trail: Trail[A] = field(default_factory=Trail, compare=False, repr=False)
    settled: int = 0
    _head: HeadMemory[A] | None = field(default=None, compare=False, repr=False)
    _caches: list[AttentionState[A]] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        self._caches = [layer for layer in self.layers if isinstance(layer, AttentionState)]

    @property
    def position(self) -> int:
        """Position of the next token."""
        return len(self.tokens)

    @property
    def head(self) -> HeadMemory[A]:
        """The draft head's memory."""
        if self._head is None:
            assert self.draft is not None
            self._head = HeadMemory((self.draft,))
        return self._head

    @property
    def draft_position(self) -> int:
        """Entries in the draft head's cache: it runs behind the trunk, since a row needs the token that follows."""
        return self.draft.length if self.draft is not None else 0

    def copy(self, backend: Backend[Any, A]) -> State[A]:
        """An independent copy, caches and all."""
        backend.rewind(self, self.position)
        return State(
            layers=tuple(_copied(state, backend.copy) for state in self.layers),
            ple={layer: _copied(state, backend.copy) for layer, state in self.ple.items()},
            draft=_copied(self.draft, backend.copy),
            context_tokens=self.context_tokens,
            tokens=list(self.tokens),
            trail=self.trail.copy(),
            settled=self.settled,
        )

    def snapshot(self, backend: Backend[Any, A]) -> Snapshot[A]:
        """Remember this point. It stays good until the sequence goes back behind it."""
        backend.rewind(self, self.position)
        parts = self._parts()
        return Snapshot(
            self.position,
            {
                name: _copied(part, backend.copy)
                for name, part in parts.items()
                if not isinstance(part, AttentionState)
            },
            {name: part.length for name, part in parts.items() if isinstance(part, AttentionState)},
            self.trail.copy(),
        )

    def restore(self, snapshot: Snapshot[A], backend: Backend[Any, A]) -> None:
        """Go back to a point that this sequence came from.

        Caches are cut to the length that they had: what lies behind it is written anew before it is read.
        """
        for name, part in self._parts().items():
            if isinstance(part, AttentionState):
                part.length = snapshot.lengths[name]
                continue
            kept = _copied(snapshot.recurrent[name], backend.copy)
            for one in fields(part):
                setattr(part, one.name, getattr(kept, one.name))
        self.bound = None
        del self.tokens[snapshot.position :]
        self.trail = snapshot.trail.copy()
        self.settled = snapshot.position
        # Its last row was made with the token that followed then.
        self.set_draft_position(min(self.draft_position, max(0, self.position - 1)))

    def go_back(self, position: int) -> None:
        """Take back the rows from `position` on, which must be `settled` or beyond it.

        Nothing is copied: what lies behind is written anew before it is read, and the recurrent states know by the position
        where the next step begins (`Backend.most_back`).
        """
        assert self.settled <= position <= self.position, "these rows are there to stay"
        del self.tokens[position:]
        self._set_lengths(position)
        if self.draft_position >= position:  # a row of the head is made of the token that follows
            self.set_draft_position(max(0, position - 1))

    def stay(self, token: int) -> None:
        """One of the rows that were taken back, the next one, belongs to the sequence after all."""
        self.tokens.append(token)
        self._set_lengths(len(self.tokens))

    def set_draft_position(self, position: int) -> None:
        """Cut the draft head's cache, or give it back rows that it was cut by."""
        if self.draft is not None:
            self.draft.length = position

    def _set_lengths(self, length: int) -> None:
        for cache in self._caches:
            cache.length = length

    def _parts(self) -> dict[str, Any]:
        """Every state, by a name of its own."""
        parts: dict[str, Any] = {f"layer {i}": state for i, state in enumerate(self.layers)}
        parts |= {f"ple {i}": state for i, state in self.ple.items()}
        return parts if self.draft is None else parts | {"draft": self.draft}

    def delta(self, layer: int) -> DeltaState[A]:
        """The state of a DeltaNet layer."""
        state = self.layers[layer]
        assert isinstance(state, DeltaState)
        return state

    def attention(self, layer: int) -> AttentionState[A]:
        """The state of an attention layer."""
        state = self.layers[layer]
        assert isinstance(state, AttentionState)
        return state


class Segment(NamedTuple, Generic[A]):
    """Rows `start:stop` of a step are the next tokens of the sequence `state`."""

    start: int
    stop: int
    state: State[A]


class Rows(Generic[A]):
    """The rows of one step.

    Attributes:
        tokens: int32 `[R]`.
        segments: which rows belong to which sequence; they cover the rows in order.
    """

    __slots__ = ("segments", "tokens")

    def __init__(self, parts: Sequence[tuple[State[A], Sequence[int] | NDArray[np.int32]]]) -> None:
        if len(parts) == 1:
            ((state, tokens),) = parts
            self.tokens: NDArray[np.int32] = np.asarray(tokens, dtype=np.int32)
            self.segments: tuple[Segment[A], ...] = (Segment(0, len(tokens), state),)
            return
        arrays = [np.asarray(tokens, dtype=np.int32) for _, tokens in parts]
        self.tokens = np.concatenate(arrays)
        stops = itertools.accumulate(len(array) for array in arrays)
        self.segments = tuple(
            Segment(stop - len(array), stop, state)
            for array, stop, (state, _) in zip(arrays, stops, parts, strict=True)
        )

    def __len__(self) -> int:
        return len(self.tokens)

    def spans(self) -> list[Span[State[A]]]:
        """The segments, with their sequences' memory of every layer."""
        return [Span(s.start, s.stop, s.state.position, s.state) for s in self.segments]

    def draft(self) -> list[Span[HeadMemory[A]]]:
        """The segments, with the draft head's memory; its positions are its own."""
        return [Span(s.start, s.stop, s.state.draft_position, s.state.head) for s in self.segments]

    def commit(self, most_back: int = 0) -> None:
        """Append the rows' tokens to their sequences, once every layer has seen them.

        Args:
            most_back: of the backend: rows of a step that can be taken back.
        """
        for s in self.segments:
            count, state = s.stop - s.start, s.state
            state.settled = state.position + (1 if count <= most_back + 1 else count)
            state.tokens.extend(self.tokens[s.start : s.stop].tolist())


def _copied(value: T, copy: Callable[[Any], Any]) -> T:
    """A state with its arrays copied, whatever else it holds."""
    if value is None or isinstance(value, int | float | str):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        parts = {one.name: _copied(getattr(value, one.name), copy) for one in fields(value)}
        return replace(value, **parts)
    if isinstance(value, tuple | list):
        return type(value)(_copied(part, copy) for part in value)
    copied: T = copy(value)
    return copied
