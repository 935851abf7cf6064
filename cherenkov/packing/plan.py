"""What a checkpoint becomes: the manifest of the store, and the parts that make it, each independent of the others."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cherenkov.checkpoint.inventory import Role, TensorSpec
from cherenkov.checkpoint.matrices import StoredMatrix
from cherenkov.errors import ConfigError, UnsupportedModel
from cherenkov.packing.layout import DENSE_ALIGNMENT, ExpertLayout, NgramLayout, padded
from cherenkov.packing.manifest import (
    DTYPE_BYTES,
    DenseEntry,
    ExpertSection,
    Manifest,
    NgramSection,
)
from cherenkov.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cherenkov.checkpoint.shards import Stored
    from cherenkov.checkpoint.source import Checkpoint

__all__ = ["DenseItem", "Part", "Plan", "make_plan", "ngram_block_rows"]

_NGRAM_GROUPS = (64, 32, 16, 8)
_PIECE_BYTES = 8 * MIB
"""Of source weights that one thread holds at a time."""
_HASHES = ("ngram_heads_offsets", "ngram_heads_vocab_sizes", "layer_multipliers")
_RECORDS = 16
"""Expert records in one part."""
_BLOCKS = 16
"""N-gram blocks in one part."""
_BLOCK_BYTES = MIB


@dataclass(frozen=True, slots=True)
class DenseItem:
    """One tensor of the inventory on its way into dense.bin.

    Attributes:
        spec: what it is.
        source: where it comes from.
        bits: to quantise it to; 0 to keep it as it comes.
        group: weights per scale when quantised.
        entries: what it becomes: one tensor, or codes, scales and biases.
        add: what is added to every element: 1 completes a raw norm, -1 undoes that.
    """

    spec: TensorSpec
    source: StoredMatrix | Stored
    bits: int
    group: int
    entries: tuple[DenseEntry, ...]
    add: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """A unit of work: some range of one output file.

    Attributes:
        stage: which file, for people: dense, experts or ngram.
        table: which layer of experts, or which n-gram table.
        start: first dense row, expert or n-gram block.
        stop: one past the last.
        items: of the dense part: the tensors, several only if each is taken whole.
        out_bytes: how much it writes.
    """

    stage: str
    out_bytes: int
    table: int = 0
    start: int = 0
    stop: int = 0
    items: tuple[DenseItem, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that follows from a checkpoint and the options, before a byte is written."""

    manifest: Manifest
    parts: tuple[Part, ...]
    bits: int
    group: int

    @property
    def total_bytes(self) -> int:
        """Length of all large files together."""
        experts = self.manifest.experts
        size = self.manifest.dense_bytes + experts.records * experts.layout.stride_bytes
        return size + sum(n.layout.total_bytes for n in self.manifest.ngrams)


def make_plan(checkpoint: Checkpoint, bits: int | None, group: int | None) -> Plan:
    """Decide formats and places.

    Args:
        checkpoint: what to pack.
        bits: of expert and dense matrices: 4, 8, or 16 to keep BF16. None takes 4, or what comes quantised; codes are
            never quantised again.
        group: weights per scale, 64 or 32; None takes 64 where it divides, else 32.

    Raises:
        ConfigError: if bits or group contradict what the checkpoint holds.
        UnsupportedModel: if its expert matrices cannot be quantised at all.
    """
    bits, size = _expert_format(checkpoint, bits, group)
    first = checkpoint.inventory.experts[0]
    layout = ExpertLayout(inter=first.inter, hidden=first.hidden, bits=bits, group=size)
    items = _dense_items(checkpoint, bits, size)
    section = ExpertSection(
        layers=len(checkpoint.experts),
        experts=first.experts,
        layout=layout,
        layer_prefixes=tuple(layer.prefix for layer in checkpoint.experts),
    )
    ngrams = tuple(_ngram_section(checkpoint, i, bits) for i in range(len(checkpoint.ngrams)))
    manifest = Manifest(
        source_dir=str(checkpoint.folder),
        dense=tuple(sorted((e for i in items for e in i.entries), key=lambda e: e.offset)),
        experts=section,
        ngrams=ngrams,
    )
    parts = (*_dense_parts(items), *_expert_parts(section), *_ngram_parts(ngrams))
    return Plan(manifest, parts, bits, size)


