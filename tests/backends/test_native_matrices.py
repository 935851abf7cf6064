"""Products of the native backend: every instruction set, precision, width and group, on awkward shapes."""

import mmap

import numpy as np
import pytest

from cherenkov.backends.native import Matrix
from cherenkov.checkpoint.affine import HostMatrix, dequantise, quantise
from tests.backends.arithmetic import random
from tests.backends.choices import CHOICES, FLOAT32, TOLERANCE, needs_kernels, start
from tests.backends.layers import host_matrix

pytestmark = needs_kernels

STORED = [(2, 64), (2, 32), (3, 64), (3, 32), (4, 64), (4, 32), (8, 64), (8, 32), (16, 0), (32, 0)]

MANY = 41
"""Rows of which every instruction set makes panels."""


def values_of(host):
    """What a stored matrix stands for, in float64, by a dequantiser of this test's own."""
    if host.bits == 32:
        return host.codes.astype(np.float64)
    if host.bits == 16:
        return (host.codes.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    out, columns = host.shape
    octets = np.ascontiguousarray(host.codes).view(np.uint8)
    bits = np.unpackbits(octets, axis=1, bitorder="little").reshape(out, columns, host.bits)
    codes = (bits * (1 << np.arange(host.bits))).sum(axis=2).astype(np.float64)

    def wide(words):
        return (words.astype(np.uint32) << 16).view(np.float32).repeat(host.group, axis=1)

    return codes * wide(host.scales) + wide(host.biases)


def error_of(y, x, values):
    """The largest error of `x @ values.T`, over the size that a sum of random signs would have."""
    exact = x.astype(np.float64) @ values.T
    size = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(values, axis=1) / np.sqrt(x.shape[1])
    return (np.abs(y - exact) / size).max()


def columns_for(bits):
    return (64, 96, 192, 320, 704) if bits < 16 else (1, 7, 33, 64, 705)


@pytest.mark.parametrize(("bits", "group"), STORED)
@pytest.mark.parametrize(("isa", "precision"), CHOICES)
def test_products(isa, precision, bits, group):
    ops, draw = start(isa, precision), random(bits * 100 + group)
    for columns in columns_for(bits):
        if group and columns % group:
            continue
        for out in (1, 3, 37, 70):
            host = host_matrix(draw(out, columns), bits, group)
            x = draw(MANY, columns)
            y = ops.linear(ops.matrix(host), x)
            # only 2, 3 and 4-bit matrices round their inputs
            tolerance = TOLERANCE[precision if bits < 8 else "float32"]
            assert error_of(y, x, values_of(host)) < tolerance, (columns, out)
            for rows in (1, 2, 3, 4, 5, 8, 13):  # whatever shares the call
                part = ops.linear(ops.matrix(host), x[MANY - rows :])
                np.testing.assert_array_equal(part, y[MANY - rows :])
    ops.close()


@pytest.mark.skipif(("avx512_bf16", "bf16") not in CHOICES, reason="no BF16 arithmetic here")
@pytest.mark.parametrize("bits", [2, 3, 4])
def test_bf16_activations_are_exact_if_they_are_bf16_already(bits):
    ops, draw = start("avx512_bf16", "bf16"), random(bits)
    host = host_matrix(draw(37, 320), bits, 64)
    x = (draw(4, 320).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    y = ops.linear(ops.matrix(host), x)
    assert error_of(y, x, values_of(host)) < TOLERANCE["float32"]


@pytest.mark.parametrize(("bits", "group"), STORED)
@pytest.mark.parametrize(("isa", "precision"), CHOICES)
def test_nothing_past_the_matrix_is_read(isa, precision, bits, group):
    """The matrix ends where a page ends that has no successor."""
    ops, draw = start(isa, precision, threads=1), random(1)
    for columns in (96, 192, 320) if bits < 16 else (1, 33, 127):
        if group and columns % group:
            continue
        host = host_matrix(draw(5, columns), bits, group)
        arrays = [a for a in (host.codes, host.scales, host.biases) if a is not None]
        for last in range(len(arrays)):
            placed = [guarded(a) if i == last else a for i, a in enumerate(arrays)]
            fenced = HostMatrix(host.shape, bits, group, *placed)
            x = draw(4, columns)
            for rows in (1, 2, 3, 4):
                expected = ops.linear(ops.matrix(host), x[:rows])
                np.testing.assert_array_equal(ops.linear(ops.matrix(fenced), x[:rows]), expected)


def guarded(array):
    """A copy whose last byte is the last of its mapping; the page behind is not accessible."""
    page = mmap.PAGESIZE
    size = -(-array.nbytes // page) * page
    whole = mmap.mmap(-1, size + page)
    memory = np.frombuffer(whole, dtype=np.uint8)
    protect(memory.ctypes.data + size, page)
    start_at = size - array.nbytes
    copy = memory[start_at:size].view(array.dtype).reshape(array.shape)
    copy[...] = array
    _MAPPINGS.append(whole)
    return copy


_MAPPINGS = []  # never unmapped: arrays point into them


def protect(address, size):
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), 0) == 0


@pytest.mark.parametrize(("isa", "precision"), CHOICES)
def test_what_is_not_finite_shows(isa, precision):
    """Rounding activations to integers must not turn an infinity into a number."""
    ops, draw = start(isa, precision), random(5)
    for bits in (3, 4, 8, 16):
        matrix = ops.matrix(host_matrix(draw(6, 192), bits, 64))
        for bad in (np.nan, np.inf):
            x = draw(3, 192)
            x[1, 100] = bad
            y = ops.linear(matrix, x)
            assert np.isfinite(y[[0, 2]]).all()
            assert not np.isfinite(y[1]).any()


@pytest.mark.parametrize(("isa", "precision"), CHOICES)
def test_zeros_and_extremes(isa, precision):
    ops = start(isa, precision)
    matrix = ops.matrix(host_matrix(random(6)(5, 64), 4, 64))
    assert not ops.linear(matrix, np.zeros((2, 64), np.float32)).any()
    x = random(7)(4, 64) * np.float32(1e30)
    big = ops.linear(matrix, x)
    assert np.isfinite(big).all()
    small = ops.linear(matrix, x * np.float32(2**-100))
    np.testing.assert_allclose(small, big * np.float32(2**-100), rtol=1e-5)


@pytest.mark.parametrize(("isa", "precision"), CHOICES)
def test_next_to_nothing_is_a_number_too(isa, precision):
    """A gate that is shut leaves activations whose inverse is infinite."""
    ops, x = start(isa, precision), random(10)(9, 192)
    for bits in (2, 3, 4):
        host = host_matrix(random(bits)(6, 192), bits, 64)
        values, matrix = values_of(host), ops.matrix(host)
        for exponent in range(-150, -90):
            tiny = x * np.float32(2.0**exponent)
            y = ops.linear(matrix, tiny)
            assert np.isfinite(y).all(), exponent
            assert (np.abs(y) <= np.abs(tiny.astype(float)) @ np.abs(values.T) * 2 + 1e-39).all(), (
                exponent
            )
            if exponent > -104:
                assert error_of(y, tiny.astype(float), values) < TOLERANCE[precision], exponent
    ops.close()


@pytest.mark.parametrize(("isa", "precision"), FLOAT32)
def test_rows_may_be_strided(isa, precision):
    """A matrix may be part of a larger one, or of a record."""
    ops, draw = start(isa, precision), random(8)
    whole = draw(12, 128)
    codes, scales, biases = quantise(whole, 4, 32)
    part = HostMatrix((6, 64), 4, 32, codes[::2, 8:], scales[::2, 2:], biases[::2, 2:])
    values = dequantise(HostMatrix((12, 128), 4, 32, codes, scales, biases))[::2, 64:]
    x = draw(3, 64)
    np.testing.assert_allclose(ops.linear(ops.matrix(part), x), x @ values.T, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("isa", "precision"), FLOAT32)
def test_memory_needs_no_alignment(isa, precision):
    ops, draw = start(isa, precision), random(9)
    for bits, group in STORED:
        host = host_matrix(draw(7, 64), bits, group)
        arrays = [a for a in (host.codes, host.scales, host.biases) if a is not None]
        shifted = HostMatrix(host.shape, bits, group, *map(misaligned, arrays))
        x = draw(2, 64)
        expected = ops.linear(Matrix(host), x)
        np.testing.assert_array_equal(ops.linear(Matrix(shifted), x), expected)


def misaligned(array):
    """A copy at an odd address."""
    memory = np.zeros(array.nbytes + 1, np.uint8)
    copy = np.ndarray(array.shape, array.dtype, memory.data, offset=1)
    copy[...] = array
    return copy
