"""What a server logs: lines on stderr, written by a thread of their own.

Whoever holds the other end of stderr may have stopped reading. A write then waits for ever, so it is none of the event
loop's: lines go into a queue of bounded length, and what finds no room is counted and told later.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import sys
import threading
from logging.handlers import QueueHandler
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from cherenkov_server.guard import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["logging_to_stderr"]

_WAITING = 1000
"""Lines that may wait for a reader."""
_PATIENCE_S = 1.0
"""How long the end of a server waits for its last lines."""


@contextlib.contextmanager
def logging_to_stderr(*, as_json: bool) -> Iterator[None]:
    """Log to stderr what a server says within this block.

    Args:
        as_json: each line an object, instead of text.
    """
    waiting: queue.Queue[logging.LogRecord | None] = queue.Queue(_WAITING)
    lines = _Lines(as_json=as_json)
    entrance = _Entrance(waiting)
    # asyncio warns of each write to a connection that is gone, and would itself write to stderr.
    loggers = {"cherenkov": logging.INFO, "uvicorn": logging.ERROR, "asyncio": logging.ERROR}
    for name, level in loggers.items():
        logger = logging.getLogger(name)
        logger.handlers = [entrance]
        logger.propagate = False
        logger.setLevel(level)
    # A daemon: the process ends although nobody reads.
    writer = threading.Thread(target=_write, args=(waiting, lines), name="log", daemon=True)
    writer.start()
    try:
        yield
    finally:
        for name in loggers:
            logging.getLogger(name).handlers = []
        with contextlib.suppress(queue.Full):
            waiting.put(None, timeout=_PATIENCE_S)
            writer.join(_PATIENCE_S)


def _write(waiting: queue.Queue[logging.LogRecord | None], lines: logging.Formatter) -> None:
    # Not through sys.stderr: the interpreter's end would wait for the lock that a write holds.
    try:
        descriptor = sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):  # a notebook's stderr is no file
        descriptor = 2
    while (record := waiting.get()) is not None:
        left = (lines.format(record) + "\n").encode("utf-8", "backslashreplace")
        with contextlib.suppress(OSError):  # nobody is there at all
            while left:
                left = left[os.write(descriptor, left) :]


class _Entrance(QueueHandler):
    """Puts records into a queue, and never waits for room."""

    def __init__(self, waiting: queue.Queue[logging.LogRecord | None]) -> None:
        super().__init__(waiting)
        self._lost = 0

    @override
    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record  # nothing leaves the process

    @override
    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            if self._lost:
                told = f"{self._lost} lines were dropped: nobody read them"
                self.queue.put_nowait(logging.makeLogRecord({"msg": told, "levelname": "WARNING"}))
                self._lost = 0
            self.queue.put_nowait(record)
        except queue.Full:
            self._lost += 1


class _Lines(logging.Formatter):
    """One line for each record, whatever it holds."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__("%(asctime)s %(message)s")
        self._as_json = as_json

    @override
    def format(self, record: logging.LogRecord) -> str:
        message = printable(record.getMessage())
        if not self._as_json:
            return f"{self.formatTime(record)} {message}"
        line: dict[str, Any] = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "message": message,
        }
        request_id = getattr(record, "request_id", None)
        return json.dumps(line | ({"request_id": request_id} if request_id else {}))
