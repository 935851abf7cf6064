"""How many processors there are for us: no more than the machine has, and no more than we may run on."""

import os

import pytest

from cherenkov.processors import processors


def test_as_many_as_we_may_run_on(monkeypatch):
    assert 1 <= processors() <= os.cpu_count()
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 8}, raising=False)
    assert processors() == 3


@pytest.mark.parametrize(("count", "expected"), [(6, 6), (None, 1)])
def test_where_the_system_does_not_tell(monkeypatch, count, expected):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    assert processors() == expected
