"""The line: requests that wait for their turn, and who is next."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cherenkov.serving.job import Job

__all__ = ["Line"]


class Line:
    """First come, first served; but one that does not fit into the memory that is free lets others go before, for a while.

    Args:
        lanes: answers that may be under way at once.
        limit_bytes: memory for all of them.
        patience_s: for how long others may go before.
        clock: seconds.
    """

    def __init__(
        self,
        lanes: int,
        limit_bytes: int,
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limit_bytes = limit_bytes
        self._lanes = lanes
        self._patience_s = patience_s
        self._clock = clock
        self._waiting: list[Job] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Job]:
        """In order; may be left or shortened meanwhile."""
        return iter(list(self._waiting))

    def add(self, job: Job) -> None:
        """The last one."""
        self._waiting.append(job)

    def remove(self, job: Job) -> None:
        """It waits no more."""
        self._waiting.remove(job)

    def next(self, running: int, used_bytes: int, held: Callable[[Job], bool]) -> Job | None:
        """Take who is next, if anybody can be.

        Args:
            running: answers under way.
            used_bytes: what they take.
            held: who had better wait for another that is reading the same prompt.
        """
        if running >= self._lanes:
            return None
        for job in self._waiting:
            if used_bytes + job.ready.size_bytes > self.limit_bytes:
                now = self._clock()
                job.refused_since = now if job.refused_since is None else job.refused_since
                if now - job.refused_since >= self._patience_s:
                    return None  # it has waited long enough: all that becomes free is for it
            elif not held(job):
                self._waiting.remove(job)
                return job
        return None
