"""Fewer bits: the least error there is, against a slow search; and the Rust engine's truncation, code by code."""

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
from cherenkov.packing.refit import maps, refit_codes, refit_values
from cherenkov.packing.truncate import truncated

WIDTHS = (2, 3)


def four_bit(rows=4, width=128, group=64, seed=0, tail=None):
    rng = np.random.default_rng(seed)
    values = (
        rng.standard_normal((rows, width)) if tail is None else rng.standard_t(tail, (rows, width))
    )
    values = values.astype(np.float32) * np.float32(0.02)
    return HostMatrix((rows, width), 4, group, *quantise(values, 4, group))


def lowered(matrix, bits):
    return dequantise(HostMatrix(matrix.shape, bits, matrix.group, *refit_codes(matrix, bits)))


def errors(values, exact, group):
    return ((values - exact).reshape(-1, group).astype(np.float64) ** 2).sum(axis=1)


def slow_least_error(x, bits):
    """The least error of a group over a fine grid of scales and biases, each improved by least squares until it stands still."""
    most = (1 << bits) - 1
    x = x.astype(np.float64)
    reach = x.max() - x.min()
    best = ((x - x.mean()) ** 2).sum()
    for scale in np.linspace(reach / most * 0.35, reach / most * 1.2, 40):
        s = np.full(40, scale)
        t = np.linspace(x.min() - scale, x.max() - scale * most / 2, 40)
        for _ in range(6):
            q = np.clip(np.rint((x - t[:, None]) / s[:, None]), 0, most)
            middle = q.mean(axis=1)
            var = ((q - middle[:, None]) ** 2).sum(axis=1)
            s = ((x - x.mean()) * q).sum(axis=1) / np.where(var > 0, var, np.inf)
            s = np.where(s > 0, s, reach)
            t = x.mean() - s * middle
            best = min(best, ((x - s[:, None] * q - t[:, None]) ** 2).sum(axis=1).min())
    return best


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("tail", [None, 3])
def test_no_scale_and_bias_do_better_than_the_refit_of_codes(bits, tail):
    matrix = four_bit(rows=2, tail=tail)
    exact = dequantise(matrix)
    found = errors(lowered(matrix, bits), exact, 64)
    for group, error in zip(exact.reshape(-1, 64), found, strict=True):
        # BF16 rounds scale and bias, at most by one part in 256 each
        assert error <= 1.03 * slow_least_error(group, bits)


