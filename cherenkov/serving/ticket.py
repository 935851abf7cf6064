"""`Ticket`: what a caller holds of a request, and the events that come to it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from cherenkov.chat.replies import Finished, Reply
from cherenkov.serving.requests import Accepted, Started

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable, Iterator

    from cherenkov.serving.requests import Answered

    Taking = Callable[[Answered], bool]

__all__ = ["Ticket"]


class Ticket:
    """A request under way. One reader takes its events, in a thread (`for`) or in asyncio (`async for`).

    Events come in order: `Accepted`, `Started`, `Echoed` if asked for, pieces of the answer, `Finished`. Instead of any of
    them an error may come, which is raised, and is the last. A request that is cancelled before `Started` raises
    `Cancelled`; one that is cancelled later ends with a `Finished` whose `finish_reason` is `cancelled`.

    Attributes:
        id: of the request.
        session_id: of its session, or None.
    """

    def __init__(
        self,
        request_id: str,
        session_id: str | None = None,
        *,
        most_unread: int = 64,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """Made by whoever answers.

        Args:
            request_id: unique among those under way.
            session_id: of its session.
            most_unread: events that may wait before `is_full`.
            on_change: called when it is cancelled, or is no longer full; from any thread.
        """
        self.id = request_id
        self.session_id = session_id
        self._most = most_unread
        self._on_change = on_change
        self._changed = threading.Condition()
        self._events: deque[Answered] = deque()
        self._error: BaseException | None = None
        self._over = False  # no event will be added
        self._complete = False  # can no longer be cancelled
        self._cancelled = False
        self._full_since: float | None = None
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None
        self._at_once: Taking | None = None

    # --- for the caller

    def cancel(self) -> bool:
        """End the request as soon as the step is done. Never waits; any thread. False if it was over already."""
        with self._changed:
            if self._complete or self._over:
                return self._cancelled
            self._cancelled = True
        self._on_change()
        return True

    def __iter__(self) -> Iterator[Answered]:
        """Events, waiting for each."""
        while (event := self.next()) is not None:
            yield event

    def next(self, timeout_s: float | None = None) -> Answered | None:
        """The next event, or None after the last.

        Raises:
            TimeoutError: none came in time.
            CherenkovError: the request failed.
        """
        end = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while not self._events and not self._over:
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(f"no event of request {self.id} in {timeout_s} s")
                self._changed.wait(left)
            event, freed = self._taken()
        if freed:
            self._on_change()
        return event

    async def __aiter__(self) -> AsyncIterator[Answered]:
        """Events, waiting for each without a thread."""
        while (event := await self.anext()) is not None:
            yield event

    async def anext(self, at_once: Taking | None = None) -> Answered | None:
        """As `next`, for asyncio; use `asyncio.timeout` around it to wait no longer than that.

        Args:
            at_once: while nothing is waiting, events other than the last are given to this first, in the thread of whoever
                answers, and come here only once it refuses one (returns False). It must not wait.
        """
        import asyncio  # noqa: PLC0415 - only asyncio's own callers need it

        loop = asyncio.get_running_loop()
        while (future := self._awaited(loop, at_once)) is not None:
            await future
        return self.next()

    def started(self) -> Started:
        """Wait for the turn of a request: takes the events up to `Started`. Raises what the request raises."""
        for event in self:
            if isinstance(event, Started):
                return event
        raise AssertionError("a request starts before it ends")

    async def astarted(self) -> Started:
        """As `started`, for asyncio."""
        while (event := await self.anext()) is not None:
            if isinstance(event, Started):
                return event
        raise AssertionError("a request starts before it ends")

    def accepted(self) -> Accepted:
        """Wait until it is known that a request makes sense: takes `Accepted`. Raises what the request raises."""
        event = self.next()
        assert isinstance(event, Accepted), "the first event"
        return event

    async def aaccepted(self) -> Accepted:
        """As `accepted`, for asyncio."""
        event = await self.anext()
        assert isinstance(event, Accepted), "the first event"
        return event

    def reply(self) -> Reply:
        """Take all events; the answer as a whole. Raises what the request raises."""
        for event in self:
            if isinstance(event, Finished):
                return event.reply
        raise AssertionError("a request ends with its reply")

    async def areply(self) -> Reply:
        """As `reply`, for asyncio."""
        while (event := await self.anext()) is not None:
            if isinstance(event, Finished):
                return event.reply
        raise AssertionError("a request ends with its reply")

    # --- for whoever answers

    @property
    def is_cancelled(self) -> bool:
        """The caller wants no more."""
        return self._cancelled

    @property
    def is_over(self) -> bool:
        """The last event has come, or the error."""
        return self._over

    @property
    def full_s(self) -> float:
        """For how many seconds as many events as may wait have been waiting; 0 while there is room."""
        since = self._full_since
        return 0.0 if since is None else max(time.monotonic() - since, 1e-9)

    def put(self, event: Answered) -> None:
        """Add an event. Never waits: whoever answers looks at `full_s` before making more."""
        with self._changed:
            assert not self._over, "nothing comes after the end"
            self._over = isinstance(event, Finished)
            if self._at_once is not None:
                if not self._over and self._at_once(event):
                    return
                self._at_once = None
            self._events.append(event)
            self._complete = self._complete or self._over
            if len(self._events) >= self._most and self._full_since is None:
                self._full_since = time.monotonic()
            self._wake()

    def fail(self, error: BaseException) -> None:
        """End with an error. Does nothing after the end."""
        with self._changed:
            if self._over:
                return
            self._error, self._over = error, True
            self._at_once = None
            self._wake()

    def complete(self) -> bool:
        """The answer is about to count: from now on it cannot be cancelled. False if it has been."""
        with self._changed:
            if self._cancelled:
                return False
            self._complete = True
            return True

    def _awaited(
        self, loop: asyncio.AbstractEventLoop, at_once: Taking | None
    ) -> asyncio.Future[None] | None:
        """What to wait for before `next` has something to give; None if it has."""
        with self._changed:
            if self._events or self._over:
                return None
            future: asyncio.Future[None] = loop.create_future()
            self._waiter = loop, future
            self._at_once = at_once
            return future

    # --- inside; hold `_changed`

    def _taken(self) -> tuple[Answered | None, bool]:
        """The next event, and whether there is room now where there was none."""
        if not self._events:
            if self._error is not None:
                raise self._error
            return None, False
        event = self._events.popleft()
        freed = self._full_since is not None and len(self._events) <= self._most // 2
        if freed:
            self._full_since = None
        return event, freed

    def _wake(self) -> None:
        self._changed.notify_all()
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            loop, future = waiter
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(_wake, future)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
