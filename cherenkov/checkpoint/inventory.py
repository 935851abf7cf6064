"""What a configuration says must be in a checkpoint: names, shapes and roles.

An architecture builds an `Inventory` from its configuration. Readers check files against it, the packer writes
by it, and neither knows the architecture. Names are canonical: those of the packed store, which are MLX's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ExpertSpec", "Inventory", "NgramSpec", "Role", "TensorSpec"]


class Role(StrEnum):
    """What becomes of a dense tensor on the way into the store."""

    MATRIX = "matrix"
    """A projection `[out, in]`: quantised when packed, or kept as it comes quantised."""
    KEPT = "kept"
    """Stays in floating point: routers, gates, convolutions, plain norms, decay parameters."""
    CENTRED = "centred"
    """A zero-centred norm weight: the store holds 1 + w. MLX checkpoints come with the 1 already added."""
    PRE_NORM = "pre_norm"
    """An MTP pre-norm: the store holds w; files come either way, and only the values tell."""
    HASH = "hash"
    """Integer parameters of the n-gram hash, int64."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One dense tensor. A MATRIX is named without `.weight`; every other role by its full name."""

    name: str
    shape: tuple[int, ...]
    role: Role


@dataclass(frozen=True, slots=True)
class ExpertSpec:
    """The routed experts of one layer: gate and up `[inter, hidden]`, down `[hidden, inter]`, `experts` times."""

    prefix: str
    """Canonical prefix of the layer, such as `language_model.model.layers.3.mlp.switch_mlp`."""
    experts: int
    inter: int
    hidden: int


@dataclass(frozen=True, slots=True)
class NgramSpec:
    """One n-gram embedding table `[rows, dim]`, which checkpoints split into row shards of equal size."""

    prefix: str
    """Canonical prefix, such as `language_model.model.layers.1.ple.ple_embedding.ngram_embedding`."""
    rows: int
    dim: int


@dataclass(frozen=True, slots=True)
class Inventory:
    """Everything a checkpoint must hold.

    `experts` are in record order: the trunk's layers, then the draft head's.
    """

    dense: tuple[TensorSpec, ...]
    experts: tuple[ExpertSpec, ...]
    ngrams: tuple[NgramSpec, ...]

    def parameters(self) -> int:
        """Count of weights."""
        return sum(self._sizes())

    def _sizes(self) -> Iterator[int]:
        for spec in self.dense:
            size = 1
            for side in spec.shape:
                size *= side
            yield size
        yield from (3 * e.experts * e.inter * e.hidden for e in self.experts)
        yield from (n.rows * n.dim for n in self.ngrams)
