"""The seam: a table of fused operations, and the weights and state they work on.

An architecture composes these operations and does no arithmetic of its own. A backend implements the table over
its own arrays `A` and its own placed matrices `M`; nobody else looks inside either. Shapes use the letters
R rows, D hidden, S streams, V vocabulary, E experts, K chosen experts, H heads.

Two properties bind every backend:

- a row's result does not depend on how many rows share the call (tolerances, not bits, across backends);
- experts are summed in routing-rank order, the shared expert last, whatever arrived first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cherenkov.checkpoint.affine import HostMatrix
    from cherenkov.packing.layout import ExpertLayout

__all__ = [
    "Arrivals",
    "AttentionState",
    "Backend",
    "Choice",
    "DeltaNet",
    "DeltaState",
    "DraftFuse",
    "Embedding",
    "ExpertPool",
    "GatedResidual",
    "Head",
    "Options",
    "Ple",
    "PleState",
    "Router",
    "Routes",
    "SharedExpert",
    "Span",
    "SparseAttention",
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
    `delta_chunk * (Hk*dk + Hv*(dv+1))` numbers, of which the span's position says how many count. `Backend.settled`
    gives the matrix as of now.
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


@dataclass(slots=True)
class PleState(Generic[A]):
    """`history` `[(taps-1)*dilation, S*D]`: the last normalised values, oldest first."""

    history: A


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


class _Routed(Choice, Generic[A]):
    """The choice of a backend whose `choose` is made of the basic operations."""

    __slots__ = ("gain", "routes", "x")

    def __init__(self, x: A, gain: A, routes: Routes[A]) -> None:
        super().__init__(routes.ids)
        self.x = x  # [R, D]
        self.gain = gain  # [R, S]
        self.routes = routes


class Wave(NamedTuple):
    """Experts that are in memory now: `experts[i]` lies in slot `slots[i]` of the pool."""

    experts: Ids
    slots: Ids


class ExpertPool:
    """Slots that hold expert records. A backend makes it, reader threads fill it, kernels read it.

    Attributes:
        layout: how a record is laid out inside its slot.
        memory: uint8 `[slots, stride_bytes]`, writable by the host.
    """

    def __init__(self, layout: ExpertLayout, memory: NDArray[np.uint8]) -> None:
        self.layout = layout
        self.memory = memory

    @property
    def slots(self) -> int:
        """How many records fit."""
        return len(self.memory)


class Arrivals(Protocol):
    """What `ExpertStore.acquire` hands to `experts`: the pool, and waves of experts as they come within reach.

    Every routed expert comes in exactly one wave. A wave's slots are safe until the next wave is asked for.
    """

    @property
    def pool(self) -> ExpertPool:
        """Where the slots are."""

    def __iter__(self) -> Iterator[Wave]:
        """Resident experts first, then the missing ones as they land."""


# --- the table ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Options:
    """How a backend is to run. Zero or empty means: choose.

    Attributes:
        threads: compute threads.
        precision: of activations inside matrix products: float32, bf16, int16 or int8.
        isa: instruction set of the native backend: avx512_bf16, avx512_vnni, avx2 or portable.
    """

    threads: int = 0
    precision: str = ""
    isa: str = ""


class Backend(ABC, Generic[M, A]):
    """The operations every backend provides. All arrays hold float32 unless said otherwise."""

    name: str
    """Name in the registry, such as `native`."""
    cache_itemsize: int = 4
    """Bytes per element of what `cache` allocates."""
    delta_chunk: int = 0
    """Positions that a `DeltaState` keeps beside its matrix."""
    matrix_bits: int | None = None
    """Width at which placed matrices stay in memory; None for the width they are stored at."""

    @property
    def detail(self) -> str:
        """What was chosen at run time, for people: instruction set, threads, precision."""
        return ""

    def close(self) -> None:
        """Release threads and memory. The backend is not used again."""

    # placing weights and memory

    @abstractmethod
    def matrix(self, host: HostMatrix) -> M:
        """Place a matrix. The host arrays outlive the backend and may be used as they are."""

    @abstractmethod
    def array(self, host: Floats) -> A:
        """Place a float32 array."""

    @abstractmethod
    def host(self, array: A) -> Floats:
        """Bring an array back to the host, as float32. May share memory."""

    @abstractmethod
    def zeros(self, shape: tuple[int, ...]) -> A:
        """Zeroed float32 memory, for recurrent state."""

    def cache(self, shape: tuple[int, ...]) -> A:
        """Zeroed memory for keys and values, in a type of the backend's choice (`cache_itemsize`)."""
        return self.zeros(shape)

    @abstractmethod
    def copy(self, array: A) -> A:
        """An independent copy."""

    def delta_state(self, w: DeltaNet[M, A]) -> DeltaState[A]:
        """The state of a DeltaNet layer before the first token."""
        keys, values = w.key_heads * w.key_dim, w.value_heads * w.value_dim
        pending = self.delta_chunk * (keys + values + w.value_heads)
        return DeltaState(
            history=self.zeros((w.taps - 1, 2 * keys + values)),
            matrix=self.zeros((w.value_heads, w.key_dim, w.value_dim)),
            pending=self.zeros((pending,)) if pending else None,
        )

    @abstractmethod
    def settled(self, w: DeltaNet[M, A], state: DeltaState[A], position: int) -> A:
        """The recurrent matrix `[Hv, dk, dv]` as of `position`, the next token's. A copy; the state stays as it is."""

    @abstractmethod
    def pool(self, layout: ExpertLayout, slots: int) -> ExpertPool:
        """Memory for `slots` expert records."""

    # operations

    @abstractmethod
    def embed(self, w: Embedding[M], tokens: Ids) -> A:
        """Token ids `[R]` to the wide residual `[R, S*D]`."""

    @abstractmethod
    def read_residual(self, w: GatedResidual[M, A], wide: A) -> tuple[A, A | None]:
        """Wide residual `[R, S*D]` to block input `[R, D]` and injection weights `[R, S]`, if it injects.

        n = RMSNorm per stream; m = sigmoid(up . silu(down . n / S)); input = mean over streams of m * n;
        gain = 2 * sigmoid(inject . n / S). Source: transformers `Qwen4ExpTextGatedResidual`.
        """

    @abstractmethod
    def inject(self, wide: A, block: A, gain: A) -> A:
        """`wide` `[R, S*D]` + `gain` `[R, S]` times `block` `[R, D]`, stream by stream. May reuse `wide`."""

    @abstractmethod
    def delta_net(self, w: DeltaNet[M, A], x: A, spans: Sequence[Span[DeltaState[A]]]) -> A:
        """Gated DeltaNet over rows `[R, D]`; advances each span's state.

        Per value head: S <- exp(g) S; S <- S + k (beta (v - S'k))'; y = S'q, with L2-normalised q (also scaled by
        1/sqrt(dk)) and k, g = -exp(a_log) softplus(a + dt_bias), beta = sigmoid(b); then RMSNorm and the gate z.
        Source: Yang et al., "Gated Delta Networks"; transformers `Qwen4ExpTextGatedDeltaNet`.
        """

    @abstractmethod
    def sparse_attention(
        self, w: SparseAttention[M, A], x: A, spans: Sequence[Span[AttentionState[A]]]
    ) -> A:
        """Indexed attention over rows `[R, D]`; appends to each span's cache.

        Block scores are sums over index heads of relu(q . k) / sqrt(di); the best `budget // block` complete
        blocks are attended, ties to the lowest index, plus the tokens after the last complete block.
        Source: transformers `Qwen4ExpTextAttention`, `Qwen4ExpTextQSAIndexer`.
        """

    @abstractmethod
    def ple(self, w: Ple[M, A], wide: A, features: A, spans: Sequence[Span[PleState[A]]]) -> A:
        """`wide` plus the gated, convolved n-gram `features` `[R, P]`; advances the history. May reuse `wide`.

        Source: transformers `Qwen4ExpTextPLELayer`.
        """

    @abstractmethod
    def route(self, w: Router[M], x: A) -> Routes[A]:
        """Choose each row's experts. The one place where the host must see a result."""

    @abstractmethod
    def experts(self, shared: SharedExpert[M], x: A, routes: Routes[A], arrivals: Arrivals) -> A:
        """Routed experts plus the shared one, `[R, D]`. Computes each wave as it arrives, sums in rank order."""

    # a layer's steps, composed of the above; a backend may run each as one operation, with the same result

    def mix_delta(
        self,
        read: GatedResidual[M, A],
        w: DeltaNet[M, A],
        wide: A,
        spans: Sequence[Span[DeltaState[A]]],
    ) -> A:
        """`read_residual`, `delta_net`, `inject`: `wide` `[R, S*D]` after a layer's mixer. May reuse `wide`."""
        x, gain = self.read_residual(read, wide)
        return self.inject(wide, self.delta_net(w, x, spans), _present(gain))

    def mix_attention(
        self,
        read: GatedResidual[M, A],
        w: SparseAttention[M, A],
        wide: A,
        spans: Sequence[Span[AttentionState[A]]],
    ) -> A:
        """`read_residual`, `sparse_attention`, `inject`: as `mix_delta`, for the other mixer. May reuse `wide`."""
        x, gain = self.read_residual(read, wide)
        return self.inject(wide, self.sparse_attention(w, x, spans), _present(gain))

    def choose(self, read: GatedResidual[M, A], router: Router[M], wide: A) -> Choice:
        """`read_residual`, `route`: the experts that each row of `wide` `[R, S*D]` goes to. The host must see the ids."""
        x, gain = self.read_residual(read, wide)
        return _Routed(x, _present(gain), self.route(router, x))

    def mixture(self, shared: SharedExpert[M], wide: A, choice: Choice, arrivals: Arrivals) -> A:
        """`experts`, `inject`: `wide` `[R, S*D]` after the experts of a choice. Uses the choice up. May reuse `wide`."""
        assert isinstance(choice, _Routed)
        block = self.experts(shared, choice.x, choice.routes, arrivals)
        return self.inject(wide, block, choice.gain)

    # around the layers

    @abstractmethod
    def fuse(self, w: DraftFuse[M, A], embedding: Embedding[M], tokens: Ids, wide: A) -> A:
        """Residual `[R, S*D]` at positions p and the tokens that follow, to the MTP head's residual `[R, S*D]`."""

    @abstractmethod
    def logits(self, w: Head[M, A], wide: A, rows: Sequence[int]) -> A:
        """Logits `[len(rows), V]` of the rows asked for."""

    def argmax(self, w: Head[M, A], wide: A, rows: Sequence[int]) -> Ids:
        """The most likely token of each row asked for; ties to the lowest id."""
        best: Ids = np.argmax(self.host(self.logits(w, wide, rows)), axis=-1).astype(np.int32)
        return best


def _present(gain: A | None) -> A:
    assert gain is not None, "only final mixers read without injecting"
    return gain
