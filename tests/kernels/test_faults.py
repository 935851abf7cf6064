"""The emulator finds what a GPU would hide: each fault is planted once."""

import numpy as np
import pytest

pytest.importorskip("mlx.core", reason="MLX is not installed")

from cherenkov.backends.shader_builds import Run, check_with_clang, tool
from cherenkov.backends.shaders import Kernel, Signature
from cherenkov.errors import BackendError
from tests.kernels.emulated import EMULATION

pytestmark = pytest.mark.timeout(600)
CLANG = tool("clang++", "clang")
A = np.arange(128, dtype=np.float32)


def run(body, threads=128, group=128, order=0):
    kernel = Kernel("planted", ("a",), ("o",), body)
    return EMULATION(
        kernel,
        (),
        [("float32", A)],
        [("float32", (128,))],
        (threads, 1, 1),
        (group, 1, 1),
        Run(order=order),
    )[0]


def test_a_missing_barrier_shows_in_the_order_of_lanes():
    body = """threadgroup float t[128];
uint i = thread_index_in_threadgroup; t[i] = a[i]; %s
o[i] = t[127u - i];"""
    for order in range(4):
        good = run(body % "threadgroup_barrier(mem_flags::mem_threadgroup);", order=order)
        np.testing.assert_array_equal(good, A[::-1])
    forward, reverse = (run(body % "", order=order) for order in (0, 1))
    assert np.isnan(forward).any()  # memory of a threadgroup starts as NaN
    assert not np.array_equal(forward, reverse, equal_nan=True)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "uint i = thread_index_in_threadgroup; float v = a[i]; if (i % 2 == 0) { v = simd_sum(v); } o[i] = v;",
            "simdgroup divergence.*simd_sum",
        ),
        (
            "uint i = thread_index_in_threadgroup; if (i < 64) { threadgroup_barrier(mem_flags::mem_threadgroup); } o[i] = a[i];",
            "barrier not reached",
        ),
        ("uint i = thread_index_in_threadgroup; o[i] = a[i + 1];", "out-of-bounds.*'a' .512 bytes"),
        ("uint i = thread_index_in_threadgroup; o[i + 4096] = a[i];", "out-of-bounds.*'o'"),
        (
            "uint i = thread_index_in_threadgroup; ((device float*)a)[i] = 1.0f; o[i] = a[i];",
            "write to input buffer 'a'",
        ),
        (
            "threadgroup float t[9000];\nuint i = thread_index_in_threadgroup; t[i] = a[i]; o[i] = t[i];",
            "threadgroup memory over the limit",
        ),
        ("o[thread_position_in_grid.x] = a[0] * 1.5;", "double"),
        ("o[thread_position_in_grid.x] = nothing;", "nothing"),
    ],
)
def test_what_is_wrong_is_named(body, message):
    with pytest.raises(BackendError, match=f"backend emulation: planted: .*{message}"):
        run(body)


def test_what_is_not_written_is_nan():
    out = run("uint i = thread_index_in_threadgroup; if (i != 7) o[i] = a[i];")
    assert np.flatnonzero(np.isnan(out)).tolist() == [7]


def test_a_ragged_grid_is_refused():
    with pytest.raises(BackendError, match="multiple of the threadgroup"):
        run("o[thread_position_in_grid.x % 128u] = a[0];", threads=130)


@pytest.mark.skipif(CLANG is None, reason="no clang: address spaces are not checked here")
@pytest.mark.parametrize(
    ("body", "header", "message"),
    [
        ("const float* q = a; o[0] = q[0]; o[1] = p[0];", "", "cannot initialize"),
        (
            "o[0] = f(p) + a[0];",  # p is small, and so in constant memory
            "METAL_FUNC float f(const device float* x) { return x[0]; }\n",
            "no matching function",
        ),
        ("a[0] = p[0]; o[0] = 1.0f;", "", "not assignable"),
    ],
)
def test_wrong_address_spaces_are_named(body, header, message):
    call = Signature((("float32", (128,)), ("float32", (4,))), ("float32",))
    kernel = Kernel("planted", ("a", "p"), ("o",), body, header)
    assert message in check_with_clang(kernel, call, CLANG)
