"""What is sent back: a JSON object, or a stream of server-sent events."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from typing import TYPE_CHECKING, Any

from cherenkov.errors import CorruptModel, DiskError
from cherenkov_server.wire.refusals import refusal_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from litestar.types import Receive, Scope, Send

    from cherenkov.serving.requests import Answered
    from cherenkov_server.direct import Direct
    from cherenkov_server.work import HangUp, Work

__all__ = [
    "Json",
    "Refused",
    "Stream",
    "Text",
    "around_choices",
    "data",
    "encoded_json",
    "log_failure",
]

_log = logging.getLogger("cherenkov.server")
_DONE = b"data: [DONE]\n\n"
_QUIET = b": still here\n\n"
"""A comment, so that nobody on the way takes a long prompt for a dead connection."""


_compact = json.JSONEncoder(separators=(",", ":"))


def encoded_json(value: Mapping[str, Any]) -> bytes:
    """JSON in ASCII, without spaces."""
    return _compact.encode(value).encode()


def data(value: Mapping[str, Any]) -> bytes:
    """A server-sent event. JSON in ASCII holds nothing that any client could take for the end of a line."""
    return b"data: " + encoded_json(value) + b"\n\n"


def around_choices(value: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """What stands before and after the choices in an event without any.

    No string can hold what is looked for: quotation marks are escaped there.
    """
    before, here, after = data(value).partition(b'"choices":[')
    assert here, "the event has choices"
    return before + here, after


class Text:
    """An answer of text.

    Args:
        body: the text.
        kind: its media type.
        status: of HTTP.
        headers: to send with it.
    """

    def __init__(
        self, body: str, kind: str, *, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        self.status = status
        self._body = body.encode()
        self._headers = {"content-type": kind, "content-length": str(len(self._body))}
        self._headers |= dict(headers or {})

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Send it."""
        await send(
            {
                "type": "http.response.start",
                "status": self.status,
                "headers": encoded(self._headers),
            }
        )
        await send({"type": "http.response.body", "body": self._body, "more_body": False})


class Json(Text):
    """An answer of JSON; arguments as for `Text`."""

    def __init__(
        self,
        value: Mapping[str, Any],
        *,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        text = _compact.encode(value)
        super().__init__(text, "application/json", status=status, headers=headers)


class Refused(Json):
    """The answer to an error, see `refusal_of`."""

    def __init__(self, error: BaseException, *, is_unavailable: bool = False) -> None:
        refusal = refusal_of(error, is_unavailable=is_unavailable)
        if refusal.status == 500:
            log_failure(error)
        super().__init__(refusal.body, status=refusal.status, headers=refusal.headers)


class Stream:
    """An answer in pieces, each sent as it comes.

    Args:
        work: has begun.
        hang_up: watches the caller.
        pieces: the events of an answer, as bytes to send.
        headers: to send first.
        quiet_s: after so long without a piece a comment is sent.
    """

    def __init__(
        self,
        work: Work,
        hang_up: HangUp,
        pieces: Callable[[int, Answered], bytes],
        *,
        last: Callable[[], bytes],
        headers: Mapping[str, str],
        quiet_s: float,
    ) -> None:
        self._work = work
        self._hang_up = hang_up
        self._pieces = pieces
        self._last = last
        self._quiet_s = quiet_s
        self._sent_at = time.monotonic()
        self._direct: Direct | None = None
        self._unsent: bytes | None = None  # of the next event, which was refused
        self._sending = 0  # pieces that the loop is about to write: it may have to wait first
        self._headers = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-store",
            "x-accel-buffering": "no",
            **headers,
        }

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """Send it. What must happen at the end never waits, see `HangUp`."""
        keeping = asyncio.create_task(self._keep_alive(send))
        try:
            await send(
                {
                    "type": "http.response.start",
                    "status": 200,
                    "headers": encoded(self._headers),
                }
            )
            if scope["http_version"] == "1.1":  # older clients get no chunks
                self._direct = scope["state"].get("direct")
            async for piece in self._all():
                await self._send(send, piece)
            keeping.cancel()
            await self._send(send, b"", more=False)
        finally:
            keeping.cancel()
            if self._direct is not None:
                self._direct.hold()
            self._hang_up.stop()
            self._work.end()

    async def _send(self, send: Send, piece: bytes, *, more: bool = True) -> None:
        if self._direct is not None:
            self._direct.hold()
        self._sent_at = time.monotonic()
        self._sending += 1
        try:
            await send({"type": "http.response.body", "body": piece, "more_body": more})
        finally:
            self._sending -= 1

    def _past_the_loop(self) -> Callable[[Answered], bool] | None:
        """Who may take the next events, if the connection is free."""
        direct = self._direct
        if direct is None or self._sending or not direct.open():
            return None
        return self._at_once

    def _at_once(self, event: Answered) -> bool:
        """Send what an event adds, in the thread of whoever answers; False leaves it to the loop."""
        assert self._direct is not None
        piece = self._pieces(0, event)
        if piece:
            self._sent_at = time.monotonic()
            if not self._direct.send(piece):
                self._unsent = piece
                return False
        return True

    async def _all(self) -> AsyncIterator[bytes]:
        try:
            async for index, event in self._work.events(self._past_the_loop):
                unsent, self._unsent = self._unsent, None
                piece = self._pieces(index, event) if unsent is None else unsent
                if piece:
                    yield piece
        except Exception as error:  # noqa: BLE001 - the status is out; this is how the client can know
            refusal = refusal_of(error)
            if refusal.status == 500:
                log_failure(error)
            yield data(refusal.body)
            return
        yield self._last() + _DONE

    async def _keep_alive(self, send: Send) -> None:
        while True:
            await asyncio.sleep(self._quiet_s)
            if time.monotonic() - self._sent_at >= self._quiet_s:
                await self._send(send, _QUIET)


def log_failure(error: BaseException) -> None:
    """Tell of an error that is our fault: its class and where it was. Only files' own words are nobody's prompt."""
    if isinstance(error, DiskError | CorruptModel):
        _log.error("a request failed: %s: %s", type(error).__name__, error)
        return
    if error.__cause__ is not None:  # of another's making
        error = error.__cause__
    trace, places = error.__traceback__, []
    while trace is not None:
        places.append(f"{trace.tb_frame.f_code.co_name}:{trace.tb_lineno}")
        trace = trace.tb_next
    _log.error("a request failed: %s at %s", type(error).__name__, " > ".join(places[-4:]))


def encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Headers, as ASGI wants them."""
    return [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers.items()]
