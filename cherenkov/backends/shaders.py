"""Kernels of one source: the text that MLX gives to Metal and to CUDA, from a body in `kernels/metal`.

A body is what `mx.fast.metal_kernel` takes: statements, in a disciplined subset of the Metal Shading Language
(docs/kernels.md has its rules). For CUDA the address spaces are taken out and the names of thread positions are
defined in front; for the emulator and the linter (`shader_builds`) the text that MLX would generate is wrapped. What MLX
generates is written down here a second time, so that it can be compiled without a GPU; tests compare the two.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = [
    "ATTRIBUTES",
    "CUDA_TYPES",
    "METAL_TYPES",
    "Kernel",
    "Signature",
    "Template",
    "folder",
    "include",
    "load",
]

Template = tuple[tuple[str, int | bool | str], ...]
"""Template arguments in order: numbers, truth values, or names of types such as `float32`."""

ATTRIBUTES = {  # what MLX knows how to add to a signature, in its order
    "dispatch_quadgroups_per_threadgroup": "uint",
    "dispatch_simdgroups_per_threadgroup": "uint",
    "dispatch_threads_per_threadgroup": "uint3",
    "grid_origin": "uint3",
    "grid_size": "uint3",
    "quadgroup_index_in_threadgroup": "uint",
    "quadgroups_per_threadgroup": "uint",
    "simdgroup_index_in_threadgroup": "uint",
    "simdgroups_per_threadgroup": "uint",
    "thread_execution_width": "uint",
    "thread_index_in_quadgroup": "uint",
    "thread_index_in_simdgroup": "uint",
    "thread_index_in_threadgroup": "uint",
    "thread_position_in_grid": "uint3",
    "thread_position_in_threadgroup": "uint3",
    "threadgroup_position_in_grid": "uint3",
    "threadgroups_per_grid": "uint3",
    "threads_per_grid": "uint3",
    "threads_per_simdgroup": "uint",
    "threads_per_threadgroup": "uint3",
}
METAL_TYPES = {
    "bool": "bool",
    "uint8": "uint8_t",
    "uint16": "uint16_t",
    "uint32": "uint32_t",
    "uint64": "uint64_t",
    "int8": "int8_t",
    "int16": "int16_t",
    "int32": "int32_t",
    "int64": "int64_t",
    "float16": "float16_t",
    "bfloat16": "bfloat16_t",
    "float32": "float",
}
CUDA_TYPES = METAL_TYPES | {"float16": "__half", "bfloat16": "__nv_bfloat16"}

_IN_CUDA = {
    "thread_position_in_grid": (
        "uint3(blockIdx.x * blockDim.x + threadIdx.x, blockIdx.y * blockDim.y + threadIdx.y, "
        "blockIdx.z * blockDim.z + threadIdx.z)"
    ),
    "thread_position_in_threadgroup": "uint3(threadIdx.x, threadIdx.y, threadIdx.z)",
    "threadgroup_position_in_grid": "uint3(blockIdx.x, blockIdx.y, blockIdx.z)",
    "threadgroups_per_grid": "uint3(gridDim.x, gridDim.y, gridDim.z)",
    "threads_per_threadgroup": "uint3(blockDim.x, blockDim.y, blockDim.z)",
    "thread_index_in_threadgroup": "msl_tid()",
    "thread_index_in_simdgroup": "(msl_tid() & 31u)",
    "simdgroup_index_in_threadgroup": "(msl_tid() >> 5)",
    "simdgroups_per_threadgroup": "(msl_ntid() >> 5)",
    "threads_per_simdgroup": "32u",
}
"""The attributes that a body may use, for CUDA."""

_SHARED = re.compile(
    r"^(\s*)threadgroup\s+((?:[A-Za-z_]\w*(?:::\w+)*)(?:<[^;*&]*>)?)\s+([A-Za-z_]\w*)\s*((?:\[[^\];]*\])*)\s*;",
    re.MULTILINE,
)
_SPACES = re.compile(r"\b(?:device|constant|threadgroup|thread)\b[ \t]*")
_SMALL = 8
"""Inputs of fewer elements lie in Metal's constant address space."""


