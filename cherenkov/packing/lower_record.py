"""One expert record, in fewer bits."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cherenkov.checkpoint.affine import HostMatrix, dequantise, unpack
from cherenkov.errors import CorruptModel, DiskError
from cherenkov.packing.integrity import record_checksum
from cherenkov.packing.lowbit import TRUNCATE
from cherenkov.packing.refit import refit_codes, refit_values
from cherenkov.packing.truncate import truncated

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from numpy.typing import NDArray

    from cherenkov.checkpoint.source import Checkpoint
    from cherenkov.packing.layout import ExpertLayout
    from cherenkov.packing.store import PackedStore

__all__ = ["RecordLowerer"]

_MATRICES = ("gate", "up", "down")
_ENDLESS = np.uint16(0x7F80)
"""The exponent of infinities and NaN in BF16."""


@dataclass(frozen=True, slots=True)
class RecordLowerer:
    """From one record of the store to its low-bit forms. May run on any thread."""

    store: PackedStore
    derivation: str
    source: Checkpoint | None

    def record(
        self, base: int, index: int, layouts: Mapping[int, ExpertLayout]
    ) -> dict[int, NDArray[np.uint8]]:
        """Record `index` in every layout; `base` is experts.bin, open.

        Raises:
            CorruptModel: if it is not what was written, or holds what is not finite.
            DiskError: if it cannot be read.
        """
        matrices = list(self._matrices(base, index))
        return {bits: self._assembled(layout, matrices, index) for bits, layout in layouts.items()}

    def _assembled(
        self, layout: ExpertLayout, matrices: Sequence[HostMatrix], index: int
    ) -> NDArray[np.uint8]:
        record, offsets = np.zeros(layout.stride_bytes, np.uint8), layout.offsets()
        for name, matrix in zip(_MATRICES, matrices, strict=True):
            with np.errstate(all="ignore"):  # what comes of it is looked at
                codes, *pair = self._lowered(matrix, layout.bits)
            if self.derivation != TRUNCATE and any(np.any(p & _ENDLESS == _ENDLESS) for p in pair):
                reason = f"{name} has weights that are not finite, or too large for fewer bits"
                raise CorruptModel(self.store.experts_path, reason, item=_name(self.store, index))
            for part, values in zip("wsb", (codes, *pair), strict=True):
                data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
                start = offsets[f"{name}_{part}"]
                record[start : start + len(data)] = data
        return record

    def _lowered(self, matrix: HostMatrix, bits: int) -> tuple[NDArray[Any], ...]:
        if self.derivation == TRUNCATE:
            assert matrix.scales is not None
            assert matrix.biases is not None
            codes = unpack(matrix.codes.astype(np.uint32, copy=False), 4)
            return truncated(codes, bits), matrix.scales, matrix.biases
        if matrix.bits == 4:
            return refit_codes(matrix, bits)
        return refit_values(dequantise(matrix), bits, self.store.expert_layout.group)

    def _matrices(self, base: int, index: int) -> Iterable[HostMatrix]:
        if self.source is not None:
            layer, expert = divmod(index, self.store.manifest.experts.experts)
            return [block.read() for block in self.source.experts[layer].blocks[expert]]
        layout = self.store.expert_layout
        return _split(layout, _read(self.store, base, index))


def _read(store: PackedStore, base: int, index: int) -> NDArray[np.uint8]:
    """A record of the store, checked."""
    stride, name = store.expert_layout.stride_bytes, _name(store, index)
    try:
        data = os.pread(base, stride, index * stride)
    except OSError as error:
        raise DiskError.wrap(error, store.experts_path, f"read {name}") from error
    expected = store.integrity.records[index] if store.integrity is not None else None
    if len(data) < stride or expected not in {None, record_checksum(memoryview(data))}:
        reason = "the file ends early" if len(data) < stride else "the checksum does not match"
        raise CorruptModel(store.experts_path, reason, item=name, offset=index * stride)
    return np.frombuffer(data, np.uint8)


def _name(store: PackedStore, index: int) -> str:
    layer, expert = divmod(index, store.manifest.experts.experts)
    return f"record {index} (layer {layer}, expert {expert})"


def _split(layout: ExpertLayout, record: NDArray[np.uint8]) -> Iterable[HostMatrix]:
    """Gate, up and down of a record."""
    offsets = layout.offsets()
    for name in _MATRICES:
        rows, width = layout.inter, layout.hidden
        if name == "down":
            rows, width = width, rows
        start = offsets[f"{name}_w"]
        codes = record[start : start + layout.codes_bytes]
        if layout.bits == 16:
            yield HostMatrix((rows, width), 16, 0, codes.view(np.uint16).reshape(rows, width))
            continue
        pair = (
            record[offsets[f"{name}_{part}"] :][: layout.scales_bytes].view(np.uint16)
            for part in "sb"
        )
        scales, biases = (part.reshape(rows, -1) for part in pair)
        yield HostMatrix(
            (rows, width), layout.bits, layout.group, codes.view(np.uint32).reshape(rows, -1),
            scales, biases,
        )  # fmt: skip
