"""MLX's affine quantisation, on the host.

A matrix `[out, in]` is cut into groups along its rows; `value = scale * code + bias` with BF16 scale and bias.
Codes are packed little-endian into 32-bit words, first code in the lowest bits; a 3-bit code may straddle words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "WIDTHS",
    "HostMatrix",
    "bf16_to_float32",
    "dequantise",
    "float32_to_bf16",
    "pack_codes",
    "quantise",
    "unpack",
]

WIDTHS = (2, 3, 4, 8)
"""Bits per code that the format knows."""
_SMALLEST_STEP = np.float32(1e-7)
_BLOCK = (
    1 << 17
)  # weights quantised at a time: few enough for the cache, enough to hide NumPy's calls


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


def bf16_to_float32(values: NDArray[np.uint16]) -> NDArray[np.float32]:
    """BF16 bit patterns as the float32 numbers they stand for; exact."""
    wide: NDArray[np.uint32] = values.astype(np.uint32)
    wide <<= np.uint32(16)
    return wide.view(np.float32)


def float32_to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The nearest BF16 bit patterns, ties to even. NaN stays NaN; what overflows becomes infinite."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)


def unpack(codes: NDArray[np.uint32], bits: int) -> NDArray[np.uint8]:
    """Spread packed codes out, one per byte.

    Args:
        codes: uint32 `[..., W]`.
        bits: 2, 3, 4 or 8.

    Returns:
        uint8 `[..., W * 32 / bits]`.

    Raises:
        ValueError: if `bits` is another number, or W words do not hold a whole number of codes.
    """
    _check_width(bits)
    octets = np.ascontiguousarray(codes, dtype="<u4").view(np.uint8)  # [..., 4 W]
    if bits == 8:
        return octets
    lead, count = octets.shape[:-1], octets.shape[-1]
    if count % 3 and bits == 3:
        raise ValueError(f"{count} bytes do not hold a whole number of 3-bit codes")
    if bits == 3:
        packs = octets.reshape(*lead, count // 3, 3).astype(np.uint32)
        word = packs[..., 0] | packs[..., 1] << np.uint32(8) | packs[..., 2] << np.uint32(16)
        shifts = np.arange(8, dtype=np.uint32) * np.uint32(3)
        spread: NDArray[np.uint8] = (word[..., None] >> shifts & np.uint32(7)).astype(np.uint8)
    else:
        spread = np.empty((*lead, count, 8 // bits), dtype=np.uint8)
        for i in range(8 // bits):  # a pass each: several times faster than broadcasting the shifts
            spread[..., i] = octets >> np.uint8(i * bits) & np.uint8((1 << bits) - 1)
    return spread.reshape(*lead, count * 8 // bits)


def pack_codes(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint32]:
    """Undo `unpack`: uint8 `[..., n]`, each below `2**bits`, to uint32 `[..., n * bits / 32]`."""
    _check_width(bits)
    lead, count = codes.shape[:-1], codes.shape[-1]
    if count * bits % 32:
        raise ValueError(f"{count} codes of {bits} bits do not fill 32-bit words")
    if bits == 8:
        octets = codes
    elif bits == 3:
        eights = codes.reshape(*lead, count // 8, 8).astype(np.uint32)
        word = np.bitwise_or.reduce(eights << np.arange(8, dtype=np.uint32) * np.uint32(3), axis=-1)
        triple = word[..., None] >> np.array([0, 8, 16], np.uint32) & np.uint32(0xFF)
        octets = triple.astype(np.uint8).reshape(*lead, count * 3 // 8)
    else:
        per = 8 // bits
        parts = codes.reshape(*lead, count // per, per)
        octets = parts[..., 0].copy()
        for i in range(1, per):
            octets |= parts[..., i] << np.uint8(i * bits)
    return np.ascontiguousarray(octets).view("<u4").astype(np.uint32, copy=False)


def dequantise(matrix: HostMatrix) -> NDArray[np.float32]:
    """The values a stored matrix stands for, float32 `[out, in]`."""
    if matrix.codes.dtype == np.float32:
        return matrix.codes.astype(np.float32, copy=False)
    if matrix.codes.dtype == np.uint16:
        return bf16_to_float32(matrix.codes.astype(np.uint16, copy=False))
    if matrix.scales is None or matrix.biases is None:
        raise ValueError("a matrix of codes needs scales and biases")
    rows, width = matrix.shape
    values = unpack(matrix.codes.astype(np.uint32, copy=False), matrix.bits).astype(np.float32)
    values = values.reshape(rows, width // matrix.group, matrix.group)
    values *= bf16_to_float32(matrix.scales)[..., None]
    values += bf16_to_float32(matrix.biases)[..., None]
    return values.reshape(rows, width)


def quantise(
    values: NDArray[np.float32] | NDArray[np.uint16], bits: int = 4, group: int = 64
) -> tuple[NDArray[np.uint32], NDArray[np.uint16], NDArray[np.uint16]]:
    """Quantise as MLX does, bit for bit.

    Per group, in float32: the step is (max - min) / (2**bits - 1), negative when the maximum is the larger end;
    the larger end becomes a whole number of steps; codes come from the unrounded scale and bias, and only
    then are those two rounded to BF16.

    Args:
        values: float32, or BF16 bit patterns as uint16, `[..., n]`.
        bits: 2, 3, 4 or 8.
        group: weights per scale; divides n. Any size, also those that MLX's own `quantize` refuses.

    Returns:
        codes uint32 `[..., n * bits / 32]`, scales and biases BF16 as uint16 `[..., n / group]`.

    Raises:
        ValueError: if a value, a scale or a bias is not finite, or the shape does not divide.

    Source: MLX `affine_quantize`.
    """
    _check_width(bits)
    lead, width = values.shape[:-1], values.shape[-1]
    if group <= 0 or width % group or width * bits % 32 or group * bits % 8:
        raise ValueError(f"rows of {width} do not divide into groups of {group} with {bits} bits")
    groups = np.ascontiguousarray(values).reshape(-1, group)
    codes = np.empty((len(groups), group * bits // 8), np.uint8)
    scales = np.empty((2, len(groups)), np.uint16)
    step = max(1, _BLOCK // group)
    for start in range(0, len(groups), step):
        block = slice(start, start + step)
        part = groups[block]
        is_bf16 = part.dtype == np.uint16
        wide = bf16_to_float32(part.astype(np.uint16)) if is_bf16 else part.astype(np.float32)
        codes[block], scales[:, block] = _quantise_groups(wide, bits)
    return (
        codes.reshape(*lead, width * bits // 8).view("<u4").astype(np.uint32, copy=False),
        scales[0].reshape(*lead, width // group),
        scales[1].reshape(*lead, width // group),
    )


def _quantise_groups(
    values: NDArray[np.float32], bits: int
) -> tuple[NDArray[np.uint8], NDArray[np.uint16]]:
    """Groups `[G, g]` (overwritten) to packed octets `[G, g * bits / 8]` and BF16 scale and bias `[2, G]`."""
    low, high = values.min(axis=1), values.max(axis=1)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ValueError("a value is not finite")
    most = np.float32((1 << bits) - 1)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        from_low = np.abs(low) > np.abs(high)
        scale = np.maximum((high - low) / most, _SMALLEST_STEP)
        scale = np.where(from_low, scale, -scale)
        edge = np.where(from_low, low, high)
        steps = np.rint(edge / scale)
        whole = steps != 0
        scale = np.where(whole, edge / np.where(whole, steps, np.float32(1)), scale)
        bias = np.where(whole, edge, np.float32(0))
        values -= bias[:, None]
        values /= scale[:, None]
    np.rint(values, out=values)
    np.clip(values, 0, most, out=values)
    pair = np.stack([float32_to_bf16(scale), float32_to_bf16(bias)])
    if ((pair & 0x7F80) == 0x7F80).any():
        raise ValueError("the range of a group overflows BF16")
    return _octets(values.astype(np.uint8), bits), pair


def _octets(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Pack codes into bytes; rows need not fill 32-bit words."""
    if bits == 4:
        return codes[:, ::2] | codes[:, 1::2] << np.uint8(4)
    rows = codes.reshape(1, -1)
    return pack_codes(rows, bits).view(np.uint8).reshape(len(codes), -1)


def _check_width(bits: int) -> None:
    if bits not in WIDTHS:
        raise ValueError(f"bits = {bits}: not one of {', '.join(map(str, WIDTHS))}")
