"""Write a random `qwen4_exp` checkpoint in the official layout, from NumPy alone.

    python benchmarks/random_model.py m2 FOLDER
    python benchmarks/random_model.py m2 FOLDER --experts 512 --layers 4

BF16 in safetensors shards of about 1 GB, written tensor by tensor: memory stays below 200 MB whatever the size.
The same seed and geometry give the same bytes. Random weights route almost uniformly, the worst case for a cache.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from cherenkov.architectures.qwen4_exp.config import Config, parse
from cherenkov.architectures.qwen4_exp.tensors import inventory
from cherenkov.checkpoint.affine import float32_to_bf16
from cherenkov.checkpoint.inventory import Role, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = [
    "GEOMETRIES",
    "Geometry",
    "dense_tensor",
    "model_config",
    "write_model",
    "write_tokenizer",
]

SHARD_BYTES = 1_000_000_000
_BLOCK = 1 << 22  # values drawn at a time
_SPREAD = 0.02  # standard deviation of every matrix
_NGRAM_PARTS = 4
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
_EOS = 0
_CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Geometry:
    """What can be varied. The rest follows the published model."""

    hidden: int
    layers: int
    experts: int
    top_k: int
    inter: int
    vocab: int
    ngram_base: int
    key_heads: int = 4
    value_heads: int = 8
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 256
    lowrank: int = 64
    budget: int = 512
    context: int = 40_960


GEOMETRIES = {
    "tiny": Geometry(256, 8, 32, 4, 128, 2048, 1000),
    "m2": Geometry(1024, 16, 128, 8, 256, 8192, 50_000),
}
"""`tiny` has 39 million weights, `m2` 1.79 billion."""


@dataclass(frozen=True, slots=True)
class _Tensor:
    """One tensor of the file, and how to fill it: a spread around a centre, or given values."""

    name: str
    shape: tuple[int, ...]
    spread: float = _SPREAD
    centre: float = 0.0
    values: tuple[int, ...] | None = None

    @property
    def dtype(self) -> str:
        return "BF16" if self.values is None else "I64"

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * (2 if self.values is None else 8)


def model_config(g: Geometry) -> dict[str, Any]:
    """The `config.json` of a geometry, with a vision tower of two small blocks, which some readers demand."""
    rope = {
        "rope_type": "default",
        "rope_theta": 10_000_000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    }
    text = {
        "model_type": "qwen4_exp_text",
        "vocab_size": g.vocab,
        "hidden_size": g.hidden,
        "num_hidden_layers": g.layers,
        "layer_types": [
            "linear_attention" if (i + 1) % 4 else "full_attention" for i in range(g.layers)
        ],
        "num_attention_heads": g.heads,
        "num_key_value_heads": g.kv_heads,
        "head_dim": g.head_dim,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": g.key_heads,
        "linear_num_value_heads": g.value_heads,
        "moe_intermediate_size": g.inter,
        "shared_expert_intermediate_size": g.inter,
        "num_experts": g.experts,
        "num_experts_per_tok": g.top_k,
        "norm_topk_prob": True,
        "hc_count": 4,
        "hc_lowrank": g.lowrank,
        "ple_layer_ids": [2],
        "ple_embed_dim": g.hidden,
        "ple_conv_kernel_size": 4,
        "ngram_size": 3,
        "heads_per_ngram": 8 if g.hidden >= 512 else 4,
        "ngram_vocab_size_base": g.ngram_base,
        "make_ngram_vocab_size_divisible_by": 128,
        "split_ngram_parts": _NGRAM_PARTS,
        "seed": 1234,
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 128,
        "indexer_budget": g.budget,
        "indexer_compress_ratio": 4,
        "output_gate_type": "sigmoid",
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": 1e-6,
        "rope_parameters": rope,
        "max_position_embeddings": g.context,
        "eos_token_id": _EOS,
        "bos_token_id": _EOS,
        "tie_word_embeddings": False,
        "mtp_num_hidden_layers": 0,
        "dtype": "bfloat16",
    }
    vision = {
        "model_type": "qwen4_exp",
        "depth": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 4,
        "in_channels": 3,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": g.hidden,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [],
    }
    return {
        "architectures": ["Qwen4ExpForConditionalGeneration"],
        "model_type": "qwen4_exp",
        "text_config": text,
        "vision_config": vision,
        "image_token_id": g.vocab - 4,
        "video_token_id": g.vocab - 3,
        "vision_start_token_id": g.vocab - 2,
        "vision_end_token_id": g.vocab - 1,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }


def _tensors(raw: dict[str, Any]) -> Iterator[_Tensor]:
    """Everything the file holds, by its official name."""
    config = parse(raw)
    parts = inventory(config)
    for spec in parts.dense:
        yield dense_tensor(spec, config)
    for expert in parts.experts:
        prefix = _official(expert.prefix).removesuffix("switch_mlp") + "experts"
        rows = (expert.experts, 2 * expert.inter, expert.hidden)
        yield _Tensor(f"{prefix}.gate_up_proj", rows)
        yield _Tensor(f"{prefix}.down_proj", (expert.experts, expert.hidden, expert.inter))
    for table in parts.ngrams:
        shard = (table.rows // _NGRAM_PARTS, table.dim)
        for i in range(_NGRAM_PARTS):
            yield _Tensor(f"{_official(table.prefix)}.shard_{i}.weight", shard)
    yield from _vision(raw["vision_config"])


def _official(name: str) -> str:
    """A canonical name as the published checkpoint has it."""
    name = name.replace("language_model.lm_head", "lm_head", 1)
    return name.replace("language_model.model.", "model.language_model.", 1)


def dense_tensor(spec: TensorSpec, config: Config) -> _Tensor:
    name = _official(spec.name)
    if spec.role is Role.HASH:
        return _Tensor(name, spec.shape, values=_hash_values(name, config))
    if spec.role is Role.MATRIX:
        return _Tensor(f"{name}.weight", spec.shape)
    if name.endswith("conv1d.weight"):
        channels, taps, _ = spec.shape
        return _Tensor(name, (channels, 1, taps), spread=0.3)
    if name.endswith("A_log"):
        return _Tensor(name, spec.shape, spread=0.5, centre=1.0)
    if name.endswith(("dt_bias", "linear_attn.norm.weight")):
        return _Tensor(name, spec.shape, spread=0.1, centre=1.0)
    return _Tensor(name, spec.shape)


def _hash_values(name: str, config: Config) -> tuple[int, ...]:
    """Multipliers are odd and small enough not to wrap; sizes are the primes of the configuration."""
    sizes = config.ngram_rows[0]
    if name.endswith("layer_multipliers"):
        most = (1 << 62) // config.vocab
        drawn = np.random.default_rng(1234).integers(0, most // 2, config.ngram)
        return tuple(2 * int(v) + 1 for v in drawn)
    if name.endswith("ngram_heads_vocab_sizes"):
        return sizes
    return tuple(sum(sizes[:i]) for i in range(len(sizes)))


def _vision(v: dict[str, Any]) -> Iterator[_Tensor]:
    width, inner = v["hidden_size"], v["intermediate_size"]
    merged = width * v["spatial_merge_size"] ** 2
    patch = (v["in_channels"], v["temporal_patch_size"], v["patch_size"], v["patch_size"])
    shapes = {
        "patch_embed.proj": (width, *patch),
        "merger.linear_fc1": (merged, merged),
        "merger.linear_fc2": (v["out_hidden_size"], merged),
        "merger.norm": (width,),
    }
    for i in range(v["depth"]):
        shapes |= {
            f"blocks.{i}.norm1": (width,),
            f"blocks.{i}.norm2": (width,),
            f"blocks.{i}.attn.qkv": (3 * width, width),
            f"blocks.{i}.attn.proj": (width, width),
            f"blocks.{i}.mlp.linear_fc1": (inner, width),
            f"blocks.{i}.mlp.linear_fc2": (width, inner),
        }
    for name, shape in shapes.items():
        yield _Tensor(f"model.visual.{name}.weight", shape)
        yield _Tensor(f"model.visual.{name}.bias", shape[:1])
    yield _Tensor("model.visual.pos_embed.weight", (v["num_position_embeddings"], width))


def _shards(tensors: Iterator[_Tensor]) -> list[list[_Tensor]]:
    shards: list[list[_Tensor]] = [[]]
    filled = 0
    for tensor in tensors:
        if filled and filled + tensor.size_bytes > SHARD_BYTES:
            shards.append([])
            filled = 0
        shards[-1].append(tensor)
        filled += tensor.size_bytes
    return shards


def _header(shard: list[_Tensor]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for t in shard:
        end = offset + t.size_bytes
        entries[t.name] = {"dtype": t.dtype, "shape": t.shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _blocks(tensor: _Tensor, rng: np.random.Generator) -> Iterator[NDArray[Any]]:
    if tensor.values is not None:
        yield np.array(tensor.values, "<i8")
        return
    left = math.prod(tensor.shape)
    while left:
        count = min(left, _BLOCK)
        values = rng.standard_normal(count, dtype=np.float32)
        values *= np.float32(tensor.spread)
        values += np.float32(tensor.centre)
        yield float32_to_bf16(values)
        left -= count


def write_model(folder: Path, geometry: Geometry, seed: int = 0) -> Path:
    """Write the checkpoint into `folder`, unless it already holds the same one. Returns the folder."""
    stamp = {"geometry": asdict(geometry), "seed": seed, "layout": 2}
    marker = folder / "random_model.json"
    if marker.is_file() and json.loads(marker.read_text()) == stamp:
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    marker.unlink(missing_ok=True)
    raw = model_config(geometry)
    (folder / "config.json").write_text(json.dumps(raw, indent=1))
    shards = _shards(_tensors(raw))
    rng = np.random.default_rng(seed)
    places: dict[str, str] = {}
    for i, shard in enumerate(shards):
        name = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        places |= dict.fromkeys((t.name for t in shard), name)
        with (folder / name).open("wb") as file:
            file.write(_header(shard))
            for tensor in shard:
                for block in _blocks(tensor, rng):
                    file.write(block.tobytes())
    total = sum(t.size_bytes for shard in shards for t in shard)
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    write_tokenizer(folder, geometry.vocab)
    marker.write_text(json.dumps(stamp))
    return folder


def write_tokenizer(folder: Path, vocab: int) -> None:
    """A byte-level tokenizer that merges two zero bytes and nothing else: n ASCII letters are n tokens.

    The one merge is there because llama.cpp takes no tokenizer without.
    """
    zero = "\u0100"  # how byte-level tokenizers write a zero byte
    names = [*_SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), zero + zero]
    names += [f"unused{i}" for i in range(vocab - len(names) - 4)]
    names += ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"]
    tokenizer = Tokenizer(
        models.BPE(vocab={n: i for i, n in enumerate(names)}, merges=[(zero, zero)])
    )
    # tokenizers ships no stubs for these two setters.
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment,unused-ignore]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment,unused-ignore]
    tokenizer.add_special_tokens([*_SPECIAL, *names[-4:]])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "chat_template": _CHAT,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
    generation = {"eos_token_id": _EOS, "bos_token_id": _EOS, "do_sample": False}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("geometry", choices=GEOMETRIES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    for field in ("hidden", "layers", "experts", "top_k", "inter", "vocab", "context"):
        parser.add_argument("--" + field.replace("_", "-"), type=int)
    args = parser.parse_args()
    base = GEOMETRIES[args.geometry]
    changes = {k: v for k, v in vars(args).items() if k in asdict(base) and v is not None}
    geometry = replace(base, **changes)
    raw = model_config(geometry)
    write_model(args.folder, geometry, args.seed)
    count = inventory(parse(raw)).parameters()
    print(f"{args.folder}: {count / 1e9:.3f} billion weights, {geometry.experts} experts per layer")


if __name__ == "__main__":
    main()
