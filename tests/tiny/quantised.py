"""What remains of tiny weights after preparing them in 4 bits, written down a second time.

MLX's affine quantisation in float32, as docs/format.md describes it; no code of the library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tests.tiny.weights import Tensors, to_bf16

if TYPE_CHECKING:
    from tests.tiny.configs import Json

__all__ = ["four_bit"]

Floats = NDArray[np.float32]

_KEPT = ("norm.weight", "conv1d.weight", "mlp.gate.weight", "shared_expert_gate.weight")
_CENTRED = [
    "hc_norm",
    "q_norm",
    "k_norm",
    "q_layernorm",
    "k_layernorm",
    "norm_key",
    "norm_query",
    "norm_conv",
]


def four_bit(text: Json, tensors: Tensors) -> Tensors:
    """The values that a 4-bit store holds. Norms come back zero-centred: the store rounds 1 + w to BF16."""
    group = 32 if text["hidden_size"] % 64 or text["moe_intermediate_size"] % 64 else 64
    return {name: _stored(name, value, group) for name, value in tensors.items()}


def _stored(name: str, value: NDArray[Any], group: int) -> NDArray[Any]:
    parts = name.split(".")
    if value.dtype != np.float32:
        return value
    if "ngram_embedding" in parts:
        return _rounded(
            value, next(size for size in (64, 32, 16, 8) if value.shape[-1] % size == 0)
        )
    if parts[-2] in _CENTRED:
        return to_bf16(value + np.float32(1)) - np.float32(1)
    if value.ndim == 1 or name.endswith(_KEPT) or value.shape[-1] % group:
        return value
    return _rounded(value, group)


def _rounded(values: Floats, group: int) -> Floats:
    """Every group of a row becomes `scale * code + bias`, codes 0 to 15."""
    x = values.reshape(-1, group)
    low, high = x.min(axis=1), x.max(axis=1)
    step = np.maximum((high - low) / np.float32(15), np.float32(1e-7))
    negative = np.abs(low) > np.abs(high)
    edge, scale = np.where(negative, low, high), np.where(negative, step, -step)
    zero = np.rint(edge / scale)
    scale = np.where(zero != 0, edge / np.where(zero != 0, zero, 1), scale)
    bias = np.where(zero != 0, edge, np.float32(0))
    codes = np.clip(np.rint((x - bias[:, None]) / scale[:, None]), 0, 15)
    kept = codes * to_bf16(scale)[:, None] + to_bf16(bias)[:, None]
    rounded: Floats = kept.astype(np.float32).reshape(values.shape)
    return rounded
