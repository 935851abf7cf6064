"""A checkpoint as others publish it, checked against what its configuration implies.

Two dialects are read. Hugging Face: BF16, norms around zero, convolutions `[C, 1, K]`, experts fused or apart.
MLX: affine codes, norms complete (the 1 is added), convolutions `[C, K, 1]`, experts stacked under `switch_mlp`; which
of the small matrices stay BF16 differs between converters, so every matrix is asked whether it has scales. The
trunk and the draft head may speak different dialects.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cherenkov.checkpoint.conventions import (
    Dialect,
    check_encoding,
    check_scheme,
    dialects,
    doubt_config,
    doubt_norms,
    judge_pre_norms,
)
from cherenkov.checkpoint.inventory import Inventory, Role, TensorSpec
from cherenkov.checkpoint.matrices import (
    StoredExperts,
    StoredMatrix,
    StoredTable,
    describe_formats,
    find_experts,
    find_matrix,
    find_table,
)
from cherenkov.checkpoint.names import canonical
from cherenkov.checkpoint.shards import Stored, fingerprint, has_draft_head, open_shards
from cherenkov.errors import CorruptModel, UnsupportedModel
from cherenkov.events import Note

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from cherenkov.checkpoint.shards import TensorTable

__all__ = ["Checkpoint", "Dialect", "has_draft_head", "open_checkpoint"]

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint whose every tensor has been found and measured. Nothing large has been read.

    Attributes:
        folder: where it lies.
        config: its config.json.
        inventory: what was asked of it.
        fingerprint: of its files, as they were when it was opened.
        trunk: dialect of the trunk.
        draft: dialect of the draft head; that of the trunk if there is none.
        dense: each tensor of the inventory by its name.
        experts: the routed experts of each record layer.
        ngrams: the n-gram tables.
        pre_norms_complete: the MTP pre-norms come with the 1 added.
        notes: what a person may want to know.
    """

    folder: Path
    config: Mapping[str, Any]
    inventory: Inventory
    fingerprint: str
    trunk: Dialect
    draft: Dialect
    dense: Mapping[str, StoredMatrix | Stored]
    experts: tuple[StoredExperts, ...]
    ngrams: tuple[StoredTable, ...]
    pre_norms_complete: bool = False
    notes: tuple[Note, ...] = field(default=())

    def dialect(self, name: str) -> Dialect:
        """Whose conventions a tensor follows."""
        return self.draft if name.startswith("mtp.") else self.trunk

    def comes_quantised(self, name: str) -> bool:
        """Whether the part of the model that a tensor belongs to was quantised by whoever published it."""
        draft = name.startswith("mtp.")
        layers = [e for e in self.experts if e.prefix.startswith("mtp.") == draft]
        return any(bits != 16 for layer in layers for bits, _ in layer.formats)

    def addend(self, spec: TensorSpec) -> int:
        """What makes a norm's weights those of the store: trunk norms hold 1 + w there, MTP pre-norms w."""
        if spec.role is Role.CENTRED:
            return int(self.dialect(spec.name) is Dialect.HUGGING_FACE)
        return -int(spec.role is Role.PRE_NORM and self.pre_norms_complete)

    @property
    def expert_format(self) -> tuple[int, int] | None:
        """(bits, group) of experts that come quantised; None if all are BF16."""
        found = {f for layer in self.experts for f in layer.formats if f[0] != 16}
        return found.pop() if found else None


def open_checkpoint(
    folder: str | os.PathLike[str], inventory: Inventory, config: Mapping[str, Any]
) -> Checkpoint:
    """Find every tensor of `inventory` in `folder` and check its type and shape.

    Args:
        folder: holds the safetensors files, and their index if there are several.
        inventory: what the configuration implies.
        config: config.json; its quantisation section is checked.

    Raises:
        ModelNotFound: if the folder holds no weights.
        UnsupportedModel: if they are of a kind that is not read, saying which.
        CorruptModel: if a file is damaged, or a tensor is missing or has another shape.
        DiskError: if the system refuses to read.
    """
    folder = Path(folder)
    check_scheme(folder, config)
    tensors = open_shards(folder)
    check_encoding(tensors)
    trunk, draft = dialects(tensors)
    dense = {spec.name: _find_dense(tensors, spec) for spec in inventory.dense}
    experts = tuple(find_experts(tensors, spec) for spec in inventory.experts)
    ngrams = tuple(find_table(tensors, spec) for spec in inventory.ngrams)
    _check_experts(folder, experts)
    complete, notes = judge_pre_norms(inventory, dense, draft)
    notes += doubt_norms(inventory, dense, trunk) + doubt_config(config, dense)
    notes += _describe_unused(tensors)
    return Checkpoint(
        folder=folder,
        config=config,
        inventory=inventory,
        fingerprint=fingerprint(folder),
        trunk=trunk,
        draft=draft,
        dense=dense,
        experts=experts,
        ngrams=ngrams,
        pre_norms_complete=complete,
        notes=tuple(notes),
    )


def _find_dense(tensors: TensorTable, spec: TensorSpec) -> StoredMatrix | Stored:
    if spec.role is Role.MATRIX:
        found = find_matrix(tensors, spec.name, spec.shape)
        if found.group not in {0, 32, 64}:
            raise UnsupportedModel(
                f"{found.weight.file.path}: {spec.name} comes in groups of {found.group}",
                known="groups of 32 and 64",
            )
        return found
    module = spec.name.removesuffix(".weight")
    if spec.role is Role.KEPT and module + ".scales" in tensors:
        return find_matrix(tensors, module, spec.shape)
    stored = tensors.need(spec.name)
    # A convolution is [C, 1, K] in one dialect and [C, K, 1] in the other: the same numbers in the same order.
    if [n for n in stored.shape if n != 1] != [n for n in spec.shape if n != 1]:
        raise CorruptModel(
            stored.file.path,
            "wrong shape",
            item=stored.name,
            expected=list(spec.shape),
            found=list(stored.shape),
        )
    known = ("I64",) if spec.role is Role.HASH else ("BF16", "F32", "F16")
    if stored.dtype not in known:
        raise UnsupportedModel(
            f"{stored.file.path}: {stored.name} is stored as {stored.dtype}", known=", ".join(known)
        )
    return stored


def _check_experts(folder: Path, experts: tuple[StoredExperts, ...]) -> None:
    """All quantised experts must share one format, and one that a record can have."""
    formats = {f for layer in experts for f in layer.formats if f[0] != 16}
    if len(formats) > 1 or any(
        bits not in {4, 8} or group not in {32, 64} for bits, group in formats
    ):
        raise UnsupportedModel(
            f"{folder}: experts in {describe_formats(formats)}",
            known="4 or 8 bits in groups of 64 or 32, the same for every expert",
        )


def _describe_unused(tensors: TensorTable) -> list[Note]:
    unused = tensors.unused()
    draft = [name for name in unused if canonical(name).startswith("mtp.")]
    other = [name for name in unused if not canonical(name).startswith("mtp.")]
    notes = []
    if draft:
        notes.append(Note(f"the draft head is left out: {len(draft)} tensors"))
    if other:
        shown = ", ".join(other[:_SHOWN]) + (", …" if len(other) > _SHOWN else "")
        notes.append(Note(f"{len(other)} tensors are not used: {shown}", "warning"))
    return notes
