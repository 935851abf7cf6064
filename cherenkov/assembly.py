"""The parts of a loaded model: its experts and its network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cherenkov.architectures import family_of
from cherenkov.errors import BackendError
from cherenkov.events import Note
from cherenkov.experts.reader import RecordReader
from cherenkov.experts.store import ExpertStore
from cherenkov.lane import Loaded
from cherenkov.packing.lowbit import misses_at
from cherenkov.speculation import Speculation

if TYPE_CHECKING:
    from pathlib import Path

    from cherenkov.backends.base import Backend
    from cherenkov.budget import Plan
    from cherenkov.config import Settings
    from cherenkov.events import Listener
    from cherenkov.packing.store import PackedStore

__all__ = ["Guessing", "Streaming", "describe", "loaded_of", "open_experts", "text_folder"]


def describe(backend: Backend[Any, Any]) -> str:
    """A backend, and what it chose."""
    return f"{backend.name} ({backend.detail})" if backend.detail else backend.name


@dataclass(frozen=True, slots=True)
class Streaming:
    """How experts come from disk; the settings of these names, and `check_records`.

    Attributes:
        lower: the store's experts in fewer bits, for those that layers miss (`miss_experts`).
    """

    check: str = "first"
    readers: int = 0
    lookahead: str = "auto"
    lower: PackedStore | None = None
    cut_weak: float = 0.0

    @classmethod
    def of(cls, store: PackedStore, settings: Settings, on_event: Listener) -> Streaming:
        """From settings. Warns of those that make answers depend on more than the prompt.

        Raises:
            ModelError, ConfigError, DiskError: as `misses_at`.
        """
        lower, weak = misses_at(store, settings.miss_experts), settings.cut_weak
        if lower is not None:
            text = f"experts that a layer misses are read in {lower.expert_layout.bits} bits"
            on_event(Note(f"{text}: answers depend on what was in memory", "warning"))
        if weak:
            text = f"missing experts of less weight than {weak:g} are left out"
            on_event(Note(f"{text}: answers depend on the disk", "warning"))
        return cls(settings.check_records, settings.readers, settings.lookahead, lower, weak)


@dataclass(frozen=True, slots=True)
class Guessing:
    """How tokens are guessed ahead; the settings of these names."""

    speculate: str = "auto"
    drafts: int = 2


def open_experts(
    store: PackedStore, backend: Backend[Any, Any], slots: int, how: Streaming
) -> ExpertStore:
    """The experts of a store, in a pool of so many slots.

    Raises:
        BackendError: if what approximates is asked for, and the backend does not know how.
        CapacityError, DiskError: as what it makes.
    """
    section = store.manifest.experts
    if not backend.approximates and (how.lower is not None or how.cut_weak):
        raise BackendError(backend.name, "start", "it knows neither miss_experts nor cut_weak")
    pool = backend.pool(store.expert_layout, slots)  # first: there may be no memory for it
    lower = None
    if how.lower is not None:
        pool.lower, lower = how.lower.expert_layout, _reader(how.lower, how)
    try:
        reader = _reader(store, how, lower)
    except BaseException:
        if lower is not None:
            lower.close()
        raise
    return ExpertStore(
        pool,
        reader,
        section.layers,
        section.experts,
        lookahead=how.lookahead,
        cut_weak=how.cut_weak,
    )


def _reader(store: PackedStore, how: Streaming, lower: RecordReader | None = None) -> RecordReader:
    """Reads a store's experts."""
    sums = None
    if how.check != "never" and store.integrity is not None:
        sums = np.array(store.integrity.records, dtype=np.uint64)
    return RecordReader(
        store.experts_path,
        store.expert_layout.stride_bytes,
        store.manifest.experts.experts,
        sums,
        every_time=how.check == "always",
        threads=how.readers,
        lower=lower,
    )


def loaded_of(
    store: PackedStore,
    backend: Backend[Any, Any],
    experts: ExpertStore,
    plan: Plan,
    guessing: Guessing | None = None,
) -> Loaded:
    """A store's network on a backend.

    Raises:
        ConfigError: drafts are asked of a head that it has not.
    """
    network = family_of(store.config).build(store, backend, experts)
    how = guessing or Guessing("off")
    try:
        speculation = Speculation(network, backend, how.speculate, how.drafts)
    except BaseException:
        network.close()
        raise
    return Loaded(network, backend, plan.context_tokens, plan.chunk_rows, speculation)


def text_folder(store: PackedStore) -> Path:
    """Where tokenizer and template lie: in the store, or beside it in the older layout."""
    found = store.file("tokenizer.json")
    return store.path if found is None else found.parent
