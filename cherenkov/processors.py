"""How many processors there are for us."""

from __future__ import annotations

import os

__all__ = ["processors"]


def processors() -> int:
    """How many processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
