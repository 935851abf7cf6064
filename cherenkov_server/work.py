"""The tickets that one HTTP request holds: one for each answer it asked for."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Protocol

from cherenkov.chat.replies import Finished
from cherenkov.errors import Cancelled, CapacityError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from litestar.types import Receive

    from cherenkov.chat.replies import Reply
    from cherenkov.engine import Request, Started, Ticket
    from cherenkov.serving.requests import Answered

__all__ = ["HangUp", "Taker", "Work"]

_LONGEST_PAUSE_S = 0.5
_QUEUED_EVENTS = 16


class Taker(Protocol):
    """Whatever events of one answer are told to."""

    def take(self, event: Answered) -> object:
        """Take an event."""


class HangUp:
    """Waits for the caller to hang up, and then cancels at once, before anything is awaited.

    A frame that awaits while it is torn down may never come to its next line, so what must be done is done here.

    Args:
        receive: of the connection, once the body has been read.
        cancel: never waits.
    """

    def __init__(self, receive: Receive, cancel: Callable[[], None]) -> None:
        self._receive = receive
        self._cancel = cancel
        self._task = asyncio.create_task(self._watch())

    def stop(self) -> None:
        """Watch no longer."""
        self._task.cancel()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._cancel()


class Work:
    """Answers under way for one HTTP request.

    Args:
        submit: of the engine.
        requests: what to ask for, in the order of the answers.
        most: how many of them may be under way at a time.
        on_end: called once, when nothing is under way any more or wanted.
    """

    def __init__(
        self,
        submit: Callable[[Request], Ticket],
        requests: Sequence[Request],
        *,
        most: int,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._submit = submit
        self._requests = requests
        self._most = max(1, most)
        self._tickets: dict[int, Ticket] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._is_cancelled = False
        self._on_end = on_end
        self.started: Started | None = None

    def cancel(self) -> None:
        """End all answers as soon as the step is done. Never waits."""
        self._is_cancelled = True
        for ticket in self._tickets.values():
            ticket.cancel()

    def end(self) -> None:
        """Nobody reads any more: cancel what is not over. Never waits; safe to call twice."""
        for task in self._tasks:
            task.cancel()
        self.cancel()
        self._on_end()

    async def begin(self) -> None:
        """Ask, and wait until the first answer is under way: until then the status of a refusal can be told.

        Raises:
            CherenkovError: as `Engine.submit`, and as the first events of a ticket.
        """
        self._tickets[0] = self._submit(self._requests[0])
        with contextlib.suppress(CapacityError):  # those without a place now come later
            for i in range(1, min(self._most, len(self._requests))):
                self._tickets[i] = self._submit(self._requests[i])
        self.started = await self._tickets[0].astarted()

    async def events(
        self, at_once: Callable[[], Callable[[Answered], bool] | None] = lambda: None
    ) -> AsyncIterator[tuple[int, Answered]]:
        """All events, each with the index of its answer; after `begin`.

        Args:
            at_once: asked each time that there is nothing to give: who may take the events of a single answer first, see
                `Ticket.anext`.

        Raises:
            CherenkovError: if an answer fails. The others are cancelled.
        """
        if len(self._requests) == 1:
            while (event := await self._tickets[0].anext(at_once())) is not None:
                yield 0, event
            return
        found: asyncio.Queue[tuple[int, Answered | BaseException | None]]
        found = asyncio.Queue(_QUEUED_EVENTS)
        turns = asyncio.Semaphore(self._most)
        self._tasks = [
            asyncio.create_task(self._follow(i, turns, found)) for i in range(len(self._requests))
        ]
        left = len(self._requests)
        while left:
            index, one = await found.get()
            if isinstance(one, BaseException):
                raise one
            if one is None:
                left -= 1
            else:
                yield index, one

    async def replies(self, takers: Sequence[Taker]) -> list[Reply]:
        """The whole answers, after `begin`; takers are told every event, in any thread. Raises as `events`."""
        replies: dict[int, Reply] = {}

        def take(event: Answered) -> bool:
            takers[0].take(event)
            return True

        async for index, event in self.events(lambda: take):
            takers[index].take(event)
            if isinstance(event, Finished):
                replies[index] = event.reply
        return [replies[i] for i in range(len(self._requests))]

    async def _follow(
        self,
        index: int,
        turns: asyncio.Semaphore,
        found: asyncio.Queue[tuple[int, Answered | BaseException | None]],
    ) -> None:
        """Hand on the events of one answer."""
        async with turns:
            try:
                ticket = self._tickets.get(index) or await self._ticket(index)
                async for event in ticket:
                    await found.put((index, event))
            except Exception as error:  # noqa: BLE001 - raised where it is read
                await found.put((index, error))
            else:
                await found.put((index, None))

    async def _ticket(self, index: int) -> Ticket:
        """A later ticket: where others have filled the queue, it waits for a place."""
        while not self._is_cancelled:
            try:
                ticket = self._tickets[index] = self._submit(self._requests[index])
            except CapacityError as error:
                if error.retry_after_s is None:
                    raise
                await asyncio.sleep(min(error.retry_after_s, _LONGEST_PAUSE_S))
            else:
                return ticket
        raise Cancelled("the request was cancelled")
