"""The parts of a loaded model: its experts and its network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cherenkov.architectures import family_of
from cherenkov.experts.reader import RecordReader
from cherenkov.experts.store import ExpertStore
from cherenkov.lane import Loaded
from cherenkov.speculation import Speculation

if TYPE_CHECKING:
    from pathlib import Path

    from cherenkov.backends.base import Backend
    from cherenkov.budget import Plan
    from cherenkov.packing.store import PackedStore

__all__ = ["Guessing", "Streaming", "describe", "loaded_of", "open_experts", "text_folder"]


def describe(backend: Backend[Any, Any]) -> str:
    """A backend, and what it chose."""
    return f"{backend.name} ({backend.detail})" if backend.detail else backend.name


@dataclass(frozen=True, slots=True)
class Streaming:
    """How experts come from disk; the settings of these names, and `check_records`."""

    check: str = "first"
    readers: int = 0
    lookahead: str = "auto"


@dataclass(frozen=True, slots=True)
class Guessing:
    """How tokens are guessed ahead; the settings of these names."""

    speculate: str = "auto"
    drafts: int = 2


def open_experts(
    store: PackedStore, backend: Backend[Any, Any], slots: int, how: Streaming
) -> ExpertStore:
    """The experts of a store, in a pool of so many slots."""
    section = store.manifest.experts
    sums = None
    if how.check != "never" and store.integrity is not None:
        sums = np.array(store.integrity.records, dtype=np.uint64)
    pool = backend.pool(store.expert_layout, slots)  # first: there may be no memory for it
    reader = RecordReader(
        store.experts_path,
        store.expert_layout.stride_bytes,
        section.experts,
        sums,
        every_time=how.check == "always",
        threads=how.readers,
    )
    return ExpertStore(
        pool,
        reader,
        section.layers,
        section.experts,
        lookahead=how.lookahead,
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
