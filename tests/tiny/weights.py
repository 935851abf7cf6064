"""Weights from a seed.

Values come from raw PCG64 words by integer arithmetic, so a seed gives the same bits under every NumPy version,
and every value is a BF16 number. Scales are such that every part of the model moves the logits.
"""

from __future__ import annotations

import math
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tests.tiny.shapes import LM, head_sizes, shapes

if TYPE_CHECKING:
    from tests.tiny.configs import Json

__all__ = ["Tensors", "fingerprint", "to_bf16", "weights"]

Tensors = dict[str, NDArray[Any]]
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
    """All tensors of a checkpoint, by Hugging Face name: BF16-representable float32, and int64 hash parameters.

    Where the configuration has an `initializer_range`, it is the standard deviation of what goes into DeltaNet.
    """
    faint = text.get("initializer_range")
    tensors: Tensors = {n: _values(n, s, seed, faint) for n, s in shapes(text).items()}
    for index, layer in enumerate(sorted(text.get("ple_layer_ids") or [])):
        prefix = f"{LM}layers.{layer - 1}.ple.ple_embedding."
        table = tensors.pop(f"{prefix}ngram_embedding.weight")
        parts = np.split(table, text["split_ngram_parts"])
        tensors |= {f"{prefix}ngram_embedding.shard_{i}.weight": p for i, p in enumerate(parts)}
        sizes = head_sizes(text, index)
        offsets = [sum(sizes[:i]) for i in range(len(sizes))]
        tensors[f"{prefix}layer_multipliers"] = np.array(_multipliers(text, index), np.int64)
        tensors[f"{prefix}ngram_heads_vocab_sizes"] = np.array(sizes, np.int64)
        tensors[f"{prefix}ngram_heads_offsets"] = np.array(offsets, np.int64)
    return tensors


def _values(
    name: str, shape: tuple[int, ...], seed: int, faint: float | None
) -> NDArray[np.float32]:
    noise = _normal(f"{seed}/{name}", math.prod(shape)).reshape(shape)
    if "norm" in name.rsplit(".", 2)[-2]:
        return to_bf16(0.2 * noise + (1.0 if "linear_attn.norm" in name else 0.0))
    for suffix, std in _STD.items():
        if name.endswith(suffix):
            return to_bf16(std * noise - (1.5 if suffix == "A_log" else 0.0))
    if faint and name.endswith("in_proj_qkv.weight"):
        return to_bf16(faint * noise)
    gain = next((g for suffix, g in _GAIN.items() if name.endswith(suffix)), 1.0)
    return to_bf16(gain / math.sqrt(shape[-1]) * noise)


def _normal(key: str, count: int) -> NDArray[np.float64]:
    """Nearly normal values of variance 1: the sum of a raw word's four 16-bit parts."""
    raw = np.random.PCG64(np.random.SeedSequence(zlib.crc32(key.encode()))).random_raw(count)
    parts = np.asarray(raw, "<u8").view("<u2").reshape(count, 4).sum(axis=1, dtype=np.int64)
    centred: NDArray[np.float64] = (parts - 2 * 65535) / (65536 / math.sqrt(3))
    return centred


def to_bf16(values: NDArray[np.floating]) -> NDArray[np.float32]:
    """Rounded to the nearest BF16 value, ties to even."""
    bits = values.astype("<f4").view("<u4")
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
    rounded: NDArray[np.float32] = bits.view("<f4")
    return rounded


def fingerprint(tensors: Tensors) -> int:
    """A checksum over names and bytes, to tell whether recorded vectors belong to these weights."""
    total = 0
    for name in sorted(tensors):
        total = zlib.crc32(
            np.ascontiguousarray(tensors[name]).tobytes(), zlib.crc32(name.encode(), total)
        )
    return total
