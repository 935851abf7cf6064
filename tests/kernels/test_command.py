"""`cherenkov kernels`, and that every kernel's example is a call it could get."""

import json
import os
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


@pytest.mark.parametrize(
    ("compiler", "message"),
    [
        ("#!/bin/sh\nexit 0\n", "made nothing"),
        ("garbage", "Exec format error"),
        ("#!/bin/sh\nprintf 'error: caf\\351\\n' >&2; exit 1\n", "error: caf\ufffd"),
        ("#!/bin/sh\nkill -9 $$\n", "failed without a word"),
    ],
)
def test_a_compiler_that_is_none(tmp_path, monkeypatch, compiler, message):
    fake = tmp_path / "g++"
    fake.write_text(compiler)
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shown = run("gated_inject", "--check")
    (line,) = [each for each in shown.stderr.splitlines() if each.startswith("cherenkov: ")]
    assert line.startswith("cherenkov: gated_inject, emulator: ")
    assert message in line


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++: nothing is emulated here")
def test_nowhere_to_keep_what_was_compiled(tmp_path, monkeypatch):
    (tmp_path / "cherenkov").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    shown = run("gated_inject", "--check")
    assert "gated_inject: cannot be kept: " in shown.stderr


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++: nothing is emulated here")
def test_a_damaged_file_in_the_cache_is_named(tmp_path):
    pytest.importorskip("mlx.core", reason="MLX is not installed")
    import numpy as np

    from cherenkov.backends.shader_builds import Emulation
    from cherenkov.backends.shaders import Kernel, Signature
    from cherenkov.errors import BackendError

    one = np.zeros(32, np.float32)
    kernel = Kernel("copy", ("a",), ("o",), "o[thread_position_in_grid.x] = a[0];")
    emulation = Emulation(place=tmp_path)
    path = emulation.build(kernel, Signature((("float32", (32,)),), ("float32",), ()))
    path.write_bytes(b"damaged")
    call = ((), [("float32", one)], [("float32", (32,))], (32, 1, 1), (32, 1, 1))
    with pytest.raises(BackendError, match=f"copy: remove it: .*{path.name}"):
        emulation(kernel, *call)


def test_no_such_kernel():
    with pytest.raises(ConfigError, match="known are affine_gemv"):
        run("gemm")
