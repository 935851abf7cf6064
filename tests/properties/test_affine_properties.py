"""Affine codes on any BF16 input."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cherenkov.checkpoint.affine import (
    HostMatrix,
    bf16_to_float32,
    dequantise,
    float32_to_bf16,
    pack_codes,
    quantise,
    unpack,
)

finite = st.integers(0, 0xFFFF).filter(lambda n: n & 0x7F80 < 0x7E00)
matrices = arrays(np.uint16, (4, 64), elements=finite, fill=st.just(0))


@given(st.sampled_from([2, 3, 4, 8]), st.integers(1, 4), st.data())
def test_packing_round_trips(bits: int, words: int, data: st.DataObject) -> None:
    codes = data.draw(arrays(np.uint8, (2, 32 * words), elements=st.integers(0, 2**bits - 1)))
    packed = pack_codes(codes, bits)
    assert packed.shape == (2, words * bits)
    assert np.array_equal(unpack(packed, bits), codes)


@given(matrices, st.sampled_from([2, 3, 4, 8]), st.sampled_from([32, 64]))
@settings(max_examples=60)
def test_equals_mlx_on_any_bits(values: np.ndarray, bits: int, group: int) -> None:
    mx = pytest.importorskip("mlx.core")
    theirs = mx.quantize(mx.array(values).view(mx.bfloat16), group_size=group, bits=bits)
    ours = quantise(values, bits, group)
    assert np.array_equal(ours[0], np.array(theirs[0]))
    assert np.array_equal(ours[1], np.array(theirs[1].view(mx.uint16)))
    assert np.array_equal(ours[2], np.array(theirs[2].view(mx.uint16)))


@given(arrays(np.float32, (2, 64), elements=st.floats(-1000, 1000, width=32)))
def test_error_stays_within_a_step(values: np.ndarray) -> None:
    bf16 = float32_to_bf16(values)
    exact = bf16_to_float32(bf16)
    codes, scales, biases = quantise(bf16, 4, 32)
    back = dequantise(HostMatrix((2, 64), 4, 32, codes, scales, biases))
    groups = exact.reshape(-1, 32)
    # One step covers rounding; scale and bias are rounded to 8 bits on top, over at most 15 steps.
    largest = np.abs(groups).max(axis=1, keepdims=True)
    allowed = np.ptp(groups, axis=1, keepdims=True) / 15 + largest / 50 + 1e-5
    assert (np.abs(back.reshape(-1, 32) - groups) <= allowed).all()
