"""Tiny seeded qwen4_exp checkpoints: configurations, weights and files. NumPy and `tokenizers` only.

Every configuration varies keys that real checkpoints may vary. Weights come from raw PCG64 words by integer
arithmetic, so the same seed gives the same bits under every NumPy version, and every value is a BF16 number.
"""

from __future__ import annotations

import json
import math
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["TINY", "Tiny", "fingerprint", "prompts", "shapes", "weights", "write_hf"]

EOS, IM_END, IM_START = 256, 257, 258
"""Ids of the three special tokens, behind the 256 bytes."""
LM = "model.language_model."

Json = dict[str, Any]
Tensors = dict[str, "NDArray[np.float32] | NDArray[np.int64]"]


# --- configurations -----------------------------------------------------------------------------------------------

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
            "rms_norm_eps": 1e-5,
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
        120,
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
    # blocks of one and of three tokens
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
        },
        flat=True,
    ),
]
TINY: dict[str, Tiny] = {t.name: t for t in _ALL}
"""By name, in a fixed order."""


# --- shapes -------------------------------------------------------------------------------------------------------


def shapes(text: Json) -> dict[str, tuple[int, ...]]:
    """Hugging Face names and shapes of every floating-point tensor. N-gram tables come whole, as `.weight`."""
    hidden, vocab = text["hidden_size"], text["vocab_size"]
    table = {f"{LM}embed_tokens.weight": (vocab, hidden)}
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
    sizes = _head_sizes(text, index)
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


def _head_sizes(text: Json, index: int) -> list[int]:
    """Distinct primes from the base upwards; the PLE layers take theirs one after the other."""
    heads = (text.get("ngram_size", 3) - 1) * text["heads_per_ngram"]
    primes: list[int] = []
    candidate = text["ngram_vocab_size_base"]
    while len(primes) < heads * (index + 1):
        if candidate > 1 and all(candidate % d for d in range(2, math.isqrt(candidate) + 1)):
            primes.append(candidate)
        candidate += 1
    return primes[heads * index :]


_GAMMA, _MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1


