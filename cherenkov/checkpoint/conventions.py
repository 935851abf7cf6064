"""Whose conventions a checkpoint follows, and whether its values bear that out."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from cherenkov.checkpoint.affine import bf16_to_float32
from cherenkov.checkpoint.inventory import Inventory, Role
from cherenkov.checkpoint.matrices import StoredMatrix, describe_formats
from cherenkov.checkpoint.names import canonical_module
from cherenkov.checkpoint.shards import Stored, TensorTable
from cherenkov.errors import UnsupportedModel
from cherenkov.events import Note

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = [
    "Dense",
    "Dialect",
    "check_encoding",
    "check_scheme",
    "dialects",
    "doubt_config",
    "doubt_norms",
    "judge_pre_norms",
]

Dense = Mapping[str, StoredMatrix | Stored]
"""Dense tensors by the inventory's names."""
_FOREIGN_DTYPES = ("F8_", "F4", "F6")
_FOREIGN_NAMES = (".weight_scale_inv", ".weight_scale", ".weight_packed", ".qweight", ".qzeros")
_KNOWN = "BF16 in Hugging Face layout, affine codes in MLX layout"
_SAMPLED = 16


class Dialect(StrEnum):
    """Whose conventions a part of a checkpoint follows."""

    HUGGING_FACE = "Hugging Face"
    MLX = "MLX"


def _schemes(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    sections = [config, config.get("text_config")]
    found = []
    for section in sections:
        if isinstance(section, Mapping):
            found += [section.get(key) for key in ("quantization", "quantization_config")]
    return [scheme for scheme in found if isinstance(scheme, Mapping)]


def check_scheme(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse quantisations other than MLX's affine one, by what the configuration calls them."""
    for scheme in _schemes(config):
        method = scheme.get("quant_method")
        if method is not None:
            raise UnsupportedModel(
                f"{folder}: weights quantised with {method}", known=_KNOWN, key="quant_method"
            )
        for module, value in (("every module", scheme), *scheme.items()):
            mode = value.get("mode", "affine") if isinstance(value, Mapping) else "affine"
            if mode != "affine":
                raise UnsupportedModel(
                    f"{folder}: quantisation {mode!r} of {module}", known=_KNOWN, key="mode"
                )


def check_encoding(tensors: TensorTable) -> None:
    """Refuse encodings that are known by their types or names."""
    for stored in tensors.values():
        if stored.dtype.startswith(_FOREIGN_DTYPES) or stored.name.endswith(_FOREIGN_NAMES):
            kind = "FP8" if stored.dtype.startswith("F8_") else f"quantised ({stored.dtype})"
            raise UnsupportedModel(
                f"{stored.file.path}: {kind} weights, such as {stored.name}", known=_KNOWN
            )


def dialects(tensors: TensorTable) -> tuple[Dialect, Dialect]:
    """The dialect of the trunk and of the draft head: MLX betrays itself by scales and stacked experts."""
    marks = {False: False, True: False}
    draft = False
    for name in tensors:
        is_draft = name.startswith("mtp.")
        draft |= is_draft
        if name.endswith(".scales") or ".switch_mlp." in name:
            marks[is_draft] = True
    trunk = Dialect.MLX if marks[False] else Dialect.HUGGING_FACE
    if not draft:
        return trunk, trunk
    return trunk, Dialect.MLX if marks[True] else Dialect.HUGGING_FACE


def judge_pre_norms(
    inventory: Inventory, dense: Dense, dialect: Dialect
) -> tuple[bool, list[Note]]:
    """Whether the MTP pre-norms hold 1 + w or w. Converters differ, and only the values tell.

    A norm's effective weights lie around 1, seldom below 0. So values around 1 are complete, values around 0,
    many of them negative, are raw. Hugging Face files are raw by definition: there the evidence must be stronger.
    """
    medians, negative = [], 0.0
    for spec in inventory.dense:
        stored = dense[spec.name]
        if spec.role is Role.PRE_NORM and isinstance(stored, Stored):
            values = _values(stored)
            medians.append(float(np.median(values)))
            negative = max(negative, float((values < 0).mean()))
    if not medians:
        return False, []
    threshold = 0.8 if dialect is Dialect.HUGGING_FACE else 0.5
    complete = sum(medians) / len(medians) > threshold and negative < 0.05
    clear = all((m > threshold) == complete and not 0.4 < m < 0.85 for m in medians)
    shown = " and ".join(f"{m:.3g}" for m in medians)
    kind = "as they are" if complete else "as distances from one"
    text = f"draft head: its input norms are taken {kind}, since their medians are {shown}"
    return complete, [Note(text, "info" if clear else "warning")]


def doubt_norms(inventory: Inventory, dense: Dense, trunk: Dialect) -> list[Note]:
    """A warning if the trunk's norms do not look as its dialect has them: around 0, or complete around 1."""
    specs = [s for s in inventory.dense if s.role is Role.CENTRED and not s.name.startswith("mtp.")]
    sources = [dense[spec.name] for spec in specs[:_SAMPLED]]
    medians = [float(np.median(_values(s))) for s in sources if isinstance(s, Stored)]
    middle = float(np.median(medians)) if medians else 0.0
    complete = trunk is Dialect.MLX
    if not medians or (middle > 0.3 if complete else middle < 0.8):
        return []
    looks, should = ("raw", "complete") if complete else ("complete", "raw")
    return [
        Note(
            f"the norms look {looks} (median {middle:.3g}), though {trunk} files have them {should}: "
            "if the answers are nonsense, this is why",
            "warning",
        )
    ]


def doubt_config(config: Mapping[str, Any], dense: Dense) -> list[Note]:
    """Shapes say how a matrix is quantised; where the configuration says otherwise, mention it."""
    for scheme in _schemes(config):
        modules = {canonical_module(k): v for k, v in scheme.items() if isinstance(v, Mapping)}
        for name, found in dense.items():
            if not isinstance(found, StoredMatrix) or found.bits == 16:
                continue
            module = name.removesuffix(".weight")
            declared = modules.get(module, scheme)
            said = (
                declared.get("bits", scheme.get("bits")),
                declared.get("group_size", scheme.get("group_size")),
            )
            if said != (found.bits, found.group):
                return [
                    Note(
                        f"{name} is {describe_formats({(found.bits, found.group)})}, though config.json says "
                        f"{said[0]}-bit in groups of {said[1]}: the files count",
                        "warning",
                    )
                ]
    return []


def _values(stored: Stored) -> NDArray[np.float32]:
    raw = stored.read()
    return bf16_to_float32(raw) if stored.dtype == "BF16" else raw.astype(np.float32)
