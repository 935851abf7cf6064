"""How deep values are nested, found without recursion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["is_within"]


def is_within(value: object, depth: int, most: int) -> bool:
    """Whether no value lies inside more than `depth` mappings and lists, and at most `most` at any one depth.

    A value may hold itself, or the same part many times over: then it is not.
    """
    level: list[Any] = [value]
    for _ in range(depth + 1):
        level = [inner for outer in level for inner in _inside(outer)]
        if len(level) > most:
            return False
    return not level


def _inside(value: object) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else []
