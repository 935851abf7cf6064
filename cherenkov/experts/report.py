"""What a model's experts did, as plain numbers that JSON can hold."""

from __future__ import annotations

import itertools
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from typing_extensions import override

from cherenkov.checkpoint.documents import checked_path, read_object
from cherenkov.errors import CorruptModel, UnsupportedModel
from cherenkov.experts.timeline import MOST_POINTS, Point
from cherenkov.packing.durable import write_file
from cherenkov.units import MIB, format_bytes

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

    from cherenkov.experts.rows import RowTable
    from cherenkov.experts.stats import ExpertStats
    from cherenkov.experts.store import ExpertStore

__all__ = [
    "ByExpert",
    "ByLayer",
    "Drafts",
    "Ngrams",
    "Precision",
    "Predictions",
    "Reads",
    "Report",
    "Times",
    "Totals",
    "report_of",
]

KIND = "cherenkov-experts"
VERSION = 1
LIMIT_BYTES = 16 * MIB
"""Longest report that is read; that of 49 layers of 512 experts has half a megabyte."""

Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class _Part(BaseModel):
    """Numbers of the right kind, and no others."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Totals(_Part):
    """What happened in all.

    Attributes:
        hits: experts that a layer found in memory when it asked, each counted once a step.
        misses: experts that it did not.
        hit_rate: share of the hits; 0 before anything was asked for.
        read_bytes: bytes of all reads that brought their record.
        read_s: seconds that reader threads spent; reads overlap.
        stall_s: seconds that layers waited with nothing to compute.
        cut: misses that were left out of the sum (`cut_weak`).
    """

    hits: Count
    misses: Count
    hit_rate: Share
    read_bytes: Count
    read_s: Seconds
    stall_s: Seconds
    cut: Count = 0


class Reads(_Part):
    """Reads of one kind; see `cherenkov.experts.stats.ReadStats`."""

    requested: Count
    completed: Count
    cancelled: Count
    failed: Count
    requested_bytes: Count
    completed_bytes: Count
    read_s: Seconds


class Predictions(_Part):
    """How good the guesses of what layers would ask for were.

    Attributes:
        predicted: experts predicted for layers that have run since.
        right: those of them that the layer asked for.
        asked: experts that these layers asked for.
        precision: share of the predicted that were right.
        recall: share of the asked that were predicted.
        joined: misses whose read a prediction had begun.
        useful: records that predictions read and a layer asked for before they left memory.
        wasted_bytes: bytes of the records that predictions read and nobody had asked for when they left.
    """

    predicted: Count
    right: Count
    asked: Count
    precision: Share
    recall: Share
    joined: Count
    useful: Count
    wasted_bytes: Count


class Precision(_Part):
    """Experts of one width.

    Attributes:
        hits: experts of this width that were in memory.
        misses: experts that had to be read in it, or were left out.
        reads: reads that brought their record, of all kinds.
        read_bytes: bytes of these.
    """

    hits: Count
    misses: Count
    reads: Count
    read_bytes: Count


class ByLayer(_Part):
    """`[layers]`; the draft head's layers come last. Columns as in `Totals`; `predicted` are reads ahead."""

    hits: list[Count]
    misses: list[Count]
    predicted: list[Count]


class ByExpert(_Part):
    """`[layers, experts]`: rows routed there, steps that found it missing, reads ahead."""

    rows: list[list[Count]]
    misses: list[list[Count]]
    predicted: list[list[Count]]


class Ngrams(_Part):
    """An n-gram table; see `cherenkov.experts.rows.RowStats`. All zero if it is in memory.

    Attributes:
        layer: the layer that uses it.
        on_disk: rows are read when they are asked for.
    """

    layer: Count
    on_disk: bool
    hits: Count
    reads: Count
    read_bytes: Count
    stall_s: Seconds


