"""Pages: what attention caches hold of some tokens, copied, so that several sequences can begin with them.

A page of tokens `start:stop` holds nothing that depends on a later token. The draft head's row at a position depends on
the token that follows: its rows are those of `start - 1` to `stop - 2`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from cherenkov.backends.base import AttentionState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cherenkov.backends.base import Backend
    from cherenkov.state import State

__all__ = ["PAGE_TOKENS", "Page", "fill_page", "page_bytes", "read_page", "size_of"]

A = TypeVar("A")

PAGE_TOKENS = 256
"""Tokens of a whole page."""


@dataclass(frozen=True, slots=True)
class Page(Generic[A]):
    """Rows of every cache, never written to.

    Attributes:
        start: first token.
        stop: token after the last.
        arrays: keys, values, index keys and block keys of each attention layer, then of the draft head if it has run.
        size_bytes: of these.
    """

    start: int
    stop: int
    arrays: tuple[A, ...]
    size_bytes: int


def read_page(
    state: State[A], start: int, stop: int, backend: Backend[Any, A], *, drafting: bool
) -> Page[A]:
    """Copy what the caches of a sequence hold of the tokens `start:stop`, which it must have read.

    Args:
        state: the sequence.
        start: first token.
        stop: token after the last.
        backend: its backend.
        drafting: the draft head has read them too.
    """
    arrays = tuple(
        backend.page(getattr(part, name), first, last)
        for part, name, first, last in _rows(state, start, stop, drafting=drafting)
    )
    return Page(start, stop, arrays, size_of(arrays))


def fill_page(state: State[A], page: Page[A], backend: Backend[Any, A]) -> None:
    """Write a page into the caches of a sequence of the same model. Lengths are the caller's to set."""
    rows = list(_rows(state, page.start, page.stop, drafting=False))
    if len(page.arrays) > len(rows):
        rows = list(_rows(state, page.start, page.stop, drafting=True))
    for array, (part, name, first, _last) in zip(page.arrays, rows, strict=True):
        setattr(part, name, backend.fill(getattr(part, name), first, array))


def size_of(arrays: Iterable[Any]) -> int:
    """Memory of some arrays of a backend."""
    return sum(int(array.nbytes) for array in arrays)


def page_bytes(state: State[Any], start: int, stop: int, *, drafting: bool) -> int:
    """What a page would take."""
    caches = (
        (getattr(part, name), last - first)
        for part, name, first, last in _rows(state, start, stop, drafting=drafting)
    )
    return sum(rows * (cache.nbytes // cache.shape[0]) for cache, rows in caches)


def _rows(
    state: State[Any], start: int, stop: int, *, drafting: bool
) -> Iterator[tuple[AttentionState[Any], str, int, int]]:
    """Every cache, by its part and name, and which of its rows belong to the tokens `start:stop`."""
    for layer in state.layers:
        if isinstance(layer, AttentionState):
            yield from _of(layer, start, stop)
    if drafting:
        assert state.draft is not None
        behind = max(start - 1, 0), max(stop - 1, 0)
        yield from _of(state.draft, *behind)


def _of(
    part: AttentionState[Any], start: int, stop: int
) -> Iterator[tuple[AttentionState[Any], str, int, int]]:
    for name in ("keys", "values", "index_keys"):
        yield part, name, start, stop
    yield part, "block_keys", start // part.block, stop // part.block
