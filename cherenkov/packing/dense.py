"""The dense part of a store in memory: every tensor by its name, in the shape that is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cherenkov.checkpoint.affine import WIDTHS, HostMatrix, bf16_to_float32
from cherenkov.errors import CorruptModel, DiskError
from cherenkov.packing.integrity import checksum
from cherenkov.packing.layout import DENSE_ALIGNMENT
from cherenkov.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from cherenkov.packing.integrity import Integrity
    from cherenkov.packing.manifest import DenseEntry, Manifest

__all__ = ["DenseTensors"]

_NUMPY = {"U32": "<u4", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8"}
_GROUPS = (32, 64)
_READ_BYTES = 16 * MIB


class DenseTensors:
    """The dense tensors of a store, in one buffer whose tensors start on 64-byte boundaries."""

    def __init__(
        self, path: Path, entries: tuple[DenseEntry, ...], buffer: NDArray[np.uint8]
    ) -> None:
        self._path = path
        self._entries = {entry.name: entry for entry in entries}
        self._buffer = buffer

    @classmethod
    def read(cls, path: Path, manifest: Manifest, integrity: Integrity | None) -> DenseTensors:
        """Read dense.bin. See `PackedStore.dense`."""
        buffer = _aligned(manifest.dense_bytes)
        _fill(path, buffer)
        if integrity is not None:
            for entry in manifest.dense:
                data = buffer[entry.offset : entry.offset + entry.nbytes]
                if checksum(data.data) != integrity.dense[entry.name]:
                    raise CorruptModel(
                        path,
                        "checksum does not match",
                        item=entry.name,
                        offset=entry.offset,
                        hint=f"remove {path.parent} and prepare the model again",
                    )
        return cls(path, manifest.dense, buffer)

    @property
    def nbytes(self) -> int:
        """Size of the buffer."""
        return self._buffer.nbytes

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def entry(self, name: str) -> DenseEntry:
        """What the manifest says of a tensor.

        Raises:
            CorruptModel: if the store has no such tensor.
        """
        try:
            return self._entries[name]
        except KeyError:
            raise CorruptModel(self._path, "no such tensor", item=name) from None

    def raw(self, name: str) -> NDArray[Any]:
        """A tensor's elements as they lie in the buffer; BF16 as uint16."""
        entry = self.entry(name)
        data = self._buffer[entry.offset : entry.offset + entry.nbytes]
        return data.view(_NUMPY[entry.dtype]).reshape(entry.shape)

    def matrix(self, name: str, shape: tuple[int, int]) -> HostMatrix:
        """The matrix `name` (without `.weight`), `[out, in]`: affine if it has `.scales`, plain otherwise.

        Raises:
            CorruptModel: if it is absent, or has another shape.
        """
        if name + ".scales" in self._entries:
            return self._affine(name, shape)
        entry = self.entry(name + ".weight")
        if entry.shape != shape:
            raise self._misfit(entry, shape)
        raw = self.raw(name + ".weight")
        if entry.dtype == "BF16":
            return HostMatrix(shape, 16, 0, raw)
        if entry.dtype in {"F32", "F16"}:
            return HostMatrix(shape, 32, 0, raw.astype(np.float32, copy=False))
        raise CorruptModel(
            self._path,
            "not a matrix of values",
            item=entry.name,
            expected="BF16",
            found=entry.dtype,
        )

    def vector(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """A tensor of any rank by its full name, as float32. Dimensions of 1 may be missing or extra.

        Raises:
            CorruptModel: if it is absent, of another shape, or no floating-point tensor.
        """
        entry = self.entry(name)
        if [n for n in entry.shape if n != 1] != [n for n in shape if n != 1]:
            raise self._misfit(entry, shape)
        raw = self.raw(name).reshape(shape)
        if entry.dtype == "BF16":
            return bf16_to_float32(raw)
        if entry.dtype in {"F32", "F16"}:
            return raw.astype(np.float32)
        raise CorruptModel(
            self._path, "not floating point", item=name, expected="BF16", found=entry.dtype
        )

    def integers(self, name: str, shape: tuple[int, ...]) -> NDArray[np.int64]:
        """An I64 tensor by its full name.

        Raises:
            CorruptModel: if it is absent, or has another shape or type.
        """
        entry = self.entry(name)
        if entry.shape != shape:
            raise self._misfit(entry, shape)
        if entry.dtype != "I64":
            raise CorruptModel(
                self._path, "not integers", item=name, expected="I64", found=entry.dtype
            )
        return self.raw(name).astype(np.int64)

    def _affine(self, name: str, shape: tuple[int, int]) -> HostMatrix:
        weight, scales, biases = (
            self.entry(name + part) for part in (".weight", ".scales", ".biases")
        )
        rows, width = shape
        fits = weight.dtype == "U32" and scales.dtype == biases.dtype == "BF16"
        fits &= len(weight.shape) == len(scales.shape) == 2 and scales.shape == biases.shape
        fits &= weight.shape[0] == scales.shape[0] == rows
        if not fits or not scales.shape[1] or width % scales.shape[1]:
            raise self._misfit(weight, shape)
        bits, group = weight.shape[1] * 32 // width, width // scales.shape[1]
        if bits not in WIDTHS or bits * width != weight.shape[1] * 32 or group not in _GROUPS:
            raise self._misfit(weight, shape)
        return HostMatrix(
            shape, bits, group, *(self.raw(name + p) for p in (".weight", ".scales", ".biases"))
        )

    def _misfit(self, entry: DenseEntry, shape: tuple[int, ...]) -> CorruptModel:
        return CorruptModel(
            self._path,
            "wrong shape",
            item=entry.name,
            expected=list(shape),
            found=f"{entry.dtype} {list(entry.shape)}",
        )


def _aligned(size: int) -> NDArray[np.uint8]:
    """Uninitialised bytes that start on a 64-byte boundary."""
    block = np.empty(size + DENSE_ALIGNMENT, np.uint8)
    start = -block.ctypes.data % DENSE_ALIGNMENT
    return block[start : start + size]


def _fill(path: Path, buffer: NDArray[np.uint8]) -> None:
    view = buffer.data
    try:
        with path.open("rb", buffering=0) as file:
            done = 0
            while done < len(view):
                count = file.readinto(view[done : done + _READ_BYTES])
                if not count:
                    raise CorruptModel(path, "cut short", expected=f"{len(view)} bytes", found=done)
                done += count
    except OSError as error:
        raise DiskError.wrap(error, path, "read") from error
