"""HTTP on one connection: uvicorn's, with deadlines for those who never finish what they say, or never read.

uvicorn waits for ever for the headers of a request, and for a client to take what it was sent. Here both cost the
connection.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import h11
from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol

from cherenkov_server.direct import Direct
from cherenkov_server.wire.refusals import Refusal

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from cherenkov_server.config import LimitSettings

__all__ = ["guarded_protocol"]


def guarded_protocol(limits: LimitSettings, connections: int) -> type[H11Protocol]:
    """Uvicorn's protocol, within limits; `connections` may be open at a time."""

    class Limited(_Guarded):
        header_s = limits.header_seconds
        write_s = limits.write_seconds
        most = connections

    return Limited


class _Guarded(H11Protocol):
    header_s: float
    write_s: float
    most: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._direct: Direct | None = None

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most:
            self._make_room()
        self._reading = self._after(self.header_s, self.transport.abort)
        if (
            transport.get_extra_info("sslcontext") is not None
        ):  # what is written is not what goes out
            return
        self._direct = Direct(transport, self.loop)
        # What the state holds comes with every request of this connection.
        self.app_state = {**self.app_state, "direct": self._direct}

    @override
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_answering:
            self._stop_reading()
        elif self._reading is None and not self.transport.is_closing():
            self._reading = self._after(self.header_s, self.transport.abort)

    @override
    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():  # what is still to be sent may never be read
            self._expect_reading()

    @override
    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._expect_reading()

    @override
    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reading()

    @override
    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._stop_writing()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_reading()
        self._stop_writing()
        if self._direct is not None:
            self._direct.lose()
        super().connection_lost(exc)

    @override
    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, in the form of all refusals."""
        if self.conn.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:  # in the middle of an answer
            self.transport.abort()
            return
        body = json.dumps(Refusal(400, "this is not HTTP", code="invalid_http").body).encode()
        headers = [
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
            ("connection", "close"),
        ]
        parts = (
            h11.Response(status_code=400, headers=headers),
            h11.Data(data=body),
            h11.EndOfMessage(),
        )
        for part in parts:
            self.transport.write(self.conn.send(part) or b"")
        self.transport.close()
        self._expect_reading()

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _make_room(self) -> None:
        """Close the connection that has been silent longest, or this one."""
        silent = [c for c in self.connections if isinstance(c, _Guarded) and c._reading is not None]
        oldest = min(silent, key=lambda c: c._reading.when() if c._reading else 0.0, default=self)
        oldest.transport.abort()

    def _expect_reading(self) -> None:
        if self._writing is None:
            self._writing = self._after(self.write_s, self.transport.abort)

    def _after(self, seconds: float, act: Callable[[], None]) -> asyncio.TimerHandle:
        return self.loop.call_later(seconds, act)

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _stop_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
