"""What experts did, as tables for people and as a file for programs."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cherenkov.checkpoint.documents import is_file, is_there
from cherenkov.errors import DiskError
from cherenkov.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.table import Table

    from cherenkov.experts.report import Drafts, Report
    from cherenkov.model import Model

__all__ = ["Statistics", "check_target", "show"]

_BUSIEST = 4


@dataclass(frozen=True, slots=True)
class Statistics:
    """What the command line asks for.

    Attributes:
        shown: print tables.
        file: write the report there.
    """

    shown: bool
    file: Path | None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Statistics:
        """From options as they were parsed.

        Raises:
            DiskError: if the file could not be written; better now than after the answer.
        """
        file = given["stats_json"]
        if file is not None:
            check_target(Path(file))
        return cls(given["stats"], None if file is None else Path(file))

    def give(self, model: Model) -> None:
        """Show and write what was asked for. Raises DiskError."""
        if not self.shown and self.file is None:
            return
        report = model.stats()
        if self.shown:
            show(report)
        if self.file is not None:
            report.write(self.file)


def check_target(path: Path) -> None:
    """Refuse a file that cannot be written, before work is done for it.

    Raises:
        DiskError: saying why.
    """
    if is_there(path):
        if not is_file(path):
            raise DiskError(path, "write", errno.EEXIST, "what is there is no regular file")
    elif not path.parent.is_dir():
        raise DiskError(path, "write", errno.ENOENT, "there is no such folder")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise DiskError(path, "write", errno.EACCES)


def show(report: Report) -> None:
    """Print a report on standard error, so that answers stay alone on standard output."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    for table in (_summary(report), _reads(report), _layers(report)):
        console.print(table)


def _table(name: str, *columns: str) -> Table:
    """A table whose first column is text, and the others numbers."""
    from rich import box
    from rich.table import Table

    table = Table(name, box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _summary(report: Report) -> Table:
    table = _table("experts", "")
    table.columns[1].justify = "left"
    for name, value in _facts(report):
        table.add_row(name, value)
    return table


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    totals, guesses = report.totals, report.predictions
    records = report.layers * report.experts
    yield "pool", f"{report.slots} of {records} experts ({_percent(report.slots, records)})"
    yield "width", f"{report.bits} bits, {format_bytes(report.record_bytes)} a record"
    yield "steps, tokens", f"{report.steps}, {report.tokens}"
    yield "hit rate", f"{totals.hit_rate:.1%} ({totals.hits} hits, {totals.misses} misses)"
    yield "read", f"{format_bytes(totals.read_bytes)}, {_each(totals.read_bytes, report.tokens)}"
    yield "waited", f"{format_seconds(totals.stall_s)} with nothing to compute"
    if totals.cut:
        yield "cut", f"{totals.cut} misses were left out for their small weight"
    if len(report.precisions) > 1:
        for bits, used in report.precisions.items():
            found = f"{used.hits} hits, {used.misses} misses, {used.reads} reads"
            yield f"in {bits} bits", f"{found} ({format_bytes(used.read_bytes)})"
    if guesses.predicted:
        yield (
            "predictions",
            f"{guesses.precision:.1%} right; {guesses.recall:.1%} of the experts asked for",
        )
        yield "read ahead in time", f"{guesses.useful} records, and {guesses.joined} on their way"
        yield "wasted", format_bytes(guesses.wasted_bytes)
    if report.drafts is not None:
        yield from _drafts(report.drafts)
    for table in report.ngrams:
        found = f"{table.hits} rows found, {table.reads} read ({format_bytes(table.read_bytes)})"
        waited = f"waited {format_seconds(table.stall_s)}"
        yield (
            f"n-grams of layer {table.layer}",
            f"{found}, {waited}" if table.on_disk else "in memory",
        )


def _drafts(drafts: Drafts) -> Iterator[tuple[str, str]]:
    steps = sum(drafts.rows)
    rows = ", ".join(f"{count} of {n}" for n, count in enumerate(drafts.rows, 1) if count)
    yield "steps by rows", rows or "none"
    if steps:
        read = format_bytes(drafts.read_bytes / max(1, drafts.tokens))
        yield "tokens a step", f"{drafts.tokens / steps:.2f}, for each of which {read} were read"
    for source, tried in drafts.drafted.items():
        if sum(tried):
            shares = [_percent(a, b) for a, b in zip(drafts.accepted[source], tried, strict=True)]
            depths = ", ".join(
                f"{share} of {b}" for share, b in zip(shares, tried, strict=True) if b
            )
            yield f"{source} drafts accepted", depths


def _reads(report: Report) -> Table:
    columns = ("requested", "completed", "cancelled", "failed", "bytes", "mean time")
    table = _table("reads", *columns)
    for kind, reads in report.reads.items():
        table.add_row(
            kind,
            *map(str, (reads.requested, reads.completed, reads.cancelled, reads.failed)),
            format_bytes(reads.completed_bytes),
            f"{reads.read_s / reads.completed * 1e3:.2f} ms" if reads.completed else "-",
        )
    return table


def _layers(report: Report) -> Table:
    table = _table("layer", "asked", "found", "missed", "read ahead", "busiest experts")
    by_layer = report.by_layer
    columns = zip(by_layer.hits, by_layer.misses, by_layer.predicted, strict=True)
    for layer, (hits, misses, predicted) in enumerate(columns):
        if not hits + misses:
            continue  # the draft head's, if it was not used
        rows = report.by_expert.rows[layer]
        busiest = sorted(range(report.experts), key=lambda e: (-rows[e], e))[:_BUSIEST]
        table.add_row(
            str(layer),
            str(hits + misses),
            _percent(hits, hits + misses),
            str(misses),
            str(predicted),
            ", ".join(str(e) for e in busiest if rows[e]),
        )
    return table


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def _each(size_bytes: int, tokens: int) -> str:
    return f"{format_bytes(size_bytes / tokens)} a token" if tokens else "no tokens"
