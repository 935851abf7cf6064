"""`manifest.json`: what a packed store holds and where.

The keys are those of the published Rust engine, version 1. Ours, all optional: `experts.bits` (4 when absent),
`ngram.bits` (4 when absent), a null `ngram` for models without n-grams, and `more_ngrams` for further tables.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cherenkov.checkpoint.documents import parse_object
from cherenkov.errors import CorruptModel, UnsupportedModel
from cherenkov.packing.layout import DENSE_ALIGNMENT, ExpertLayout, NgramLayout

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

__all__ = ["DTYPE_BYTES", "VERSION", "DenseEntry", "ExpertSection", "Manifest", "NgramSection"]

VERSION = 1
DTYPE_BYTES = {"U32": 4, "F32": 4, "F16": 2, "BF16": 2, "I64": 8}
"""Types a dense tensor may have, and their sizes."""
_LARGEST = 1 << 62  # of any count or size: sums and products of a few of them stay exact everywhere


@dataclass(frozen=True, slots=True)
class DenseEntry:
    """One tensor of dense.bin."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class ExpertSection:
    """What experts.bin holds: `layers * experts` records, the layers named in order by `layer_prefixes`."""

    layers: int
    experts: int
    layout: ExpertLayout
    layer_prefixes: tuple[str, ...]

    @property
    def records(self) -> int:
        """How many records there are."""
        return self.layers * self.experts


@dataclass(frozen=True, slots=True)
class NgramSection:
    """One n-gram table. The hash parameters repeat those of dense.bin, which count."""

    file: str
    layout: NgramLayout
    head_offsets: tuple[int, ...] = ()
    head_vocab_sizes: tuple[int, ...] = ()
    layer_multipliers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Manifest:
    """The whole document. `ngrams[0]` is the manifest's `ngram`, the others its `more_ngrams`."""

    source_dir: str
    dense: tuple[DenseEntry, ...]
    experts: ExpertSection
    ngrams: tuple[NgramSection, ...] = ()

    @property
    def dense_bytes(self) -> int:
        """Where the last dense tensor ends."""
        return max((entry.offset + entry.nbytes for entry in self.dense), default=0)

    def to_bytes(self) -> bytes:
        """The document, as it is written."""
        document: dict[str, Any] = {
            "version": VERSION,
            "source_dir": self.source_dir,
            "dense": [
                {
                    "name": e.name,
                    "dtype": e.dtype,
                    "shape": list(e.shape),
                    "offset": e.offset,
                    "nbytes": e.nbytes,
                }
                for e in self.dense
            ],
            "experts": _write_experts(self.experts),
            "ngram": _write_ngram(self.ngrams[0]) if self.ngrams else None,
        }
        if len(self.ngrams) > 1:
            document["more_ngrams"] = [{"file": n.file, **_write_ngram(n)} for n in self.ngrams[1:]]
        return json.dumps(document, indent=2).encode() + b"\n"

    @classmethod
    def from_bytes(cls, path: str | os.PathLike[str], text: bytes) -> Manifest:
        """Read and check the document; `path` is for messages.

        Raises:
            CorruptModel: if a key is missing, of the wrong type, or contradicts another.
            UnsupportedModel: if a later version of the format wrote it.
        """
        fields = _Fields(path, "", parse_object(path, text))
        version = fields.integer("version")
        if version > VERSION:
            raise UnsupportedModel(
                f"{path}: a store of version {version}, written by a later release",
                known=f"version {VERSION}",
                key="version",
            )
        if version != VERSION:
            raise CorruptModel(
                path, "no such version", item="version", expected=VERSION, found=version
            )
        ngrams = []
        if fields.table.get("ngram") is not None:
            ngrams.append(_read_ngram(fields.section("ngram"), "ngram.bin"))
        if "more_ngrams" in fields.table:
            ngrams += [
                _read_ngram(part, part.text("file")) for part in fields.sections("more_ngrams")
            ]
        return cls(
            source_dir=fields.text("source_dir"),
            dense=_read_dense(path, fields),
            experts=_read_experts(fields.section("experts")),
            ngrams=tuple(ngrams),
        )


class _Fields:
    """Typed access to one JSON object of the manifest; every complaint names the key."""

    def __init__(self, path: str | os.PathLike[str], where: str, table: Mapping[str, Any]) -> None:
        self.path = path
        self.where = where
        self.table = table

    def fail(
        self, key: str, reason: str, expected: object = None, found: object = None
    ) -> CorruptModel:
        return CorruptModel(
            self.path, reason, item=self.where + key, expected=expected, found=found
        )

    def _get(self, key: str) -> Any:
        if key not in self.table:
            raise self.fail(key, "missing")
        return self.table[key]

    def _number(self, key: str, value: Any, signed: bool = False) -> int:
        lowest = -(1 << 63) if signed else 0
        highest = (1 << 63) - 1 if signed else _LARGEST
        if type(value) is not int or not lowest <= value <= highest:
            raise self.fail(key, "not a count" if not signed else "not a 64-bit integer")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        if default is not None and key not in self.table:
            return default
        return self._number(key, self._get(key))

    def text(self, key: str) -> str:
        value = self._get(key)
        if not isinstance(value, str):
            raise self.fail(key, "not a string")
        return value

    def array(self, key: str) -> list[Any]:
        value = self._get(key)
        if not isinstance(value, list):
            raise self.fail(key, "not a list")
        return value

    def integers(self, key: str, signed: bool = False) -> tuple[int, ...]:
        return tuple(self._number(key, item, signed) for item in self.array(key))

    def section(self, key: str) -> _Fields:
        value = self._get(key)
        if not isinstance(value, dict):
            raise self.fail(key, "not an object")
        return _Fields(self.path, f"{self.where}{key}.", value)

    def sections(self, key: str) -> list[_Fields]:
        items = self.array(key)
        if not all(isinstance(item, dict) for item in items):
            raise self.fail(key, "not a list of objects")
        return [
            _Fields(self.path, f"{self.where}{key}[{i}].", item) for i, item in enumerate(items)
        ]


