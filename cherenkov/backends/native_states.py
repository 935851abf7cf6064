"""What a call of the kernels leaves in the states of sequences, beside the arrays that it wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cherenkov.backends.operands import AttentionState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cherenkov.backends.operands import Block, Floats, Memory, Span

__all__ = ["advance", "lengthen"]


def advance(blocks: Sequence[Block[Any, Any]], span: Span[Memory[Floats]]) -> None:
    """The span's rows are in the caches of these layers now."""
    for block in blocks:
        state = span.state.layers[block.index]
        if isinstance(state, AttentionState):
            state.length = span.position + span.stop - span.start


def lengthen(spans: Sequence[Span[AttentionState[Floats]]]) -> None:
    """The spans' rows are in the cache of one layer now."""
    for s in spans:
        s.state.length = s.position + s.stop - s.start
