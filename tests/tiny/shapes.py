"""Names and shapes, written down a second time so that tests do not ask the library what it expects."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.tiny.configs import Json

__all__ = ["LM", "head_sizes", "shapes"]

LM = "model.language_model."


def shapes(text: Json) -> dict[str, tuple[int, ...]]:
    """Hugging Face names and shapes of every floating-point tensor. N-gram tables come whole, as `.weight`."""
    hidden, vocab = text["hidden_size"], text["vocab_size"]
    table: dict[str, tuple[int, ...]] = {f"{LM}embed_tokens.weight": (vocab, hidden)}
    if not text["tie_word_embeddings"]:
        table["lm_head.weight"] = (vocab, hidden)
    table |= _residual(text, f"{LM}hyper_connection_mixer.", injects=False)
    ple_ids = sorted(text.get("ple_layer_ids") or [])
    for index, kind in enumerate(_layer_types(text)):
        prefix = f"{LM}layers.{index}."
        table |= _layer(text, prefix, kind)
        if index + 1 in ple_ids:
            table |= _ple(text, f"{prefix}ple.", ple_ids.index(index + 1))
    if text.get("mtp_num_hidden_layers"):
        table |= _layer(text, "mtp.layers.0.", "full_attention")
        table |= _residual(text, "mtp.hyper_connection_mixer.", injects=False)
        table["mtp.pre_fc_norm_embedding.weight"] = (hidden,)
        table["mtp.pre_fc_norm_hidden.weight"] = (text.get("hc_count", 4) * hidden,)
        table["mtp.fc_embedding.weight"] = table["mtp.fc_hidden.weight"] = (hidden, hidden)
    return table


def _layer_types(text: Json) -> list[str]:
    every = text.get("full_attention_interval", 4)
    default = [
        "full_attention" if (i + 1) % every == 0 else "linear_attention"
        for i in range(text["num_hidden_layers"])
    ]
    return list(text.get("layer_types") or default)


def _residual(text: Json, prefix: str, *, injects: bool) -> dict[str, tuple[int, ...]]:
    streams, rank = text.get("hc_count", 4), text["hc_lowrank"]
    wide = streams * text["hidden_size"]
    table: dict[str, tuple[int, ...]] = {
        f"{prefix}hc_norm.weight": (wide,),
        f"{prefix}input_mix_weight_down.weight": (rank, wide),
        f"{prefix}input_mix_weight_up.weight": (wide, rank),
    }
    if injects:
        table[f"{prefix}block_inject_weight.weight"] = (streams, wide)
    return table


def _layer(text: Json, prefix: str, kind: str) -> dict[str, tuple[int, ...]]:
    hidden, inter = text["hidden_size"], text["moe_intermediate_size"]
    experts, shared = text["num_experts"], text["shared_expert_intermediate_size"]
    mixer = _delta_net if kind == "linear_attention" else _attention
    return {
        **_residual(text, f"{prefix}attn_hyper_connection.", injects=True),
        **_residual(text, f"{prefix}mlp_hyper_connection.", injects=True),
        **mixer(text, prefix),
        f"{prefix}mlp.gate.weight": (experts, hidden),
        f"{prefix}mlp.experts.gate_up_proj": (experts, 2 * inter, hidden),
        f"{prefix}mlp.experts.down_proj": (experts, hidden, inter),
        f"{prefix}mlp.shared_expert.gate_proj.weight": (shared, hidden),
        f"{prefix}mlp.shared_expert.up_proj.weight": (shared, hidden),
        f"{prefix}mlp.shared_expert.down_proj.weight": (hidden, shared),
        f"{prefix}mlp.shared_expert_gate.weight": (1, hidden),
    }


def _delta_net(text: Json, prefix: str) -> dict[str, tuple[int, ...]]:
    hidden, heads = text["hidden_size"], text["linear_num_value_heads"]
    keys = text["linear_num_key_heads"] * text["linear_key_head_dim"]
    values = heads * text["linear_value_head_dim"]
    channels = 2 * keys + values
    name = f"{prefix}linear_attn."
    return {
        f"{name}in_proj_qkv.weight": (channels, hidden),
        f"{name}in_proj_z.weight": (values, hidden),
        f"{name}in_proj_a.weight": (heads, hidden),
        f"{name}in_proj_b.weight": (heads, hidden),
        f"{name}out_proj.weight": (hidden, values),
        f"{name}conv1d.weight": (channels, 1, text["linear_conv_kernel_dim"]),
        f"{name}A_log": (heads,),
        f"{name}dt_bias": (heads,),
        f"{name}norm.weight": (text["linear_value_head_dim"],),
    }


def _attention(text: Json, prefix: str) -> dict[str, tuple[int, ...]]:
    hidden, size, index = text["hidden_size"], text["head_dim"], text["indexer_head_dim"]
    heads, groups = text["num_attention_heads"], text["num_key_value_heads"]
    rows = {"q_proj": 2 * heads * size, "k_proj": groups * size, "v_proj": groups * size}
    name = f"{prefix}self_attn."
    table: dict[str, tuple[int, ...]] = {f"{name}{p}.weight": (n, hidden) for p, n in rows.items()}
    table[f"{name}o_proj.weight"] = (hidden, heads * size)
    if text.get("attention_bias"):
        table |= {f"{name}{p}.bias": (n,) for p, n in {**rows, "o_proj": hidden}.items()}
    table[f"{name}q_norm.weight"] = table[f"{name}k_norm.weight"] = (size,)
    table[f"{name}indexer.index_qk_proj.weight"] = ((text["indexer_n_heads"] + 1) * index, hidden)
    table[f"{name}indexer.q_layernorm.weight"] = (index,)
    table[f"{name}indexer.k_layernorm.weight"] = (index,)
    return table


def _ple(text: Json, prefix: str, index: int) -> dict[str, tuple[int, ...]]:
    hidden = text["hidden_size"]
    wide, width = text.get("hc_count", 4) * hidden, text.get("ple_embed_dim") or hidden
    sizes = head_sizes(text, index)
    multiple = text.get("make_ngram_vocab_size_divisible_by", 128)
    rows = -(-sum(sizes) // multiple) * multiple
    return {
        f"{prefix}key_proj.weight": (wide, width),
        f"{prefix}value_proj.weight": (hidden, width),
        f"{prefix}norm_key.weight": (wide,),
        f"{prefix}norm_query.weight": (wide,),
        f"{prefix}norm_conv.weight": (wide,),
        f"{prefix}conv1d.weight": (wide, 1, text.get("ple_conv_kernel_size", 4)),
        f"{prefix}ple_embedding.ngram_embedding.weight": (rows, width // len(sizes)),
    }


def head_sizes(text: Json, index: int) -> list[int]:
    """Distinct primes from the base upwards; the PLE layers take theirs one after the other."""
    heads = (text.get("ngram_size", 3) - 1) * text["heads_per_ngram"]
    primes: list[int] = []
    candidate = text["ngram_vocab_size_base"]
    while len(primes) < heads * (index + 1):
        if candidate > 1 and all(candidate % d for d in range(2, math.isqrt(candidate) + 1)):
            primes.append(candidate)
        candidate += 1
    return primes[heads * index :]
