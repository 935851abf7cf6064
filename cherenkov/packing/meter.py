"""How far a preparation is, told a few times a second."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from cherenkov.events import Progress

if TYPE_CHECKING:
    from cherenkov.events import Listener

__all__ = ["Meter"]

_REPORT_S = 0.1


class Meter:
    """Turns finished bytes into progress events.

    Args:
        total_bytes: of the whole work.
        on_event: hears of them.
    """

    def __init__(self, total_bytes: int, on_event: Listener) -> None:
        self._total = total_bytes
        self._done = 0
        self._on_event = on_event
        self._begin = self._last = time.monotonic()

    def add(self, stage: str, size_bytes: int) -> None:
        """A piece of the work is finished."""
        self._done += size_bytes
        now = time.monotonic()
        if self._done >= self._total or now - self._last >= _REPORT_S:
            self._last = now
            self._on_event(Progress(stage, self._done, self._total, now - self._begin))
