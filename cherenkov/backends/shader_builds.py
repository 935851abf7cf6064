"""Compile kernels without a GPU: for the emulator that runs them on the CPU, for the linter, for NVIDIA's compiler.

What is compiled for the emulator is kept by a hash of its text in the user's cache folder.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cherenkov.backends.shaders import (
    ATTRIBUTES,
    METAL_TYPES,
    Kernel,
    Signature,
    folder,
    in_shared_memory,
    include,
)
from cherenkov.config import cache_folder
from cherenkov.errors import BackendError
from cherenkov.packing.durable import write_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = [
    "BEFORE_CUDA",
    "Emulation",
    "Run",
    "check_with_clang",
    "compile_for_cuda",
    "first_error",
    "tool",
]

_FLAGS = [
    "-std=c++17",
    "-O1",
    "-fPIC",
    "-shared",
    "-pthread",
    "-ffp-contract=off",
    "-Wall",
    "-Wextra",
    "-Wno-attributes",
    "-Wno-unknown-pragmas",
    "-Wno-unused-function",
    "-Werror=double-promotion",
]
_LINT = [
    "-x",
    "c++",
    "-std=c++17",
    "-fsyntax-only",
    "-nostdinc",
    "-Wall",
    "-Wextra",
    "-Wno-unused",
    "-Wno-unused-parameter",
    "-Wno-unknown-attributes",
    "-Wno-undefined-inline",
    "-Wno-undefined-internal",
    "-Wdouble-promotion",
    "-Wshadow",
]
_THREADGROUP_BYTES = 32768
_NUMPY = {"bfloat16": "uint16"}


BEFORE_CUDA = """#include <cstdint>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
namespace mlx::core::cu {
template <typename T> struct Ten { T v[10]; __device__ const T& operator[](int i) const { return v[i]; } };
using Shape = Ten<int32_t>;
using Strides = Ten<int64_t>;
}
"""
"""What MLX's own headers would bring."""


def tool(*names: str) -> str | None:
    """The first of these programs that is here."""
    return next((found for name in names if (found := shutil.which(name))), None)


