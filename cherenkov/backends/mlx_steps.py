"""What the steps of the MLX backends hand from one to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import mlx.core as mx
import numpy as np

from cherenkov.backends.mlx_matrices import Pool
from cherenkov.backends.operands import AttentionState, Choice, DeltaState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cherenkov.backends.operands import Ids, Resident, Routes

__all__ = [
    "Chosen",
    "Guess",
    "Places",
    "cache_of",
    "delta_of",
    "joined",
    "listed",
    "pool_of",
    "present",
    "stacked",
]


class Places:
    """A slot table on the device, sent there when it has changed."""

    def __init__(self) -> None:
        self._kept: tuple[Ids, mx.array] | None = None

    def on_device(self, table: Ids) -> mx.array:
        """int32 `[layers, experts]`; 0 for those in no slot."""
        if self._kept is None or not np.array_equal(self._kept[0], table):
            self._kept = (table.copy(), mx.array(np.maximum(table, 0)))
        return self._kept[1]


class Chosen(Choice):
    """Rows that wait for their experts."""

    __slots__ = ("gain", "routes", "x")

    def __init__(self, x: mx.array, gain: mx.array, routes: Routes[mx.array]) -> None:
        super().__init__(routes.ids)
        self.x = x  # [R, D]
        self.gain = gain  # [R, S]
        self.routes = routes


class Guess(NamedTuple):
    """What a router would choose for a residual, asked for before it was wanted."""

    wide: mx.array
    router: object
    ids: Ids


def listed(tokens: Ids) -> mx.array:
    """Ids that a kernel reads. A range travels with its kernel's call; an array, the device must fetch from the host."""
    if len(tokens) == 1:
        return mx.arange(int(tokens[0]), int(tokens[0]) + 1, dtype=mx.int32)
    return mx.array(tokens)


def joined(parts: Sequence[mx.array]) -> mx.array:
    """Parts, one after the other."""
    return parts[0] if len(parts) == 1 else mx.concatenate(list(parts))


def stacked(seen: Sequence[mx.array | Ids], like: Ids) -> Ids:
    """The ids of layers that ran, `[n, R, K]`."""
    if not seen:
        return np.empty((0, *like.shape), np.int32)
    return np.stack([np.array(ids) for ids in seen])


def pool_of(resident: Resident) -> Pool:
    """The pool, with all that has landed in its place."""
    assert isinstance(resident.pool, Pool)
    resident.pool.settle()
    return resident.pool


def present(gain: mx.array | None) -> mx.array:
    """A gain, which only final mixers lack."""
    assert gain is not None, "only final mixers read without injecting"
    return gain


def delta_of(state: DeltaState[mx.array] | AttentionState[mx.array]) -> DeltaState[mx.array]:
    """The state of a DeltaNet layer."""
    assert isinstance(state, DeltaState)
    return state


def cache_of(state: DeltaState[mx.array] | AttentionState[mx.array]) -> AttentionState[mx.array]:
    """The state of an attention layer."""
    assert isinstance(state, AttentionState)
    return state
