"""Sizes and durations, as people write and read them."""

from __future__ import annotations

import re
from decimal import Decimal

__all__ = ["GB", "GIB", "KIB", "MIB", "format_bytes", "format_seconds", "parse_bytes"]

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
GB = 10**9

_SUFFIX = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": GB, "tb": 10**12}
_SUFFIX |= {
    "k": 10**3,
    "m": 10**6,
    "g": GB,
    "t": 10**12,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": 1 << 40,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


def parse_bytes(text: str) -> int:
    """Read a size such as ``"4GiB"``, ``"2.5 GB"`` or ``"1000000"``, in bytes.

    Raises:
        ValueError: if the text is no size.
    """
    match = _SIZE.fullmatch(text)
    if match is None or match[2].lower() not in _SUFFIX:
        raise ValueError(f"{text!r} is no size; write for example 4GiB or 2.5GB")
    return int(Decimal(match[1]) * _SUFFIX[match[2].lower()])


def format_bytes(count: float) -> str:
    """A size for people: decimal units, three digits."""
    for unit in ("B", "kB", "MB", "GB"):
        text = f"{count:.0f}" if unit == "B" else f"{count:.3g}"
        if abs(float(text)) < 1000:  # 999.9 rounds into the next unit
            return f"{text} {unit}"
        count /= 1000
    return f"{count:.3g} TB" if abs(count) < 999.5 else f"{count:.0f} TB"


def format_seconds(seconds: float) -> str:
    """A duration for people."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
