"""Samples, medians, and the file a run is kept in.

A run is one JSON document. Its leaves are either facts or *measurements*: `{"median", "low", "high", "samples",
"unit"}`, with every sample, so that a doubt can be settled later.
"""

from __future__ import annotations

import datetime as dt
import json
import statistics
from pathlib import Path
from typing import Any

from machine import facts, slug, versions

__all__ = ["FOLDER", "flatten", "load", "measurement", "median_of", "new_run", "save", "value_of"]

FOLDER = Path(__file__).resolve().parent / "results"
SCHEMA = 1


def measurement(samples: list[float], unit: str) -> dict[str, Any]:
    """Samples with their median and extremes."""
    return {
        "median": _short(statistics.median(samples)),
        "low": _short(min(samples)),
        "high": _short(max(samples)),
        "samples": [_short(s) for s in samples],
        "unit": unit,
    }


def new_run(kind: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The head of a run's document."""
    return {
        "schema": SCHEMA,
        "kind": kind,
        "date": dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": facts(),
        "versions": versions(),
        "settings": settings,
    }


def save(run: dict[str, Any], name: str = "") -> Path:
    """Write a run to `results/<date>-<machine>[-<kind>].json`, or to the file named."""
    kind = "" if run["kind"] == "cpu" else f"-{run['kind']}"
    path = Path(name) if name else FOLDER / f"{run['date'][:10]}-{slug()}{kind}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")
    return path


def load(path: str | Path) -> dict[str, Any]:
    """Read a run."""
    run = json.loads(Path(path).read_text(encoding="utf-8"))
    if not isinstance(run, dict) or run.get("schema") != SCHEMA:
        raise SystemExit(f"{path}: not a benchmark run of schema {SCHEMA}")
    return run


def median_of(node: Any, *keys: str) -> float | None:
    """The median of the measurement under `keys`, or None where there is none."""
    for key in keys:
        node = node.get(key) if isinstance(node, dict) else None
    return float(node["median"]) if isinstance(node, dict) and "median" in node else None


def flatten(run: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Every measurement and count of a run, by dotted name."""
    found: dict[str, dict[str, Any]] = {}

    def walk(node: Any, name: str) -> None:
        if not isinstance(node, dict):
            return
        if "unit" in node:
            found[name] = node
            return
        for key, child in node.items():
            if key not in {"machine", "versions", "settings"}:
                walk(child, f"{name}.{key}" if name else key)

    walk(run, "")
    return found


def value_of(node: dict[str, Any]) -> float:
    """The median of a measurement, or the value of a count."""
    return float(node["median"] if "median" in node else node["value"])


def _short(value: float) -> float:
    """Four significant digits: more than any of these timings has."""
    return float(f"{value:.4g}")
