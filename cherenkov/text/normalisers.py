"""Normalisers of tokenizers: whether one could blow a text up.

They run in this process, where memory that the system refuses them ends it. A normaliser that replaces a character by
many, several times over, makes gigabytes of a short prompt; those of real models add a few bytes at most.
"""

from __future__ import annotations

import json
from typing import Any

__all__ = ["UNBOUNDED", "growth"]

UNBOUNDED = 1 << 30
_TAME = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Strip", "StripAccents", "Prepend"}


def growth(normaliser: Any) -> int:
    """How many times longer a text may become, about; `UNBOUNDED` if there is no telling.

    Args:
        normaliser: of the `tokenizers` package, or None.
    """
    if normaliser is None:
        return 1
    try:
        return _growth(json.loads(normaliser.__getstate__()))
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return UNBOUNDED


def _growth(tree: Any) -> int:
    kind = tree["type"]
    if kind == "Sequence":
        product = 1
        for part in tree["normalizers"]:
            product = min(UNBOUNDED, product * _growth(part))
        return product
    if kind == "Replace":
        # An expression may match a single character, or nothing between two of them.
        pattern = tree["pattern"].get("String", "")
        return -(-len(tree["content"]) // len(pattern)) if pattern else len(tree["content"]) + 1
    return 1 if kind in _TAME else UNBOUNDED
