"""What the operations work on: weights, one sequence's memory, and the routed experts of a layer.

Shapes use the letters R rows, D hidden, S streams, V vocabulary, E experts, K chosen experts, H heads. Arrays are
a backend's own: `A`, and `M` for a placed matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cherenkov.packing.layout import ExpertLayout

__all__ = [
    "LEFT_OUT",
    "Arrivals",
    "AttentionState",
    "Block",
    "Choice",
    "DeltaNet",
    "DeltaState",
    "DraftFuse",
    "Embedding",
    "ExpertPool",
    "Floats",
    "GatedResidual",
    "Head",
    "Ids",
    "Memory",
    "Ple",
    "PleState",
    "Resident",
    "Router",
    "Routes",
    "SharedExpert",
    "Span",
    "SparseAttention",
    "Stretch",
    "Wave",
]

M = TypeVar("M")
A = TypeVar("A")
S_co = TypeVar("S_co", covariant=True)

Ids = NDArray[np.int32]
Floats = NDArray[np.float32]


# --- weights -----------------------------------------------------------------------------------------------------
# Norm weights arrive complete: where the checkpoint's are zero-centred, the 1 has been added.


@dataclass(frozen=True, slots=True)
class Embedding(Generic[M]):
    """Token table `[V, D]`; its row fills every one of the S streams."""

    table: M
    streams: int


@dataclass(frozen=True, slots=True)
class GatedResidual(Generic[M, A]):
    """A hyper-connection: how a block reads the wide residual, and how strongly it writes back."""

    norm: A  # [S*D]
    down: M  # [L, S*D]
    up: M  # [S*D, L]
    inject: M | None  # [S, S*D]; None for a final mixer, which only reads
    streams: int
    eps: float


@dataclass(frozen=True, slots=True)
class DeltaNet(Generic[M, A]):
    """Gated DeltaNet. C = 2*Hk*dk + Hv*dv channels, in the order query, key, value."""

    qkv: M  # [C, D]
    z: M  # [Hv*dv, D]
    a: M  # [Hv, D]
    b: M  # [Hv, D]
    out: M  # [D, Hv*dv]
    conv: A  # [C, taps], oldest tap first
    a_log: A  # [Hv]
    dt_bias: A  # [Hv]
    norm: A  # [dv]
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int
    gate: str  # "silu" or "sigmoid"
    eps: float


@dataclass(frozen=True, slots=True)
class SparseAttention(Generic[M, A]):
    """Attention whose keys are chosen in blocks by an indexer (QSA). `q` emits query and gate, head by head."""

    q: M  # [H*2*d, D]
    k: M  # [Hkv*d, D]
    v: M  # [Hkv*d, D]
    o: M  # [D, H*d]
    q_bias: A | None
    k_bias: A | None
    v_bias: A | None
    o_bias: A | None
    q_norm: A  # [d]
    k_norm: A  # [d]
    index: M  # [(Hi+1)*di, D]
    index_q_norm: A  # [di]
    index_k_norm: A  # [di]
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    theta: float
    index_heads: int
    index_dim: int
    block: int  # tokens in an index block
    budget: int  # tokens kept from complete blocks, a multiple of `block`
    eps: float


@dataclass(frozen=True, slots=True)
class Ple(Generic[M, A]):
    """Per-layer embedding: hashed n-gram features, gated into every stream."""

    key: M  # [S*D, P]
    value: M  # [D, P]
    norm_key: A  # [S*D]
    norm_query: A  # [S*D]
    norm_conv: A  # [S*D]
    conv: A  # [S*D, taps], oldest tap first
    taps: int
    dilation: int
    streams: int
    eps: float


@dataclass(frozen=True, slots=True)
class Router(Generic[M]):
    """Scores `[E, D]`, softmax over all experts, the best K; `normalise` makes the K weights sum to 1."""

    gate: M
    top_k: int
    normalise: bool


@dataclass(frozen=True, slots=True)
class SharedExpert(Generic[M]):
    """The expert every token uses, weighted by sigmoid(switch . x)."""

    gate: M  # [Is, D]
    up: M  # [Is, D]
    down: M  # [D, Is]
    switch: M  # [1, D]


@dataclass(frozen=True, slots=True)
class Block(Generic[M, A]):
    """One decoder layer. `index` is its place among the layers, and among the record layers of the expert store."""

    index: int
    mixer_read: GatedResidual[M, A]
    moe_read: GatedResidual[M, A]
    mixer: DeltaNet[M, A] | SparseAttention[M, A]
    router: Router[M]
    shared: SharedExpert[M]
    ple: Ple[M, A] | None


@dataclass(frozen=True, slots=True)
class DraftFuse(Generic[M, A]):
    """Entry of the MTP head: the trunk's residual and the next token's embedding, fused into a new residual."""

    norm_embedding: A  # [D]
    norm_hidden: A  # [S*D], one statistic over all streams
    fc_embedding: M  # [D, D]
    fc_hidden: M  # [D, D], shared by the streams
    streams: int
    eps: float


@dataclass(frozen=True, slots=True)
class Head(Generic[M, A]):
    """Final mixer and LM head `[V, D]`."""

    mixer: GatedResidual[M, A]
    matrix: M


# --- state: one sequence's memory of one layer --------------------------------------------------------------------
# Arrays may be written in place or replaced; `length` counts the tokens that went in.


@dataclass(slots=True)
class DeltaState(Generic[A]):
    """`history` `[taps-1, C]`: the last convolution inputs, oldest first. `matrix` `[Hv, dk, dv]` float32.

    A backend that works in chunks of `Backend.delta_chunk` positions folds a chunk into `matrix` when the next one
    begins. Until then `pending` holds what its positions did, in an order of the backend's choice:
    `delta_kept * (Hk*dk + Hv*(dv+1))` numbers, of which the span's position says how many count. `Backend.settled`
    gives the matrix as of now.

    A backend that can go back (`Backend.most_back`) has so many more rows in `history`, in an order of its choice;
    `Backend.behind` gives those that count.
    """

    history: A
    matrix: A
    pending: A | None = None


@dataclass(slots=True)
class AttentionState(Generic[A]):
    """Keys and values `[T, Hkv, d]`, raw index keys `[T, di]`, finished block keys `[T//block, di]`."""

    keys: A
    values: A
    index_keys: A
    block_keys: A
    length: int = 0
    block: int = 1


@dataclass(slots=True)
class PleState(Generic[A]):
    """`history` `[(taps-1)*dilation, S*D]`: the last normalised values, oldest first; see `DeltaState` on going back."""

    history: A


class Memory(Protocol[A]):
    """One sequence's memory of every layer.

    Attributes:
        layers: each layer's state, by its index.
        ple: the state of the layers with n-gram features, by index.
        bound: how the backend keeps the whole at hand, in an object of its own; None until it does, and again
            whenever an array has been replaced.
    """

    bound: object

    @property
    def layers(self) -> Sequence[DeltaState[A] | AttentionState[A]]:
        """By index."""

    @property
    def ple(self) -> Mapping[int, PleState[A]]:
        """By index."""


class Span(NamedTuple, Generic[S_co]):
    """Rows `start:stop` are consecutive tokens of one sequence, the first at `position`; `state` is their layer's."""

    start: int
    stop: int
    position: int
    state: S_co


