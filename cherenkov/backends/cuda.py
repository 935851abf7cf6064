"""The `cuda` backend: MLX on an NVIDIA GPU, with our kernels through `mx.fast.cuda_kernel`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx
from typing_extensions import override

from cherenkov.backends.cuda_memory import CudaPool, Runtime
from cherenkov.backends.fused import Fused
from cherenkov.backends.launches import CudaLauncher
from cherenkov.backends.mlx_matrices import rows_of
from cherenkov.backends.mlx_owner import owned
from cherenkov.backends.mlx_traces import Traces

if TYPE_CHECKING:
    from cherenkov.backends.base import ExpertPool, Options
    from cherenkov.backends.mlx_matrices import Matrix
    from cherenkov.packing.layout import ExpertLayout

__all__ = ["Cuda"]

_SHARE = 0.9
"""Of the memory that is free: MLX and the driver need some besides what we count."""
_WORDS = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32, 8: mx.uint64}
"""Whole numbers of so many bytes."""


class Cuda(Fused):
    """MLX and CUDA kernels; weights and pool lie in the GPU's memory."""

    name = "cuda"

    def __init__(self, options: Options | None = None) -> None:
        super().__init__(CudaLauncher(), options)
        self.traces = Traces()
        self._runtime = Runtime()

    @property
    @override
    def working_set_bytes(self) -> int | None:
        return int(self._runtime.memory()[0] * _SHARE)

    @owned
    @override
    def pool(self, layout: ExpertLayout, slots: int) -> ExpertPool:
        return CudaPool(layout, slots, self._runtime)

    @override
    def kept(self, array: mx.array) -> mx.array:
        """What the host wrote lies in managed memory, whose pages a kernel waits for; what a kernel wrote, in the GPU's."""
        if not array.size:
            return array
        words = array.view(_WORDS[array.dtype.size])
        copied = words | mx.array(
            0, words.dtype
        )  # `array` is still held, so its buffer is not taken over
        mx.eval(copied)
        return copied.view(array.dtype)

    @override
    def _many(self, x: mx.array, matrix: Matrix) -> mx.array:
        """Dequantised for each product: at many rows that is little beside it, and any width and group will do."""
        kind = mx.float32 if self.exact else mx.bfloat16
        if matrix.scales is None or matrix.biases is None:
            return (x.astype(kind) @ matrix.codes.astype(kind).T).astype(mx.float32)
        if self.exact:
            return x @ _dequantised(matrix).T
        values = mx.dequantize(
            matrix.codes, matrix.scales, matrix.biases, group_size=matrix.group, bits=matrix.bits
        )
        return (x.astype(kind) @ values.T).astype(mx.float32)


def _dequantised(matrix: Matrix) -> mx.array:
    return rows_of(matrix, mx.arange(matrix.shape[0]))
