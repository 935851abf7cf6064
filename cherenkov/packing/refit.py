"""Fewer bits for weights that were quantised or not: per group, the scale and bias that minimise the squared error.

A group of n weights x gets codes q in 0..L, L = 2^b - 1, and stands for s q + t. For given codes the best s and t are those of the
least-squares line,

    s = cov(x, q) / var(q),    t = mean(x) - s mean(q),    error = var(x) - cov(x, q)^2 / var(q),

and for given s and t the best code of a weight is the nearest, q = clip(round((x - t) / s), 0, L). An optimum is a fixed point of both.

Weights that are 4-bit codes have 16 possible values a group, so a group is a histogram h over c = 0..15, and only finitely many ways to
map c to q are the nearest for some s and t and use every level: 133 for two bits and 236 for three (`maps`). `refit_codes` tries all of them: what cov
and var are made of is linear in h, three matrix products for all maps, and the optimum over all such s and t comes out. Weights that are values have no such
list; `refit_values` begins with several ranges, some clipped, alternates the two steps, and keeps the best.

Scale and bias are rounded to BF16 as the format wants, and the codes are then chosen once more for the rounded ones.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from cherenkov.checkpoint.affine import bf16_to_float32, float32_to_bf16, pack_codes, unpack

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from cherenkov.checkpoint.affine import HostMatrix

    Quantised = tuple[NDArray[np.uint32], NDArray[np.uint16], NDArray[np.uint16]]
    Floats = NDArray[np.float32]

__all__ = ["maps", "refit_codes", "refit_values"]

_CODES = 16
_NEAR = 1e-4
"""Less than half the distance between any two crossings of lines in `maps`."""
_GROUPS = 128
_MAPS = 128
"""Groups and maps multiplied at a time. Any more, and OpenBLAS would start threads of its own under each of ours."""
_VALUES = 1024
"""Groups of values worked on at a time: few enough for the cache."""
_CLIPS = {2: (1.0, 0.85, 0.7, 0.55), 3: (1.0, 0.92, 0.84, 0.72)}
"""Of the range between a group's extremes, the parts that alternation begins with."""
_ROUNDS = 6
_LEAST_VARIANCE = np.float32(0.5)
"""Of levels, times the group: one weight apart from all others makes more, and if none is, the slope must come out as 0."""
_SMALLEST = np.float32(1e-30)


@functools.cache
def maps(bits: int) -> NDArray[np.uint8]:
    """Ways to map 16 codes to the nearest of 2^bits evenly spaced values, such that each is used: `[M, 16]`.

    The spacing is 1 or more; closer levels lie idle between codes. A map changes where a code c lies half-way between two levels: on the
    lines t = c - (k + 1/2) s. Every map is a cell between such lines and has a corner where two of them cross, so it is enough
    to look in all directions from all crossings.
    """
    most = (1 << bits) - 1
    codes, halves = np.arange(_CODES), np.arange(most) + 0.5
    found: set[bytes] = set()
    for scale in np.unique([c / k for c in codes for k in range(1, most + 1)]):
        crossings = np.unique(codes[:, None] - halves * scale)
        for step in (_NEAR, -_NEAR):
            for slope in range(most + 1) if scale + step > 1 else ():  # between the lines' slopes
                start = (crossings - slope * step)[:, None]
                levels = np.clip(np.rint((codes - start) / (scale + step)), 0, most)
                used = (levels[:, 0] == 0) & (levels[:, -1] == most)
                found |= {row.tobytes() for row in levels[used].astype(np.uint8)}
    return np.frombuffer(b"".join(sorted(found)), np.uint8).reshape(-1, _CODES)


def refit_codes(matrix: HostMatrix, bits: int) -> Quantised:
    """The best `bits`-bit form of a 4-bit matrix `[rows, width]`, in groups of the same size.

    Args:
        matrix: codes, scales and biases.
        bits: 2 or 3.

    Returns:
        codes uint32 `[rows, width * bits / 32]`, scales and biases BF16 as uint16 `[rows, width / group]`.
    """
    assert matrix.bits == 4
    assert matrix.scales is not None
    assert matrix.biases is not None
    group = matrix.group
    codes = unpack(matrix.codes.astype(np.uint32, copy=False), 4).reshape(-1, group)
    scales, biases = matrix.scales.reshape(-1), matrix.biases.reshape(-1)
    levels = np.empty_like(codes)
    pair = np.empty((2, len(codes)), np.uint16)
    for start in range(0, len(codes), _GROUPS):
        block = slice(start, start + _GROUPS)
        table, pair[:, block] = _best_maps(codes[block], scales[block], biases[block], bits)
        levels[block] = np.take_along_axis(table, codes[block].astype(np.intp), axis=1)
    return _packed(levels, pair, matrix.shape, bits)


def refit_values(values: Floats, bits: int, group: int) -> Quantised:
    """A good `bits`-bit form of values `[rows, width]`: the best of several alternations.

    Args:
        values: finite.
        bits: 2 or 3.
        group: weights per scale; divides the width.

    Returns:
        As `refit_codes`.
    """
    groups = np.ascontiguousarray(values, np.float32).reshape(-1, group)
    levels = np.empty(groups.shape, np.uint8)
    pair = np.empty((2, len(groups)), np.uint16)
    for start in range(0, len(groups), _VALUES):
        block = slice(start, start + _VALUES)
        scale, bias = _alternated(groups[block], bits)
        pair[:, block] = _rounded(scale, bias)
        levels[block] = _nearest(groups[block], pair[:, block], bits)
    return _packed(levels, pair, values.shape, bits)


