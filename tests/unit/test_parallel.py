"""The bounded fan-out: every result, the first failure, and nothing left running."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from cherenkov.packing.parallel import in_parallel

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_every_item_comes_back_once() -> None:
    assert sorted(in_parallel(3, range(50), lambda n: n * n)) == [(n, n * n) for n in range(50)]
    assert list(in_parallel(3, [], str)) == []


def test_items_are_taken_as_they_are_needed() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for n in range(1000):
            taken.append(n)
            yield n

    results = in_parallel(2, items(), str)
    next(results)
    assert len(taken) <= 10
    results.close()  # type: ignore[attr-defined]


def test_the_first_failure_ends_it() -> None:
    started: list[int] = []

    def work(n: int) -> int:
        started.append(n)
        if n == 5:
            raise ValueError("five")
        return n

    before = threading.active_count()
    with pytest.raises(ValueError, match="five"):
        list(in_parallel(2, range(1000), work))
    assert len(started) < 40
    assert threading.active_count() == before
