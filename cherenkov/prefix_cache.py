"""What was read before, and need not be read again: points of sequences that others may go on from.

A point is a position of a sequence: its tokens, copies of the recurrent states there, and pages of the attention caches.
Points that begin with the same tokens hold the same pages, so that a conversation that grows by turns keeps its caches
once; the recurrent states cannot be shared, and are what a point costs. A row's bits do not depend on how many rows were
read with it, so a sequence that goes on from a point says bit for bit what it would have said after reading everything.

Owners are kept apart: nobody can tell, by how fast an answer comes, what another has asked.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np

from cherenkov.backends.base import AttentionState
from cherenkov.pages import PAGE_TOKENS, Page, fill_page, page_bytes, read_page
from cherenkov.trail import Trail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from cherenkov.backends.base import Backend
    from cherenkov.state import Snapshot, State

__all__ = ["Elsewhere", "Point", "PrefixCache", "PrefixCounts", "goes_on", "name_of"]

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Point(Generic[A]):
    """A position of a sequence. Never written to.

    Attributes:
        owner: whose it is.
        tokens: int32 `[position]`.
        snapshot: recurrent states, and lengths of the caches.
        pages: of the caches, in order.
        logits: float32 `[1, V]` of the token that follows; None where a prompt goes on.
        own_bytes: what it takes apart from the pages.
    """

    owner: str
    tokens: NDArray[np.int32]
    snapshot: Snapshot[A]
    pages: tuple[Page[A], ...]
    logits: NDArray[np.float32] | None
    own_bytes: int

    @property
    def position(self) -> int:
        """Tokens read."""
        return len(self.tokens)

    def resume(self, state: State[A], backend: Backend[Any, A]) -> None:
        """Bring an empty sequence here."""
        assert not state.tokens, "a fresh sequence"
        for page in self.pages:
            fill_page(state, page, backend)
        state.tokens = self.tokens.tolist()
        state.restore(self.snapshot, backend)


@dataclass(slots=True)
class PrefixCounts:
    """What happened since the start.

    Attributes:
        hits: prompts that began with a point.
        misses: prompts that did not.
        hit_tokens: tokens that were not read again.
        stored: points.
        evictions: points that had to go, or were idle for too long.
    """

    hits: int = 0
    misses: int = 0
    hit_tokens: int = 0
    stored: int = 0
    evictions: int = 0


class Elsewhere(Protocol[A]):
    """A place for points that leave a cache."""

    def put(self, point: Point[A]) -> None:
        """Keep a point, if there is room."""

    def find(self, owner: str, prompt: NDArray[np.int32], longer_than: int) -> Point[A] | None:
        """The longest point that an owner's prompt begins with, if it has more than so many tokens."""


class _Held(Generic[A]):
    """A point in the cache, when it was used last, and the keys of its pages."""

    __slots__ = ("keys", "point", "used")

    def __init__(self, point: Point[A], keys: list[bytes], used: float) -> None:
        self.point = point
        self.keys = keys
        self.used = used


