"""Figures in the text format of Prometheus. They hold no words of anybody."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from cherenkov.engine import Metrics
from cherenkov.serving.figures import PrefixFigures

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cherenkov_server.guard import Traffic

__all__ = ["exposition"]

_NOW = {
    "preparing",
    "queued",
    "active",
    "chunk_tokens",
    "state_bytes",
    "state_limit_bytes",
    "sessions",
    "session_bytes",
    "entries",
    "bytes",
    "disk_entries",
    "disk_bytes",
}
"""Figures that go up and down; all others count since the start."""


def exposition(metrics: Metrics, traffic: Traffic | None) -> str:
    """The figures, one a line.

    Args:
        metrics: of the engine.
        traffic: of the server.
    """
    lines = ["# TYPE cherenkov_ready gauge", f"cherenkov_ready {int(metrics.state == 'ready')}"]
    for one in fields(Metrics):
        if one.name not in {"state", "prefix"}:
            lines += _lines(one.name, getattr(metrics, one.name))
    for one in fields(PrefixFigures):
        lines += _lines(one.name, getattr(metrics.prefix, one.name), "prefix_cache_")
    if traffic is not None:
        lines += _lines("http_active", traffic.active, is_now=True)
        lines.append("# TYPE cherenkov_http_responses_total counter")
        lines += [
            f'cherenkov_http_responses_total{{status="{status}"}} {count}'
            for status, count in sorted(traffic.answered.items())
        ]
    return "\n".join(lines) + "\n"


def _lines(name: str, value: float, prefix: str = "", *, is_now: bool = False) -> Iterator[str]:
    is_now = is_now or name in _NOW
    if name.endswith("_s"):
        name = f"{name.removesuffix('_s')}_seconds"
    full = f"cherenkov_{prefix}{name}" + ("" if is_now else "_total")
    yield f"# TYPE {full} {'gauge' if is_now else 'counter'}"
    yield f"{full} {value}"
