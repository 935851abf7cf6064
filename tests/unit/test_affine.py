"""Affine codes: equal to MLX bit for bit, where MLX can, and to a plain transcription elsewhere."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest

from cherenkov.checkpoint.affine import (
    HostMatrix,
    bf16_to_float32,
    dequantise,
    float32_to_bf16,
    pack_codes,
    quantise,
    unpack,
)


def awkward(rows: int = 96, width: int = 256) -> np.ndarray:
    """BF16 patterns: many scales, constant rows, zeros, one sign only, tiny and large."""
    rng = np.random.default_rng(7)
    x = rng.standard_normal((rows, width)) * rng.choice([1e-9, 1e-3, 1, 100, 1e30], (rows, 1))
    x[3], x[4], x[5], x[6, :64] = 0, -2, 5, 0
    x[7], x[8] = np.abs(x[7]), -np.abs(x[8])
    x[9, 1:], x[10] = 0, np.tile([-1, 1], width // 2)
    return float32_to_bf16(x.astype(np.float32))


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_equals_mlx(bits: int, group: int) -> None:
    mx = pytest.importorskip("mlx.core")
    values = awkward()
    ours = quantise(values, bits, group)
    theirs = mx.quantize(mx.array(values).view(mx.bfloat16), group_size=group, bits=bits)
    assert np.array_equal(ours[0], np.array(theirs[0]))
    assert np.array_equal(ours[1], np.array(theirs[1].view(mx.uint16)))
    assert np.array_equal(ours[2], np.array(theirs[2].view(mx.uint16)))
    back = mx.dequantize(
        theirs[0], *(t.astype(mx.float32) for t in theirs[1:]), group_size=group, bits=bits
    )
    matrix = HostMatrix(values.shape, bits, group, *ours)
    assert np.allclose(dequantise(matrix), np.array(back), rtol=1e-6, atol=0)


def scalar_quantise(group: list[float], bits: int) -> tuple[list[int], float, float]:
    """The algorithm, one float32 at a time."""
    f = lambda x: struct.unpack("<f", struct.pack("<f", x))[0]  # noqa: E731
    most = (1 << bits) - 1
    low, high = min(group), max(group)
    scale = max(f(f(high - low) / most), f(1e-7))
    scale = scale if abs(low) > abs(high) else -scale
    edge = low if abs(low) > abs(high) else high
    steps, bias = round(f(edge / scale)), 0.0
    if steps:
        scale, bias = f(edge / steps), edge
    codes = [min(max(round(f(f(x - bias) / scale)), 0), most) for x in group]
    return codes, scale, bias


@pytest.mark.parametrize(("bits", "group"), [(4, 8), (4, 16), (4, 24), (4, 32), (8, 16), (3, 32)])
def test_equals_a_plain_transcription(bits: int, group: int) -> None:
    values = float32_to_bf16(
        np.random.default_rng(bits * group).standard_normal((5, 96)).astype(np.float32)
    )
    codes, scales, biases = quantise(values, bits, group)
    spread = unpack(codes, bits).reshape(-1, group)
    for i, part in enumerate(bf16_to_float32(values).reshape(-1, group).tolist()):
        expected, scale, bias = scalar_quantise(part, bits)
        assert spread[i].tolist() == expected
        pair = float32_to_bf16(np.array([scale, bias], np.float32))
        assert [scales.reshape(-1)[i], biases.reshape(-1)[i]] == pair.tolist()


def test_3_bit_codes_straddle_words() -> None:
    codes = np.arange(32, dtype=np.uint8)[None] % 8
    packed = pack_codes(codes, 3)
    number = int.from_bytes(packed.tobytes(), "little")
    assert packed.shape == (1, 3)
    assert [number >> 3 * i & 7 for i in range(32)] == codes[0].tolist()


def test_stacked_matrices_are_quantised_row_by_row() -> None:
    values = awkward(12, 128).reshape(3, 4, 128)
    whole = quantise(values, 4, 32)
    for part, expected in zip(quantise(values[1], 4, 32), whole, strict=True):
        assert np.array_equal(part, expected[1])


def test_float32_input_that_is_bf16_gives_the_same() -> None:
    values = awkward()
    for a, b in zip(quantise(values), quantise(bf16_to_float32(values)), strict=True):
        assert np.array_equal(a, b)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_refuses_what_is_not_finite(bad: float) -> None:
    values = np.zeros((3, 64), np.float32)
    values[1, 7] = bad
    with pytest.raises(ValueError, match="not finite"):
        quantise(values)


def test_refuses_a_range_that_overflows() -> None:
    values = np.zeros((1, 64), np.float32)
    values[0, :2] = 3.3e38, -3.3e38
    with pytest.raises(ValueError, match="overflows"):
        quantise(values)


@pytest.mark.parametrize(
    ("bits", "group", "width"), [(5, 64, 64), (4, 48, 64), (4, 0, 64), (3, 8, 8)]
)
def test_refuses_shapes_that_do_not_divide(bits: int, group: int, width: int) -> None:
    with pytest.raises(ValueError, match=r"bits|divide"):
        quantise(np.zeros((1, width), np.float32), bits, group)


def test_bf16_rounds_to_nearest_even() -> None:
    cases = {1.0: 0x3F80, 1.00390625: 0x3F80, 1.01171875: 0x3F82, -0.0: 0x8000, 3.4e38: 0x7F80}
    found = float32_to_bf16(np.array(list(cases), np.float32))
    assert found.tolist() == list(cases.values())
    assert np.isnan(bf16_to_float32(float32_to_bf16(np.array([math.nan], np.float32))))[0]


def test_plain_matrices_dequantise_to_themselves() -> None:
    values = awkward(12, 64)[:4]
    assert np.array_equal(dequantise(HostMatrix((4, 64), 16, 0, values)), bf16_to_float32(values))
    single = bf16_to_float32(values)
    assert np.array_equal(dequantise(HostMatrix((4, 64), 32, 0, single)), single)
    with pytest.raises(ValueError, match="scales"):
        dequantise(HostMatrix((4, 64), 4, 64, np.zeros((4, 8), np.uint32)))
