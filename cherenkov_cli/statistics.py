"""What the expert store did, as tables and as a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cherenkov.units import format_bytes
from cherenkov_cli.show import say, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["save", "show"]


def show(found: Mapping[str, Any]) -> None:
    """A report of `cherenkov.experts.report` as tables on standard error."""
    for title, rows in _tables(found):
        say(title)
        say(table(rows))


def save(found: Mapping[str, Any], path: str) -> None:
    """The report as a JSON file.

    Raises:
        DiskError: if it cannot be written.
    """
    from cherenkov.packing.durable import write_file

    write_file(Path(path), json.dumps(found).encode() + b"\n")


def _tables(found: Mapping[str, Any]) -> Iterator[tuple[str, list[tuple[object, ...]]]]:
    pool, totals = found["pool"], found["totals"]
    size = format_bytes(pool["slots"] * pool["record_bytes"])
    records = pool["layers"] * pool["experts"]
    yield (
        "experts",
        [
            ("pool", f"{pool['slots']} of {records} records, {pool['bits']} bits, {size}"),
            ("in memory now", pool["resident"]),
            ("hits", f"{totals['hits']} ({totals['hit_rate']:.1%})"),
            ("misses", totals["misses"]),
            ("read", f"{format_bytes(totals['read_bytes'])} in {totals['read_s']:.3f} s"),
            ("waited", f"{totals['stall_s']:.3f} s"),
            ("predicted", _predicted(totals)),
            ("read for nothing", format_bytes(totals["wasted_bytes"])),
        ],
    )
    names = ("requested", "completed", "cancelled", "failed")
    head = ("", *names, "bytes", "seconds")
    reads = [
        (
            kind,
            *(counts[name] for name in names),
            format_bytes(counts["completed_bytes"]),
            f"{counts['read_s']:.3f}",
        )
        for kind, counts in found["reads"].items()
    ]
    yield "reads", [head, *reads]
    lines = [
        (
            row["layer"],
            row["asks"],
            f"{row['hits'] / row['asks']:.1%}",
            row["misses"],
            row["predicted"],
        )
        for row in found["by_layer"]
        if row["asks"]
    ]
    yield "layers", [("", "asked", "hits", "missed", "read ahead"), *lines]


def _predicted(totals: Mapping[str, Any]) -> str:
    if not totals["predictions"]:
        return "nothing"
    return (
        f"{totals['predictions']}, of which {totals['precision']:.1%} were asked for; "
        f"{totals['recall']:.1%} of what was asked for"
    )