# --- routed experts -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Routes(Generic[A]):
    """Which experts each row uses: `ids` `[R, K]` by falling score, ties to the lower id; `weights` `[R, K]`."""

    ids: Ids
    weights: A


class Choice:
    """Rows that have chosen their experts: what `choose` leaves to one `mixture`. The rest is the backend's own.

    Attributes:
        ids: as in `Routes`, `[R, K]`: what the host must know, to have the experts in memory.
    """

    __slots__ = ("ids",)

    def __init__(self, ids: Ids) -> None:
        self.ids = ids


LEFT_OUT = -2
"""In place of a slot: this expert does not come, and counts as nothing."""


class Wave(NamedTuple):
    """Experts that are in memory now: `experts[i]` lies in slot `slots[i]` of the pool, or is `LEFT_OUT`."""

    experts: Ids
    slots: Ids


class ExpertPool:
    """Slots that hold expert records. A backend makes it, reader threads fill it, kernels read it.

    Attributes:
        layout: how a record is laid out inside its slot.
        memory: uint8 `[slots, stride_bytes]`, writable by the host.
        lower: layout of the same record in fewer bits, or None if all slots hold records of `layout`.
        tags: uint8 `[slots]`, 1 where a record of `lower` lies.
    """

    def __init__(self, layout: ExpertLayout, memory: NDArray[np.uint8]) -> None:
        self.layout = layout
        self.memory = memory
        self.lower: ExpertLayout | None = None
        self.tags: NDArray[np.uint8] = np.zeros(len(memory), dtype=np.uint8)

    def layout_in(self, slot: int) -> ExpertLayout:
        """How the record in a slot is laid out."""
        return self.lower if self.lower is not None and self.tags[slot] else self.layout

    @property
    def slots(self) -> int:
        """How many records fit."""
        return len(self.memory)

    def landed(self, slot: int) -> None:
        """A record lies in `memory[slot]`. Nothing to do where kernels read that memory."""

    def settle(self) -> None:
        """Wait until all that has landed is where kernels read it."""


class Arrivals(Protocol):
    """What `ExpertStore.acquire` hands to `experts`: the pool, and waves of experts as they come within reach.

    Every routed expert comes in exactly one wave. A wave's slots are safe until the next wave is asked for.

    Attributes:
        steady: they are safe until the store is asked for something else: there is a slot for every expert.
    """

    @property
    def steady(self) -> bool:
        """See above."""

    @property
    def pool(self) -> ExpertPool:
        """Where the slots are."""

    def __iter__(self) -> Iterator[Wave]:
        """Resident experts first, then the missing ones as they land."""


class Resident(Protocol):
    """Which experts are in memory, for a `stretch` to look up."""

    @property
    def pool(self) -> ExpertPool:
        """Where the slots are."""

    @property
    def slot_table(self) -> Ids:
        """`[layers, experts]`: the slot an expert is in, -1 if in none."""

    def flow(self) -> object:
        """What kernels need to bring missing experts themselves, or None; for a backend that knows how."""


class Stretch(NamedTuple, Generic[A]):
    """How far a step came without the host.

    Attributes:
        wide: the residual `[R, S*D]` there.
        ids: the experts of the layers that ran whole, `[layers, R, K]`.
        choice: of the layer after them, which ran up to its experts; None if there is no further layer.
    """

    wide: A
    ids: Ids
    choice: Choice | None
