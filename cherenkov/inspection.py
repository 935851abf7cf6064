"""What a folder holds and what it would take to run it, without loading it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from cherenkov import budget
from cherenkov.architectures import family_of
from cherenkov.backends import create
from cherenkov.backends.base import Options
from cherenkov.checkpoint.documents import is_there
from cherenkov.checkpoint.shards import hub_hint
from cherenkov.config import load_settings
from cherenkov.errors import CapacityError, ConfigError, ModelError, ModelNotFound
from cherenkov.packing.lowbit import WIDTHS, Names, open_lowbit
from cherenkov.packing.plan import make_plan
from cherenkov.packing.store import PackedStore
from cherenkov.preparation import demo_folder, expanded, is_checkpoint, is_store, open_source

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cherenkov.budget import Demand
    from cherenkov.config import Settings
    from cherenkov.packing.manifest import Manifest

__all__ = ["inspect"]


def inspect(
    path: str | os.PathLike[str],
    *,
    bits: int | None = None,
    context_tokens: int | None = None,
    pool: str | float | None = None,
) -> dict[str, Any]:
    """Describe a store or a checkpoint, in plain values that JSON can hold.

    Args:
        path: the folder of a store or of a checkpoint, or `"demo"`.
        bits: width that preparing would use; None as in `prepare`.
        context_tokens: longest sequence to plan for; what is left out comes from the settings.
        pool: memory for experts to plan with: `"adaptive"`, `"max"`, or GB.

    Returns:
        `kind` (store or checkpoint), `architecture`, `parameters`, `tensors`, `layers` (of records: the draft head's is one),
        `experts`, `draft_head`, `bytes` by part, `memory`: the smallest that works, with a context of one token, what there
        is, and the plan for it, or why there is none; for a store `lower_experts`, those in fewer bits; for a checkpoint `source` and `preparing`: what it comes as and what
        preparing would write.

    Raises:
        ModelNotFound, UnsupportedModel, CorruptModel, DiskError: as the trouble is.
        ConfigError: context, pool or a setting makes no sense for this model.
        BackendError: the backend of the settings cannot run here.
    """
    asked = {"context_tokens": context_tokens, "pool": pool}
    settings = load_settings(**{k: v for k, v in asked.items() if v is not None})
    folder = demo_folder() if os.fspath(path) == "demo" else expanded(path)
    if is_store(folder):
        return _store(folder, settings)
    if is_checkpoint(folder):
        return _checkpoint(folder, bits, settings)
    name = os.fspath(path)
    hint = f"there is neither a store nor a checkpoint{hub_hint(name)}"
    raise ModelNotFound(name, [str(folder)], hint)


def _store(folder: Path, settings: Settings) -> dict[str, Any]:
    store = PackedStore.open(folder)
    return {
        "kind": "store",
        "path": str(store.path),
        **_model(store.config, store.manifest, settings),
        "verifiable": store.integrity is not None,
        "lower_experts": _lower(store),
    }


def _lower(store: PackedStore) -> list[dict[str, Any]]:
    """Experts in fewer bits beside the store's own, or what is wrong with them."""
    found: list[dict[str, Any]] = []
    for bits in WIDTHS:
        if not is_there(store.path / Names.of(bits).experts):
            continue
        try:
            low = open_lowbit(store, bits)
        except (ModelError, ConfigError) as error:
            found.append({"bits": bits, "problem": str(error)})
            continue
        size = store.records * low.layout.stride_bytes
        found.append(
            {"bits": bits, "derivation": low.derivation, "origin": low.origin, "bytes": size}
        )
    return found


def _checkpoint(folder: Path, bits: int | None, settings: Settings) -> dict[str, Any]:
    checkpoint = open_source(folder)
    given = checkpoint.expert_format
    plan = make_plan(checkpoint, bits or (given[0] if given else 4), None)
    files = [f for f in folder.iterdir() if f.suffix == ".safetensors"]
    return {
        "kind": "checkpoint",
        "path": str(folder),
        **_model(checkpoint.config, plan.manifest, settings),
        "source": {
            "dialect": str(checkpoint.trunk),
            "expert_bits": given[0] if given else 16,
            "bytes": sum(f.stat().st_size for f in files),
            "shards": len(files),
            "notes": [note.message for note in checkpoint.notes],
        },
        "preparing": {"output_bytes": plan.total_bytes, "bits": plan.bits, "group": plan.group},
    }


def _model(config: Mapping[str, Any], manifest: Manifest, settings: Settings) -> dict[str, Any]:
    family, section = family_of(config), manifest.experts
    inventory, demand = family.inventory(config), _demand(config, manifest, settings)
    tables = sum(table.layout.total_bytes for table in manifest.ngrams)
    experts_bytes = section.records * section.layout.stride_bytes
    return {
        "architecture": family.name,
        "parameters": inventory.parameters(),
        "tensors": len(manifest.dense),
        "layers": section.layers,
        "draft_head": family.inventory(family.without_draft(config)) != inventory,
        "experts": {
            "per_layer": section.experts,
            "used_per_token": demand.sizes.top_k,
            "bits": section.layout.bits,
            "group": section.layout.group,
            "record_bytes": section.layout.record_bytes,
            "stride_bytes": section.layout.stride_bytes,
        },
        "max_context_tokens": demand.sizes.max_context,
        "bytes": {
            "dense": manifest.dense_bytes,
            "experts": experts_bytes,
            "ngrams": tables,
            "total": manifest.dense_bytes + experts_bytes + tables,
        },
        "memory": _memory(demand, settings),
    }


def _demand(config: Mapping[str, Any], manifest: Manifest, settings: Settings) -> Demand:
    """What the model asks for on the backend that would run it."""
    options = Options(settings.threads, settings.precision, settings.isa)
    backend = create(settings.backend, options)
    try:
        return budget.demand_of(config, manifest, backend)
    finally:
        backend.close()


def _memory(demand: Demand, settings: Settings) -> dict[str, Any]:
    """The least that works, and what would be made of the memory there is."""
    least, there_is = budget.smallest_plan(demand), budget.available_memory()
    everything = demand.records * demand.stride_bytes
    found = {
        "smallest_pool_bytes": least.pool_bytes,
        "smallest_total_bytes": least.total_bytes,
        "everything_resident_bytes": least.total_bytes - least.pool_bytes + everything,
        "token_state_bytes": demand.state_bytes(1001) - demand.state_bytes(1000),
        "available_bytes": there_is.available_bytes,
        "available_in": there_is.source,
        "plan": None,
        "refusal": None,
    }
    try:
        plan = budget.make_plan(
            demand, there_is, context_tokens=settings.context_tokens, pool=settings.pool
        )
    except CapacityError as error:
        return found | {"refusal": str(error)}
    return found | {
        "plan": {
            "pool_bytes": plan.pool_bytes,
            "slots": plan.slots,
            "records": demand.records,
            "share": plan.slots / demand.records,
            "context_tokens": plan.context_tokens,
            "chunk_rows": plan.chunk_rows,
            "total_bytes": plan.total_bytes,
        }
    }
