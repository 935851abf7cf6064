"""The text that MLX generates for Metal is the text that is tested here, byte for byte.

MLX prints it without a GPU too: inside `mx.export_function` a call of a kernel is only recorded, and `verbose` prints what it
would compile.
"""

import os
import sys
import tempfile
from pathlib import Path

import pytest

mx = pytest.importorskip("mlx.core", reason="MLX is not installed")

from cherenkov.backends.kernel_catalogue import KERNELS  # noqa: E402
from cherenkov.backends.shader_lint import problems  # noqa: E402
from cherenkov.backends.shaders import Kernel, Signature  # noqa: E402
from tests.kernels.cases import cases  # noqa: E402

CASES = cases()


def printed(kernel, launch, tmp_path):
    """What MLX prints for a call."""
    made = mx.fast.metal_kernel(
        name=kernel.name,
        input_names=list(kernel.inputs),
        output_names=list(kernel.outputs),
        source=kernel.metal_source,
        header=kernel.header,
    )
    template = [(k, getattr(mx, v) if isinstance(v, str) else v) for k, v in launch.template]

    def call(*arrays):
        return made(
            inputs=list(arrays),
            template=template,
            grid=launch.grid,
            threadgroup=launch.threads,
            output_shapes=[shape for _, shape in launch.outputs],
            output_dtypes=[getattr(mx, kind) for kind, _ in launch.outputs],
            verbose=True,
            stream=mx.gpu,
        )

    with tempfile.TemporaryFile() as captured:
        sys.stdout.flush()
        kept = os.dup(1)
        os.dup2(captured.fileno(), 1)
        try:
            mx.export_function(str(tmp_path / "call.mlxfn"), call, *launch.inputs)
        finally:
            os.dup2(kept, 1)
            os.close(kept)
        captured.seek(0)
        text = captured.read().decode()
    return text.split("```\n", 1)[1].rsplit("\n```", 1)[0]


@pytest.mark.parametrize("name", CASES)
def test_mlx_generates_what_we_compile(name, tmp_path):
    launch = CASES[name]
    theirs = printed(launch.kernel, launch, tmp_path)
    assert launch.kernel.metal_text(launch.signature) == theirs


@pytest.mark.parametrize("name", KERNELS)
def test_the_dialect(name):
    assert problems(KERNELS[name]) == []


def kernel(body, header=""):
    return Kernel("planted", ("a",), ("o",), body, header)


@pytest.mark.parametrize(
    ("body", "header", "what"),
    [
        ("const float* p = a; o[0] = p[0];", "", "address space"),
        ("o[0] = f(a);", "inline float f(const float* x) { return x[0]; }", "address space"),
        ("o[0] = a[0] * 2.0;", "", "without f"),
        ("o[0] = a[0]; // \u03b1", "", "ASCII"),
        ("o[0] = a[0]; // thread_position_in_grid", "", "does not use"),
        ("int a_shapes = 1; o[0] = a[0];", "", "does not use"),
        ("o[0] = v.xy + a[0];", "", "swizzle"),
        ("o[0] = double(a[0]);", "", "outside the dialect"),
        ("o[0] = 1.0f;", "", "unused"),
        ("threadgroup float t[9]; o[0] = a[0] + t[0]; goto end;", "", "outside the dialect"),
    ],
)
def test_what_the_dialect_forbids_is_found(body, header, what):
    assert any(what in each for each in problems(kernel(body, header)))


def test_what_it_allows_is_not():
    body = (
        "thread float* q = r; const device T* p = (const device T*)(a + 1); float x = y * z; o[0] = a[0];"
        " const float4 v = *(const device float4*)(a); o[1] = v.x * 1e-3f;"
    )
    assert problems(kernel(body)) == []


def test_every_kernel_file_is_in_the_catalogue():
    files = {path.stem for path in (Path(__file__).parents[2] / "kernels/metal").glob("*.metal")}
    assert files == set(KERNELS)


def test_names_of_cuda_texts_hold_the_template():
    launch = CASES["product-4-1"]
    name = launch.kernel.cuda_name(launch.template)
    assert name == "_".join(["custom_kernel_affine_gemv", *(str(v) for _, v in launch.template)])
    assert f"__global__ void {name}(" in launch.kernel.cuda_text(launch.signature)


def test_a_kernel_that_metal_does_not_compile_is_named():
    from cherenkov.backends.mlx_owner import owned
    from cherenkov.errors import BackendError

    class Metal:
        name = "metal"

        @owned
        def choose(self):
            raise RuntimeError(  # MLX's first line, and what Metal says of a text that begins as ours do
                "[metal::Device] Unable to build metal library from source\n"
                "route.metal:4:26: error: use of undeclared identifier 'foo'\nout[i] = foo;\n"
            )

    assert KERNELS["route"].metal_source.startswith('#line 1 "route.metal"\n// Softmax')
    with pytest.raises(BackendError) as caught:
        Metal().choose()
    assert str(caught.value) == (
        "backend metal: choose: route.metal:4:26: error: use of undeclared identifier 'foo'; "
        "backend mlx does without our kernels"
    )


def test_small_inputs_lie_in_constant_memory():
    text = kernel("o[0] = a[thread_position_in_grid.x];").metal_text(
        Signature((("float32", (3,)),), ("float32",))
    )
    assert "const constant float* a" in text
