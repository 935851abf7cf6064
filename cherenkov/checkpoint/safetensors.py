"""A strict reader of safetensors files.

Nothing in such a file is trusted: the header is bounded before it is parsed, and its tensors must tile the rest of
the file exactly, without gap, overlap or remainder. What the format's own library refuses is refused here; some of
what it lets through, such as a key that appears twice, is refused as well. Tensors are read by ranges of rows
with `pread`, never mapped, so that a file cut short meanwhile is an error and not a crash.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cherenkov.checkpoint.documents import unique_keys
from cherenkov.errors import CorruptModel, DiskError
from cherenkov.units import MIB

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["DTYPE_BITS", "HEADER_LIMIT_BYTES", "SafetensorsFile", "TensorInfo"]

HEADER_LIMIT_BYTES = 32 * MIB
"""Longest header that is read. The format allows 100 MB, which as JSON could fill gigabytes; models need a few."""
_TENSOR_LIMIT = 200_000
_LARGEST = 1 << 62
_DIMENSIONS = 16
_READ_BYTES = 1 << 30  # Linux moves at most 2 GiB at a time

DTYPE_BITS = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
    "C64": 64,
}
_NUMPY = {"U32": "<u4", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8"}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a file: `offset` counts from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """A file whose header has been read and checked. It holds no descriptor; each read opens the file anew.

    Attributes:
        path: the file.
        tensors: what it holds, by name, in the order of the data.
        metadata: the header's free text.
        identity: device, inode, length and time of change when the header was read.
    """

    path: Path
    tensors: dict[str, TensorInfo]
    metadata: dict[str, str]
    identity: tuple[int, int, int, int]

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> SafetensorsFile:
        """Read and check the header.

        Raises:
            CorruptModel: if the file is missing, cut short, or anything in the header is wrong.
            DiskError: if the system refuses to read.
        """
        path = Path(path)
        descriptor, status = _open(path)
        try:
            size = status.st_size
            length = _header_length(path, descriptor, size)
            text = _read(path, descriptor, 8, length)
        finally:
            os.close(descriptor)
        table = _parse(path, bytes(text))
        metadata = _metadata(path, table.pop("__metadata__", {}))
        tensors = [_tensor(path, name, value, 8 + length) for name, value in table.items()]
        tensors.sort(key=lambda t: (t.offset, t.nbytes))
        _check_tiling(path, tensors, 8 + length, size)
        return cls(path, {t.name: t for t in tensors}, metadata, _identity(status))

    def read(self, name: str, rows: slice | None = None) -> NDArray[Any]:
        """A tensor, or the rows `rows` of it along its first dimension; BF16 comes as uint16.

        Raises:
            CorruptModel: if there is no such tensor, or the file has changed since it was opened.
            DiskError: if the system refuses to read.
            ValueError: if the type has no NumPy counterpart here, or the slice has a step.
        """
        info = self.info(name)
        if rows is None:
            return self._read_at(info, info.offset, info.nbytes).reshape(info.shape)
        start, stop, step = rows.indices(info.shape[0] if info.shape else 0)
        if step != 1 or not info.shape:
            raise ValueError(f"{name}: only whole ranges of rows can be read")
        count = max(0, stop - start)
        stride = info.nbytes // info.shape[0] if info.shape[0] else 0
        data = self._read_at(info, info.offset + start * stride, count * stride)
        return data.reshape(count, *info.shape[1:])

    def read_flat(self, name: str, start: int, stop: int) -> NDArray[Any]:
        """Rows `start:stop` of a tensor seen as `[rows, last dimension]`, whatever its rank.

        Raises:
            CorruptModel, DiskError: as `read`.
            ValueError: if there are no such rows.
        """
        info = self.info(name)
        width = info.shape[-1] if info.shape else 1
        stride = width * DTYPE_BITS[info.dtype] // 8
        rows = info.nbytes // stride if stride else 0
        if not 0 <= start <= stop <= rows:
            raise ValueError(f"{name}: no rows {start}:{stop}, there are {rows}")
        data = self._read_at(info, info.offset + start * stride, (stop - start) * stride)
        return data.reshape(stop - start, width)

    def _read_at(self, info: TensorInfo, offset: int, nbytes: int) -> NDArray[Any]:
        if info.dtype not in _NUMPY:
            raise ValueError(f"{info.name}: tensors of type {info.dtype} cannot be read")
        descriptor, status = _open(self.path)
        try:
            if _identity(status) != self.identity:
                raise CorruptModel(self.path, "the file changed while it was being read")
            data = _read(self.path, descriptor, offset, nbytes)
        finally:
            os.close(descriptor)
        return data.view(_NUMPY[info.dtype])

    def info(self, name: str) -> TensorInfo:
        """What the header says of a tensor.

        Raises:
            CorruptModel: if there is no such tensor.
        """
        try:
            return self.tensors[name]
        except KeyError:
            raise CorruptModel(self.path, "no such tensor", item=name) from None


def _open(path: Path) -> tuple[int, os.stat_result]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise CorruptModel(path, "the file is missing") from None
    except OSError as error:
        raise DiskError.wrap(error, path, "read") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise CorruptModel(path, "not a regular file")
    return descriptor, status


def _identity(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _read(path: Path, descriptor: int, offset: int, nbytes: int) -> NDArray[np.uint8]:
    data = np.empty(nbytes, np.uint8)
    view = data.data
    done = 0
    try:
        while done < nbytes:
            count = os.preadv(descriptor, [view[done : done + _READ_BYTES]], offset + done)
            if not count:
                raise CorruptModel(path, "cut short", offset=offset + done)
            done += count
    except OSError as error:
        raise DiskError.wrap(error, path, "read") from error
    return data


def _header_length(path: Path, descriptor: int, size: int) -> int:
    if size < 8:
        raise CorruptModel(path, "too short for a safetensors file", expected="8 bytes", found=size)
    length = int.from_bytes(_read(path, descriptor, 0, 8).tobytes(), "little")
    if length > HEADER_LIMIT_BYTES:
        raise CorruptModel(
            path, "absurd header length", expected=f"at most {HEADER_LIMIT_BYTES}", found=length
        )
    if length > size - 8:
        raise CorruptModel(
            path, "the header reaches past the end of the file", expected=8 + length, found=size
        )
    return length


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    if text[:1] != b"{":
        raise CorruptModel(path, "the header is no JSON object", offset=8)
    # Counting first bounds what parsing can cost; names that hold these characters only make it stricter.
    if text.count(b"{") + text.count(b"[") > 3 * _TENSOR_LIMIT:
        raise CorruptModel(path, "the header nests too much, or lists too many tensors")
    if text.count(b",") > (_DIMENSIONS + 3) * _TENSOR_LIMIT:
        raise CorruptModel(path, "the header lists too many numbers")
    try:
        value = json.loads(text.decode(), object_pairs_hook=unique_keys, parse_int=_natural)
    except RecursionError:
        raise CorruptModel(path, "the header nests too deeply") from None
    except MemoryError:
        raise CorruptModel(path, "the header needs more memory than there is") from None
    except json.JSONDecodeError as error:
        raise CorruptModel(
            path, f"the header is not JSON: {error.msg}", offset=8 + error.pos
        ) from None
    except ValueError as error:
        raise CorruptModel(path, f"bad header: {error}") from None
    if not isinstance(value, dict):
        raise CorruptModel(path, "the header is no JSON object", offset=8)
    return value


def _natural(digits: str) -> int:
    if digits[0] == "-" or len(digits) > 19:
        raise ValueError(f"{digits[:24]} is no size")
    return int(digits)


def _metadata(path: Path, value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise CorruptModel(path, "not a map from text to text", item="__metadata__")
    for text in (*value, *value.values()):
        _check_text(path, text)
    return value


def _check_text(path: Path, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise CorruptModel(path, f"half a surrogate pair in {text[:80]!r}") from None


def _tensor(path: Path, name: str, value: Any, start: int) -> TensorInfo:
    def fail(reason: str, expected: object = None, found: object = None) -> CorruptModel:
        return CorruptModel(path, reason, item=name[:200], expected=expected, found=found)

    _check_text(path, name)
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise fail("not a tensor: it needs dtype, shape and data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise fail("unknown type", found=str(dtype)[:40])
    if not _sizes(shape) or len(shape) > _DIMENSIONS:
        raise fail("bad shape", found=str(shape)[:80])
    if not _sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise fail("bad offsets", found=str(offsets)[:80])
    size = DTYPE_BITS[dtype] // 8
    for side in shape:
        size *= side
        if size > _LARGEST:
            raise fail("impossibly large", found=str(shape)[:80])
    nbytes = offsets[1] - offsets[0]
    if size != nbytes:
        raise fail("shape and offsets disagree", f"{size} bytes", nbytes)
    return TensorInfo(name, dtype, tuple(shape), start + offsets[0], nbytes)


def _sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and n <= _LARGEST for n in value)


def _check_tiling(path: Path, tensors: list[TensorInfo], start: int, size: int) -> None:
    end = start
    for tensor in tensors:
        if tensor.offset != end:
            reason = "overlaps the tensor before it" if tensor.offset < end else "a gap before it"
            raise CorruptModel(
                path, reason, item=tensor.name[:200], expected=end, found=tensor.offset
            )
        end += tensor.nbytes
    if end != size:
        reason = "cut short" if end > size else "bytes after the last tensor"
        raise CorruptModel(path, reason, expected=f"{end} bytes", found=size)
