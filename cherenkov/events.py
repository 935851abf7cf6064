"""What long work reports while it runs. The library prints nothing; a caller passes a function that takes these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Event", "Listener", "Note", "Progress", "ignore"]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a piece of work is.

    Attributes:
        stage: what is being done, such as ``"experts"``.
        done_bytes: bytes finished over the whole work.
        total_bytes: bytes of the whole work.
        elapsed_s: seconds since it began.
    """

    stage: str
    done_bytes: int
    total_bytes: int
    elapsed_s: float

    @property
    def rate_bytes_s(self) -> float:
        """Bytes per second so far."""
        return self.done_bytes / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def left_s(self) -> float:
        """Seconds left at the present rate; 0 while the rate is unknown."""
        rate = self.rate_bytes_s
        return (self.total_bytes - self.done_bytes) / rate if rate else 0.0


@dataclass(frozen=True, slots=True)
class Note:
    """Something a person may want to know: a choice that was made, or a doubt. `level` is info or warning."""

    message: str
    level: str = "info"


Event = Progress | Note
Listener = Callable[[Event], None]


def ignore(_event: Event) -> None:
    """The listener that drops everything."""