class Drafts(_Part):
    """Tokens that were guessed ahead; see `cherenkov.speculation.DraftCounts`, whose fields these are."""

    drafted: dict[Literal["mtp", "ngram"], list[Count]]
    accepted: dict[Literal["mtp", "ngram"], list[Count]]
    rows: list[Count]
    tokens: Count
    read_bytes: Count
    head_rows: Count


class Times(_Part):
    """Counters after some of the steps, in columns; see `cherenkov.experts.timeline.Point`."""

    step: list[Count]
    tokens: list[Count]
    seconds: list[Seconds]
    hits: list[Count]
    misses: list[Count]
    demand_bytes: list[Count]
    prefill_bytes: list[Count]
    prediction_bytes: list[Count]
    stall_s: list[Seconds]

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        columns = [getattr(self, name) for name in Point._fields]
        if not 1 <= len(self.step) <= MOST_POINTS + 1:
            raise ValueError(f"must have 1 to {MOST_POINTS + 1} points, not {len(self.step)}")
        if any(len(column) != len(self.step) for column in columns):
            raise ValueError("columns differ in length")
        if any(a > b for column in columns for a, b in itertools.pairwise(column)):
            raise ValueError("a counter goes down")
        return self


class Report(_Part):
    """What a model's experts did since it was loaded.

    Attributes:
        kind: says that this is one.
        version: of the format, 1.
        layers: record layers: the trunk's, then the draft head's.
        experts: experts a layer.
        bits: width of the records.
        record_bytes: what a record takes, in the file and in memory.
        slots: records that fit in memory.
        resident: records that are there now.
        steps: passes through the model so far.
        tokens: rows of these passes.
        totals: everything together.
        reads: `demand`, `prefill` (steps of 64 rows and more) and `prediction` apart.
        predictions: how good they were.
        precisions: by width in bits.
        by_layer: by layer.
        by_expert: by layer and expert.
        ngrams: the n-gram tables.
        timeline: how it came to that.
        drafts: what was guessed ahead, if anything could be.
    """

    kind: Literal["cherenkov-experts"]
    version: Literal[1]
    layers: Count
    experts: Count
    bits: Count
    record_bytes: Count
    slots: Count
    resident: Count
    steps: Count
    tokens: Count
    totals: Totals
    reads: dict[Literal["demand", "prefill", "prediction"], Reads]
    predictions: Predictions
    precisions: dict[str, Precision]
    by_layer: ByLayer
    by_expert: ByExpert
    ngrams: list[Ngrams]
    timeline: Times
    drafts: Drafts | None = None

    @model_validator(mode="after")
    def _check_shapes(self) -> Self:
        for name, column in self.by_layer:
            if len(column) != self.layers:
                raise ValueError(f"by_layer.{name} has {len(column)} layers, not {self.layers}")
        for name, table in self.by_expert:
            if [len(row) for row in table] != [self.experts] * self.layers:
                raise ValueError(f"by_expert.{name} is not {self.layers} x {self.experts}")
        if len(self.reads) != 3:
            raise ValueError("reads lacks a kind")
        return self

    @override
    def __repr__(self) -> str:
        # All of it would be pages: a notebook that shows a report shows this.
        found = f"{self.totals.hit_rate:.1%} of the experts found in memory"
        read = format_bytes(self.totals.read_bytes)
        return f"<Report on {self.steps} steps of {self.tokens} tokens: {found}, {read} read>"

    __str__ = __repr__

    def as_dict(self) -> dict[str, Any]:
        """The same as dictionaries, lists and numbers."""
        return self.model_dump(mode="json")

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file as JSON, all or nothing.

        Raises:
            RequestError: if `path` is no path.
            DiskError: if the file cannot be written.
        """
        target = Path(checked_path("path", path))
        write_file(target, self.model_dump_json().encode() + b"\n")

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `write` wrote.

        Raises:
            RequestError: if `path` is no path.
            CorruptModel: if the file is missing, or not a report as it should be.
            UnsupportedModel: if another release wrote it.
            DiskError: if it cannot be read.
        """
        source = Path(checked_path("path", path))
        document = read_object(source, LIMIT_BYTES)
        if document.get("kind") != KIND:
            raise CorruptModel(source, "not a report on experts, as --stats-json writes them")
        version = document.get("version")
        if version != VERSION or isinstance(version, bool):
            raise UnsupportedModel(
                f"{source}: a report of version {version!r:.40}", known=f"version {VERSION}"
            )
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))[:80]
            reason = first["msg"].removeprefix("Value error, ")
            raise CorruptModel(
                source, reason[:1].lower() + reason[1:], item=place or None
            ) from None