@dataclass(frozen=True, slots=True)
class Signature:
    """What a call gives a kernel: type and shape of each input, and the outputs' types."""

    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    outputs: tuple[str, ...]
    template: Template = ()


@dataclass(frozen=True, slots=True)
class Kernel:
    """A body, as `mx.fast.metal_kernel` takes it.

    Attributes:
        name: of its file.
        inputs: names of the inputs, in order.
        outputs: names of the outputs.
        body: statements.
        header: functions that it calls.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    body: str
    header: str = ""

    @property
    def attributes(self) -> list[str]:
        """Thread positions that the body names, in MLX's order."""
        return [name for name in ATTRIBUTES if name in self.body]

    def described(self, name: str) -> tuple[bool, bool, bool]:
        """Does the body name the shape, the strides, the number of dimensions of an input?"""
        shape, strides, ndim = (f"{name}_{s}" in self.body for s in ("shape", "strides", "ndim"))
        return shape, strides, ndim

    def metal_name(self, call: Signature) -> str:
        """The function's name in Metal."""
        name = f"custom_kernel_{self.name}"
        if call.template:
            name += "_" + re.sub(r", |[<>-]", "_", _arguments(call.template))[:-1]
        for kind, shape in call.inputs:
            size = math.prod(shape)
            suffix = "c" if size < _SMALL else ""
            name += f"_{METAL_TYPES[kind]}{suffix if shape else 's'}"
        return name + "".join(f"_{METAL_TYPES[kind]}" for kind in call.outputs)

    @property
    def metal_source(self) -> str:
        """The `source` of `mx.fast.metal_kernel`. Its compiler calls all texts `program_source`; so it names the kernel."""
        return f'#line 1 "{self.name}.metal"\n{self.body}'

    def metal_text(self, call: Signature, body: str | None = None) -> str:
        """What MLX generates for Metal, byte for byte. `body` replaces the kernel's own."""
        name, arguments = self.metal_name(call), _arguments(call.template)
        text = self.header
        if call.template:
            parameters = ", ".join(f"{_kind(value)} {key}" for key, value in call.template)
            text += f"template <{parameters}>\n"
        text += f"[[kernel]] void {name}(\n" + ",\n".join(self._metal_parameters(call))
        text += ") {\n" + (self.metal_source if body is None else body) + "\n}\n"
        if call.template:
            whole = f"{name}{arguments}"
            text += f'\ntemplate [[host_name("{name}")]] [[kernel]] decltype({whole}) {whole};\n'
        return text

    def _metal_parameters(self, call: Signature) -> list[str]:
        lines: list[str] = []

        def add(declared: str) -> None:
            lines.append(f"  {declared} [[buffer({len(lines)})]]")

        for name, (kind, shape) in zip(self.inputs, call.inputs, strict=True):
            space = "constant" if math.prod(shape) < _SMALL else "device"
            add(f"const {space} {METAL_TYPES[kind]}{'*' if shape else '&'} {name}")
            if not shape:
                continue
            kinds = (f"int* {name}_shape", f"int64_t* {name}_strides", f"int& {name}_ndim")
            for wanted, declared in zip(self.described(name), kinds, strict=True):
                if wanted:
                    add(f"const constant {declared}")
        for name, kind in zip(self.outputs, call.outputs, strict=True):
            add(f"device {METAL_TYPES[kind]}* {name}")
        return lines + [f"  {ATTRIBUTES[a]} {a} [[{a}]]" for a in self.attributes]

    @property
    def cuda_header(self) -> str:
        """The `header` of `mx.fast.cuda_kernel`."""
        own = _without_spaces(self.header)
        types = "".join(include(name) for name in ("cuda_types.h", "shared.h", "cuda.h"))
        return f"{types}namespace mlx::core::cu {{\nMSL_USINGS\n{own}\n}}\n"

    @property
    def cuda_source(self) -> str:
        """The `source` of `mx.fast.cuda_kernel`."""
        lines = [
            f"  const {ATTRIBUTES[a]} {a} = {_IN_CUDA[a]}; (void){a};\n" for a in self.attributes
        ]
        return "".join(lines) + _without_spaces(self.body)

    def cuda_name(self, template: Template) -> str:
        """The function's name in CUDA, `mlx::core::cu::` left out."""
        return f"custom_kernel_{self.name}" + "".join(f"_{_short(v)}" for _, v in template)

    def cuda_text(self, call: Signature) -> str:
        """What MLX generates for CUDA; its own headers are left to `include`, so that no MLX is needed to compile it."""
        name = self.cuda_name(call.template)
        lines = []
        for given, (kind, shape) in zip(self.inputs, call.inputs, strict=True):
            lines.append(f"    const {CUDA_TYPES[kind]}* {given}")
            kinds = (f"Shape {given}_shape", f"Strides {given}_strides", f"int {given}_ndim")
            for wanted, declared in zip(self.described(given), kinds, strict=True):
                if wanted and shape:
                    lines.append(f"    const __grid_constant__ {declared}")
        for made, kind in zip(self.outputs, call.outputs, strict=True):
            lines.append(f"    {CUDA_TYPES[kind]}* {made}")
        constants = "".join(_constant(key, value) for key, value in call.template)
        return (
            f"{self.cuda_header}namespace mlx::core::cu {{\n\n__global__ void {name}(\n"
            + ",\n".join(lines)
            + f") {{\n{constants}\n{self.cuda_source}\n}}\n\n}} // namespace mlx::core::cu\n"
        )


