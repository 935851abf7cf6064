"""From trained weights to the two forms of the checkpoint.

    python -m benchmarks.demo_model.export WORK       # writes WORK/glow-bf16 and WORK/glow-4bit

`glow-bf16` is laid out as published Hugging Face checkpoints are, `glow-4bit` as MLX conversions are.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from safetensors.torch import load_file, save_file

from benchmarks.demo_model.corpus import TEMPLATE
from benchmarks.demo_model.parts import G

if TYPE_CHECKING:
    import torch

SHARDS = 4
FOLDED = tuple(
    f"{name}.weight"
    for name in (
        "hc_norm",
        "q_norm",
        "k_norm",
        "q_layernorm",
        "k_layernorm",
        "norm_key",
        "norm_query",
        "norm_conv",
    )
)
"""Zero-centred norms, which MLX conversions store with the 1 added."""
KEPT = tuple(
    f"{name}.weight"
    for name in (
        "mlp.gate",
        "shared_expert_gate",
        "in_proj_a",
        "in_proj_b",
        "index_qk_proj",
        "block_inject_weight",
    )
)
"""Matrices that stay BF16."""
COMPANIONS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
)


def text_config() -> dict[str, Any]:
    """Glow's geometry, key by key as published configurations write it."""
    rope = {
        "rope_type": "default",
        "rope_theta": int(G.theta),
        "partial_rotary_factor": G.rotary / G.head_dim,
        "mrope_section": [6, 5, 5],
        "mrope_interleaved": True,
    }
    kinds = ("linear_attention", "full_attention")
    return {
        "model_type": "qwen4_exp_text",
        "vocab_size": G.vocab,
        "hidden_size": G.hidden,
        "num_hidden_layers": G.layers,
        "num_attention_heads": G.heads,
        "num_key_value_heads": G.kv_heads,
        "head_dim": G.head_dim,
        "linear_conv_kernel_dim": G.taps,
        "linear_key_head_dim": G.delta_dim,
        "linear_value_head_dim": G.delta_dim,
        "linear_num_key_heads": G.key_heads,
        "linear_num_value_heads": G.value_heads,
        "moe_intermediate_size": G.inter,
        "shared_expert_intermediate_size": G.shared_inter,
        "num_experts_per_tok": G.top_k,
        "num_experts": G.experts,
        "norm_topk_prob": True,
        "hc_count": G.streams,
        "hc_lowrank": G.lowrank,
        "ple_layer_ids": [G.ple_layer + 1],
        "ple_embed_dim": G.ple_dim,
        "ple_conv_kernel_size": G.ple_taps,
        "ngram_size": G.ngram,
        "heads_per_ngram": G.ngram_heads,
        "ngram_vocab_size_base": G.ngram_base,
        "make_ngram_vocab_size_divisible_by": G.ngram_divisor,
        "seed": G.seed,
        "split_ngram_parts": SHARDS,
        "indexer_n_heads": G.index_heads,
        "indexer_kv_heads": 1,
        "indexer_head_dim": G.index_dim,
        "indexer_budget": G.budget,
        "indexer_compress_ratio": G.block,
        "output_gate_type": "sigmoid",
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "eos_token_id": G.eos,
        "bos_token_id": G.eos,
        "pad_token_id": None,
        "partial_rotary_factor": G.rotary / G.head_dim,
        "rope_parameters": rope,
        "max_position_embeddings": 8192,
        "rms_norm_eps": G.eps,
        "tie_word_embeddings": False,
        "use_cache": True,
        "dtype": "bfloat16",
        "layer_types": [kinds[G.is_attention(i)] for i in range(G.layers)],
        "full_attention_interval": 4,
        "router_aux_loss_coef": 0.001,
        "output_router_logits": False,
        "initializer_range": 0.02,
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "mtp": {
            "hybrid": True,
            "layer_types": ["full_attention"],
            "mtp_use_hidden_state_from_layer": None,
            "num_hidden_layers": 1,
            "rope_theta": int(G.theta),
        },
    }


