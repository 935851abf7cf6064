"""A call of a kernel, and what carries it out: Metal, CUDA, or the emulator."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import mlx.core as mx
import numpy as np

from cherenkov.backends.shader_builds import Emulation
from cherenkov.backends.shaders import Kernel, Signature, Template

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "CudaLauncher",
    "EmulationLauncher",
    "Launch",
    "Launcher",
    "MetalLauncher",
    "dims",
    "kind_of",
    "numbers",
    "place",
]

_LEAST = 8
"""Metal puts inputs of fewer elements into another address space."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A call, not carried out yet.

    Attributes:
        kernel: what to run.
        inputs: one array a name.
        outputs: type and shape of each output.
        grid: threads in all, a multiple of `threads` in every dimension.
        threads: threads of a threadgroup.
        template: template arguments.
    """

    kernel: Kernel
    inputs: Sequence[mx.array]
    outputs: Sequence[tuple[str, tuple[int, ...]]]
    grid: tuple[int, int, int]
    threads: tuple[int, int, int]
    template: Template = ()

    @property
    def signature(self) -> Signature:
        """What decides the text."""
        return Signature(
            tuple((kind_of(array), tuple(array.shape)) for array in self.inputs),
            tuple(kind for kind, _ in self.outputs),
            self.template,
        )


class Launcher(Protocol):
    """Carries out calls.

    Attributes:
        tiles: the device has matrix units that make kernels over tiles the faster ones.
    """

    @property
    def tiles(self) -> bool:
        """See above."""

    def __call__(self, launch: Launch) -> list[mx.array]:
        """The outputs, which need not be computed yet."""


def kind_of(array: mx.array) -> str:
    """Name of an array's type, such as `float32`."""
    return str(array.dtype).rsplit(".", 1)[-1]


@dataclass(slots=True)
class MetalLauncher:
    """Through `mx.fast.metal_kernel`."""

    made: dict[str, Any] = field(default_factory=dict)
    tiles: bool = False  # nobody has measured them there

    def __call__(self, launch: Launch) -> list[mx.array]:
        """See `Launcher`."""
        kernel = launch.kernel
        if kernel.name not in self.made:
            self.made[kernel.name] = mx.fast.metal_kernel(
                name=kernel.name,
                input_names=list(kernel.inputs),
                output_names=list(kernel.outputs),
                source=kernel.metal_source,
                header=kernel.header,
            )
        return _call(self.made[kernel.name], launch)


@dataclass(slots=True)
class CudaLauncher:
    """Through `mx.fast.cuda_kernel`."""

    made: dict[str, Any] = field(default_factory=dict)
    tiles: bool = True

    def __call__(self, launch: Launch) -> list[mx.array]:
        """See `Launcher`."""
        kernel = launch.kernel
        if kernel.name not in self.made:
            # MLX finds compiled kernels by name and template alone.
            text = kernel.cuda_header + kernel.cuda_source
            mark = hashlib.sha256(text.encode()).hexdigest()[:8]
            self.made[kernel.name] = mx.fast.cuda_kernel(
                name=f"{kernel.name}_{mark}",
                input_names=list(kernel.inputs),
                output_names=list(kernel.outputs),
                source=kernel.cuda_source,
                header=kernel.cuda_header,
            )
        return _call(self.made[kernel.name], launch)


def _call(made: Any, launch: Launch) -> list[mx.array]:
    template = [(k, getattr(mx, v) if isinstance(v, str) else v) for k, v in launch.template]
    out: list[mx.array] = made(
        inputs=list(launch.inputs),
        template=template,
        grid=launch.grid,
        threadgroup=launch.threads,
        output_shapes=[shape for _, shape in launch.outputs],
        output_dtypes=[getattr(mx, kind) for kind, _ in launch.outputs],
    )
    return out


@dataclass(slots=True)
class EmulationLauncher:
    """On the CPU, at once. For tests, and to look at a kernel without a GPU."""

    emulation: Emulation = field(default_factory=Emulation)
    tiles: bool = False

    def __call__(self, launch: Launch) -> list[mx.array]:
        """See `Launcher`."""
        inputs = [(kind_of(array), _to_numpy(array)) for array in launch.inputs]
        made = self.emulation(
            launch.kernel, launch.template, inputs, launch.outputs, launch.grid, launch.threads
        )
        return [_to_mlx(a, kind) for a, (kind, _) in zip(made, launch.outputs, strict=True)]


def _to_numpy(array: mx.array) -> np.ndarray[Any, Any]:
    return np.array(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array)


def _to_mlx(array: np.ndarray[Any, Any], kind: str) -> mx.array:
    made = mx.array(array)
    return made.view(mx.bfloat16) if kind == "bfloat16" else made


def place(value: int) -> mx.array:
    """A number that changes from step to step, as an input: int32 `[8]`, of which the first counts.

    A range is made on the GPU from two numbers that travel with the call; an array of the host's would be fetched there by
    the kernel that reads it, which takes as long as several kernels.
    """
    return mx.arange(value, value + _LEAST, dtype=mx.int32)


@lru_cache(maxsize=256)
def numbers(*values: float) -> mx.array:
    """A few numbers as an input that is never small."""
    return _padded(values, mx.float32)


@lru_cache(maxsize=1024)
def dims(*values: int) -> mx.array:
    """As `numbers`, whole ones."""
    return _padded(values, mx.int32)


def _padded(values: Sequence[float], kind: mx.Dtype) -> mx.array:
    size = math.ceil(len(values) / _LEAST) * _LEAST
    given = mx.array([*values, *[0] * (size - len(values))], kind)
    made = given + mx.array(
        0, kind
    )  # a result lies in the GPU's memory, what the host made may not
    mx.eval(made)
    return made
