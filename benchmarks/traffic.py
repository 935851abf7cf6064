"""Bytes that one decode step must move, from a store's manifest: what a step costs if it costs what its bytes cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cherenkov.architectures import family_of
from cherenkov.packing.store import PackedStore

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["decode_bytes"]

_NOT_READ = (".embed_tokens.", ".ngram_embedding.")  # one row a token
_DRAFT = "mtp."


def decode_bytes(path: Path) -> dict[str, int]:
    """Bytes per token, of one row, by kind.

    `dense`: every resident matrix but the embedding, of which one row is read. `experts`: the routed records.
    `state`: recurrent state, read once and written once. Keys and values are left out: at a hundred tokens of
    context they are a few per cent.
    """
    store = PackedStore.open(path)
    sizes = family_of(store.config).sizes(store.config)
    dense = sum(
        entry.nbytes
        for entry in store.manifest.dense
        if not entry.name.startswith(_DRAFT) and not any(n in entry.name for n in _NOT_READ)
    )
    section = store.manifest.experts
    layers = sum(not prefix.startswith(_DRAFT) for prefix in section.layer_prefixes)
    parts = {
        "dense": dense,
        "experts": layers * sizes.top_k * section.layout.record_bytes,
        "state": 2 * sizes.fixed_state_bytes,
    }
    return parts | {"total": sum(parts.values())}