@cache
def folder() -> Path:
    """Where `metal` and `include` are: in the installed package, or in the source tree it was imported from."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "kernels"
    return installed if installed.is_dir() else package.parent / "kernels"


@cache
def include(name: str) -> str:
    """The text of a header of `kernels/include`."""
    return (folder() / "include" / name).read_text(encoding="ascii")


@cache
def load(
    name: str, inputs: tuple[str, ...], outputs: tuple[str, ...], headers: tuple[str, ...] = ()
) -> Kernel:
    """A kernel from its file in `kernels/metal`, with the headers there that it needs."""
    texts = folder() / "metal"
    body = (texts / f"{name}.metal").read_text(encoding="ascii")
    header = "".join((texts / each).read_text(encoding="ascii") for each in headers)
    return Kernel(name, inputs, outputs, body, header)


def in_shared_memory(text: str) -> str:
    """Declarations of threadgroup arrays as the macro that each of our own headers defines."""
    return _SHARED.sub(lambda m: f"{m[1]}MSL_TG_DECL({m[2]}, {m[3]}, {m[4]});", text)


def _without_spaces(text: str) -> str:
    return _SPACES.sub("", in_shared_memory(text))


def _arguments(template: Template) -> str:
    listed = ", ".join(
        METAL_TYPES[value] if isinstance(value, str) else str(int(value)) for _, value in template
    )
    return f"<{listed}>" if template else ""


def _kind(value: int | bool | str) -> str:
    return "typename" if isinstance(value, str) else "bool" if isinstance(value, bool) else "int"


def _short(value: int | bool | str) -> str:
    if isinstance(value, str):
        return METAL_TYPES[value]
    if isinstance(value, bool):
        return "t" if value else "f"
    return str(value)


def _constant(key: str, value: int | bool | str) -> str:
    if isinstance(value, str):
        return f"  using {key} = {CUDA_TYPES[value]};\n"
    if isinstance(value, bool):
        return f"  constexpr bool {key} = {str(value).lower()};\n"
    return f"  constexpr int {key} = {value};\n"
