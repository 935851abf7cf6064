"""`qwen4_exp` as the registry sees it."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from cherenkov.architectures import Network, Sizes
from cherenkov.architectures.qwen4_exp import tensors
from cherenkov.architectures.qwen4_exp.config import Config, parse
from cherenkov.architectures.qwen4_exp.trunk import Qwen4Exp
from cherenkov.architectures.qwen4_exp.weights import load
from cherenkov.errors import CorruptModel
from cherenkov.experts.rows import RowTable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cherenkov.architectures.qwen4_exp.weights import Weights
    from cherenkov.backends.base import Backend
    from cherenkov.checkpoint.inventory import Inventory
    from cherenkov.experts.store import ExpertStore
    from cherenkov.packing.store import PackedStore

__all__ = ["FAMILY"]

_FLOAT = 4


class _Qwen4ExpFamily:
    name = "qwen4_exp"

    def sizes(self, config: Mapping[str, Any]) -> Sizes:
        c = parse(config)
        attention = sum(c.attention) + c.draft
        delta = c.layers - sum(c.attention)
        matrix = c.value_heads * c.key_dim * c.value_dim
        history = (c.taps - 1) * c.channels + matrix
        ple_layers = len(c.ple_layers)
        ple = ple_layers * (c.ple_taps - 1) * c.ngram * c.wide
        return Sizes(
            vocab=c.vocab,
            max_context=c.max_context,
            stop_ids=c.eos,
            top_k=c.top_k,
            fixed_state_bytes=_FLOAT * (delta * history + ple),
            delta_position_bytes=_FLOAT
            * delta
            * (c.key_heads * c.key_dim + c.value_heads * (c.value_dim + 1)),
            back_position_bytes=_FLOAT
            * (
                (delta * c.channels if c.taps > 1 else 0)
                + (ple_layers * c.wide if c.ple_taps > 1 else 0)
            ),
            matrix_bytes=_FLOAT * delta * matrix,
            token_state_elements=attention
            * (2 * c.kv_heads * c.head_dim + c.index_dim * (1 + 1 / c.block)),
            row_scratch_bytes=_row_scratch(c),
            residual_bytes=_FLOAT * c.wide,
        )

    def inventory(self, config: Mapping[str, Any]) -> Inventory:
        return tensors.inventory(parse(config))

    def without_draft(self, config: Mapping[str, Any]) -> dict[str, Any]:
        changed = copy.deepcopy(dict(config))
        for section in (changed, changed.get("text_config")):
            if isinstance(section, dict):
                if "mtp_num_hidden_layers" in section or section is not changed:
                    section["mtp_num_hidden_layers"] = 0
                if isinstance(section.get("mtp"), dict):
                    section["mtp"]["num_hidden_layers"] = 0
        return changed

    def build(
        self, store: PackedStore, backend: Backend[Any, Any], experts: ExpertStore
    ) -> Network[Any]:
        config = parse(store.config)
        _check_experts(store, config)
        weights = load(config, store.dense(), backend)
        _check_hashes(store, weights)
        return Qwen4Exp(config, backend, weights, experts, _tables(store, config))


FAMILY = _Qwen4ExpFamily()


def _tables(store: PackedStore, config: Config) -> dict[int, RowTable]:
    """The open n-gram table of each layer that has one."""
    sums = store.integrity.ngrams if store.integrity is not None else ()
    tables: dict[int, RowTable] = {}
    try:
        for which, layer in enumerate(config.ple_layers):
            path, layout = store.ngram_paths[which], store.ngram_layouts[which]
            tables[layer] = RowTable(path, layout, sums[which] if sums else None)
    except BaseException:
        for table in tables.values():
            table.close()
        raise
    return tables


def _row_scratch(c: Config) -> int:
    """Float32 numbers for a row that live at once, generously: residuals, the widest operation, and the experts' outputs."""
    delta = 2 * c.channels + 2 * c.value_heads * c.value_dim + 64 * c.key_heads
    mixer = max(delta, 4 * c.heads * c.head_dim)
    within = max(mixer, 3 * c.top_k * c.inter + c.experts)
    return _FLOAT * (4 * c.wide + within + (c.top_k + 3) * c.hidden)


def _check_experts(store: PackedStore, config: Config) -> None:
    """The manifest and the configuration must speak of the same experts and tables."""
    section = store.manifest.experts
    pairs = (
        ("experts.layers", section.layers, config.layers + config.draft),
        ("experts.experts", section.experts, config.experts),
        ("experts.inter", store.expert_layout.inter, config.inter),
        ("experts.hidden", store.expert_layout.hidden, config.hidden),
        ("n-gram tables", len(store.ngram_layouts), len(config.ple_layers)),
    )
    for item, found, expected in pairs:
        if found != expected:
            raise CorruptModel(
                store.path,
                "manifest.json contradicts config.json",
                item=item,
                expected=expected,
                found=found,
            )
    for which, layout in enumerate(store.ngram_layouts):
        if (layout.rows, layout.dim) != (config.table_rows(which), config.ngram_dim):
            raise CorruptModel(
                store.path,
                "manifest.json contradicts config.json",
                item=f"n-gram table {which}",
                expected=f"{config.table_rows(which)} rows of {config.ngram_dim}",
                found=f"{layout.rows} rows of {layout.dim}",
            )


def _check_hashes(store: PackedStore, weights: Weights[Any, Any]) -> None:
    """Every row that a hash can name must lie in its table."""
    hashes = weights.hashes.values()
    for which, (found, layout) in enumerate(zip(hashes, store.ngram_layouts, strict=True)):
        fits = (found.sizes >= 1) & (found.sizes <= layout.rows)
        fits &= (found.offsets >= 0) & (found.offsets <= layout.rows - found.sizes)
        if not fits.all():
            head = int(fits.argmin())
            raise CorruptModel(
                store.dense_path,
                "the hash of an n-gram head leaves its table",
                item=f"n-gram table {which}, head {head}",
                expected=f"within {layout.rows} rows",
                found=f"{found.sizes[head]} rows from {found.offsets[head]}",
            )
