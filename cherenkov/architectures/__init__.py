"""Model families, found by the `model_type` of their configuration.

To add one: a package beside `qwen4_exp` that exports `FAMILY`, and a line in `_HOME`.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from cherenkov.errors import UnsupportedModel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cherenkov.backends.base import Backend
    from cherenkov.checkpoint.inventory import Inventory
    from cherenkov.experts.rows import RowTable
    from cherenkov.experts.store import ExpertStore
    from cherenkov.packing.store import PackedStore
    from cherenkov.state import Rows, State

__all__ = ["Family", "Network", "Observer", "Sizes", "family_of", "known"]

A = TypeVar("A")
A_contra = TypeVar("A_contra", contravariant=True)

_HOME = {
    "qwen4_exp": "cherenkov.architectures.qwen4_exp.family",
    "qwen4_exp_text": "cherenkov.architectures.qwen4_exp.family",
}


class Observer(Protocol[A_contra]):
    """Called with the name of a place in the forward pass and what flows there."""

    def __call__(self, place: str, value: A_contra, /) -> None:
        """See `value` at `place`, such as `layer 3`."""


class Network(Protocol[A]):
    """A model that can run: what generation needs of an architecture."""

    @property
    def drafts(self) -> bool:
        """There is a draft head."""

    @property
    def read_bytes(self) -> int:
        """Bytes of experts that were read so far."""

    @property
    def tables(self) -> Mapping[int, RowTable]:
        """The n-gram table of each layer that has one."""

    def new_state(self, context_tokens: int) -> State[A]:
        """An empty sequence that can grow to `context_tokens`."""

    def forward(
        self,
        rows: Rows[A],
        observe: Observer[A] | None = None,
        check: Callable[[], None] | None = None,
    ) -> A:
        """Run rows through the trunk and commit them. Returns the residual.

        Args:
            rows: of one or several sequences.
            observe: told the residual after each layer.
            check: called between layers; may raise to stop. Then the rows are not committed, and their sequences are
                as good as lost unless there is a snapshot to go back to.
        """

    def logits(self, wide: A, rows: Sequence[int]) -> A:
        """Logits `[len(rows), V]` of chosen rows of a residual."""

    def draft(self, rows: Rows[A], wide: A, ends: Sequence[int] | None = None) -> A:
        """Run the draft head over positions it has not seen. Returns its residual of the rows `ends`, or of all."""

    def guess(self, rows: Rows[A], wide: A, depth: int) -> list[list[int]]:
        """What may come after each sequence's last token, so many tokens of the draft head's; arguments as for `draft`."""

    def draft_logits(self, wide: A, rows: Sequence[int]) -> A:
        """Logits `[len(rows), V]` of the draft head's residual."""

    def close(self) -> None:
        """Close what the network holds open."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a model needs beside its weights. Pure arithmetic over the configuration.

    Attributes:
        vocab: entries of the logits.
        max_context: longest sequence the model was made for, in tokens.
        stop_ids: tokens that end an answer, by the configuration.
        top_k: experts a token uses in a layer.
        fixed_state_bytes: state of a sequence that does not grow.
        delta_position_bytes: what each position adds that a backend keeps beside its recurrent matrices
            (`Backend.delta_kept` of them).
        back_position_bytes: what each position adds that a backend can go back, to the histories of convolutions
            (`Backend.most_back` of them).
        matrix_bytes: the recurrent matrices (a backend may hold `Backend.matrices_back` more of them).
        token_state_elements: cache elements that each token of context adds.
        row_scratch_bytes: transient memory that each row of a step needs.
        residual_bytes: a row of the residual.
    """

    vocab: int
    max_context: int
    stop_ids: tuple[int, ...]
    top_k: int
    fixed_state_bytes: int
    delta_position_bytes: int
    back_position_bytes: int
    matrix_bytes: int
    token_state_elements: float
    row_scratch_bytes: int
    residual_bytes: int

    def state_bytes(
        self,
        context_tokens: int,
        cache_itemsize: int,
        delta_kept: int,
        most_back: int,
        matrices_back: int = 0,
    ) -> int:
        """Memory of one sequence of `context_tokens`, on a backend with these attributes."""
        growing = int(self.token_state_elements * context_tokens * cache_itemsize)
        back = most_back * self.back_position_bytes + matrices_back * self.matrix_bytes
        return self.fixed_state_bytes + delta_kept * self.delta_position_bytes + back + growing


class Family(Protocol):
    """A model family: everything the rest of the library asks of an architecture."""

    name: str

    def sizes(self, config: Mapping[str, Any]) -> Sizes:
        """What a model of this configuration needs. Raises UnsupportedModel, naming the key."""

    def inventory(self, config: Mapping[str, Any]) -> Inventory:
        """What a checkpoint of this configuration must hold. Raises UnsupportedModel, naming the key."""

    def without_draft(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The same configuration for a checkpoint that comes without its draft head."""

    def build(
        self, store: PackedStore, backend: Backend[Any, Any], experts: ExpertStore
    ) -> Network[Any]:
        """Load the resident weights of a store onto a backend."""


def known() -> list[str]:
    """Every `model_type` that can run."""
    return sorted(_HOME)


def family_of(config: Mapping[str, Any]) -> Family:
    """The family of a `config.json`.

    Raises:
        UnsupportedModel: saying what it is instead.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in _HOME:
        raise UnsupportedModel(
            f"config.json: model_type = {kind!r} is not a model this engine runs",
            known=", ".join(known()),
            key="model_type",
        )
    family: Family = importlib.import_module(_HOME[kind]).FAMILY
    return family
