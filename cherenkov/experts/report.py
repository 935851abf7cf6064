"""What an expert store did, as a document: totals, kinds of reads, layers, experts, and how it went over time."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cherenkov.experts.stats import ExpertStats
    from cherenkov.experts.store import ExpertStore

__all__ = ["KIND", "READS", "VERSION", "History", "report"]

KIND = "cherenkov expert stats"
VERSION = 1
READS = ("demand", "prefill", "prediction")
_OVER_TIME = ("hits", "misses", "read_bytes", "stall_s")

T = TypeVar("T")


class History:
    """Counters over time. `sample` whenever something was finished, such as a token."""

    def __init__(self, store: ExpertStore) -> None:
        self._store = store
        self._before = self._start = store.stats.copy()
        self.samples: list[dict[str, float]] = []

    def sample(self) -> None:
        """What happened since the last sample."""
        now = self._store.stats.copy()
        passed = now.since(self._before)
        self._before = now
        self.samples.append({name: getattr(passed, name) for name in _OVER_TIME})

    def each(self, items: Iterable[T]) -> Iterator[T]:
        """The same items, with a sample for each."""
        for item in items:
            self.sample()
            yield item

    @property
    def total(self) -> ExpertStats:
        """Everything since this history began."""
        return self._store.stats.since(self._start)


def report(store: ExpertStore, history: History) -> dict[str, Any]:
    """Everything a store counted, in plain values that JSON can hold.

    Returns:
        `kind` and `version`; `pool`: slots, resident, layers, experts, bits; `totals`: the counters of `ExpertStats`, and
        hit rate, recall, precision; `reads`: by kind; `by_layer`: asks, hits, misses, predicted of each layer; `by_expert`: rows,
        misses and predicted, `[layers][experts]`; `over_time`: a row for each sample of the history. Totals and time
        begin with the history, layers and experts with the store.
    """
    total, counts = history.total, store.counts
    totals = {k: v for k, v in asdict(total).items() if k not in READS}
    totals |= {name: getattr(total, name) for name in ("hit_rate", "recall", "precision")}
    columns = {
        "asks": counts.asks,
        "hits": counts.hits,
        "misses": counts.misses.sum(axis=1),
        "predicted": counts.predicted.sum(axis=1),
    }
    return {
        "kind": KIND,
        "version": VERSION,
        "pool": {
            "slots": store.slots,
            "resident": store.resident,
            "layers": store.layers,
            "experts": store.experts,
            "bits": store.pool.layout.bits,
            "record_bytes": store.pool.layout.stride_bytes,
        },
        "totals": totals,
        "reads": {kind: asdict(getattr(total, kind)) for kind in READS},
        "by_layer": [
            {"layer": layer, **{name: int(column[layer]) for name, column in columns.items()}}
            for layer in range(store.layers)
        ],
        "by_expert": {
            name: getattr(counts, name).tolist() for name in ("rows", "misses", "predicted")
        },
        "over_time": history.samples,
    }