def _multipliers(text: Json, index: int) -> list[int]:
    """Odd hash multipliers: splitmix64 of the seed, bounded so that a product with any id fits int64."""
    bound = max(1, ((1 << 63) - 1) // text["vocab_size"] // 2)
    result = []
    for position in range(text.get("ngram_size", 3)):
        word = (text.get("seed", 1234) + 10007 * index + _GAMMA * (position + 2)) & _MASK
        word = ((word ^ word >> 30) * 0xBF58476D1CE4E5B9) & _MASK
        word = ((word ^ word >> 27) * 0x94D049BB133111EB) & _MASK
        result.append(2 * ((word ^ word >> 31) % bound) + 1)
    return result


# --- values -------------------------------------------------------------------------------------------------------

_STD = {
    # absolute standard deviations
    "embed_tokens.weight": 1.0,
    "ngram_embedding.weight": 1.0,
    "linear_attn.conv1d.weight": 0.6,
    "ple.conv1d.weight": 0.4,
    "A_log": 0.7,
    "dt_bias": 1.0,
    "bias": 0.2,
}
_GAIN = {
    # standard deviations times the square root of the input width
    "lm_head.weight": 4.0,
    "in_proj_z.weight": 1.5,
    "in_proj_b.weight": 1.5,
    "out_proj.weight": 1.5,
    "o_proj.weight": 2.0,
    "v_proj.weight": 1.5,
    "input_mix_weight_down.weight": 5.0,
    "input_mix_weight_up.weight": 2.0,
    "block_inject_weight.weight": 3.0,
    "mlp.gate.weight": 2.0,
    "shared_expert_gate.weight": 1.5,
    "gate_up_proj": 1.5,
    "down_proj": 2.0,
    "down_proj.weight": 2.0,
}


def weights(text: Json, seed: int) -> Tensors:
    """All tensors of a checkpoint, by Hugging Face name: BF16-representable float32, and int64 hash parameters."""
    tensors: Tensors = {n: _values(n, s, seed) for n, s in shapes(text).items()}
    for index, layer in enumerate(sorted(text.get("ple_layer_ids") or [])):
        prefix = f"{LM}layers.{layer - 1}.ple.ple_embedding."
        table = tensors.pop(f"{prefix}ngram_embedding.weight")
        parts = np.split(table, text["split_ngram_parts"])
        tensors |= {f"{prefix}ngram_embedding.shard_{i}.weight": p for i, p in enumerate(parts)}
        sizes = _head_sizes(text, index)
        offsets = [sum(sizes[:i]) for i in range(len(sizes))]
        tensors[f"{prefix}layer_multipliers"] = np.array(_multipliers(text, index), np.int64)
        tensors[f"{prefix}ngram_heads_vocab_sizes"] = np.array(sizes, np.int64)
        tensors[f"{prefix}ngram_heads_offsets"] = np.array(offsets, np.int64)
    return tensors


def _values(name: str, shape: tuple[int, ...], seed: int) -> NDArray[np.float32]:
    noise = _normal(f"{seed}/{name}", math.prod(shape)).reshape(shape)
    if "norm" in name.rsplit(".", 2)[-2]:
        return _bf16(0.2 * noise + (1.0 if "linear_attn.norm" in name else 0.0))
    for suffix, std in _STD.items():
        if name.endswith(suffix):
            return _bf16(std * noise - (1.5 if suffix == "A_log" else 0.0))
    gain = next((g for suffix, g in _GAIN.items() if name.endswith(suffix)), 1.0)
    return _bf16(gain / math.sqrt(shape[-1]) * noise)


def _normal(key: str, count: int) -> NDArray[np.float64]:
    """Nearly normal values of variance 1: the sum of a raw word's four 16-bit parts."""
    raw = np.random.PCG64(np.random.SeedSequence(zlib.crc32(key.encode()))).random_raw(count)
    parts = np.asarray(raw, "<u8").view("<u2").reshape(count, 4).sum(axis=1, dtype=np.int64)
    centred: NDArray[np.float64] = (parts - 2 * 65535) / (65536 / math.sqrt(3))
    return centred


def _bf16(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Rounded to the nearest BF16 value, ties to even."""
    bits = values.astype("<f4").view("<u4")
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
    return bits.view("<f4")


def fingerprint(tensors: Tensors) -> int:
    """A checksum over names and bytes, to tell whether recorded vectors belong to these weights."""
    total = 0
    for name in sorted(tensors):
        total = zlib.crc32(
            np.ascontiguousarray(tensors[name]).tobytes(), zlib.crc32(name.encode(), total)
        )
    return total


def prompts(tiny: Tiny) -> dict[str, list[int]]:
    """Token ids: a prompt that crosses the sparse attention budget, one with stop ids inside, one token."""
    words = np.random.PCG64(np.random.SeedSequence(tiny.seed)).random_raw(tiny.prompt_tokens + 30)
    ids = [int(w >> np.uint64(40)) % 256 for w in words]
    eos = tiny.text["eos_token_id"]
    first, other = (eos[0], eos[1]) if isinstance(eos, list) else (eos, IM_END)
    stops = ids[tiny.prompt_tokens :]
    stops[9], stops[10], stops[16], stops[22] = first, first, first, other
    return {"crossing": ids[: tiny.prompt_tokens], "stops": stops, "single": ids[3:4]}


# --- files --------------------------------------------------------------------------------------------------------


def write_hf(
    folder: Path,
    config: Json,
    tensors: Tensors,
    *,
    files: int = 1,
    per_expert: bool = False,
    shard_name: str = "shard_",
    mtp_prefix: str = "mtp.",
) -> Path:
    """Write a full checkpoint folder: config, weights, tokenizer, chat template.

    Args:
        folder: made if missing.
        config: config.json; without `text_config`, names start with `model.` instead of `model.language_model.`.
        tensors: from `weights`.
        files: number of safetensors files; more than one come with an index.
        per_expert: one tensor per expert and projection instead of fused ones.
        shard_name: `shard_` or `shards.`, in front of the number of an n-gram shard.
        mtp_prefix: what the draft head's names start with.

    Returns:
        The folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    prefix = LM if "text_config" in config else "model."
    named: Tensors = {}
    for name, value in tensors.items():
        new = name.replace(LM, prefix, 1).replace(".shard_", f".{shard_name}")
        new = mtp_prefix + new.removeprefix("mtp.") if new.startswith("mtp.") else new
        named |= dict(_experts(new, value)) if per_expert and ".experts." in new else {new: value}
    _write_shards(folder, named, files)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    _write_tokenizer(folder)
    return folder


def _experts(name: str, value: NDArray[Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    stem, kind = name.rsplit(".", 1)
    for index, matrix in enumerate(value):
        if kind == "down_proj":
            yield f"{stem}.{index}.down_proj.weight", matrix
        else:
            gate, up = np.split(matrix, 2)
            yield f"{stem}.{index}.gate_proj.weight", gate
            yield f"{stem}.{index}.up_proj.weight", up


def _write_shards(folder: Path, tensors: Tensors, files: int) -> None:
    names = sorted(tensors)
    where: dict[str, str] = {}
    for part in range(files):
        file = (
            f"model-{part + 1:05}-of-{files:05}.safetensors" if files > 1 else "model.safetensors"
        )
        mine = names[part::files]
        write_safetensors(folder / file, {n: tensors[n] for n in mine})
        where |= dict.fromkeys(mine, file)
    if files > 1:
        index = {"metadata": {}, "weight_map": where}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def write_safetensors(path: Path, tensors: Mapping[str, NDArray[Any]]) -> None:
    """Float32 arrays as BF16 (their lower halves must be zero), int64 arrays as they are."""
    header: Json = {"__metadata__": {"format": "pt"}}
    chunks: list[bytes] = []
    offset = 0
    for name, value in tensors.items():
        if value.dtype == np.float32:
            bits = np.ascontiguousarray(value).view("<u4")
            if np.any(bits & 0xFFFF):
                raise ValueError(f"{name}: not a BF16 value")
            data, kind = (bits >> 16).astype("<u2").tobytes(), "BF16"
        else:
            data, kind = value.astype("<i8").tobytes(), "I64"
        end = offset + len(data)
        header[name] = {"dtype": kind, "shape": list(value.shape), "data_offsets": [offset, end]}
        chunks.append(data)
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(chunks))


_TEMPLATE = """\
{%- for m in messages -%}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def _write_tokenizer(folder: Path) -> None:
    """A byte-level tokenizer: ids 0 to 255 are bytes in the alphabet's order, three special tokens follow."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_end|>", "<|im_start|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(_TEMPLATE)
