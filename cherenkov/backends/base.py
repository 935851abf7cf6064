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
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from cherenkov.backends.operands import (
    Arrivals,
    AttentionState,
    Block,
    Choice,
    DeltaNet,
    DeltaState,
    DraftFuse,
    DraftHead,
    Embedding,
    ExpertPool,
    Floats,
    GatedResidual,
    Head,
    Ids,
    Memory,
    Ple,
    PleState,
    Resident,
    Router,
    Routes,
    SharedExpert,
    Span,
    SparseAttention,
    Stretch,
    Wave,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cherenkov.checkpoint.affine import HostMatrix
    from cherenkov.packing.layout import ExpertLayout

__all__ = [
    "Arrivals",
    "AttentionState",
    "Backend",
    "Block",
    "Choice",
    "DeltaNet",
    "DeltaState",
    "DraftFuse",
    "DraftHead",
    "Embedding",
    "ExpertPool",
    "Floats",
    "GatedResidual",
    "Head",
    "Ids",
    "Memory",
    "Options",
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


class _Routed(Choice, Generic[A]):
    """The choice of a backend whose `choose` is made of the basic operations."""

    __slots__ = ("gain", "routes", "x")

    def __init__(self, x: A, gain: A, routes: Routes[A]) -> None:
        super().__init__(routes.ids)
        self.x = x  # [R, D]
        self.gain = gain  # [R, S]
        self.routes = routes


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
    """Positions between two foldings of a `DeltaState`; 0 for a matrix that every position changes."""
    most_back: int = 0
    """Rows that can be taken back. A call of at most `most_back + 1` rows leaves states that go on from any position after
    its first row: a span that begins there, whatever came behind it, gives the bits of a sequence that never had it. Where
    this is 0, a state has to be copied before, and the rows that stay run again."""
    matrices_back: int = 0
    """Recurrent matrices that a sequence may hold beside its own in each DeltaNet layer, to go back."""
    rows_alike: bool = False
    """A row's bits do not depend on the other rows of a call: with drafts and without, the answer is the same."""
    approximates: bool = False
    """Reads the tags of a pool's slots, and leaves out what a wave says (`LEFT_OUT`)."""
    late_features: bool = False
    """`stretch` asks for a layer's n-gram features when it has come there, not before: they may be awaited until then."""
    matrix_bits: int | None = None
    """Width at which placed matrices stay in memory; None for the width they are stored at."""

    @property
    def detail(self) -> str:
        """What was chosen at run time, for people: instruction set, threads, precision."""
        return ""

    @property
    def working_set_bytes(self) -> int | None:
        """Memory that a device of its own has free for weights, states and pool; None if it is the machine's."""
        return None

    def trial(self) -> str:
        """What a device gets wrong when it is tried, so that `auto` does not take it; empty if nothing."""
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

    def page(self, cache: A, first: int, last: int) -> A:
        """An independent copy of the rows `first:last` of a cache."""
        return self.copy(cache[first:last])  # type: ignore[index]

    def fill(self, cache: A, first: int, rows: A) -> A:
        """A cache with `rows` from row `first` on: the same one, written to, or another."""
        cache[first : first + len(rows)] = rows  # type: ignore[index,arg-type]
        return cache

    @property
    def delta_kept(self) -> int:
        """Positions that a `DeltaState` has room for beside its matrix: those of a chunk, and those that may be taken back."""
        return self.delta_chunk + self.most_back if self.delta_chunk else 0

    def delta_state(self, w: DeltaNet[M, A]) -> DeltaState[A]:
        """The state of a DeltaNet layer before the first token."""
        keys, values = w.key_heads * w.key_dim, w.value_heads * w.value_dim
        pending = self.delta_kept * (keys + values + w.value_heads)
        return DeltaState(
            history=self.zeros((self._behind(w.taps - 1), 2 * keys + values)),
            matrix=self.zeros((w.value_heads, w.key_dim, w.value_dim)),
            pending=self.zeros((pending,)) if pending else None,
        )

    @abstractmethod
    def settled(self, w: DeltaNet[M, A], state: DeltaState[A], position: int) -> A:
        """The recurrent matrix `[Hv, dk, dv]` as of `position`, the next token's. A copy; the state stays as it is."""

    def ple_state(self, past: int, width: int) -> PleState[A]:
        """The state of a layer with n-gram features before the first token: its convolution looks `past` positions back."""
        return PleState(self.zeros((self._behind(past), width)))

    def rewind(self, memory: Memory[A], position: int) -> None:
        """Bring a sequence's states to `position`, to which it went back, before they are copied."""

    def behind(self, state: DeltaState[A] | PleState[A], position: int) -> A:
        """The last convolution inputs as of `position`, the next token's, oldest first. A copy; for a look at a state."""
        del position
        return self.copy(state.history)

    def _behind(self, past: int) -> int:
        """Rows of a history whose convolution looks `past` positions back."""
        return past + self.most_back if past else 0

    def take(self, array: A, rows: Sequence[int]) -> A:
        """Rows of a residual, in the order given. May share memory with it."""
        return self.array(self.host(array)[np.asarray(rows, dtype=np.intp)])

    def stack(self, arrays: Sequence[A]) -> A:
        """Residuals of several calls, one after the other. May be the only one itself."""
        if len(arrays) == 1:
            return arrays[0]
        return self.array(np.concatenate([self.host(array) for array in arrays]))

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

    def weights(self, choice: Choice) -> Floats:
        """The weights `[R, K]` of a choice that was not used up yet."""
        assert isinstance(choice, _Routed)
        return self.host(choice.routes.weights)

    def likely(self, read: GatedResidual[M, A], router: Router[M], wide: A) -> Ids:
        """The ids `[R, K]` that `choose` would give for `wide`, which stays as it is. For guessing a later layer's."""
        x, _ = self.read_residual(read, wide)
        return self.route(router, x).ids

    def mixture(self, shared: SharedExpert[M], wide: A, choice: Choice, arrivals: Arrivals) -> A:
        """`experts`, `inject`: `wide` `[R, S*D]` after the experts of a choice. Uses the choice up. May reuse `wide`."""
        assert isinstance(choice, _Routed)
        block = self.experts(shared, choice.x, choice.routes, arrivals)
        return self.inject(wide, block, choice.gain)

    def stretch(
        self,
        blocks: Sequence[Block[M, A]],
        reach: range,
        wide: A,
        spans: Sequence[Span[Memory[A]]],
        features: Mapping[int, A],
        resident: Resident,  # noqa: ARG002 - of no use to a backend that returns at every layer
    ) -> Stretch[A]:
        """Run layers for as long as the host need not do anything: as far as the first that lacks an expert, at most.

        Args:
            blocks: all layers, the same sequence in every call.
            reach: which of them to run, at least one.
            wide: the residual `[R, S*D]` before the first. May be reused.
            spans: the rows' sequences, each with its memory of all layers, which advances.
            features: n-gram features `[R, P]` of every layer that has any, by index.
            resident: which experts are in memory. They stay there during the call, or until a later layer's come.

        Returns:
            How far it came. This one stops at the first layer's experts.
        """
        block = blocks[reach.start]
        if block.ple is not None:
            wide = self.ple(
                block.ple, wide, features[block.index], [_ple(s, block.index) for s in spans]
            )
        if isinstance(block.mixer, DeltaNet):
            wide = self.mix_delta(
                block.mixer_read, block.mixer, wide, [_delta(s, block.index) for s in spans]
            )
        else:
            wide = self.mix_attention(
                block.mixer_read, block.mixer, wide, [_attention(s, block.index) for s in spans]
            )
        choice = self.choose(block.moe_read, block.router, wide)
        return Stretch(wide, np.empty((0, *choice.ids.shape), dtype=np.int32), choice)

    # around the layers

    @abstractmethod
    def fuse(self, w: DraftFuse[M, A], embedding: Embedding[M], tokens: Ids, wide: A) -> A:
        """Residual `[R, S*D]` at positions p and the tokens that follow, to the MTP head's residual `[R, S*D]`."""

    def draft_step(
        self,
        drafts: DraftHead[M, A],
        tokens: Ids,
        wide: A,
        spans: Sequence[Span[Memory[A]]],
        resident: Resident,  # noqa: ARG002 - as in `stretch`
        ends: Sequence[int],
    ) -> Stretch[A]:
        """`fuse`, then the MTP head's only layer, as far as `stretch` would come in it.

        Args:
            drafts: the head.
            tokens: those that follow the rows' positions, `[R]`.
            wide: the residual `[R, S*D]` there, which stays as it is.
            spans: the rows' sequences; the head's memory of each has one layer.
            resident: which experts are in memory.
            ends: rows that are asked for, ascending. The others only leave keys and values for them to look back at.

        Returns:
            How far it came with the rows `ends`: all its parts have so many. Without any, there is no choice.
        """
        block = drafts.block
        assert not isinstance(block.mixer, DeltaNet), "a draft head has attention"
        wide = self.fuse(drafts.fuse, drafts.embedding, tokens, wide)
        states = [_attention(s, 0) for s in spans]
        wide = self.mix_attention(block.mixer_read, block.mixer, wide, states)
        none = np.empty((0, len(ends), block.router.top_k), dtype=np.int32)
        if not ends:
            return Stretch(wide, none, None)
        wide = self.take(wide, ends)
        return Stretch(wide, none, self.choose(block.moe_read, block.router, wide))

    def guess(
        self,
        drafts: DraftHead[M, A],  # noqa: ARG002 - of no use to a backend that cannot
        tokens: Ids,  # noqa: ARG002
        wide: A,  # noqa: ARG002
        spans: Sequence[Span[Memory[A]]],  # noqa: ARG002
        resident: Resident,  # noqa: ARG002
        depth: int,  # noqa: ARG002
        *,
        partial: bool,  # noqa: ARG002
    ) -> tuple[list[list[int]], Ids] | None:
        """A chain of drafts without the host: `draft_step` and `argmax`, as often as `depth` says, each from the one before.

        Args:
            drafts: the head.
            tokens: as for `draft_step`.
            wide: as for `draft_step`.
            spans: as for `draft_step`; each has rows.
            resident: which experts are in memory.
            depth: tokens to guess for each span, at least one.
            partial: experts that are not in memory count as nothing.

        Returns:
            The tokens of each span and the experts `[depth, spans, K]`. None if the backend has no such operation, or an
            expert is not in memory.
        """
        return None

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


def _ple(span: Span[Memory[A]], layer: int) -> Span[PleState[A]]:
    return Span(span.start, span.stop, span.position, span.state.ple[layer])


def _delta(span: Span[Memory[A]], layer: int) -> Span[DeltaState[A]]:
    state = span.state.layers[layer]
    assert isinstance(state, DeltaState)
    return Span(span.start, span.stop, span.position, state)


def _attention(span: Span[Memory[A]], layer: int) -> Span[AttentionState[A]]:
    state = span.state.layers[layer]
    assert isinstance(state, AttentionState)
    return Span(span.start, span.stop, span.position, state)