@pytest.mark.parametrize("bits", WIDTHS)
def test_the_refit_of_values_is_nearly_as_good_as_can_be(bits):
    rng = np.random.default_rng(5)
    values = float32_to_bf16(rng.standard_normal((2, 128)).astype(np.float32) * 0.02)
    exact = bf16_to_float32(values)
    form = HostMatrix(exact.shape, bits, 64, *refit_values(exact, bits, 64))
    found = errors(dequantise(form), exact, 64)
    least = [slow_least_error(group, bits) for group in exact.reshape(-1, 64)]
    assert found.sum() <= 1.06 * sum(least)
    plain = HostMatrix(exact.shape, bits, 64, *quantise(exact, bits, 64))
    assert found.sum() < 0.9 * errors(dequantise(plain), exact, 64).sum()


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("group", [32, 64])
def test_a_refit_beats_truncation_at_equal_bytes(bits, group):
    matrix = four_bit(rows=16, width=256, group=group, seed=3)
    exact = dequantise(matrix)
    codes = unpack(matrix.codes, 4).astype(np.float32).reshape(-1, group)
    scale, bias = (bf16_to_float32(p).reshape(-1, 1) for p in (matrix.scales, matrix.biases))
    kept = 2 * (codes // 2) + 0.5 if bits == 3 else 4 * (codes // 4) + 1.5
    cut = (scale * kept + bias).reshape(exact.shape)
    refit = errors(lowered(matrix, bits), exact, group)
    assert (refit <= errors(cut, exact, group) * 1.01).all()
    assert refit.sum() < 0.97 * errors(cut, exact, group).sum()


@pytest.mark.parametrize("bits", WIDTHS)
def test_every_map_is_the_nearest_of_evenly_spaced_levels(bits):
    found = maps(bits)
    assert len(found) == {2: 133, 3: 236}[bits]
    assert len({row.tobytes() for row in found}) == len(found)
    assert (found[:, 0] == 0).all()
    assert (found[:, -1] == (1 << bits) - 1).all()
    steps = np.diff(found.astype(int), axis=1)
    assert steps.min() >= 0
    assert steps.max() == 1  # levels closer than codes would lie idle
    # none is missing that a scale and a bias lead to
    rng = np.random.default_rng(0)
    known = {row.tobytes() for row in found}
    most = (1 << bits) - 1
    scales, biases = rng.uniform(1, 24 / most, 20_000), rng.uniform(-3, 12, 20_000)
    steps = (np.arange(16) - biases[:, None]) / scales[:, None]
    levels = np.clip(np.rint(steps), 0, most)
    levels = levels[(levels[:, 0] == 0) & (levels[:, -1] == most)]
    assert len(levels) > 1000
    assert {row.tobytes() for row in levels.astype(np.uint8)} <= known


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("scale", [0.01, -0.01, 0.0])
def test_flat_and_narrow_groups_come_out_exact(bits, scale):
    for codes in ([7] * 64, [0] * 64, [4, 6] * 32, [15] + [14] * 63):
        packed = pack_codes(np.array([codes], np.uint8), 4)
        pair = (float32_to_bf16(np.array([[v]], np.float32)) for v in (scale, 0.5))
        matrix = HostMatrix((1, 64), 4, 64, packed, *pair)
        np.testing.assert_allclose(lowered(matrix, bits), dequantise(matrix), rtol=0.006)


@pytest.mark.parametrize("bits", WIDTHS)
def test_flat_values_come_out_exact(bits):
    for values in (np.zeros((1, 64), np.float32), np.full((1, 64), 0.5, np.float32)):
        form = HostMatrix((1, 64), bits, 64, *refit_values(values, bits, 64))
        np.testing.assert_array_equal(dequantise(form), values)


# --- truncation


def slow_truncation(codes, bits):
    """The layout as it is specified: word, byte and plane of every code of a chunk."""
    out = bytearray()
    for chunk in np.asarray(codes).reshape(-1, 32).tolist():
        words = [0] * bits
        for place, code in enumerate(chunk):
            half, r = divmod(place, 16)
            plane = (0 if r < 8 else 1) if r % 2 == 0 else (2 if r < 8 else 3)
            byte = (r % 8) // 2
            words[half] |= (code >> 2) << (8 * byte + 2 * plane)
            if bits == 3:
                words[2] |= (code >> 1 & 1) << (8 * byte + 4 * half + plane)
        for word in words:
            out += word.to_bytes(4, "little")
    return bytes(out)


@pytest.mark.parametrize("bits", WIDTHS)
def test_truncation_lies_where_the_specification_says(bits):
    codes = np.random.default_rng(1).integers(0, 16, (3, 64), dtype=np.uint8)
    assert truncated(codes, bits).tobytes() == slow_truncation(codes, bits)
    for place in range(32):  # each code alone, all ones
        one = np.zeros(32, np.uint8)
        one[place] = 15
        assert truncated(one, bits).tobytes() == slow_truncation(one, bits)


def test_known_truncations():
    codes = np.zeros(32, np.uint8)
    codes[[0, 8, 1, 9]] = [0b1100, 0b0100, 0b1000, 0b0110]  # byte 0 of word 0: planes 0, 1, 2, 3
    assert truncated(codes, 2).tobytes() == bytes([0b01_10_01_11, *[0] * 7])
    three = truncated(codes, 3)
    assert three[:4].tobytes() == bytes([0b01_10_01_11, 0, 0, 0])
    assert three[8] == 0b1000  # code 9 alone has its second bit
    codes[16 + 9] = 0b0010
    assert truncated(codes, 3)[8] == 0b1000_1000
