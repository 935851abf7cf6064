"""The Rust engine's low-bit form of a record: 4-bit codes without their lowest bits, in an order of its own.

Three bits keep c = q >> 1, which stands for scale (2 c + 1/2) + bias; two bits keep c = q >> 2, for scale (4 c + 3/2) + bias: the middle of
what they cover. Scales and biases stay those of the 4-bit record.

A chunk is 32 codes in a row. Two bits take two words of 16 codes: byte j of a word holds codes 2j, 2j + 8, 2j + 1 and 2j + 9, lowest bits first, so
that one mask yields codes for a stream of inputs whose even and odd places lie apart. Three bits take three words: the upper two bits of each code lie as
the two-bit ones do, and the third word holds the lowest bits of both halves, four of each half to a byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["CHUNK", "truncated"]

CHUNK = 32
"""Codes that are packed together; the number of a matrix must be a multiple."""


def truncated(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """4-bit codes, one a byte and any shape, as packed bytes of `bits` bits: `[codes * bits / 8]`.

    Args:
        codes: each below 16; their number is a multiple of 32.
        bits: 2 or 3.
    """
    halves = codes.reshape(-1, 2, CHUNK // 2)  # [chunks, half, 16]
    if bits == 2:
        return _planes(halves >> np.uint8(2), 2).reshape(-1)
    words = np.empty((len(halves), 3, 4), np.uint8)
    words[:, :2] = _planes(halves >> np.uint8(2), 2)
    low = _planes(halves >> np.uint8(1) & np.uint8(1), 1)  # [chunks, half, 4]
    words[:, 2] = low[:, 0] | low[:, 1] << np.uint8(4)
    return words.reshape(-1)


def _planes(codes: NDArray[np.uint8], width: int) -> NDArray[np.uint8]:
    """Four codes of `width` bits to a byte: `[..., 16]` to `[..., 4]`."""
    near, far = codes[..., :8], codes[..., 8:]
    parts = (near[..., 0::2], far[..., 0::2], near[..., 1::2], far[..., 1::2])
    packed = np.zeros(parts[0].shape, np.uint8)
    for plane, part in enumerate(parts):
        packed |= part << np.uint8(plane * width)
    return packed
