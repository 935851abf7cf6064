"""Prefill: a prompt goes through the model in chunks, and leaves a state and the next token's logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from cherenkov.state import Rows, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cherenkov.architectures import Network
    from cherenkov.speculation import Speculation

__all__ = ["advance", "chunks", "prefill"]

A = TypeVar("A")


def chunks(count: int, rows: int) -> Iterator[tuple[int, int]]:
    """Cut `count` tokens into the fewest chunks of at most `rows`, of nearly equal size.

    A small tail would read almost as many experts as a full chunk, so there is none.
    """
    pieces = -(-count // rows)
    for i in range(pieces):
        yield count * i // pieces, count * (i + 1) // pieces


def advance(
    network: Network[A],
    state: State[A],
    tokens: Sequence[int],
    chunk_rows: int,
    check: Callable[[], None],
    speculation: Speculation | None = None,
) -> tuple[A, int]:
    """Run `tokens` through the model, without asking what follows.

    Args:
        network: the model.
        state: the sequence they belong to; they become part of it.
        tokens: at least one.
        chunk_rows: most rows in a step.
        check: called between chunks and between layers; raises to stop.
        speculation: whose draft head is to read them too.

    Returns:
        The residual of the last chunk, and how many rows it has.
    """
    assert tokens, "a prompt has at least one token"
    last: tuple[A, int] | None = None
    for start, stop in chunks(len(tokens), chunk_rows):
        check()
        rows = Rows([(state, tokens[start:stop])])
        last = network.forward(rows, check=check), stop - start
        if speculation is not None:
            speculation.ran(state, stop - start, last[0], certain=True)
    assert last is not None
    return last


def prefill(
    network: Network[A],
    state: State[A],
    tokens: Sequence[int],
    chunk_rows: int,
    check: Callable[[], None],
) -> A:
    """Run `tokens` through the model.

    Args:
        network: the model.
        state: the sequence they belong to; they become part of it.
        tokens: at least one.
        chunk_rows: most rows in a step.
        check: called between chunks and between layers; raises to stop.

    Returns:
        Logits `[1, V]` of the token after the last.
    """
    wide, rows = advance(network, state, tokens, chunk_rows, check)
    return network.logits(wide, [rows - 1])
