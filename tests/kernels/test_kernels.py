"""Every kernel alone: any order of lanes gives the same bits, everything is written, nothing else is touched."""

import numpy as np
import pytest

pytest.importorskip("mlx.core", reason="MLX is not installed")

from cherenkov.backends.kernel_catalogue import KERNELS
from cherenkov.backends.shader_builds import (
    Run,
    check_with_clang,
    compile_for_cuda,
    tool,
)
from tests.kernels.cases import cases
from tests.kernels.emulated import CACHE, EMULATION

pytestmark = pytest.mark.timeout(600)  # the first run compiles; later ones find what it made
CASES = cases()
CLANG, NVCC = tool("clang++", "clang"), tool("nvcc")
each_case = pytest.mark.parametrize("name", CASES)


def run(launch, order=0):
    import mlx.core as mx

    inputs = []
    for array in launch.inputs:
        bits = array.view(mx.uint16) if array.dtype == mx.bfloat16 else array
        inputs.append((str(array.dtype).rsplit(".", 1)[-1], np.array(bits)))
    return EMULATION(
        launch.kernel,
        launch.template,
        inputs,
        launch.outputs,
        launch.grid,
        launch.threads,
        Run(order=order),
    )


def test_every_kernel_has_a_case():
    assert {launch.kernel.name for launch in CASES.values()} == set(KERNELS)


@each_case
def test_the_order_of_lanes_does_not_show(name):
    """Guard pages, the limit of threadgroup memory, and NaN in what is not written are the emulator's doing."""
    launch = CASES[name]
    forward = run(launch)
    for array in forward:
        assert not np.isnan(array).any(), "something was not written, or read before it was"
    for order in (1, 2, 3):
        for one, other in zip(run(launch, order), forward, strict=True):
            np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8))


@pytest.mark.skipif(CLANG is None, reason="no clang: address spaces are not checked here")
@each_case
def test_address_spaces(name):
    launch = CASES[name]
    assert check_with_clang(launch.kernel, launch.signature, CLANG) == ""


FIRST = {launch.kernel.name: name for name, launch in reversed(CASES.items())}


@pytest.mark.skipif(NVCC is None, reason="no nvcc: nothing is compiled for NVIDIA here")
@pytest.mark.parametrize("name", sorted(FIRST.values()))
def test_compiles_for_nvidia(name):
    launch = CASES[name]
    report = compile_for_cuda(launch.kernel, launch.signature, NVCC, place=CACHE)
    assert "0 bytes spill stores" in report
