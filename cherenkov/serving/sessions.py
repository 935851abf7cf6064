"""Sessions of an engine: what was said and how, between turns. What the model has read of it is the prefix cache's.

A turn claims its session, and either replaces the whole of its record at the end or leaves it as it was.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections import OrderedDict
from typing import TYPE_CHECKING

from cherenkov.errors import CapacityError, RequestError
from cherenkov.serving.figures import SessionInfo

if TYPE_CHECKING:
    from collections.abc import Callable

    from cherenkov.chat.record import Record
    from cherenkov.serving.ticket import Ticket

__all__ = ["Sessions", "Turn"]

_RETRY_S = 5.0


class _Kept:
    """A session."""

    __slots__ = (
        "created_s",
        "history_bytes",
        "id",
        "owner",
        "record",
        "ticket",
        "touched",
        "turns",
    )

    def __init__(self, owner: str, record: Record, now: float) -> None:
        self.id = f"sess-{uuid.uuid4().hex}"
        self.owner = owner
        self.record = record
        self.history_bytes = _size(record)
        self.turns = 0
        self.created_s = time.time()
        self.touched = now
        self.ticket: Ticket | None = None  # of the turn under way


class Turn:
    """The right to one turn of a session.

    Attributes:
        record: the session as the turn found it.
    """

    __slots__ = ("_kept", "_ticket", "record")

    def __init__(self, kept: _Kept) -> None:
        self._kept = kept
        self._ticket = kept.ticket
        self.record = kept.record


class Sessions:
    """Sessions, of which those that were idle longest go when there are too many. For any thread.

    Args:
        most: how many.
        history_bytes: messages of all of them together.
        idle_s: how long one may be idle; 0 for ever.
        clock: seconds.
    """

    def __init__(
        self,
        most: int,
        history_bytes: int,
        idle_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most, self._most_bytes, self._idle_s = most, history_bytes, idle_s
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, _Kept] = OrderedDict()  # idle longest first

    def figures(self) -> tuple[int, int]:
        """How many there are, and what their messages take."""
        with self._lock:
            self._expire()
            return len(self._kept), self._bytes()

    def open(self, owner: str, record: Record) -> SessionInfo:
        """Keep a new one.

        Raises:
            CapacityError: none is idle that could go, or it is larger than all may be together.
        """
        with self._lock:
            self._expire()
            kept = _Kept(owner, record, self._clock())
            self._admit(kept.history_bytes, 1, None)
            self._kept[kept.id] = kept
            return self._info(kept)

    def info(self, session_id: str, owner: str) -> SessionInfo:
        """What there is to say of one. Raises RequestError (`session_not_found`)."""
        with self._lock:
            return self._info(self._find(session_id, owner))

    def close(self, session_id: str, owner: str) -> None:
        """Forget one; its turn is cancelled. Raises RequestError (`session_not_found`)."""
        with self._lock:
            kept = self._find(session_id, owner)
            del self._kept[kept.id]
            ticket = kept.ticket
        if ticket is not None:
            ticket.cancel()

    def claim(self, session_id: str, owner: str, ticket: Ticket) -> Turn:
        """Begin a turn; `release` or `commit` ends it.

        Raises:
            RequestError: there is none of that name (`session_not_found`), or a turn is under way (`busy`).
        """
        with self._lock:
            kept = self._find(session_id, owner)
            if kept.ticket is not None:
                raise RequestError(
                    f"session {session_id} is busy with request {kept.ticket.id}: wait for it, or cancel it",
                    param="session_id",
                    code="busy",
                )
            kept.ticket = ticket
            return Turn(kept)

    def release(self, turn: Turn) -> None:
        """End a turn; the session is as it was, unless there was a `commit`."""
        with self._lock:
            kept = turn._kept
            if (
                kept.ticket is turn._ticket
            ):  # else it was released before, and another turn has begun
                kept.ticket = None
                self._touch(kept)

    def reserve(self, turn: Turn, record: Record) -> None:
        """See to it that there is room for what a turn makes of its session.

        Raises:
            CapacityError: there is none.
        """
        with self._lock:
            kept = turn._kept
            self._admit(_size(record) - kept.history_bytes, 0, kept)

    def commit(self, turn: Turn, record: Record) -> None:
        """The turn counts."""
        with self._lock:
            kept = turn._kept
            kept.record = record
            kept.history_bytes = _size(record)
            kept.turns += 1

    # inside; hold the lock

    def _find(self, session_id: str, owner: str) -> _Kept:
        self._expire()
        kept = self._kept.get(session_id)
        if kept is None or kept.owner != owner:
            raise RequestError(
                f"no session {session_id:.80}: open one; idle ones are forgotten",
                param="session_id",
                code="session_not_found",
            )
        return kept

    def _admit(self, more_bytes: int, more: int, spared: _Kept | None) -> None:
        """Let go of idle sessions until so much more fits."""
        while len(self._kept) + more > self._most or self._bytes() + more_bytes > self._most_bytes:
            idle = [k for k in self._kept.values() if k.ticket is None and k is not spared]
            if not idle:
                alone = more_bytes + (0 if spared is None else spared.history_bytes)
                fits = alone <= self._most_bytes and self._most > 0
                raise CapacityError(
                    f"no room for a session of {alone} bytes: {len(self._kept)} of {self._most} sessions "
                    f"with {self._bytes()} of {self._most_bytes} bytes are in use",
                    asked_bytes=alone,
                    available_bytes=self._most_bytes,
                    retry_after_s=_RETRY_S if fits else None,
                )
            del self._kept[idle[0].id]

    def _expire(self) -> None:
        if not self._idle_s:
            return
        before = self._clock() - self._idle_s
        for kept in list(self._kept.values()):
            if kept.ticket is None and kept.touched < before:
                del self._kept[kept.id]

    def _touch(self, kept: _Kept) -> None:
        kept.touched = self._clock()
        if self._kept.get(kept.id) is kept:
            self._kept.move_to_end(kept.id)

    def _bytes(self) -> int:
        return sum(kept.history_bytes for kept in self._kept.values())

    def _info(self, kept: _Kept) -> SessionInfo:
        record, busy = kept.record, kept.ticket is not None
        return SessionInfo(
            id=kept.id,
            owner=kept.owner,
            settings=record.settings,
            messages=len(record.opening) + len(record.messages),
            turns=kept.turns,
            usage=record.usage,
            history_bytes=kept.history_bytes,
            busy=busy,
            idle_s=0.0 if busy else max(0.0, self._clock() - kept.touched),
            created_s=kept.created_s,
        )


def _size(record: Record) -> int:
    """What the words of a conversation take."""
    words = [record.system, list(record.tools.definitions), record.messages]
    return len(json.dumps(words, ensure_ascii=False, default=dict).encode(errors="surrogatepass"))
