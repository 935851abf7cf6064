"""A bounded fan-out over threads: NumPy, hashing and file access release the interpreter lock."""

from __future__ import annotations

import itertools
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["in_parallel"]

T = TypeVar("T")
R = TypeVar("R")


def in_parallel(threads: int, items: Iterable[T], work: Callable[[T], R]) -> Iterator[tuple[T, R]]:
    """`work` on every item; results as they come, never more than a few waiting.

    The first failure is raised once the work under way has ended; nothing new begins after it.
    """
    rest = iter(items)
    running: dict[Future[R], T] = {}
    with ThreadPoolExecutor(threads, thread_name_prefix="cherenkov-pack") as pool:
        try:
            for item in itertools.islice(rest, 4 * threads):
                running[pool.submit(work, item)] = item
            while running:
                finished, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    yield running.pop(future), future.result()
                    for item in itertools.islice(rest, 1):
                        running[pool.submit(work, item)] = item
        finally:
            for future in running:
                future.cancel()
