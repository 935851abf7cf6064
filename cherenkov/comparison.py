"""How far two backends are apart, layer by layer, on the same tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cherenkov.errors import CapacityError
from cherenkov.prefill import chunks
from cherenkov.state import Rows
from cherenkov.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from cherenkov.budget import Memory, Plan
    from cherenkov.lane import Loaded

__all__ = ["Difference", "admit_reference", "differences"]

_FLOAT32_PER_4_BIT = 8


@dataclass(frozen=True, slots=True)
class Difference:
    """How far two backends are apart at one place of the forward pass, over all rows.

    Attributes:
        place: such as `layer 3` or `logits`.
        largest: largest absolute difference.
        scale: largest magnitude in the reference, at least 1.
        argmax_differs: rows whose most likely token differs although the reference's margin is clear; for logits.
    """

    place: str
    largest: float
    scale: float
    argmax_differs: int = 0

    @property
    def relative(self) -> float:
        """`largest` over `scale`."""
        return self.largest / self.scale


def admit_reference(plan: Plan, memory: Memory) -> None:
    """Refuse to start a reference that would not fit beside a loaded model.

    Raises:
        CapacityError: saying how much it needs.
    """
    needed = _FLOAT32_PER_4_BIT * plan.dense_bytes + plan.pool_bytes
    if needed > memory.available_bytes:
        raise CapacityError(
            f"the reference backend needs {format_bytes(needed)} for its float32 weights, but {memory.source} has "
            f"{format_bytes(memory.available_bytes)} available: check on a larger machine, or a smaller model",
            asked_bytes=needed,
            available_bytes=memory.available_bytes,
        )


def differences(
    loaded: Loaded, reference: Loaded, ids: Sequence[int], margin: float
) -> list[Difference]:
    """Run `ids` through both; see `Model.check`."""
    ours, theirs = _trace(loaded, ids), _trace(reference, ids)
    return [_compare(place, ours[place], theirs[place], margin) for place in theirs]


def _trace(loaded: Loaded, ids: Sequence[int]) -> dict[str, NDArray[np.float32]]:
    """What flows through the model after each layer, and the logits, over all of `ids`."""
    seen: dict[str, list[NDArray[np.float32]]] = {}

    def see(place: str, value: Any) -> None:
        # A copy, since a backend may reuse the memory of its results.
        seen.setdefault(place, []).append(np.array(loaded.backend.host(value)))

    state = loaded.network.new_state(loaded.context_tokens)
    for start, stop in chunks(len(ids), loaded.chunk_rows):
        wide = loaded.network.forward(Rows([(state, ids[start:stop])]), see)
        see("logits", loaded.network.logits(wide, range(stop - start)))
    return {place: np.concatenate(parts) for place, parts in seen.items()}


def _compare(
    place: str, ours: NDArray[np.float32], theirs: NDArray[np.float32], margin: float
) -> Difference:
    scale = max(1.0, float(np.abs(theirs).max()))
    differs = 0
    if place == "logits":
        top = np.sort(np.partition(theirs, -2, axis=1)[:, -2:], axis=1)
        clear = top[:, 1] - top[:, 0] > margin * scale
        differs = int((clear & (ours.argmax(axis=1) != theirs.argmax(axis=1))).sum())
    return Difference(place, float(np.abs(ours - theirs).max()), scale, differs)
