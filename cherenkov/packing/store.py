"""A packed store, opened: where its parts are, and its dense tensors in memory.

Opening checks every length and offset, so that what follows can trust them. Expert records are read by
`cherenkov.experts`; n-gram rows by whoever gathers them.
"""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cherenkov.checkpoint.documents import (
    CONFIG_LIMIT_BYTES,
    is_file,
    is_there,
    read_bytes,
    read_object,
)
from cherenkov.checkpoint.shards import vetted
from cherenkov.errors import CorruptModel, DiskError, ModelNotFound
from cherenkov.packing import integrity as checksums
from cherenkov.packing.dense import DenseTensors
from cherenkov.packing.integrity import Integrity
from cherenkov.packing.layout import DENSE_ALIGNMENT
from cherenkov.packing.manifest import Manifest

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from cherenkov.packing.layout import ExpertLayout, NgramLayout

__all__ = ["CONFIG", "DENSE", "EXPERTS", "MANIFEST", "NGRAM", "DenseTensors", "PackedStore"]

CONFIG = "config.json"
MANIFEST = "manifest.json"
DENSE = "dense.bin"
EXPERTS = "experts.bin"
NGRAM = "ngram.bin"
_COMPANIONS = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
"""Small files that decide what a conversation is to the model."""


class PackedStore:
    """A store of fixed-size expert records with its dense and n-gram parts.

    Attributes:
        path: the folder that holds manifest.json.
        config: config.json, parsed.
        manifest: manifest.json, parsed and checked.
        integrity: integrity.json, or None for a store that has no checksums.
        experts_file: the file of expert records that manifest and integrity speak of.
    """

    def __init__(
        self,
        path: Path,
        config: dict[str, Any],
        manifest: Manifest,
        integrity: Integrity | None,
        *,
        experts_file: str = EXPERTS,
    ) -> None:
        self.path = path
        self.config = config
        self.manifest = manifest
        self.integrity = integrity
        self.experts_file = experts_file

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
        text = read_bytes(vetted(folder, MANIFEST))
        manifest = Manifest.from_bytes(folder / MANIFEST, text)
        integrity = None
        if is_there(folder / checksums.NAME):
            path = vetted(folder, checksums.NAME)
            integrity = Integrity.from_bytes(path, read_bytes(path))
            _check_small_file(folder / MANIFEST, text, integrity)
            _check_counts(folder / checksums.NAME, manifest, integrity)
        home = folder if is_there(folder / CONFIG) else folder.parent
        config_path = vetted(home, CONFIG)
        store = cls(folder, read_object(config_path, CONFIG_LIMIT_BYTES), manifest, integrity)
        if integrity is not None and config_path.parent == folder:
            _check_small_file(config_path, read_bytes(config_path), integrity)
        store.check_lengths()
        return store

    @property
    def fingerprint(self) -> str:
        """What the model is, 16 hexadecimal digits: the same wherever and whenever it was prepared, from checksums alone.

        Of a store without checksums, what its configuration and manifest say.
        """
        found: dict[str, Any] = {"config": self.config}
        if self.integrity is None:
            text = read_bytes(vetted(self.path, MANIFEST))
            found["manifest"] = f"{checksums.checksum(text):016x}"
        else:
            summed = self.integrity
            found |= {"dense": summed.dense, "records": summed.records}
            found["ngrams"] = [part.blocks for part in summed.ngrams]
            found["files"] = {k: v for k, v in summed.files.items() if k in _COMPANIONS}
        return f"{checksums.checksum(json.dumps(found, sort_keys=True).encode()):016x}"

    @property
    def expert_layout(self) -> ExpertLayout:
        """How a record is laid out."""
        return self.manifest.experts.layout

    @property
    def experts_path(self) -> Path:
        """The file of expert records."""
        return self.path / self.experts_file

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
        """A companion file such as tokenizer.json, in the store or (older layout) beside it; None if absent.

        Raises:
            CorruptModel: if it is a link that leads elsewhere.
            DiskError: if the system does not let us look.
        """
        for folder in (self.path, self.path.parent):
            if is_file(folder / name):
                return vetted(folder, name)
            if is_there(folder / CONFIG):  # the older layout keeps all of them in the parent
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


def _find(path: Path) -> Path:
    for folder in (path, path / "packed"):
        if is_there(folder / MANIFEST):
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