class PrefixCache(Generic[A]):
    """A bounded set of points, the one that was used longest ago goes first. For the thread that owns the model.

    Args:
        backend: of the model.
        limit_bytes: memory for all of it; 0 for no cache.
        limit_points: most points.
        idle_s: points that were not used for so long go; 0 for never.
        clock: seconds.
        elsewhere: where points go that must leave for want of room or use, and may be found again.

    Attributes:
        counts: what happened so far.
    """

    def __init__(
        self,
        backend: Backend[Any, A],
        *,
        limit_bytes: int,
        limit_points: int = 64,
        idle_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        elsewhere: Elsewhere[A] | None = None,
    ) -> None:
        self.counts = PrefixCounts()
        self._backend = backend
        self._limit_bytes, self._limit_points = limit_bytes, limit_points
        self._idle_s, self._clock, self._elsewhere = idle_s, clock, elsewhere
        self._held: OrderedDict[bytes, _Held[A]] = OrderedDict()  # the latest used last
        self._pages: dict[bytes, tuple[Page[A], int]] = {}  # and how many points hold each
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    @property
    def size_bytes(self) -> int:
        """Memory taken now."""
        return self._bytes

    @property
    def is_on(self) -> bool:
        """It may hold something."""
        return self._limit_bytes > 0 and self._limit_points > 0

    def points(self) -> Iterator[Point[A]]:
        """All points, the one used longest ago first."""
        return (held.point for held in self._held.values())

    def find(self, owner: str, prompt: Sequence[int]) -> Point[A] | None:
        """The longest point that a prompt begins with.

        One that is the whole prompt counts only if it has the logits of what follows.
        """
        wanted = np.asarray(prompt, dtype=np.int32)
        found, key = None, b""
        for name, held in self._held.items():
            point = held.point
            if point.owner != owner or (found is not None and point.position <= found.position):
                continue
            if goes_on(point.tokens, wanted, complete=point.logits is not None):
                found, key = point, name
        have = 0 if found is None else found.position
        if self._elsewhere is not None and have < len(wanted):
            other = self._elsewhere.find(owner, wanted, have)
            if other is not None:
                self.add(other)
                return other
        if found is not None:
            self._held[key].used = self._clock()
            self._held.move_to_end(key)
        return found

    def note(self, cached_tokens: int) -> None:
        """Count a prompt, of which so many tokens were found."""
        self.counts.hits += cached_tokens > 0
        self.counts.misses += cached_tokens == 0
        self.counts.hit_tokens += cached_tokens

    def shared(self, owner: str, prompt: Sequence[int]) -> int:
        """How many tokens a prompt has in common with any sequence that is held: others will likely begin so too."""
        wanted = np.asarray(prompt, dtype=np.int32)
        return max(
            (
                _common(held.point.tokens, wanted)
                for held in self._held.values()
                if held.point.owner == owner
            ),
            default=0,
        )

    def store(self, owner: str, state: State[A], logits: NDArray[np.float32] | None = None) -> bool:
        """Hold the point where a sequence is now, if there can be room.

        Args:
            owner: whose it is.
            state: the sequence.
            logits: float32 `[1, V]` of what follows, if it is known.

        Returns:
            Whether it is held.
        """
        if not self.is_on or not state.tokens:
            return False
        tokens = np.array(state.tokens, dtype=np.int32)
        name = _name(owner, tokens)
        known = self._held.get(name)
        if known is not None and (logits is None or known.point.logits is not None):
            known.used = self._clock()
            self._held.move_to_end(name)
            return True
        if known is not None:
            self._drop(name)
        drafted = min(state.draft_position, len(tokens) - 1)
        keys = _keys(owner, tokens, drafted)
        own = _recurrent_bytes(state) + tokens.nbytes + (0 if logits is None else logits.nbytes)
        if not self._make_room(state, keys, own, drafting=drafted > 0):
            return False
        pages = tuple(self._page(state, i, key, drafting=drafted > 0) for i, key in enumerate(keys))
        snapshot = state.snapshot(self._backend)
        if "draft" in snapshot.lengths:
            # The head's row at a position needs the token that follows, which may be another one next time.
            snapshot.lengths["draft"] = drafted
            if snapshot.trail.covers(drafted, len(tokens)):
                snapshot.trail.keep(drafted, len(tokens), self._backend)
            else:
                snapshot = replace(snapshot, trail=Trail())
            own += snapshot.trail.size_bytes
        kept = None if logits is None else np.array(logits)
        self.add(Point(owner, tokens, snapshot, pages, kept, own))
        self.counts.stored += 1
        return True

    def add(self, point: Point[A]) -> None:
        """Hold a point as it is, and let go of others if there is no room for all."""
        name = name_of(point)
        keys = _keys(point.owner, point.tokens, point.snapshot.lengths.get("draft", 0))
        if name in self._held:
            self._drop(name)
        pages = []
        for key, page in zip(keys, point.pages, strict=True):
            held, count = self._pages.get(key, (page, 0))
            self._bytes += 0 if count else page.size_bytes
            self._pages[key] = held, count + 1
            pages.append(held)
        point = replace(point, pages=tuple(pages))
        self._bytes += point.own_bytes
        self._held[name] = _Held(point, keys, self._clock())
        while self._bytes > self._limit_bytes or len(self._held) > self._limit_points:
            self._evict()

    def sweep(self) -> None:
        """Let go of what nobody has used for long."""
        if not self._idle_s:
            return
        before = self._clock() - self._idle_s
        while self._held and next(iter(self._held.values())).used < before:
            self._evict()

    def clear(self) -> None:
        """Let go of everything."""
        for name in list(self._held):
            self._drop(name)
            self.counts.evictions += 1

    def _make_room(self, state: State[A], keys: list[bytes], own: int, *, drafting: bool) -> bool:
        """Evict until a point fits. False if it never could."""
        sizes = [
            page_bytes(state, *_reach(i, state.position), drafting=drafting)
            for i in range(len(keys))
        ]
        if own + sum(sizes) > self._limit_bytes:
            return False
        while True:
            new = sum(size for key, size in zip(keys, sizes, strict=True) if key not in self._pages)
            fits = self._bytes + own + new <= self._limit_bytes
            if fits and len(self._held) < self._limit_points:
                return True
            self._evict()

    def _page(self, state: State[A], index: int, key: bytes, *, drafting: bool) -> Page[A]:
        found = self._pages.get(key)
        if found is not None:
            return found[0]
        return read_page(state, *_reach(index, state.position), self._backend, drafting=drafting)

    def _evict(self) -> None:
        name = next(iter(self._held))
        point = self._held[name].point
        self._drop(name)
        self.counts.evictions += 1
        if self._elsewhere is not None:
            self._elsewhere.put(point)

    def _drop(self, name: bytes) -> None:
        held = self._held.pop(name)
        self._bytes -= held.point.own_bytes
        for key in held.keys:
            page, count = self._pages.pop(key)
            if count > 1:
                self._pages[key] = page, count - 1
            else:
                self._bytes -= page.size_bytes