def _best_maps(
    codes: NDArray[np.uint8], scales: NDArray[np.uint16], biases: NDArray[np.uint16], bits: int
) -> tuple[NDArray[np.uint8], NDArray[np.uint16]]:
    """For groups `[G, n]`: the level of each code, `[G, 16]`, and BF16 scale and bias `[2, G]`."""
    count, size = codes.shape
    places = codes + np.arange(0, count * _CODES, _CODES, dtype=np.int64)[:, None]
    counts = np.bincount(places.reshape(-1), minlength=count * _CODES)
    histogram: Floats = counts.reshape(count, _CODES).astype(np.float32)
    means = histogram @ np.arange(_CODES, dtype=np.float32) / size  # of the codes
    sum_of, var, cov = (_product(histogram, of) for of in _moments(bits))  # [G, M]
    cov -= means[:, None] * sum_of
    var -= sum_of * (sum_of / np.float32(size))
    np.maximum(var, _LEAST_VARIANCE, out=var)
    best = (cov * cov / var).argmax(axis=1)
    at = np.arange(count), best
    slope = cov[at] / var[at]  # in steps of the 4-bit scale
    start = means - slope * sum_of[at] / np.float32(size)
    scale, bias = bf16_to_float32(scales), bf16_to_float32(biases)
    pair = _rounded(slope * scale, start * scale + bias)
    values = np.arange(_CODES, dtype=np.float32) * scale[:, None] + bias[:, None]
    return _nearest(values, pair, bits), pair


def _product(histogram: Floats, of: Floats) -> Floats:
    product = np.empty((len(histogram), of.shape[1]), np.float32)
    for start in range(0, of.shape[1], _MAPS):
        block = slice(start, start + _MAPS)
        np.matmul(histogram, of[:, block], out=product[:, block])
    return product


@functools.cache
def _moments(bits: int) -> tuple[Floats, Floats, Floats]:
    """What a histogram is multiplied with, `[16, M]` each: q, q^2 and c q of every map."""
    levels = maps(bits).T.astype(np.float32)
    return levels, levels**2, levels * np.arange(_CODES, dtype=np.float32)[:, None]


def _alternated(groups: Floats, bits: int) -> tuple[Floats, Floats]:
    """Scale and bias `[G]` of the best alternation."""
    most = np.float32((1 << bits) - 1)
    low, high, mean = groups.min(axis=1), groups.max(axis=1), groups.mean(axis=1)
    centred = groups - mean[:, None]
    most_gain = np.full(len(groups), -1, np.float32)
    best = np.zeros((2, len(groups)), np.float32)
    for clip in _CLIPS[bits]:
        scale = np.maximum((high - low) * np.float32(clip) / most, _SMALLEST)
        bias = (high + low - scale * most) / 2
        gain = most_gain
        for _ in range(_ROUNDS):
            levels = np.clip(np.rint((groups - bias[:, None]) / scale[:, None]), 0, most)
            scale, middle, gain = _line(levels, centred, scale)
            bias = mean - scale * middle
        best = np.where(gain > most_gain, np.stack([scale, bias]), best)
        most_gain = np.maximum(gain, most_gain)
    return best[0], best[1]


def _line(levels: Floats, centred: Floats, scale: Floats) -> tuple[Floats, Floats, Floats]:
    """The least-squares slope of each group, its mean level (taken from `levels`), and what it explains: n var(x) - error."""
    middle = levels.mean(axis=1)
    levels -= middle[:, None]
    var = np.einsum("gn,gn->g", levels, levels)
    cov = np.einsum("gn,gn->g", levels, centred)
    fits = (var > 0) & (cov > 0)
    spread = np.where(fits, var, np.float32(1))
    slope = np.where(fits, np.maximum(cov / spread, _SMALLEST), scale)
    return slope, middle, np.where(fits, cov * cov / spread, np.float32(0))


def _rounded(scale: Floats, bias: Floats) -> NDArray[np.uint16]:
    return np.stack([float32_to_bf16(scale), float32_to_bf16(bias)])


def _nearest(values: Floats, pair: NDArray[np.uint16], bits: int) -> NDArray[np.uint8]:
    """Codes of `values` `[G, n]` for BF16 scale and bias `[2, G]`. A scale of 0 leaves the bias alone."""
    scale, bias = bf16_to_float32(pair)
    steps = (values - bias[:, None]) / np.where(scale == 0, np.float32(np.inf), scale)[:, None]
    codes: NDArray[np.uint8] = np.clip(np.rint(steps), 0, (1 << bits) - 1).astype(np.uint8)
    return codes


def _packed(
    levels: NDArray[np.uint8], pair: NDArray[np.uint16], shape: tuple[int, ...], bits: int
) -> Quantised:
    rows = shape[0]
    return pack_codes(levels.reshape(shape), bits), *pair.reshape(2, rows, -1)
