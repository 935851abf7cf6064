"""The `metal` backend: MLX on Apple Silicon, with our kernels through `mx.fast.metal_kernel`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx
from typing_extensions import override

from cherenkov.backends.fused import Fused
from cherenkov.backends.launches import MetalLauncher
from cherenkov.backends.mlx_owner import OWNER
from cherenkov.backends.mlx_traces import Traces

if TYPE_CHECKING:
    from cherenkov.backends.base import Options

__all__ = ["Metal"]


class Metal(Fused):
    """MLX and Metal kernels; memory is the machine's, of which the GPU should hold no more than its working set."""

    name = "metal"

    def __init__(self, options: Options | None = None) -> None:
        super().__init__(MetalLauncher(), options)
        self.traces = Traces()
        self._info = OWNER.call(mx.device_info)

    @property
    @override
    def working_set_bytes(self) -> int | None:
        return int(self._info["max_recommended_working_set_size"])