def _write_experts(section: ExpertSection) -> dict[str, Any]:
    layout = section.layout
    table: dict[str, Any] = {
        "layers": section.layers,
        "experts": section.experts,
        "inter": layout.inter,
        "hidden": layout.hidden,
        "group": layout.group,
        "record_bytes": layout.record_bytes,
        "record_stride": layout.stride_bytes,
        "layer_prefixes": list(section.layer_prefixes),
        **layout.offsets(),
    }
    if layout.bits != 4:
        table["bits"] = layout.bits
    return table


def _write_ngram(section: NgramSection) -> dict[str, Any]:
    layout = section.layout
    table: dict[str, Any] = {
        "rows": layout.rows,
        "row_bytes": layout.row_bytes,
        "dim": layout.dim,
        "group": layout.group,
        "weight_bytes": layout.weight_bytes,
        "scale_bytes": layout.scale_bytes,
        "head_offsets": list(section.head_offsets),
        "head_vocab_sizes": list(section.head_vocab_sizes),
        "layer_multipliers": list(section.layer_multipliers),
    }
    if layout.bits != 4:
        table["bits"] = layout.bits
    return table


def _read_experts(fields: _Fields) -> ExpertSection:
    try:
        layout = ExpertLayout(
            inter=fields.integer("inter"),
            hidden=fields.integer("hidden"),
            bits=fields.integer("bits", 4),
            group=fields.integer("group"),
        )
    except ValueError as error:
        raise fields.fail("group", str(error)) from None
    prefixes = fields.array("layer_prefixes")
    if not all(isinstance(prefix, str) for prefix in prefixes):
        raise fields.fail("layer_prefixes", "not a list of strings")
    section = ExpertSection(
        layers=fields.integer("layers"),
        experts=fields.integer("experts"),
        layout=layout,
        layer_prefixes=tuple(prefixes),
    )
    if not section.records or not layout.record_bytes:
        raise fields.fail("layers", "no experts")
    if len(prefixes) != section.layers:
        raise fields.fail("layer_prefixes", "wrong count", section.layers, len(prefixes))
    if section.records * layout.stride_bytes > _LARGEST:
        raise fields.fail("layers", "impossibly large")
    _match(fields, _write_experts(section))
    return section


def _read_ngram(fields: _Fields, file: str) -> NgramSection:
    plain = file.isprintable() and "/" not in file and not file.startswith(".")
    if not plain or not file.endswith(".bin"):
        raise fields.fail("file", "not a plain name that ends in .bin", found=repr(file))
    layout = NgramLayout(
        rows=fields.integer("rows"),
        dim=fields.integer("dim"),
        bits=fields.integer("bits", 4),
        group=fields.integer("group"),
    )
    if layout.bits not in {4, 16} or (
        layout.bits == 4 and (layout.group < 2 or layout.dim % layout.group or layout.dim % 2)
    ):
        raise fields.fail("group", "no row can have this group and width")
    if not 0 < layout.total_bytes <= _LARGEST:
        raise fields.fail("rows", "empty, or impossibly large")
    section = NgramSection(
        file=file,
        layout=layout,
        head_offsets=fields.integers("head_offsets", signed=True),
        head_vocab_sizes=fields.integers("head_vocab_sizes", signed=True),
        layer_multipliers=fields.integers("layer_multipliers", signed=True),
    )
    _match(fields, _write_ngram(section))
    return section


def _match(fields: _Fields, derived: Mapping[str, Any]) -> None:
    """Sizes and offsets that follow from others must say the same."""
    for key, value in derived.items():
        if isinstance(value, int) and key != "bits" and fields.integer(key) != value:
            raise fields.fail(key, "contradicts the layout", value, fields.table[key])


def _read_dense(path: str | os.PathLike[str], fields: _Fields) -> tuple[DenseEntry, ...]:
    entries = []
    for part in fields.sections("dense"):
        entry = DenseEntry(
            name=part.text("name"),
            dtype=part.text("dtype"),
            shape=part.integers("shape"),
            offset=part.integer("offset"),
            nbytes=part.integer("nbytes"),
        )
        if entry.dtype not in DTYPE_BYTES:
            raise part.fail("dtype", "unknown type", ", ".join(DTYPE_BYTES), entry.dtype[:20])
        if len(entry.shape) > 8:
            raise part.fail("shape", "too many dimensions")
        size = math.prod(entry.shape) * DTYPE_BYTES[entry.dtype]
        if size != entry.nbytes:
            raise part.fail("nbytes", "contradicts the shape", size, entry.nbytes)
        if entry.offset % DENSE_ALIGNMENT or entry.offset + entry.nbytes > _LARGEST:
            raise part.fail("offset", f"not a multiple of {DENSE_ALIGNMENT}", found=entry.offset)
        entries.append(entry)
    names = {entry.name for entry in entries}
    if len(names) != len(entries):
        raise fields.fail("dense", "a tensor is named twice")
    end = 0
    for entry in sorted(entries, key=lambda e: (e.offset, e.nbytes)):
        if entry.offset < end:
            raise CorruptModel(
                path, "overlaps the tensor before it", item=entry.name, offset=entry.offset
            )
        end = entry.offset + entry.nbytes
    return tuple(entries)
