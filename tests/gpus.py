"""Backends of a GPU as parameters of tests: marked with their name, skipped where they cannot run."""

import pytest

from cherenkov.backends import available

__all__ = ["on"]

_FOUND = {a.name: a for a in available()}


def on(name):
    why = pytest.mark.skipif(not _FOUND[name].usable, reason=f"no {name}: {_FOUND[name].reason}")
    return pytest.param(name, marks=[getattr(pytest.mark, name), why])