def write_bf16(work: Path, folder: Path) -> None:
    """Hugging Face layout: two files and an index."""
    folder.mkdir(exist_ok=True)
    tensors: dict[str, torch.Tensor] = {}
    for name, value in load_file(work / "glow.safetensors").items():
        published = name
        if not name.startswith(("mtp.", "lm_head")):
            published = name.replace("model.", "model.language_model.", 1)
        if name.endswith("ngram_embedding.weight"):
            stem = published.removesuffix(".weight")
            shards = value.chunk(SHARDS)
            tensors |= {f"{stem}.shard_{i}.weight": s.contiguous() for i, s in enumerate(shards)}
        else:
            tensors[published] = value
    names = sorted(tensors)
    half = len(names) // 2
    weight_map = {}
    for number, part in enumerate((names[:half], names[half:]), 1):
        file = f"model-{number:05d}-of-00002.safetensors"
        save_file({n: tensors[n] for n in part}, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    size = sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    _write(folder / "model.safetensors.index.json", index)
    config = {
        "architectures": ["Qwen4ExpForConditionalGeneration"],
        "model_type": "qwen4_exp",
        "language_model_only": True,
        "text_config": text_config(),
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }
    _write(folder / "config.json", config)
    _write_companions(work, folder)


def _write_companions(work: Path, folder: Path) -> None:
    shutil.copy(work / "tokenizer.json", folder)
    shutil.copy(TEMPLATE, folder / "chat_template.jinja")
    sampling = {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.95}
    ids = {"eos_token_id": [2, 0], "bos_token_id": 0, "pad_token_id": 0}
    _write(folder / "generation_config.json", ids | sampling)
    tokenizer = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 8192,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
    }
    _write(folder / "tokenizer_config.json", tokenizer)


def write_4bit(source: Path, folder: Path) -> None:
    """MLX layout: affine 4-bit, groups of 64, of 32 for n-gram rows."""
    folder.mkdir(exist_ok=True)
    out: dict[str, mx.array] = {}
    overrides = {}

    def quantise(name: str, weight: mx.array, group: int = 64) -> None:
        parts = mx.quantize(weight.astype(mx.bfloat16), group_size=group, bits=4)
        for part, value in zip(("weight", "scales", "biases"), parts, strict=True):
            out[f"{name}.{part}"] = value

    for published, value in _load_bf16(source).items():
        name = _mlx_name(published)
        stem = name.removesuffix(".weight")
        if name.endswith("experts.gate_up_proj"):
            prefix = name.removesuffix("experts.gate_up_proj") + "switch_mlp."
            half = value.shape[1] // 2
            quantise(prefix + "gate_proj", value[:, :half])
            quantise(prefix + "up_proj", value[:, half:])
        elif name.endswith("experts.down_proj"):
            quantise(name.replace("experts.down_proj", "switch_mlp.down_proj"), value)
        elif ".ngram_embedding.shard_" in name:
            quantise(stem, value, 32)
            overrides[stem.replace("language_model.", "", 1)] = {"group_size": 32, "bits": 4}
        elif name.endswith("conv1d.weight"):
            out[name] = value.transpose(0, 2, 1)
        elif name.endswith(FOLDED):
            out[name] = (value.astype(mx.float32) + 1).astype(mx.bfloat16)
        elif value.ndim == 2 and name.endswith(".weight") and not name.endswith(KEPT):
            quantise(stem, value)
        else:
            out[name] = value
    mx.save_safetensors(str(folder / "model.safetensors"), out, metadata={"format": "mlx"})
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    quantisation = {"group_size": 64, "bits": 4, **overrides}
    config |= {"quantization": quantisation, "quantization_config": quantisation}
    _write(folder / "config.json", config)
    for file in COMPANIONS:
        shutil.copy(source / file, folder)


def _load_bf16(folder: Path) -> dict[str, mx.array]:
    tensors: dict[str, mx.array] = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= mx.load(str(path))
    return tensors


def _mlx_name(name: str) -> str:
    if name.startswith("lm_head"):
        return "language_model." + name
    return name.replace("model.language_model.", "language_model.model.", 1)


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    work_folder = Path(sys.argv[1])
    write_bf16(work_folder, work_folder / "glow-bf16")
    write_4bit(work_folder / "glow-bf16", work_folder / "glow-4bit")
