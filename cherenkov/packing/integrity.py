"""`integrity.json`: a checksum for every part of a store, so that no wrong byte goes unseen.

It lies beside the files of the published layout, and a store without it opens too, unverified. Checksums are
XXH3-64: they find accidents, not forgeries. The document ends with a checksum of itself.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import xxhash

from cherenkov.checkpoint.documents import parse_object
from cherenkov.errors import CorruptModel, UnsupportedModel

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

__all__ = [
    "NAME",
    "Integrity",
    "NgramBlocks",
    "check_seal",
    "checksum",
    "record_checksum",
    "sealed",
]

NAME = "integrity.json"
VERSION = 1
ALGORITHM = "xxh3_64"
_SEAL = b',"self":"'
_SUM = re.compile("[0-9a-f]{16}")


def checksum(data: bytes | bytearray | memoryview) -> int:
    """XXH3-64 of some contiguous bytes."""
    return xxhash.xxh3_64_intdigest(data)


def record_checksum(record: memoryview) -> int:
    """Checksum of one expert record: all `stride_bytes` of it, padding included."""
    return checksum(record)


def sealed(document: Mapping[str, Any]) -> bytes:
    """A JSON object that ends with a checksum of itself, under `self`."""
    body = json.dumps(document, separators=(",", ":")).encode()[:-1]
    return body + _SEAL + _hex(checksum(body)).encode() + b'"}\n'


def check_seal(path: str | os.PathLike[str], text: bytes, document: Mapping[str, Any]) -> None:
    """Refuse what is not as `sealed` wrote it; `document` is `text`, parsed.

    Raises:
        CorruptModel: if the checksum does not match.
    """
    body, seal, _ = text.rpartition(_SEAL)
    if not seal or document.get("self") != _hex(checksum(body)):
        raise CorruptModel(path, "damaged: its own checksum does not match")


@dataclass(frozen=True, slots=True)
class NgramBlocks:
    """Checksums of one n-gram file, `block_rows` rows each, the last block perhaps shorter."""

    file: str
    block_rows: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Integrity:
    """The document.

    Attributes:
        tool: name and version of the program that prepared the store.
        fingerprint: of the source it was prepared from.
        options: how it was prepared, such as bits and group.
        records: checksum of each expert record, in order.
        dense: checksum of each dense tensor, by name.
        ngrams: one entry per n-gram file.
        files: checksums of the small files, manifest.json among them.
    """

    tool: str
    fingerprint: str
    options: dict[str, Any] = field(default_factory=dict)
    records: tuple[int, ...] = ()
    dense: dict[str, int] = field(default_factory=dict)
    ngrams: tuple[NgramBlocks, ...] = ()
    files: dict[str, int] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """The document, as it is written."""
        document = {
            "version": VERSION,
            "algorithm": ALGORITHM,
            "tool": self.tool,
            "fingerprint": self.fingerprint,
            "options": self.options,
            "files": {name: _hex(value) for name, value in self.files.items()},
            "dense": {name: _hex(value) for name, value in self.dense.items()},
            "ngrams": [
                {
                    "file": part.file,
                    "block_rows": part.block_rows,
                    "blocks": [_hex(value) for value in part.blocks],
                }
                for part in self.ngrams
            ],
            "experts": [_hex(value) for value in self.records],
        }
        return sealed(document)

    @classmethod
    def from_bytes(cls, path: str | os.PathLike[str], text: bytes) -> Integrity:
        """Read and check the document; `path` is for messages.

        Raises:
            CorruptModel: if it is damaged.
            UnsupportedModel: if a later release wrote it.
        """
        document = parse_object(path, text)
        if document.get("version") != VERSION or document.get("algorithm") != ALGORITHM:
            raise UnsupportedModel(
                f"{path}: version {document.get('version')!r}, checksums {document.get('algorithm')!r}",
                known=f"version {VERSION}, {ALGORITHM}",
            )
        check_seal(path, text, document)
        try:
            return cls(
                tool=str(document["tool"]),
                fingerprint=str(document["fingerprint"]),
                options=dict(document["options"]),
                records=tuple(map(_unhex, document["experts"])),
                dense={name: _unhex(value) for name, value in document["dense"].items()},
                ngrams=tuple(map(_read_blocks, document["ngrams"])),
                files={_plain(name): _unhex(value) for name, value in document["files"].items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptModel(path, f"malformed: {error!r:.200}") from None


def _hex(value: int) -> str:
    return f"{value:016x}"


def _unhex(value: str) -> int:
    if not _SUM.fullmatch(value):
        raise ValueError(f"{value:.40} is no checksum")
    return int(value, 16)


def _plain(name: str) -> str:
    """The name of a file in the store itself."""
    if not name.isprintable() or "/" in name or name in {"", ".", ".."}:
        raise ValueError(f"{name!r:.80} is no plain name")
    return name


def _read_blocks(part: dict[str, Any]) -> NgramBlocks:
    rows = part["block_rows"]
    if type(rows) is not int or rows < 1:
        raise ValueError(f"block_rows = {rows!r:.40}")
    return NgramBlocks(_plain(part["file"]), rows, tuple(map(_unhex, part["blocks"])))