def report_of(
    store: ExpertStore, tables: Mapping[int, RowTable], drafts: Drafts | None = None
) -> Report:
    """Report on a store and the n-gram tables beside it. To be called by who may use the store."""
    stats = store.stats
    return Report(
        kind="cherenkov-experts",
        version=1,
        layers=store.layers,
        experts=store.experts,
        bits=store.pool.layout.bits,
        record_bytes=store.pool.layout.stride_bytes,
        slots=store.slots,
        resident=store.resident,
        steps=store.timeline.steps,
        tokens=store.timeline.tokens,
        totals=_totals(stats),
        reads={
            "demand": Reads(**asdict(stats.demand)),
            "prefill": Reads(**asdict(stats.prefill)),
            "prediction": Reads(**asdict(stats.prediction)),
        },
        predictions=_predictions(stats),
        precisions=_precisions(store),
        **_counts(store),
        ngrams=[
            Ngrams(layer=layer, on_disk=table.on_disk, **asdict(table.stats))
            for layer, table in sorted(tables.items())
        ],
        timeline=_times(store.timeline.points()),
        drafts=drafts,
    )


def _precisions(store: ExpertStore) -> dict[str, Precision]:
    """By width: the store's own, and that of misses if it is another."""
    stats, low = store.stats, store.stats.lower
    kinds = (stats.demand, stats.prefill, stats.prediction)
    own = Precision(
        hits=stats.hits - low.hits,
        misses=stats.misses - low.misses,
        reads=sum(kind.completed for kind in kinds) - low.reads,
        read_bytes=stats.read_bytes - low.read_bytes,
    )
    found = {str(store.pool.layout.bits): own}
    if store.pool.lower is not None:
        found[str(store.pool.lower.bits)] = Precision(**asdict(low))
    return found


def _totals(stats: ExpertStats) -> Totals:
    return Totals(
        hits=stats.hits,
        misses=stats.misses,
        hit_rate=stats.hit_rate,
        read_bytes=stats.read_bytes,
        read_s=stats.read_s,
        stall_s=stats.stall_s,
        cut=stats.cut,
    )


def _predictions(stats: ExpertStats) -> Predictions:
    return Predictions(
        predicted=stats.predictions,
        right=stats.right_predictions,
        asked=stats.predicted_asks,
        precision=stats.precision,
        recall=stats.recall,
        joined=stats.joined,
        useful=stats.useful_predictions,
        wasted_bytes=stats.wasted_bytes,
    )


def _counts(store: ExpertStore) -> dict[str, Any]:
    """What is counted by layer and by expert."""
    counts = store.counts
    return {
        "by_layer": ByLayer(
            hits=counts.hits.tolist(),
            misses=counts.misses.sum(axis=1).tolist(),
            predicted=counts.predicted.sum(axis=1).tolist(),
        ),
        "by_expert": ByExpert(
            rows=counts.rows.tolist(),
            misses=counts.misses.tolist(),
            predicted=counts.predicted.tolist(),
        ),
    }


def _times(points: Iterable[Point]) -> Times:
    columns = zip(*points, strict=True)
    return Times(**{name: list(c) for name, c in zip(Point._fields, columns, strict=True)})
