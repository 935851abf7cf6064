"""Experts in fewer bits, beside those of a store: what the files are called, what they say, and opening them.

For b = 3 and 2: `experts<b>.bin` holds the same records as experts.bin in the same order; `manifest<b>.json` says where everything is in
one, with the keys of the Rust engine; `integrity<b>.json`, ours, says how they were made, from what, and a checksum of each. The
manifest is written last: without it the file is half built, whatever its length.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cherenkov.checkpoint.documents import is_there, read_bytes
from cherenkov.checkpoint.shards import vetted
from cherenkov.errors import ConfigError, CorruptModel, ModelNotFound, UnsupportedModel
from cherenkov.packing.integrity import Integrity, checksum
from cherenkov.packing.layout import ExpertLayout
from cherenkov.packing.store import EXPERTS, MANIFEST, PackedStore

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "DERIVATIONS",
    "REFIT",
    "TRUNCATE",
    "WIDTHS",
    "LowBit",
    "Names",
    "at_precision",
    "base_mark",
    "command",
    "document",
    "lower_layout",
    "misses_at",
    "open_lowbit",
]

WIDTHS = (3, 2)
REFIT = "refit"
TRUNCATE = "truncate"
DERIVATIONS = {REFIT: "affine", TRUNCATE: "vectorized"}
"""Ways to make them, and what the manifest calls the order of codes that results."""


@dataclass(frozen=True, slots=True)
class Names:
    """Files of one width."""

    experts: str
    manifest: str
    integrity: str

    @classmethod
    def of(cls, bits: int) -> Names:
        """For 3 or 2 bits."""
        return cls(f"experts{bits}.bin", f"manifest{bits}.json", f"integrity{bits}.json")


@dataclass(frozen=True, slots=True)
class LowBit:
    """What is there in one width, opened and checked as far as lengths and manifests go.

    Attributes:
        bits: of a code.
        path: the file of records.
        layout: of a record.
        derivation: `refit` or `truncate`.
        origin: what the weights were made from: `bf16`, or such as `4 bits`.
        records: checksum of each record.
    """

    bits: int
    path: Path
    layout: ExpertLayout
    derivation: str
    origin: str
    records: tuple[int, ...]


def command(store: PackedStore, *bits: int) -> str:
    """What to type to have them made."""
    return f"cherenkov prepare {store.path} --experts {','.join(map(str, bits))}"


def _half_built(store: PackedStore) -> list[int]:
    """Widths that were begun; only the same command goes on where it was."""
    begun = [bits for bits in WIDTHS if is_there(store.path / Names.of(bits).experts)]
    return [bits for bits in begun if not is_there(store.path / Names.of(bits).manifest)]


def lower_layout(layout: ExpertLayout, bits: int, setting: str = "experts") -> ExpertLayout:
    """The record of the same expert in fewer bits. Raises ConfigError, naming the setting, if there are not fewer."""
    if bits not in WIDTHS or layout.bits <= bits:
        fewer = " or ".join(str(width) for width in WIDTHS if width < layout.bits)
        reason = f"must be {layout.bits}, as the store's are" + (fewer and f", or {fewer}")
        if setting != "experts":
            reason = f"must be {fewer}" if fewer else f"the store's have {layout.bits} already"
        raise ConfigError(setting, bits, reason)
    return ExpertLayout(layout.inter, layout.hidden, bits, layout.group)


def base_mark(store: PackedStore) -> str:
    """Which experts those of experts.bin are: what is made from others is stale."""
    if store.integrity is None:
        return f"{checksum(read_bytes(vetted(store.path, MANIFEST))):016x}"
    return f"{checksum(json.dumps(store.integrity.records).encode()):016x}"


def document(layout: ExpertLayout, records: int, derivation: str) -> bytes:
    """The manifest, as it is written."""
    offsets = layout.offsets()
    table: dict[str, Any] = {
        "bits": layout.bits,
        "layout": DERIVATIONS[derivation],
        "stride": layout.stride_bytes,
        "records": records,
        "w": {name: offsets[f"{name}_w"] for name in ("gate", "up", "down")},
        "s": {name: start for name, start in offsets.items() if not name.endswith("_w")},
        "source": "experts.bin",
    }
    return json.dumps(table, indent=2).encode() + b"\n"


def open_lowbit(store: PackedStore, bits: int) -> LowBit:
    """What the store has in `bits` bits. It may be of either derivation.

    Raises:
        ConfigError: if the store's own experts do not have more.
        ModelNotFound: if there is nothing, or it is half built; says what to type.
        CorruptModel: if it is damaged, or made from other experts than the store now has; says what to type.
        UnsupportedModel: if another program wrote it.
        DiskError: if the system refuses to read.
    """
    layout, names = lower_layout(store.manifest.experts.layout, bits), Names.of(bits)
    hint = command(store, bits)
    if not is_there(store.path / names.manifest):
        half = _half_built(store)
        if bits in half:
            hint = f"they are half built; go on with: {command(store, *half)}"
        else:
            hint = f"make them with: {hint}"
        raise ModelNotFound(
            f"{store.path} in {bits} bits", [str(store.path / names.manifest)], hint
        )
    path = vetted(store.path, names.manifest)
    text = read_bytes(path)
    if not is_there(store.path / names.integrity):
        raise UnsupportedModel(
            f"{path}: experts that another program made, without checksums; replace them with: {hint}"
        )
    beside = vetted(store.path, names.integrity)
    summed = Integrity.from_bytes(beside, read_bytes(beside))
    if summed.files.get(names.manifest) != checksum(text):
        raise CorruptModel(path, "its checksum does not match", hint=hint)
    if summed.options.get("base") != base_mark(store):
        raise CorruptModel(path, "was made from other experts than the store's", hint=hint)
    derivation = str(summed.options.get("derivation"))
    if derivation not in DERIVATIONS or text != document(layout, store.records, derivation):
        raise CorruptModel(path, "contradicts manifest.json", hint=hint)
    if len(summed.records) != store.records:
        raise CorruptModel(beside, "does not cover the records of the manifest", hint=hint)
    experts = vetted(store.path, names.experts)
    _check_length(experts, store.records * layout.stride_bytes, hint)
    origin = str(summed.options.get("origin"))
    return LowBit(bits, experts, layout, derivation, origin, summed.records)


def at_precision(store: PackedStore, bits: int | None) -> PackedStore:
    """The same store with all routed experts in `bits` bits: its own, or those that were made from them. None is its own.

    Raises:
        ModelError, ConfigError, DiskError: as `open_lowbit`.
        UnsupportedModel: if they lie in the Rust engine's order, which nothing here computes with.
    """
    if bits is None or bits == store.expert_layout.bits:
        return store
    return _at(store, bits)


def misses_at(store: PackedStore, bits: int | None) -> PackedStore | None:
    """What is read of a store's experts when a layer misses them: the same in fewer bits. None is in full.

    Raises:
        ModelError, ConfigError, DiskError, UnsupportedModel: as `at_precision`.
    """
    if bits is None:
        return None
    if store.experts_path.name != EXPERTS:
        own = store.expert_layout.bits
        raise ConfigError(
            "miss_experts", bits, f"not together with experts = {own}, of which all are"
        )
    lower_layout(store.expert_layout, bits, "miss_experts")
    return _at(store, bits)


def _at(store: PackedStore, bits: int) -> PackedStore:
    section = store.manifest.experts
    low = open_lowbit(store, bits)
    if low.derivation != REFIT:
        raise UnsupportedModel(
            f"{low.path}: codes in the Rust engine's order; to run them, replace them with: {command(store, bits)}"
        )
    integrity = store.integrity and replace(store.integrity, records=low.records)
    manifest = replace(store.manifest, experts=replace(section, layout=low.layout))
    return PackedStore(store.path, store.config, manifest, integrity, experts_file=low.path.name)


def _check_length(path: Path, expected: int, hint: str) -> None:
    found = path.stat().st_size if path.is_file() else -1
    if found != expected:
        reason = "missing or cut short" if found < expected else "longer than its manifest says"
        raise CorruptModel(path, reason, expected=f"{expected} bytes", found=found, hint=hint)
