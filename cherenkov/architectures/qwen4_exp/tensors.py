"""Every tensor that a `qwen4_exp` configuration implies, by its canonical name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cherenkov.checkpoint.inventory import ExpertSpec, Inventory, NgramSpec, Role, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cherenkov.architectures.qwen4_exp.config import Config

__all__ = ["DRAFT", "HEAD", "TRUNK", "inventory", "layer_prefix"]

TRUNK = "language_model.model"
HEAD = "language_model.lm_head"
DRAFT = "mtp"


def layer_prefix(config: Config, layer: int) -> str:
    """Name prefix of a layer; the draft head's layer follows the trunk's."""
    return (
        f"{TRUNK}.layers.{layer}"
        if layer < config.layers
        else f"{DRAFT}.layers.{layer - config.layers}"
    )


def inventory(config: Config) -> Inventory:
    """What a checkpoint of this geometry must hold."""
    return Inventory(
        dense=tuple(_dense(config)),
        experts=tuple(
            ExpertSpec(
                f"{layer_prefix(config, i)}.mlp.switch_mlp",
                config.experts,
                config.inter,
                config.hidden,
            )
            for i in range(config.layers + config.draft)
        ),
        ngrams=tuple(
            NgramSpec(
                f"{layer_prefix(config, layer)}.ple.ple_embedding.ngram_embedding",
                config.table_rows(which),
                config.ngram_dim,
            )
            for which, layer in enumerate(config.ple_layers)
        ),
    )


def _dense(c: Config) -> Iterator[TensorSpec]:
    yield TensorSpec(f"{TRUNK}.embed_tokens", (c.vocab, c.hidden), Role.MATRIX)
    if not c.tied:
        yield TensorSpec(HEAD, (c.vocab, c.hidden), Role.MATRIX)
    yield from _mixer(c, f"{TRUNK}.hyper_connection_mixer", injects=False)
    for layer, attention in enumerate(c.attention):
        prefix = layer_prefix(c, layer)
        yield from (
            _attention(c, f"{prefix}.self_attn")
            if attention
            else _delta(c, f"{prefix}.linear_attn")
        )
        yield from _block(c, prefix)
        if layer in c.ple_layers:
            yield from _ple(c, f"{prefix}.ple")
    if c.draft:
        yield from _draft(c)


def _block(c: Config, prefix: str) -> Iterator[TensorSpec]:
    """What every layer has: two hyper-connections, a router and the shared expert."""
    yield from _mixer(c, f"{prefix}.attn_hyper_connection", injects=True)
    yield from _mixer(c, f"{prefix}.mlp_hyper_connection", injects=True)
    yield TensorSpec(f"{prefix}.mlp.gate.weight", (c.experts, c.hidden), Role.KEPT)
    yield TensorSpec(f"{prefix}.mlp.shared_expert_gate.weight", (1, c.hidden), Role.KEPT)
    yield TensorSpec(
        f"{prefix}.mlp.shared_expert.gate_proj", (c.shared_inter, c.hidden), Role.MATRIX
    )
    yield TensorSpec(f"{prefix}.mlp.shared_expert.up_proj", (c.shared_inter, c.hidden), Role.MATRIX)
    yield TensorSpec(
        f"{prefix}.mlp.shared_expert.down_proj", (c.hidden, c.shared_inter), Role.MATRIX
    )


def _mixer(c: Config, prefix: str, *, injects: bool) -> Iterator[TensorSpec]:
    yield TensorSpec(f"{prefix}.hc_norm.weight", (c.wide,), Role.CENTRED)
    yield TensorSpec(f"{prefix}.input_mix_weight_down", (c.lowrank, c.wide), Role.MATRIX)
    yield TensorSpec(f"{prefix}.input_mix_weight_up", (c.wide, c.lowrank), Role.MATRIX)
    if injects:
        yield TensorSpec(f"{prefix}.block_inject_weight", (c.streams, c.wide), Role.MATRIX)


def _attention(c: Config, prefix: str) -> Iterator[TensorSpec]:
    sizes = {
        "q_proj": (2 * c.heads * c.head_dim, c.hidden),
        "k_proj": (c.kv_heads * c.head_dim, c.hidden),
        "v_proj": (c.kv_heads * c.head_dim, c.hidden),
        "o_proj": (c.hidden, c.heads * c.head_dim),
        "indexer.index_qk_proj": ((c.index_heads + 1) * c.index_dim, c.hidden),
    }
    for name, shape in sizes.items():
        yield TensorSpec(f"{prefix}.{name}", shape, Role.MATRIX)
        if c.biased and name != "indexer.index_qk_proj":
            yield TensorSpec(f"{prefix}.{name}.bias", shape[:1], Role.KEPT)
    for name, width in (("q_norm", c.head_dim), ("k_norm", c.head_dim)):
        yield TensorSpec(f"{prefix}.{name}.weight", (width,), Role.CENTRED)
    for name in ("q_layernorm", "k_layernorm"):
        yield TensorSpec(f"{prefix}.indexer.{name}.weight", (c.index_dim,), Role.CENTRED)


def _delta(c: Config, prefix: str) -> Iterator[TensorSpec]:
    values = c.value_heads * c.value_dim
    yield TensorSpec(f"{prefix}.in_proj_qkv", (c.channels, c.hidden), Role.MATRIX)
    yield TensorSpec(f"{prefix}.in_proj_z", (values, c.hidden), Role.MATRIX)
    yield TensorSpec(f"{prefix}.in_proj_a", (c.value_heads, c.hidden), Role.MATRIX)
    yield TensorSpec(f"{prefix}.in_proj_b", (c.value_heads, c.hidden), Role.MATRIX)
    yield TensorSpec(f"{prefix}.out_proj", (c.hidden, values), Role.MATRIX)
    yield TensorSpec(f"{prefix}.conv1d.weight", (c.channels, c.taps, 1), Role.KEPT)
    yield TensorSpec(f"{prefix}.A_log", (c.value_heads,), Role.KEPT)
    yield TensorSpec(f"{prefix}.dt_bias", (c.value_heads,), Role.KEPT)
    yield TensorSpec(f"{prefix}.norm.weight", (c.value_dim,), Role.KEPT)


def _ple(c: Config, prefix: str) -> Iterator[TensorSpec]:
    yield TensorSpec(f"{prefix}.key_proj", (c.wide, c.ple_dim), Role.MATRIX)
    yield TensorSpec(f"{prefix}.value_proj", (c.hidden, c.ple_dim), Role.MATRIX)
    for name in ("norm_key", "norm_query", "norm_conv"):
        yield TensorSpec(f"{prefix}.{name}.weight", (c.wide,), Role.CENTRED)
    yield TensorSpec(f"{prefix}.conv1d.weight", (c.wide, c.ple_taps, 1), Role.KEPT)
    heads = (c.ngram - 1) * c.ngram_heads
    yield TensorSpec(f"{prefix}.ple_embedding.layer_multipliers", (c.ngram,), Role.HASH)
    yield TensorSpec(f"{prefix}.ple_embedding.ngram_heads_offsets", (heads,), Role.HASH)
    yield TensorSpec(f"{prefix}.ple_embedding.ngram_heads_vocab_sizes", (heads,), Role.HASH)


def _draft(c: Config) -> Iterator[TensorSpec]:
    yield TensorSpec(f"{DRAFT}.pre_fc_norm_embedding.weight", (c.hidden,), Role.PRE_NORM)
    yield TensorSpec(f"{DRAFT}.pre_fc_norm_hidden.weight", (c.wide,), Role.PRE_NORM)
    yield TensorSpec(f"{DRAFT}.fc_embedding", (c.hidden, c.hidden), Role.MATRIX)
    yield TensorSpec(f"{DRAFT}.fc_hidden", (c.hidden, c.hidden), Role.MATRIX)
    yield from _mixer(c, f"{DRAFT}.hyper_connection_mixer", injects=False)
    prefix = layer_prefix(c, c.layers)
    yield from _attention(c, f"{prefix}.self_attn")
    yield from _block(c, prefix)
