"""Glow as float32 tensors under Hugging Face names, from its BF16 files or dequantised from its 4-bit file.

NumPy only, and no code of the library: this feeds the oracle.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["BF16", "FOUR_BIT", "dequantised", "half_precision", "read_safetensors"]

_ROOT = Path(__file__).parents[2]
FOUR_BIT = _ROOT / "cherenkov" / "demo"
BF16 = _ROOT.parent / "shared" / "demo-model" / "glow-bf16"
"""Lies beside the repository, if at all: 93 MB of BF16 weights do not travel with it."""

Tensors = dict[str, NDArray[Any]]
_FOLDED = (
    "hc_norm.weight",
    "q_norm.weight",
    "k_norm.weight",
    "q_layernorm.weight",
    "k_layernorm.weight",
    "norm_key.weight",
    "norm_query.weight",
    "norm_conv.weight",
)


def read_safetensors(path: Path) -> Tensors:
    """Every tensor of one file: BF16 as float32, U32 and I64 as they are."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    body = memoryview(data)[8 + size :]
    tensors: Tensors = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        start, stop = entry["data_offsets"]
        kind = {"BF16": "<u2", "U32": "<u4", "I64": "<i8"}[entry["dtype"]]
        value = np.frombuffer(body[start:stop], kind).reshape(entry["shape"])
        if entry["dtype"] == "BF16":
            value = (value.astype("<u4") << 16).view("<f4")
        tensors[name] = value
    return tensors


def half_precision(folder: Path = BF16) -> Tensors:
    """The BF16 form, as it lies in its shards."""
    tensors: Tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= read_safetensors(path)
    return tensors


def dequantised(folder: Path = FOUR_BIT) -> Tensors:
    """The 4-bit form: codes become values, folded norms become zero-centred, names and layouts become the other's."""
    stored = read_safetensors(folder / "model.safetensors")
    tensors: Tensors = {}
    for name, value in stored.items():
        if not name.endswith((".scales", ".biases")):
            renamed = name.replace("language_model.model.", "model.language_model.", 1)
            renamed = renamed.replace("language_model.lm_head", "lm_head", 1)
            tensors[renamed] = _value(stored, name, value)
    return _fused(tensors)


def _value(stored: Tensors, name: str, value: NDArray[Any]) -> NDArray[Any]:
    if value.dtype == np.uint32:
        stem = name.removesuffix(".weight")
        return _affine(value, stored[f"{stem}.scales"], stored[f"{stem}.biases"])
    if name.endswith("conv1d.weight"):
        return value.transpose(0, 2, 1)
    return value - np.float32(1) if name.endswith(_FOLDED) else value


def _affine(
    codes: NDArray[np.uint32], scales: NDArray[np.float32], biases: NDArray[np.float32]
) -> NDArray[np.float32]:
    """`scale * code + bias`, codes packed eight to a word, first code lowest."""
    unpacked = (codes[..., None] >> (4 * np.arange(8, dtype=np.uint32)) & 15).astype(np.float32)
    groups = unpacked.reshape(*scales.shape, -1)
    values = groups * scales[..., None] + biases[..., None]
    return values.reshape(*codes.shape[:-1], -1)


def _fused(tensors: Tensors) -> Tensors:
    """Experts as one tensor of gates above ups, and one of downs."""
    result: Tensors = {}
    for name, value in tensors.items():
        stem, switch, kind = name.partition(".switch_mlp.")
        if not switch:
            result[name] = value
        elif kind == "down_proj.weight":
            result[f"{stem}.experts.down_proj"] = value
        elif kind == "gate_proj.weight":
            up = tensors[f"{stem}.switch_mlp.up_proj.weight"]
            result[f"{stem}.experts.gate_up_proj"] = np.concatenate([value, up], axis=1)
    return result
