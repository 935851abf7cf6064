"""Going back over rows of a step: what recurrent states were after each of them.

States hold what is so after the last row. Where a step's rows may be taken back, what was so after each row before lies beside them, in
`Memory.bound`, until the next step. Nothing is copied: arrays are values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import mlx.core as mx

from cherenkov.backends.operands import DeltaState, PleState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cherenkov.backends.operands import Memory, Span

__all__ = ["MOST_BACK", "EveryDelta", "EveryPle", "Kept", "begin", "go_back", "kept_of"]

MOST_BACK = 3
"""Rows that can be taken back: as many as there may be drafts."""


@dataclass(slots=True)
class EveryDelta(DeltaState[mx.array]):
    """A state that rows go through, of which those after each row are wanted.

    `matrix` is `[n, Hv, dk, dv]` then, and `history` has n - 1 rows more.
    """


@dataclass(slots=True)
class EveryPle(PleState[mx.array]):
    """As `EveryDelta`."""


@dataclass(slots=True)
class Kept:
    """What was so after each row of a step.

    Attributes:
        start: position of the first row.
        rows: how many there are.
        delta: histories and matrices of each DeltaNet layer, as an `EveryDelta` has them, by index.
        ple: histories of each layer with n-gram features.
    """

    start: int
    rows: int
    delta: dict[int, EveryDelta] = field(default_factory=dict)
    ple: dict[int, EveryPle] = field(default_factory=dict)

    def add_delta(self, at: int, made: EveryDelta, state: DeltaState[mx.array]) -> None:
        """Keep what a layer made, and give its state what is so in the end."""
        self.delta[at] = made
        state.history, state.matrix = made.history[self.rows - 1 :], made.matrix[-1]

    def add_ple(self, at: int, made: EveryPle, state: PleState[mx.array]) -> None:
        """As `add_delta`."""
        self.ple[at] = made
        state.history = made.history[self.rows - 1 :]


def begin(spans: Sequence[Span[Memory[mx.array]]]) -> None:
    """A step begins: its sequences go on from their positions, and what is kept from now on is its own."""
    for span in spans:
        rows = span.stop - span.start
        go_back(span.state, span.position)
        span.state.bound = Kept(span.position, rows) if 1 < rows <= MOST_BACK + 1 else None


def kept_of(span: Span[Memory[mx.array]]) -> Kept | None:
    """What is kept of the step that these rows are of."""
    kept = span.state.bound
    return kept if isinstance(kept, Kept) else None


def go_back(memory: Memory[mx.array], position: int) -> None:
    """The states of a sequence as of `position`; nothing is kept any more if that is not where they are."""
    kept = memory.bound
    if not isinstance(kept, Kept) or position == kept.start + kept.rows:
        return
    stay = position - kept.start
    assert 0 < stay < kept.rows, "these rows are there to stay"
    for at, made in kept.delta.items():
        state = memory.layers[at]
        assert isinstance(state, DeltaState)
        state.history = _ending(made.history, kept.rows - stay, kept.rows - 1)
        state.matrix = made.matrix[stay - 1]
    for at, every in kept.ple.items():
        memory.ple[at].history = _ending(every.history, kept.rows - stay, kept.rows - 1)
    memory.bound = None


def _ending(history: mx.array, back: int, more: int) -> mx.array:
    """A history before its last `back` rows; it has `more` than a state's."""
    return history[more - back : history.shape[0] - back]
