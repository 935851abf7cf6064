"""A packed store, opened: where its parts are, and its dense tensors in memory.

Opening checks every length and offset, so that what follows can trust them. Expert records are read by
`cherenkov.experts`; n-gram rows by whoever gathers them.
"""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cherenkov.checkpoint.affine import WIDTHS, HostMatrix, bf16_to_float32
from cherenkov.checkpoint.documents import read_bytes, read_object
from cherenkov.errors import CorruptModel, DiskError, ModelNotFound
from cherenkov.packing import integrity as checksums
from cherenkov.packing.integrity import Integrity
from cherenkov.packing.layout import DENSE_ALIGNMENT
from cherenkov.packing.manifest import DenseEntry, Manifest
from cherenkov.units import MIB

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from cherenkov.packing.layout import ExpertLayout, NgramLayout

__all__ = ["CONFIG", "DENSE", "EXPERTS", "MANIFEST", "NGRAM", "DenseTensors", "PackedStore"]

CONFIG = "config.json"
MANIFEST = "manifest.json"
DENSE = "dense.bin"
EXPERTS = "experts.bin"
NGRAM = "ngram.bin"
_NUMPY = {"U32": "<u4", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8"}
_GROUPS = (32, 64)
_READ_BYTES = 16 * MIB


class PackedStore:
    """A store of fixed-size expert records with its dense and n-gram parts.

    Attributes:
        path: the folder that holds manifest.json.
        config: config.json, parsed.
        manifest: manifest.json, parsed and checked.
        integrity: integrity.json, or None for a store that has no checksums.
    """

    def __init__(
        self, path: Path, config: dict[str, Any], manifest: Manifest, integrity: Integrity | None
    ) -> None:
        self.path = path
        self.config = config
        self.manifest = manifest
        self.integrity = integrity

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> PackedStore:
        """Open the store in `path`, or in `path/packed` with config.json beside it, and check every length.

        Raises:
            ModelNotFound: if there is no manifest.json.
            CorruptModel: if a file is missing, cut short, or contradicts the manifest.
            UnsupportedModel: if a later release wrote it.
            DiskError: if the system refuses to read.
        """
        folder = _find(Path(path))
        text = read_bytes(folder / MANIFEST)
        manifest = Manifest.from_bytes(folder / MANIFEST, text)
        integrity = None
        if (folder / checksums.NAME).exists():
            integrity = Integrity.from_bytes(
                folder / checksums.NAME, read_bytes(folder / checksums.NAME, 1024 * MIB)
            )
            _check_small_file(folder / MANIFEST, text, integrity)
            _check_counts(folder / checksums.NAME, manifest, integrity)
        config_path = folder / CONFIG if (folder / CONFIG).exists() else folder.parent / CONFIG
        store = cls(folder, read_object(config_path), manifest, integrity)
        if integrity is not None and config_path.parent == folder:
            _check_small_file(config_path, read_bytes(config_path), integrity)
        store.check_lengths()
        return store

    @property
    def expert_layout(self) -> ExpertLayout:
        """How a record is laid out."""
        return self.manifest.experts.layout

    @property
    def experts_path(self) -> Path:
        """The file of expert records."""
        return self.path / EXPERTS

    @property
    def records(self) -> int:
        """How many expert records there are."""
        return self.manifest.experts.records

    @property
    def dense_path(self) -> Path:
        """The file of dense tensors."""
        return self.path / DENSE

    @property
    def ngram_layouts(self) -> tuple[NgramLayout, ...]:
        """Layout of each n-gram table, in the order of the layers that use them."""
        return tuple(section.layout for section in self.manifest.ngrams)

    @property
    def ngram_paths(self) -> tuple[Path, ...]:
        """File of each n-gram table."""
        return tuple(self.path / section.file for section in self.manifest.ngrams)

    def file(self, name: str) -> Path | None:
        """A companion file such as tokenizer.json, in the store or (older layout) beside it; None if absent."""
        for folder in (self.path, self.path.parent):
            if (folder / name).is_file():
                return folder / name
            if (folder / CONFIG).exists():  # the older layout keeps all of them in the parent
                break
        return None

    def record_index(self, layer: int, expert: int) -> int:
        """Which record holds an expert of a record layer (the trunk's, then the draft head's)."""
        section = self.manifest.experts
        if not (0 <= layer < section.layers and 0 <= expert < section.experts):
            raise IndexError(
                f"no expert {expert} in layer {layer}: there are {section.layers} x {section.experts}"
            )
        return layer * section.experts + expert

    def dense(self) -> DenseTensors:
        """Read the dense part, once, checking every tensor that has a checksum.

        Raises:
            CorruptModel: if the file is cut short or a tensor's bytes are wrong.
            DiskError: if the system refuses to read.
        """
        return DenseTensors.read(self.dense_path, self.manifest, self.integrity)

    def expected_lengths(self) -> Iterator[tuple[Path, int]]:
        """Each large file, and the length that the manifest implies."""
        yield self.dense_path, self.manifest.dense_bytes
        yield self.experts_path, self.records * self.expert_layout.stride_bytes
        for path, layout in zip(self.ngram_paths, self.ngram_layouts, strict=True):
            yield path, layout.total_bytes

    def check_lengths(self) -> None:
        """Refuse files whose length is not what the manifest implies.

        Raises:
            CorruptModel: if one is missing, too short or too long.
        """
        for path, expected in self.expected_lengths():
            found = _length(path)
            slack = DENSE_ALIGNMENT - 1 if path.name == DENSE else 0
            if not expected <= found <= expected + slack:
                reason = "cut short" if found < expected else "longer than the manifest says"
                raise CorruptModel(path, reason, expected=f"{expected} bytes", found=found)


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
                if checksums.checksum(data.data) != integrity.dense[entry.name]:
                    raise CorruptModel(
                        path, "checksum does not match", item=entry.name, offset=entry.offset
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


def _find(path: Path) -> Path:
    for folder in (path, path / "packed"):
        if (folder / MANIFEST).exists():
            return folder
    raise ModelNotFound(
        str(path), [str(path / MANIFEST), str(path / "packed" / MANIFEST)], "prepare one first"
    )


def _length(path: Path) -> int:
    try:
        status = path.stat()
    except FileNotFoundError:
        raise CorruptModel(path, "the file is missing") from None
    except OSError as error:
        raise DiskError.wrap(error, path, "read") from error
    if not stat.S_ISREG(status.st_mode):
        raise CorruptModel(path, "not a regular file")
    return status.st_size


def _check_small_file(path: Path, text: bytes, integrity: Integrity) -> None:
    if path.name in integrity.files and integrity.files[path.name] != checksums.checksum(text):
        raise CorruptModel(path, "differs from what was prepared: its checksum does not match")


def _check_counts(path: Path, manifest: Manifest, integrity: Integrity) -> None:
    """The checksums must cover exactly what the manifest lists."""
    covered = {
        "expert records": (manifest.experts.records, len(integrity.records)),
        "dense tensors": ({e.name for e in manifest.dense}, set(integrity.dense)),
        "n-gram blocks": (
            [
                (n.file, -(-n.layout.rows // max(1, b.block_rows)))
                for n, b in _paired(manifest, integrity)
            ],
            [(b.file, len(b.blocks)) for b in integrity.ngrams],
        ),
    }
    for what, (listed, summed) in covered.items():
        if listed != summed:
            raise CorruptModel(path, f"does not cover the {what} of the manifest")


def _paired(manifest: Manifest, integrity: Integrity) -> Iterator[tuple[Any, Any]]:
    if len(manifest.ngrams) == len(integrity.ngrams):
        yield from zip(manifest.ngrams, integrity.ngrams, strict=True)


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
