"""`cherenkov kernels`, and that every kernel's example is a call it could get."""

import json
import shutil

import pytest
from click.testing import CliRunner

from cherenkov.backends.kernel_catalogue import KERNELS, example
from cherenkov.backends.shader_builds import check_with_clang, tool
from cherenkov.errors import ConfigError
from cherenkov_cli.main import cli

CLANG = tool("clang++", "clang")


def run(*arguments):
    return CliRunner().invoke(cli, ["kernels", *arguments], catch_exceptions=False)


def test_the_list():
    shown = run()
    assert shown.exit_code == 0
    assert all(name in shown.output for name in KERNELS)
    assert json.loads(run("--json").output)["route"]["outputs"] == ["ids", "weights", "places"]
    purposes = dict(line.split(maxsplit=1) for line in shown.output.splitlines())
    assert purposes["qsa_prepare"] == "Norm and rotation of heads"
    assert purposes["affine_gemv"] == "y[t, o] = act(W[o, :] . x[t, :]), W affine-quantised"


@pytest.mark.parametrize("name", KERNELS)
def test_its_text(name):
    assert f"void custom_kernel_{name}" in run(name).output
    assert f"__global__ void custom_kernel_{name}" in run(name, "--cuda").output


@pytest.mark.skipif(CLANG is None, reason="no clang: address spaces are not checked here")
@pytest.mark.parametrize("name", KERNELS)
def test_its_example_compiles(name):
    assert check_with_clang(KERNELS[name], example(name), CLANG) == ""


def test_types_of_an_example_follow_from_names():
    kinds = dict(zip(KERNELS["affine_gemv"].inputs, example("affine_gemv").inputs, strict=True))
    assert [kinds[name][0] for name in ("w", "s", "b", "x", "dims")] == [
        *("uint32", "bfloat16", "bfloat16", "float32", "int32")
    ]
    step = dict(zip(KERNELS["delta_step"].inputs, example("delta_step").inputs, strict=True))
    assert step["b"][0] == "float32"  # no bias: there is no `w`


def test_compiling():
    shown = run("gated_inject", "--check", "--json")
    found = json.loads(shown.stdout)["gated_inject"]
    assert shown.stderr == "compiling gated_inject (1 of 1)\n"
    assert found["dialect"] == ""
    assert found["emulator"] == ("" if shutil.which("g++") else None)
    assert shown.exit_code == 0


def test_no_such_kernel():
    with pytest.raises(ConfigError, match="known are affine_gemv"):
        run("gemm")