def goes_on(tokens: NDArray[np.int32], prompt: NDArray[np.int32], *, complete: bool) -> bool:
    """Whether a prompt can go on from some tokens: it begins with them, and there is more, or its logits are known."""
    length = len(tokens)
    if length > len(prompt) or (length == len(prompt) and not complete):
        return False
    return np.array_equal(tokens, prompt[:length])


def name_of(point: Point[Any]) -> bytes:
    """A name that says whose a point is and what it has read."""
    return _name(point.owner, point.tokens)


def _name(owner: str, tokens: NDArray[np.int32]) -> bytes:
    return hashlib.blake2b(tokens.tobytes() + owner.encode(), digest_size=16).digest()


def _common(one: NDArray[np.int32], other: NDArray[np.int32]) -> int:
    length = min(len(one), len(other))
    differ = np.flatnonzero(one[:length] != other[:length])
    return int(differ[0]) if len(differ) else length


def _reach(index: int, position: int) -> tuple[int, int]:
    """Tokens of page `index` of a sequence of `position` tokens."""
    return index * PAGE_TOKENS, min((index + 1) * PAGE_TOKENS, position)


def _keys(owner: str, tokens: NDArray[np.int32], drafted: int) -> list[bytes]:
    """A name for each page of a sequence, of which the draft head has read so much: it says all that comes before, too."""
    name, names = hashlib.blake2b(f"{drafted > 0} {owner}".encode(), digest_size=16).digest(), []
    for start in range(0, len(tokens), PAGE_TOKENS):
        page = tokens[start : start + PAGE_TOKENS]
        read = min(max(drafted - start + 1, 0), len(page))
        name = hashlib.blake2b(b"%s%d " % (name, read) + page.tobytes(), digest_size=16).digest()
        names.append(name)
    return names


def _recurrent_bytes(value: Any) -> int:
    """Memory of all arrays of a state that do not grow with it."""
    if isinstance(value, AttentionState):
        return 0
    if is_dataclass(value):
        return sum(
            _recurrent_bytes(getattr(value, one.name))
            for one in fields(value)
            if one.name not in {"bound", "tokens", "trail", "draft", "_head"}
        )
    if isinstance(value, tuple):
        return sum(map(_recurrent_bytes, value))
    if isinstance(value, dict):
        return sum(map(_recurrent_bytes, value.values()))
    return int(getattr(value, "nbytes", 0))
