"""The three matrices inside an expert record, without copying."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cherenkov.checkpoint.affine import HostMatrix

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from cherenkov.packing.layout import ExpertLayout

__all__ = ["expert_matrices"]


def expert_matrices(
    layout: ExpertLayout, slot: NDArray[np.uint8]
) -> tuple[HostMatrix, HostMatrix, HostMatrix]:
    """Gate `[inter, hidden]`, up `[inter, hidden]` and down `[hidden, inter]` of the record in `slot`."""
    offsets = layout.offsets()

    def matrix(name: str, rows: int, columns: int) -> HostMatrix:
        def part(suffix: str, size: int) -> NDArray[np.uint8]:
            start = offsets[f"{name}_{suffix}"]
            return slot[start : start + size]

        codes = part("w", layout.codes_bytes)
        if layout.bits == 16:
            return HostMatrix((rows, columns), 16, 0, codes.view(np.uint16).reshape(rows, columns))
        return HostMatrix(
            (rows, columns),
            layout.bits,
            layout.group,
            codes.view(np.uint32).reshape(rows, -1),
            part("s", layout.scales_bytes).view(np.uint16).reshape(rows, -1),
            part("b", layout.scales_bytes).view(np.uint16).reshape(rows, -1),
        )

    wide = (layout.inter, layout.hidden)
    return matrix("gate", *wide), matrix("up", *wide), matrix("down", *reversed(wide))
