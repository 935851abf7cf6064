"""A pool in a GPU's own memory, which readers reach through memory of the host.

MLX would keep what the host writes in managed memory, which moves page by page when a kernel touches it. So readers fill
memory of the host, and a record that has landed is copied into the GPU's by the copy engine, while kernels read other slots.
Where the host has memory to spare, what readers fill is pinned, and the engine reads it by itself; else a record goes through a
small pinned buffer, and the host's copy is given back to the system.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
from typing_extensions import override

from cherenkov.backends.mlx_matrices import Pool
from cherenkov.backends.operands import ExpertPool
from cherenkov.backends.shaders import Kernel
from cherenkov.errors import BackendError, CapacityError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from cherenkov.packing.layout import ExpertLayout

__all__ = ["CudaPool", "Runtime"]

_TO_DEVICE = 1
_NON_BLOCKING = 1
_LIBRARIES = ("libcudart.so.13", "libcudart.so.12", "libcudart.so")
_RING = 4
"""Queues of records on their way to the GPU."""
_PINNED_SHARE = 0.25
"""Of the host's free memory: a pool no larger than this is pinned."""
_ADDRESS = Kernel(
    "address",
    ("data",),
    ("address",),
    "address[thread_position_in_grid.x] = thread_position_in_grid.x == 0 ? (unsigned long long)data : 0ull;",
)


class Runtime:
    """The few calls of NVIDIA's runtime that MLX does not offer."""

    def __init__(self) -> None:
        self._library = _library()

    def memory(self) -> tuple[int, int]:
        """Bytes that are free, and all there are."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def pinned(self, size: int) -> int:
        """The address of host memory that the copy engine reads by itself."""
        address = ctypes.c_void_p()
        self.call("cudaHostAlloc", ctypes.byref(address), ctypes.c_size_t(size), 0)
        assert address.value is not None
        return address.value

    def pin(self, address: int, size: int) -> bool:
        """Let the copy engine read memory of the host by itself, if the system has so much to spare."""
        code = self._library.cudaHostRegister(ctypes.c_void_p(address), ctypes.c_size_t(size), 0)
        if code:
            self._library.cudaGetLastError()  # which is kept for the next who asks, otherwise
        return not code

    def unpin(self, address: int) -> None:
        """The opposite, before the memory is given back."""
        self.call("cudaHostUnregister", ctypes.c_void_p(address))

    def stream(self) -> ctypes.c_void_p:
        """A queue of copies."""
        made = ctypes.c_void_p()
        self.call("cudaStreamCreateWithFlags", ctypes.byref(made), _NON_BLOCKING)
        return made

    def copy(self, to: int, source: int, size: int, stream: ctypes.c_void_p) -> None:
        """Begin a copy from pinned memory to the GPU."""
        self.call(
            "cudaMemcpyAsync",
            ctypes.c_void_p(to),
            ctypes.c_void_p(source),
            ctypes.c_size_t(size),
            _TO_DEVICE,
            stream,
        )

    def wait(self, stream: ctypes.c_void_p) -> None:
        """Wait for all copies of a stream."""
        self.call("cudaStreamSynchronize", stream)

    def call(self, name: str, *arguments: object) -> None:
        """Call a function; an error becomes one of ours."""
        code = getattr(self._library, name)(*arguments)
        if code:
            self._library.cudaGetErrorString.restype = ctypes.c_char_p
            reason = self._library.cudaGetErrorString(code).decode()
            if code == 2:  # cudaErrorMemoryAllocation
                raise CapacityError(f"backend cuda: {name}: {reason}")
            raise BackendError("cuda", name, reason)


def _free_bytes() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _library() -> ctypes.CDLL:
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise BackendError("cuda", "start", f"none of {', '.join(_LIBRARIES)} can be loaded")


class CudaPool(Pool):
    """Records in the GPU's memory; `memory` is the host's, where they land."""

    def __init__(self, layout: ExpertLayout, slots: int, runtime: Runtime) -> None:
        self._runtime, stride = runtime, layout.stride_bytes
        words = mx.zeros((slots, stride // 4), mx.uint32, stream=mx.gpu)
        widths = mx.full((max(slots, 8),), layout.bits, mx.int32)
        mx.eval(words, widths)
        self.words, self.widths = words, widths
        self._address = _address_of(words)
        self._streams = [runtime.stream() for _ in range(_RING)]
        self._next = 0
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # private: what was copied can be given back
        self._host = mmap.mmap(-1, max(slots * stride, mmap.PAGESIZE), flags=flags)
        memory: NDArray[np.uint8] = np.frombuffer(self._host, np.uint8, slots * stride)
        self._ring: list[int] = []
        if 0 < memory.nbytes <= _free_bytes() * _PINNED_SHARE and runtime.pin(
            memory.ctypes.data, memory.nbytes
        ):
            weakref.finalize(self, runtime.unpin, memory.ctypes.data)
        else:
            self._ring = [runtime.pinned(stride) for _ in range(_RING)]
        ExpertPool.__init__(self, layout, memory.reshape(slots, stride))

    @override
    def landed(self, slot: int) -> None:
        """Begin to copy a record; `settle` waits for all that have begun."""
        stride, at = self.layout.stride_bytes, self._next
        self._next = (at + 1) % _RING
        source, to = self.memory[slot].ctypes.data, self._address + slot * stride
        if not self._ring:
            self._runtime.copy(to, source, stride, self._streams[at])
            return
        self._runtime.wait(self._streams[at])
        ctypes.memmove(self._ring[at], source, stride)
        self._runtime.copy(to, self._ring[at], stride, self._streams[at])
        self._host.madvise(mmap.MADV_DONTNEED, slot * stride, stride)

    @override
    def settle(self) -> None:
        for stream in self._streams:
            self._runtime.wait(stream)


def _address_of(array: mx.array) -> int:
    """Where an array lies in the GPU's memory."""
    made: Any = mx.fast.cuda_kernel(
        name="address",
        input_names=["data"],
        output_names=["address"],
        source=_ADDRESS.cuda_source,
        header=_ADDRESS.cuda_header,
    )
    (out,) = made(
        inputs=[array],
        template=[],
        grid=(32, 1, 1),
        threadgroup=(32, 1, 1),
        output_shapes=[(32,)],
        output_dtypes=[mx.uint64],
        stream=mx.gpu,
    )
    mx.eval(out)
    return int(np.array(out)[0])