def first_error(text: str) -> str:
    """The line of a compiler's output that says what is wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = lines[0] if lines else "the compiler failed without a word"
    return next((line for line in lines if "error" in line), first)


@dataclass(frozen=True, slots=True)
class Run:
    """How an emulated kernel is started.

    Attributes:
        order: of lanes: 0 forward, 1 reverse, from 2 on the seed of a shuffle.
        guard: put every buffer next to pages that nothing may touch.
        workers: threads.
    """

    order: int = 0
    guard: bool = True
    workers: int = 1


class _Buffer(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("nbytes", ctypes.c_size_t),
        ("output", ctypes.c_int32),
        ("name", ctypes.c_char_p),
    )


@dataclass(slots=True)
class Emulation:
    """Runs kernels on the CPU, every GPU thread a fibre of its own.

    Attributes:
        compiler: a C++17 compiler.
        flags: more of its flags.
        place: where to keep what was compiled; None for the user's cache folder.
        built: what was compiled or found, by signature.
    """

    compiler: str = ""
    flags: tuple[str, ...] = ()
    place: Path | None = None
    built: dict[object, ctypes.CDLL] = field(default_factory=dict)

    def __call__(
        self,
        kernel: Kernel,
        template: Sequence[tuple[str, int | bool | str]],
        inputs: Sequence[tuple[str, NDArray[np.generic]]],
        outputs: Sequence[tuple[str, tuple[int, ...]]],
        grid: tuple[int, int, int],
        threads: tuple[int, int, int],
        how: Run | None = None,
    ) -> list[NDArray[np.generic]]:
        """Run a kernel.

        Args:
            kernel: what to run.
            template: its template arguments.
            inputs: type and array of each input; a `bfloat16` travels as uint16.
            outputs: type and shape of each output. They start as NaN.
            grid: threads in all, a multiple of `threads` in every dimension.
            threads: threads of a threadgroup.
            how: order of lanes, guards.

        Raises:
            BackendError: if it does not compile, or does what no kernel may: names the place.
        """
        arrays = [(kind, np.require(array, requirements="C")) for kind, array in inputs]
        call = Signature(
            tuple((kind, array.shape) for kind, array in arrays),
            tuple(kind for kind, _ in outputs),
            tuple(template),
        )
        made = [np.empty(shape, _NUMPY.get(kind, kind)) for kind, shape in outputs]
        for array in made:
            array.view(np.uint8).fill(0xFF)
        buffers, kept = self._buffers(kernel, [a for _, a in arrays], made)
        how = how or Run()
        options = (ctypes.c_int32 * 4)(how.order, how.workers, _THREADGROUP_BYTES, 0)
        error = ctypes.create_string_buffer(1000)
        failed = self._library(kernel, call).msl_run(
            (_Buffer * len(buffers))(*buffers),
            len(buffers),
            (ctypes.c_uint32 * 3)(*grid),
            (ctypes.c_uint32 * 3)(*threads),
            options,
            int(how.guard),
            (ctypes.c_uint64 * 3)(),
            error,
            len(error),
        )
        del kept
        if failed:
            raise BackendError("emulation", kernel.name, error.value.decode("utf-8", "replace"))
        return list(made)

    def build(self, kernel: Kernel, call: Signature) -> Path:
        """Compile a kernel for the emulator, or find it in the cache.

        Raises:
            BackendError: if there is no compiler, or the kernel does not compile; names its first error.
        """
        compiler = self.compiler or tool("g++", "clang++", "c++")
        if compiler is None:
            raise BackendError("emulation", kernel.name, "there is no C++ compiler")
        text = _emulated(kernel, call)
        command = [compiler, *_FLAGS, *self.flags]
        headers = include("host.h") + include("shared.h")
        place = self.place or cache_folder() / "kernels"
        target = place / f"{kernel.name}-{_hash(text, *command, headers)}.so"
        if target.exists():
            return target
        try:
            place.mkdir(parents=True, exist_ok=True)
            command += ["-isystem", str(_headers(command, headers, place))]
            with tempfile.TemporaryDirectory(dir=place) as scratch:
                source = Path(scratch) / "kernel.cpp"
                source.write_text(text, encoding="ascii")
                write_file(target, _made([*command, str(source)], kernel.name))
        except OSError as error:
            raise BackendError("emulation", kernel.name, f"cannot be kept: {error}") from error
        return target

    def _library(self, kernel: Kernel, call: Signature) -> ctypes.CDLL:
        key = (kernel, call)
        if key not in self.built:
            path = self.build(kernel, call)
            try:
                self.built[key] = ctypes.CDLL(str(path))
            except OSError as error:  # damaged, or made for another machine
                raise BackendError("emulation", kernel.name, f"remove it: {error}") from error
        return self.built[key]

    def _buffers(
        self,
        kernel: Kernel,
        inputs: Sequence[NDArray[np.generic]],
        outputs: Sequence[NDArray[np.generic]],
    ) -> tuple[list[_Buffer], list[object]]:
        found: list[_Buffer] = []
        kept: list[object] = []

        def add(array: NDArray[np.generic], name: str, *, written: bool) -> None:
            kept.append(array)
            found.append(_Buffer(array.ctypes.data, array.nbytes, int(written), name.encode()))

        for name, array in zip(kernel.inputs, inputs, strict=True):
            add(array, name, written=False)
            if array.ndim:
                strides = [stride // array.itemsize for stride in array.strides]
                described: tuple[NDArray[np.generic], ...] = (
                    np.array(array.shape, np.int32),
                    np.array(strides, np.int64),
                    np.array([array.ndim], np.int32),
                )
                for wanted, values in zip(kernel.described(name), described, strict=True):
                    if wanted:
                        add(values, name, written=False)
        for name, array in zip(kernel.outputs, outputs, strict=True):
            add(array, name, written=True)
        return found, kept


def check_with_clang(kernel: Kernel, call: Signature, clang: str) -> str:
    """What clang says about a kernel when address spaces are real; empty if nothing."""
    built = re.compile(r"\b(float|int|uint|uchar|ushort)([234])\s*\(")

    def made(text: str) -> str:
        return built.sub(r"msl_make_\1\2(", in_shared_memory(text))

    own = Kernel(kernel.name, kernel.inputs, kernel.outputs, kernel.body, made(kernel.header))
    text = own.metal_text(
        call, f'#line 1 "{kernel.name}.metal"\n{made(kernel.body)}\n#line 1 "end"'
    )
    text = text.split("\ntemplate [[host_name(")[0]
    whole = kernel.metal_name(call) + _given(call)
    source = (
        f'#include "lint.h"\nnamespace metal {{ namespace user {{\n#line 1 "generated"\n{text}\n'
        f"auto* const instance = &{whole};\n}} }}\n"
    )
    done = _run([clang, *_LINT, "-isystem", str(folder() / "include"), "-"], source)
    return done.stderr


def compile_for_cuda(
    kernel: Kernel, call: Signature, nvcc: str, arch: str = "sm_90", place: Path | None = None
) -> str:
    """Compile a kernel with NVIDIA's compiler; its report of registers and memory.

    Args:
        kernel: what to compile.
        call: types, shapes and template arguments.
        nvcc: the compiler.
        arch: what for.
        place: where to keep reports, so that the same text is compiled once; None to keep none.

    Raises:
        BackendError: if it does not compile; names its first error.
    """
    text = BEFORE_CUDA + kernel.cuda_text(call)
    command = [nvcc, "-std=c++17", f"-arch={arch}", "-cubin", "-Xptxas", "-v"]
    kept = None if place is None else place / f"{kernel.name}-{_hash(text, *command)}.txt"
    if kept is not None and kept.exists():
        return kept.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / f"{kernel.name}.cu"
        source.write_text(text, encoding="ascii")
        done = _run([*command, str(source), "-o", str(Path(scratch) / "kernel.cubin")])
    if done.returncode:
        raise BackendError("cuda", kernel.name, first_error(done.stderr))
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_file(kept, done.stderr.encode())
    return done.stderr


def _headers(command: list[str], text: str, place: Path) -> Path:
    """A folder with the emulator's headers, compiled beforehand: that is most of the work."""
    made = place / f"headers-{_hash(*command, text)}"
    if (made / "host.h.gch").exists():
        return made
    made.mkdir(exist_ok=True)
    for name in ("host.h", "shared.h"):
        write_file(made / name, include(name).encode("ascii"))
    if "clang" not in Path(command[0]).name:
        compiled = _made([*command, "-x", "c++-header", str(made / "host.h")], "host.h")
        write_file(made / "host.h.gch", compiled)
    return made


