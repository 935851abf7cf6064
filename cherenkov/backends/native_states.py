"""What a call of the kernels leaves behind, beside the arrays that it wrote."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cherenkov.backends.operands import AttentionState, Choice
from cherenkov.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cherenkov.backends.operands import (
        Block,
        DeltaState,
        DraftHead,
        ExpertPool,
        Floats,
        Ids,
        Memory,
        PleState,
        Span,
    )

__all__ = [
    "Drafting",
    "NativeChoice",
    "advance",
    "advance_head",
    "behind",
    "features_by_layer",
    "lengthen",
]


def advance(caches: Sequence[int], ran: range, spans: Sequence[Span[Memory[Floats]]]) -> None:
    """The spans' rows are in the caches of the layers that ran now. `caches` are the layers that have one."""
    for s in spans:
        length = s.position + s.stop - s.start
        for layer in caches:
            if layer in ran:
                state = s.state.layers[layer]
                assert isinstance(state, AttentionState)
                state.length = length


def advance_head(spans: Sequence[Span[Memory[Floats]]], more: int = 0) -> None:
    """The spans' rows are in the cache of the draft head now, and `more` behind each."""
    for s in spans:
        state = s.state.layers[0]
        assert isinstance(state, AttentionState)
        state.length = s.position + s.stop - s.start + more


def lengthen(spans: Sequence[Span[AttentionState[Floats]]]) -> None:
    """The spans' rows are in the cache of one layer now."""
    for s in spans:
        s.state.length = s.position + s.stop - s.start


def features_by_layer(
    blocks: Sequence[Block[Any, Any]], features: Mapping[int, Floats]
) -> list[Floats | Callable[[], Floats] | None]:
    """N-gram features as the kernels take them: those that are here, how to wait for the others, None of other layers."""
    return [
        None
        if block.ple is None
        else features[i]
        if i in features
        else partial(_awaited, features, i)
        for i, block in enumerate(blocks)
    ]


def _awaited(features: Mapping[int, Floats], layer: int) -> Floats:
    try:
        return features[layer]
    except KeyError:
        reason = "features do not have the layer's shape"
        raise BackendError("native", "stretch", reason) from None


def behind(state: DeltaState[Floats] | PleState[Floats], position: int, most_back: int) -> Floats:
    """The last convolution inputs as of `position`, oldest first: position p lies in row p % rows."""
    rows = len(state.history)
    last = np.arange(position - rows + most_back, position) if rows else np.arange(0)
    return state.history[last % max(rows, 1)]


class Drafting(NamedTuple):
    """What operations of a draft head work on, as the kernels take it.

    Attributes:
        drafts: the head, and
        pool, table: the slots and what is in them, by whose identity this is known.
        trunk: its layer, described.
        described: all of it.
        top_k: experts that it chooses.
    """

    drafts: DraftHead[Any, Any]
    pool: ExpertPool
    table: Ids
    trunk: Any
    described: Any
    top_k: int


class NativeChoice(Choice):
    """A choice whose activations wait in memory of the kernels."""

    __slots__ = ("mixture",)

    def __init__(self, ids: Ids, mixture: Any) -> None:
        self.ids = ids
        self.mixture: Any | None = mixture

    def use_up(self) -> Any:
        """What waits; it is another choice's memory afterwards."""
        mixture, self.mixture = self.mixture, None
        if mixture is None:
            raise BackendError("native", "experts", "this choice has had its experts already")
        return mixture
