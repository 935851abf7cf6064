"""MLX's affine quantisation, on the host.

A matrix `[out, in]` is cut into groups along its rows; `value = scale * code + bias` with BF16 scale and bias.
Codes are packed little-endian into 32-bit words, first code in the lowest bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["HostMatrix"]


@dataclass(frozen=True, slots=True)
class HostMatrix:
    """A matrix `[out, in]` as it is stored, before a backend places it.

    Attributes:
        shape: (out, in).
        bits: 2, 3, 4 or 8 for affine codes; 16 for BF16 values; 32 for float32 values.
        group: weights per scale along a row; 0 for values.
        codes: uint32 `[out, in * bits / 32]`, or uint16 (BF16) or float32 `[out, in]`.
        scales: uint16 (BF16) `[out, in / group]`, or None for values.
        biases: as `scales`.
    """

    shape: tuple[int, int]
    bits: int
    group: int
    codes: NDArray[np.uint32] | NDArray[np.uint16] | NDArray[np.float32]
    scales: NDArray[np.uint16] | None = None
    biases: NDArray[np.uint16] | None = None