def ngram_block_rows(layout: NgramLayout) -> int:
    """Rows that share a checksum."""
    return max(1, _BLOCK_BYTES // layout.row_bytes)


def _expert_format(checkpoint: Checkpoint, bits: int | None, group: int | None) -> tuple[int, int]:
    if bits not in {None, 4, 8, 16}:
        raise ConfigError("bits", bits, "must be 4, 8 or 16")
    if group not in {None, 32, 64}:
        raise ConfigError("group", group, "must be 32 or 64")
    given = checkpoint.expert_format
    if given is not None:
        if bits not in {None, given[0]}:
            raise ConfigError("bits", bits, f"the experts are already quantised to {given[0]} bits")
        if group not in {None, given[1]}:
            raise ConfigError("group", group, f"the experts already come in groups of {given[1]}")
        return given
    shapes = {(spec.experts, spec.inter, spec.hidden) for spec in checkpoint.inventory.experts}
    if len(shapes) != 1:
        raise UnsupportedModel(f"{checkpoint.folder}: layers whose experts differ in size")
    if bits == 16:
        return 16, group or 64
    bits = bits or 4
    (_, inter, hidden) = shapes.pop()
    for size in (64, 32) if group is None else (group,):
        if inter % size == hidden % size == 0:
            return bits, size
    raise UnsupportedModel(
        f"{checkpoint.folder}: expert matrices of {inter} by {hidden} do not divide into groups of "
        f"{group or 32}; prepare it with bits = 16"
    )


def _dense_items(checkpoint: Checkpoint, bits: int, group: int) -> tuple[DenseItem, ...]:
    """Every dense tensor, and its place: sorted by name, each on a boundary of 64 bytes."""
    items = [_dense_item(checkpoint, spec, bits, group) for spec in checkpoint.inventory.dense]
    entries = sorted((entry for item in items for entry in item.entries), key=lambda e: e.name)
    places: dict[str, DenseEntry] = {}
    offset = 0
    for entry in entries:
        offset = padded(offset, DENSE_ALIGNMENT)
        places[entry.name] = replace(entry, offset=offset)
        offset += entry.nbytes
    placed = [replace(i, entries=tuple(places[e.name] for e in i.entries)) for i in items]
    return tuple(sorted(placed, key=lambda item: item.entries[0].offset))


def _dense_item(checkpoint: Checkpoint, spec: TensorSpec, bits: int, group: int) -> DenseItem:
    source = checkpoint.dense[spec.name]
    if isinstance(source, StoredMatrix):
        module = spec.name.removesuffix(".weight")
        if source.bits != 16:
            return DenseItem(spec, source, 0, 0, _affine(module, spec, source.bits, source.group))
        size = _dividing_group(spec.shape[-1], bits, (group, 32))
        if size and spec.role is Role.MATRIX and not checkpoint.comes_quantised(spec.name):
            return DenseItem(spec, source, bits, size, _affine(module, spec, bits, size))
        return DenseItem(spec, source, 0, 0, (_entry(module + ".weight", "BF16", spec.shape),))
    add = checkpoint.addend(spec)
    exact = spec.role is Role.CENTRED and add != 0 and (bits == 16 or source.dtype == "F16")
    dtype = "F32" if exact else source.dtype
    return DenseItem(spec, source, 0, 0, (_entry(spec.name, dtype, spec.shape),), add)


def _entry(name: str, dtype: str, shape: tuple[int, ...]) -> DenseEntry:
    return DenseEntry(name, dtype, shape, 0, math.prod(shape) * DTYPE_BYTES[dtype])


def _affine(module: str, spec: TensorSpec, bits: int, group: int) -> tuple[DenseEntry, ...]:
    *lead, width = spec.shape
    scales = (*lead, width // group)
    return (
        _entry(module + ".weight", "U32", (*lead, width * bits // 32)),
        _entry(module + ".scales", "BF16", scales),
        _entry(module + ".biases", "BF16", scales),
    )


def _dividing_group(width: int, bits: int, sizes: tuple[int, ...]) -> int:
    """The first group size that divides a row, or 0 to leave it as values."""
    if bits == 16:
        return 0
    return next((size for size in sizes if width % size == 0), 0)


def _dense_parts(items: tuple[DenseItem, ...]) -> Iterator[Part]:
    """Small tensors together, large matrices in ranges of rows."""
    batch: list[DenseItem] = []
    held = 0
    for item in items:
        size = sum(entry.nbytes for entry in item.entries)
        rows = item.spec.shape[0] if item.spec.shape else 1
        if isinstance(item.source, StoredMatrix) and math.prod(item.spec.shape) * 2 > _PIECE_BYTES:
            step = max(1, _PIECE_BYTES * rows // (math.prod(item.spec.shape) * 2))
            for start in range(0, rows, step):
                stop = min(rows, start + step)
                yield Part("dense", size * (stop - start) // rows, 0, start, stop, (item,))
            continue
        batch.append(item)
        held += size
        if held > _PIECE_BYTES:
            yield Part("dense", held, items=tuple(batch))
            batch, held = [], 0
    if batch:
        yield Part("dense", held, items=tuple(batch))


def _expert_parts(section: ExpertSection) -> Iterator[Part]:
    for layer in range(section.layers):
        for start in range(0, section.experts, _RECORDS):
            stop = min(section.experts, start + _RECORDS)
            size = (stop - start) * section.layout.stride_bytes
            yield Part("experts", size, layer, start, stop)


def _ngram_section(checkpoint: Checkpoint, index: int, bits: int) -> NgramSection:
    spec, table = checkpoint.inventory.ngrams[index], checkpoint.ngrams[index]
    width, group = table.bits, table.group or 32
    if table.bits == 16 and bits == 4 and not checkpoint.comes_quantised(spec.prefix):
        size = _dividing_group(spec.dim, bits, _NGRAM_GROUPS)
        width, group = (4, size) if size else (16, 32)
    hashes = {name: _hash(checkpoint, spec.prefix, name) for name in _HASHES}
    return NgramSection(
        file="ngram.bin" if index == 0 else f"ngram{index + 1}.bin",
        layout=NgramLayout(rows=spec.rows, dim=spec.dim, bits=width, group=group),
        head_offsets=hashes["ngram_heads_offsets"],
        head_vocab_sizes=hashes["ngram_heads_vocab_sizes"],
        layer_multipliers=hashes["layer_multipliers"],
    )


def _hash(checkpoint: Checkpoint, prefix: str, name: str) -> tuple[int, ...]:
    """An integer parameter that lies beside a table, if the inventory has it."""
    source = checkpoint.dense.get(f"{prefix.rpartition('.')[0]}.{name}")
    if source is None or isinstance(source, StoredMatrix):
        return ()
    return tuple(int(value) for value in source.read().reshape(-1))


def _ngram_parts(sections: tuple[NgramSection, ...]) -> Iterator[Part]:
    for index, section in enumerate(sections):
        layout, height = section.layout, ngram_block_rows(section.layout)
        blocks = -(-layout.rows // height)
        for start in range(0, blocks, _BLOCKS):
            stop = min(blocks, start + _BLOCKS)
            rows = min(layout.rows, stop * height) - start * height
            yield Part("ngram", rows * layout.row_bytes, index, start, stop)
