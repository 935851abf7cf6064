"""Configurations, and prompts that reach what is special in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["EOS", "IM_END", "IM_START", "TINY", "Json", "Tiny", "prompts"]

EOS, IM_END, IM_START = 256, 257, 258
"""Ids of the three special tokens, behind the 256 bytes."""

Json = dict[str, Any]

_BASE: Json = {
    "model_type": "qwen4_exp_text",
    "vocab_size": 300,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "num_experts_per_tok": 2,
    "num_experts": 8,
    "norm_topk_prob": True,
    "hc_count": 4,
    "hc_lowrank": 64,
    "ple_layer_ids": [2],
    "ple_embed_dim": 64,
    "ple_conv_kernel_size": 4,
    "ngram_size": 3,
    "heads_per_ngram": 2,
    "ngram_vocab_size_base": 100,
    "make_ngram_vocab_size_divisible_by": 128,
    "seed": 1234,
    "split_ngram_parts": 4,
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 32,
    "indexer_budget": 16,
    "indexer_compress_ratio": 4,
    "output_gate_type": "sigmoid",
    "hidden_act": "silu",
    "attention_bias": False,
    "eos_token_id": EOS,
    "bos_token_id": None,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000,
        "partial_rotary_factor": 0.5,
    },
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "mtp_num_hidden_layers": 0,
}
_MTP: Json = {
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "mtp": {"num_hidden_layers": 1, "layer_types": ["full_attention"]},
}
_NO_PLE: Json = {"ple_layer_ids": [], "ple_embed_dim": None}


@dataclass(frozen=True)
class Tiny:
    """One tiny model: what differs from the base configuration, and how its files are written.

    Attributes:
        name: also the name of its vectors.
        seed: of weights and prompts.
        varies: text configuration keys that differ from the base.
        absent: text configuration keys left out.
        flat: the text configuration is the whole config.json, and names start with `model.`.
        prompt_tokens: length of the prompt that crosses the sparse attention budget.
    """

    name: str
    seed: int
    varies: Mapping[str, Any] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    flat: bool = False
    prompt_tokens: int = 72

    @property
    def text(self) -> Json:
        """The text configuration."""
        merged = {**_BASE, **self.varies}
        return {k: v for k, v in merged.items() if k not in self.absent}

    @property
    def config(self) -> Json:
        """What config.json holds."""
        tied = self.text["tie_word_embeddings"]
        if self.flat:
            return {"architectures": ["Qwen4ExpForCausalLM"], "dtype": "bfloat16", **self.text}
        return {
            "architectures": ["Qwen4ExpForConditionalGeneration"],
            "model_type": "qwen4_exp",
            "language_model_only": True,
            "text_config": self.text,
            "tie_word_embeddings": tied,
            "dtype": "bfloat16",
        }


_ALL = [
    # what Glow and the real checkpoint have
    Tiny("plain", 111, _MTP),
    Tiny(
        "two-streams",
        212,
        {
            "hc_count": 2,
            "hidden_size": 128,
            "output_gate_type": "silu",
            "norm_topk_prob": False,
            "num_experts_per_tok": 3,
            **_NO_PLE,
        },
    ),
    # unequal DeltaNet heads, a null gate, and only the first of several stop ids resets the n-grams
    Tiny(
        "null-gate",
        313,
        {
            "output_gate_type": None,
            "linear_value_head_dim": 32,
            "linear_num_key_heads": 3,
            "linear_num_value_heads": 6,
            "linear_conv_kernel_dim": 2,
            "num_key_value_heads": 4,
            "eos_token_id": [EOS, IM_END],
            **_MTP,
        },
    ),
    # keys that may be missing altogether
    Tiny(
        "defaults",
        914,
        {
            "num_hidden_layers": 5,
            "full_attention_interval": 2,
            "linear_conv_kernel_dim": 3,
            "ple_layer_ids": [1],
            "ngram_size": 2,
            "heads_per_ngram": 4,
            "rope_theta": 5000.0,
            "partial_rotary_factor": 0.25,
        },
        absent=(
            "output_gate_type",
            "layer_types",
            "norm_topk_prob",
            "ple_embed_dim",
            "ple_conv_kernel_size",
            "make_ngram_vocab_size_divisible_by",
            "seed",
            "rms_norm_eps",
            "rope_parameters",
            "attention_bias",
            "hc_count",
            "mtp_num_hidden_layers",
        ),
    ),
    # two PLE layers, wider than the model; stop ids given as a list whose first is not the smallest
    Tiny(
        "two-ple",
        115,
        {
            "ple_layer_ids": [3, 1],
            "ple_embed_dim": 192,
            "ngram_size": 4,
            "ple_conv_kernel_size": 3,
            "ngram_vocab_size_base": 50,
            "seed": 99,
            "eos_token_id": [IM_END, EOS],
            "split_ngram_parts": 2,
        },
    ),
    Tiny(
        "attention-first",
        316,
        {
            "num_hidden_layers": 3,
            "layer_types": ["full_attention", "linear_attention", "indexed_attention"],
            "attention_bias": True,
            "num_attention_heads": 6,
            "num_key_value_heads": 1,
            "head_dim": 64,
            "ple_conv_kernel_size": 2,
            "ngram_size": 4,
            "ple_embed_dim": 384,
            "heads_per_ngram": 4,
            **_MTP,
        },
    ),
    Tiny(
        "top-one",
        517,
        {
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "qwen_sparse_attention", "qwen_sparse_attention"],
            "num_experts_per_tok": 1,
            "num_experts": 6,
            "indexer_compress_ratio": 8,
            "indexer_budget": 24,
            "ple_layer_ids": [1],
            "heads_per_ngram": 1,
            **_MTP,
        },
        prompt_tokens=88,
    ),
    Tiny(
        "tied",
        18,
        {
            "tie_word_embeddings": True,
            "hc_count": 3,
            "rms_norm_eps": 0.01,
            "indexer_n_heads": 6,
            "head_dim": 16,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000},
            "num_attention_heads": 8,
            "indexer_head_dim": 16,
        },
    ),
    # widths that are multiples of 32 only
    Tiny(
        "thirty-twos",
        719,
        {
            "hidden_size": 96,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 96,
            "hc_lowrank": 32,
            "ple_embed_dim": 160,
            "ngram_size": 2,
            "heads_per_ngram": 1,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "linear_num_key_heads": 3,
            "linear_num_value_heads": 6,
            **_MTP,
        },
    ),
    Tiny(
        "many-experts",
        420,
        {
            "num_experts": 16,
            "num_experts_per_tok": 5,
            "norm_topk_prob": False,
            "moe_intermediate_size": 128,
            "shared_expert_intermediate_size": 192,
            "hc_count": 2,
            "linear_key_head_dim": 32,
            "linear_num_key_heads": 4,
            **_MTP,
        },
    ),
    # blocks of one token, and of three; DeltaNet inputs so faint that the epsilons of its two norms matter
    Tiny(
        "block-of-one",
        121,
        {
            "indexer_compress_ratio": 1,
            "indexer_budget": 12,
            "indexer_n_heads": 8,
            "linear_num_key_heads": 1,
            **_NO_PLE,
            **_MTP,
        },
        prompt_tokens=48,
    ),
    Tiny(
        "flat-text",
        22,
        {
            "indexer_compress_ratio": 3,
            "indexer_budget": 9,
            "num_key_value_heads": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500},
            "partial_rotary_factor": 0.75,
            "initializer_range": 0.0001,
        },
        flat=True,
    ),
]
TINY: dict[str, Tiny] = {t.name: t for t in _ALL}
"""By name, in a fixed order."""


def prompts(tiny: Tiny) -> dict[str, list[int]]:
    """Token ids: a prompt that crosses the sparse attention budget, one with stop ids inside, one token."""
    words = np.random.PCG64(np.random.SeedSequence(tiny.seed)).random_raw(tiny.prompt_tokens + 30)
    ids = [int(w >> np.uint64(40)) % 256 for w in words]
    eos = tiny.text["eos_token_id"]
    first, other = (eos[0], eos[1]) if isinstance(eos, list) else (eos, IM_END)
    stops = ids[tiny.prompt_tokens :]
    stops[9], stops[10], stops[16], stops[22] = first, first, first, other
    return {"crossing": ids[: tiny.prompt_tokens], "stops": stops, "single": ids[3:4]}
