"""A way from whoever answers to the client that wakes nobody in between."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

__all__ = ["Direct"]


class Direct:
    """Pieces of a chunked body, written by the thread that made them, while the connection takes them at once.

    Waking the event loop for each token costs more than the token's way through the network: the thread that answers waits
    for the interpreter's lock meanwhile, and one that computes loses its core. So it writes to the connection itself, but
    only while the loop has nothing to write. `open` and `hold`, which only the loop calls, hand the connection over and take
    it back; a client that does not keep up is left to the loop, which knows how to wait.

    Args:
        transport: of the connection, without TLS.
        loop: whose it is.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._socket = transport.get_extra_info("socket")
        self._lock = threading.Lock()
        self._is_open = False
        self._is_lost = False
        self._rest = b""  # of a chunk that did not go whole; the loop's to write, before all else

    def open(self) -> bool:
        """Let `send` write, if all is written that the loop wrote, and the connection lives."""
        with self._lock:
            self._write_rest()
            busy = self._transport.get_write_buffer_size() > 0 or self._transport.is_closing()
            self._is_open = not busy and not self._is_lost
            return self._is_open

    def hold(self) -> None:
        """The loop is about to write: nobody else may, until `open`."""
        with self._lock:
            self._is_open = False
            self._write_rest()

    def lose(self) -> None:
        """The connection is no more. To be called before its socket is closed: its number may soon be another's."""
        with self._lock:
            self._is_open, self._is_lost, self._rest = False, True, b""

    def send(self, data: bytes) -> bool:
        """Write a piece, from any thread. Never waits. False if it was not written, and is the loop's to write."""
        chunk = b"%x\r\n%b\r\n" % (len(data), data)
        with self._lock:
            if not self._is_open:
                return False
            try:
                count = os.write(self._socket.fileno(), chunk)
            except OSError:  # it is full, or gone: the loop will see which
                self._is_open = False
                return False
            if count < len(chunk):
                self._is_open, self._rest = False, chunk[count:]
                # A loop that is closed has closed its connections.
                with contextlib.suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self.hold)
        return True

    def _write_rest(self) -> None:
        rest, self._rest = self._rest, b""
        if rest:
            self._transport.write(rest)