def _made(command: list[str], what: str) -> bytes:
    """What the emulator's compiler makes."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "made"
        done = _run([*command, "-o", str(out)])
        if done.returncode:
            raise BackendError("emulation", what, first_error(done.stderr))
        if not out.exists():
            raise BackendError("emulation", what, f"{command[0]} made nothing")
        return out.read_bytes()


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def _emulated(kernel: Kernel, call: Signature) -> str:
    """The translation unit that runs a kernel under `kernels/include/host.h`."""
    body = f'#line 1 "{kernel.name}.metal"\n{in_shared_memory(kernel.body)}\n#line 1 "wrapper"'
    text = kernel.metal_text(call, body).split("\ntemplate [[host_name(")[0]
    arguments: list[str] = []
    buffers = 0
    for name, (kind, shape) in zip(kernel.inputs, call.inputs, strict=True):
        arguments.append(f"{'' if shape else '*'}(const {METAL_TYPES[kind]}*)b[{buffers}]")
        buffers += 1
        casts = ("(const int*)b[%d]", "(const int64_t*)b[%d]", "*(const int*)b[%d]")
        for wanted, cast in zip(kernel.described(name), casts, strict=True):
            if wanted and shape:
                arguments.append(cast % buffers)
                buffers += 1
    for kind in call.outputs:
        arguments.append(f"({METAL_TYPES[kind]}*)b[{buffers}]")
        buffers += 1
    for name in kernel.attributes:
        each = f"ids.{name}"
        triple = f"uint3({each}[0], {each}[1], {each}[2])"
        arguments.append(each if ATTRIBUTES[name] == "uint" else triple)
    whole = kernel.metal_name(call) + _given(call)
    return f"""#include "host.h"
namespace metal {{ namespace user {{
#line 1 "generated"
{text}
static void entry(void* const* b, const msl_host::LaneIds& ids) {{
  (void)ids;
  {whole}({", ".join(arguments)});
}}
}} }}
extern "C" int msl_run(const msl_host::Buf* b, int nb, const uint32_t* grid, const uint32_t* tg,
                       const msl_host::Options* o, int guard, uint64_t* stats, char* err, size_t n) {{
  return msl_host::launch(metal::user::entry, b, nb, grid, tg, *o, guard, stats, err, n);
}}
"""


def _given(call: Signature) -> str:
    listed = ", ".join(
        METAL_TYPES[v] if isinstance(v, str) else str(int(v)) for _, v in call.template
    )
    return f"<{listed}>" if call.template else ""


def _run(command: list[str], given: str | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(  # noqa: S603 - compilers, by their own names
            command, input=given, capture_output=True, text=True, errors="replace", check=False
        )
    except OSError as error:  # what has its name is no program
        return subprocess.CompletedProcess(command, 126, "", f"error: {error}")
