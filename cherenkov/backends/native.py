"""The `native` backend: C++ kernels for CPUs, over NumPy arrays.

Kernels are in `kernels/cpu`, their contract in `kernels/README.md`. They are chosen at run time: `avx512_bf16`,
`avx512_vnni`, `avx2`, or `portable`, which any machine runs. Activations inside products with 2, 3 and 4-bit
matrices are kept in the precision asked for, or the next more exact one that the instruction set offers:

| instruction set | offers | default |
| --- | --- | --- |
| avx512_bf16 | float32, bf16, int16, int8 | int16 |
| avx512_vnni, avx2 | float32, int16, int8 | int16 |
| portable | float32 | float32 |

int8 falls back to int16, bf16 to int16 where there is one, anything else to float32. Products with other matrices
(8-bit codes, BF16, float32: routers and gates, as a rule) and everything that is not a product are float32 always.

A row's bits depend neither on the other rows of a call nor on the number of threads. An instance may be used from
several Python threads; calls run one at a time, without the GIL. After `os.fork()` the child's instance works on
one thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np
from typing_extensions import override

from cherenkov.backends import native_weights as describe
from cherenkov.backends.base import (
    Arrivals,
    AttentionState,
    Block,
    Choice,
    DeltaNet,
    DeltaState,
    DraftFuse,
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
)
from cherenkov.backends.native_build import instruction_sets, read_bandwidth, unavailable
from cherenkov.backends.native_drafts import NativeDrafts
from cherenkov.backends.native_states import (
    NativeChoice,
    advance,
    behind,
    features_by_layer,
    lengthen,
)
from cherenkov.backends.native_weights import Matrix
from cherenkov.backends.pages import huge_pages
from cherenkov.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import cherenkov._native as _native  # noqa: PLR0402 - the package itself is not what is meant
    from cherenkov.checkpoint.affine import HostMatrix
    from cherenkov.packing.layout import ExpertLayout

__all__ = ["Matrix", "Native", "instruction_sets", "read_bandwidth", "unavailable"]

T = TypeVar("T")

_ROWS_AT_ONE_GO = 8
"""Rows that may go through several layers in one call; a call cannot be interrupted."""


class Native(NativeDrafts):
    """C++ kernels.

    Args:
        options: threads (0: as many as the process may run on), precision and instruction set.

    Raises:
        BackendError: if the kernels are not built, or the instruction set or precision does not exist here.
    """

    # placing

    @override
    def matrix(self, host: HostMatrix) -> Matrix:
        return Matrix(host)

    @override
    def array(self, host: Floats) -> Floats:
        return np.ascontiguousarray(host, dtype=np.float32)

    @override
    def host(self, array: Floats) -> Floats:
        return array

    @override
    def zeros(self, shape: tuple[int, ...]) -> Floats:
        return np.zeros(shape, dtype=np.float32)

    @override
    def copy(self, array: Floats) -> Floats:
        return array.copy()

    @override
    def settled(
        self, w: DeltaNet[Matrix, Floats], state: DeltaState[Floats], position: int
    ) -> Floats:
        matrix = state.matrix.copy()
        assert state.pending is not None
        self._engine.settle(
            self._describe(w, describe.delta_weights), position, state.pending, matrix
        )
        return matrix

    @override
    def behind(self, state: DeltaState[Floats] | PleState[Floats], position: int) -> Floats:
        return behind(state, position, self.most_back)

    @override
    def take(self, array: Floats, rows: Sequence[int]) -> Floats:
        if isinstance(rows, range) and rows.step == 1:
            return array[rows.start : rows.stop]
        return array[np.asarray(rows, dtype=np.intp)]

    @override
    def pool(self, layout: ExpertLayout, slots: int) -> ExpertPool:
        memory = huge_pages(slots * layout.stride_bytes)
        return ExpertPool(layout, memory.reshape(slots, layout.stride_bytes))

    # operations

    @override
    def embed(self, w: Embedding[Matrix], tokens: Ids) -> Floats:
        wide = np.empty((len(tokens), w.streams * w.table.shape[1]), dtype=np.float32)
        self._engine.embed(w.table.placed, w.streams, tokens, wide)
        return wide

    @override
    def read_residual(
        self, w: GatedResidual[Matrix, Floats], wide: Floats
    ) -> tuple[Floats, Floats | None]:
        rows, width = wide.shape
        block = np.empty((rows, width // w.streams), dtype=np.float32)
        gain = None if w.inject is None else np.empty((rows, w.streams), dtype=np.float32)
        self._engine.read_residual(self._describe(w, describe.residual_weights), wide, block, gain)
        return block, gain

    @override
    def inject(self, wide: Floats, block: Floats, gain: Floats) -> Floats:
        """Writes into `wide`."""
        self._engine.inject(wide, block, gain)
        return wide

    @override
    def delta_net(
        self, w: DeltaNet[Matrix, Floats], x: Floats, spans: Sequence[Span[DeltaState[Floats]]]
    ) -> Floats:
        out = np.empty_like(x)
        self._engine.delta_net(self._describe(w, describe.delta_weights), x, spans, out)
        return out

    @override
    def sparse_attention(
        self,
        w: SparseAttention[Matrix, Floats],
        x: Floats,
        spans: Sequence[Span[AttentionState[Floats]]],
    ) -> Floats:
        out = np.empty_like(x)
        self._engine.sparse_attention(self._describe(w, describe.attention_weights), x, spans, out)
        lengthen(spans)
        return out

    @override
    def ple(
        self,
        w: Ple[Matrix, Floats],
        wide: Floats,
        features: Floats,
        spans: Sequence[Span[PleState[Floats]]],
    ) -> Floats:
        """Writes into `wide`."""
        self._engine.ple(self._describe(w, describe.ple_weights), wide, features, spans)
        return wide

    @override
    def route(self, w: Router[Matrix], x: Floats) -> Routes[Floats]:
        ids = np.empty((len(x), w.top_k), dtype=np.int32)
        weights = np.empty((len(x), w.top_k), dtype=np.float32)
        self._engine.route(w.gate.placed, w.normalise, x, ids, weights)
        return Routes(ids, weights)

    @override
    def experts(
        self, shared: SharedExpert[Matrix], x: Floats, routes: Routes[Floats], arrivals: Arrivals
    ) -> Floats:
        mixture = self._memory()
        self._engine.enter(x, routes.ids, routes.weights, mixture)
        return self._gather(mixture, shared, arrivals, np.empty_like(x))

    @override
    def mix_delta(
        self,
        read: GatedResidual[Matrix, Floats],
        w: DeltaNet[Matrix, Floats],
        wide: Floats,
        spans: Sequence[Span[DeltaState[Floats]]],
    ) -> Floats:
        """Writes into `wide`."""
        described = (
            self._describe(read, describe.residual_weights),
            self._describe(w, describe.delta_weights),
        )
        self._engine.mix_delta(*described, wide, spans)
        return wide

    @override
    def mix_attention(
        self,
        read: GatedResidual[Matrix, Floats],
        w: SparseAttention[Matrix, Floats],
        wide: Floats,
        spans: Sequence[Span[AttentionState[Floats]]],
    ) -> Floats:
        """Writes into `wide`."""
        described = (
            self._describe(read, describe.residual_weights),
            self._describe(w, describe.attention_weights),
        )
        self._engine.mix_attention(*described, wide, spans)
        lengthen(spans)
        return wide

    @override
    def choose(
        self, read: GatedResidual[Matrix, Floats], router: Router[Matrix], wide: Floats
    ) -> Choice:
        ids = np.empty((len(wide), router.top_k), dtype=np.int32)
        mixture = self._memory()
        described, gate = self._describe(read, describe.residual_weights), router.gate.placed
        self._engine.choose(described, gate, router.normalise, wide, mixture, ids)
        return NativeChoice(ids, mixture)

    @override
    def likely(
        self, read: GatedResidual[Matrix, Floats], router: Router[Matrix], wide: Floats
    ) -> Ids:
        ids = np.empty((len(wide), router.top_k), dtype=np.int32)
        described = self._describe(read, describe.residual_weights)
        self._engine.likely(described, router.gate.placed, router.normalise, wide, ids)
        return ids

    @override
    def mixture(
        self, shared: SharedExpert[Matrix], wide: Floats, choice: Choice, arrivals: Arrivals
    ) -> Floats:
        """Writes into `wide`."""
        assert isinstance(choice, NativeChoice)
        return self._gather(choice.use_up(), shared, arrivals, wide)

    @override
    def stretch(
        self,
        blocks: Sequence[Block[Matrix, Floats]],
        reach: range,
        wide: Floats,
        spans: Sequence[Span[Memory[Floats]]],
        features: Mapping[int, Floats],
        resident: Resident,
    ) -> Stretch[Floats]:
        """Writes into `wide`. Many rows go layer by layer: that costs nothing then, and Ctrl-C is heard in between."""
        layers = reach if len(wide) <= _ROWS_AT_ONE_GO else reach[:1]
        given = features_by_layer(blocks, features)
        found = self._run(blocks, layers, wide, spans, given, resident, flow=True)
        ran = range(layers.start, min(layers.start + len(found.ids) + 1, layers.stop))
        advance(self._caches(blocks), ran, spans)
        return found

    def _run(
        self,
        blocks: Sequence[Block[Matrix, Floats]],
        layers: range,
        wide: Floats,
        spans: Sequence[Span[Memory[Floats]]],
        features: list[Floats | Callable[[], Floats] | None],
        resident: Resident,
        *,
        flow: bool,
    ) -> Stretch[Floats]:
        """Layers until one lacks an expert, or with a flow, until one needs Python for it. Writes into `wide`."""
        trunk, pool = self._describe(blocks, self._trunk), resident.pool
        ids = np.empty((len(layers), len(wide), blocks[0].router.top_k), dtype=np.int32)
        mixture = self._memory()
        done = self._engine.stretch(
            trunk,
            layers.start,
            layers.stop,
            [(s.start, s.stop, s.position, self._bound(trunk, blocks, s.state)) for s in spans],
            wide,
            features,
            self._describe(pool.layout, describe.expert_record),
            pool.memory,
            resident.slot_table[blocks[0].index :],
            mixture,
            ids,
            *self._lower(pool),
            resident.flow() if flow and len(wide) <= _ROWS_AT_ONE_GO else None,
        )
        if done < len(layers):
            return Stretch(wide, ids[:done], NativeChoice(ids[done], mixture))
        self._mixtures.append(mixture)
        return Stretch(wide, ids, None)

    @override
    def fuse(
        self,
        w: DraftFuse[Matrix, Floats],
        embedding: Embedding[Matrix],
        tokens: Ids,
        wide: Floats,
    ) -> Floats:
        out = np.empty_like(wide)
        self._engine.fuse(
            self._describe(w, describe.fuse_weights), embedding.table.placed, tokens, wide, out
        )
        return out

    @override
    def logits(self, w: Head[Matrix, Floats], wide: Floats, rows: Sequence[int]) -> Floats:
        out = np.empty((len(rows), w.matrix.shape[0]), dtype=np.float32)
        self._engine.logits(
            self._describe(w, describe.head_weights), wide, np.asarray(rows, dtype=np.int32), out
        )
        return out

    @override
    def argmax(self, w: Head[Matrix, Floats], wide: Floats, rows: Sequence[int]) -> Ids:
        best = np.empty(len(rows), dtype=np.int32)
        self._engine.argmax(
            self._describe(w, describe.head_weights), wide, np.asarray(rows, dtype=np.int32), best
        )
        return best

    def linear(self, matrix: Matrix, x: Floats) -> Floats:
        """`x` `[R, in]` times a matrix, `[R, out]`. No operation of the table: for tests and measurements."""
        out = np.empty((len(x), matrix.shape[0]), dtype=np.float32)
        self._engine.linear(matrix.placed, x, out)
        return out

    @override
    def weights(self, choice: Choice) -> Floats:
        assert isinstance(choice, NativeChoice)
        weights = np.empty(choice.ids.shape, dtype=np.float32)
        assert choice.mixture is not None
        choice.mixture.weights(weights)
        return weights

    def _gather(
        self,
        mixture: _native.Mixture,
        shared: SharedExpert[Matrix],
        arrivals: Arrivals,
        target: Floats,
    ) -> Floats:
        """Computes waves as they arrive; the one that completes the choice also puts the sum into `target`."""
        compute, pool = self._engine.expert_wave, arrivals.pool
        record = self._describe(pool.layout, describe.expert_record)
        described = self._describe(shared, describe.shared_weights)
        complete, lower = False, self._lower(pool)
        for wave in arrivals:
            complete = compute(
                mixture, described, record, pool.memory, wave.experts, wave.slots, target, *lower
            )
        if not complete:
            raise BackendError(self.name, "experts", "not every expert arrived")
        self._mixtures.append(mixture)  # its memory serves the next choice
        return target
