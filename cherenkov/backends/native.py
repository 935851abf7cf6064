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

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from typing_extensions import override

from cherenkov.backends import native_weights as describe
from cherenkov.backends.base import (
    Arrivals,
    AttentionState,
    Backend,
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
    Options,
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
from cherenkov.backends.native_states import NativeChoice, advance, advance_head, behind, lengthen
from cherenkov.backends.native_weights import Matrix
from cherenkov.backends.pages import huge_pages
from cherenkov.errors import BackendError
from cherenkov.processors import processors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from cherenkov.checkpoint.affine import HostMatrix
    from cherenkov.packing.layout import ExpertLayout

if not describe.missing:
    import cherenkov._native as _native  # noqa: PLR0402 - the package itself is not what is meant

_MISSING = describe.missing

__all__ = ["Matrix", "Native", "instruction_sets", "read_bandwidth", "unavailable"]

T = TypeVar("T")

_ROWS_AT_ONE_GO = 8
"""Rows that may go through several layers in one call; a call cannot be interrupted."""


class Native(Backend[Matrix, Floats]):
    """C++ kernels.

    Args:
        options: threads (0: as many as the process may run on), precision and instruction set.

    Raises:
        BackendError: if the kernels are not built, or the instruction set or precision does not exist here.
    """

    name = "native"
    approximates = True
    delta_chunk = 0 if _MISSING else _native.delta_chunk
    most_back = 0 if _MISSING else _native.most_back
    rows_alike = True

    def __init__(self, options: Options | None = None) -> None:
        options = options or Options()
        if _MISSING:
            raise BackendError(self.name, "start", unavailable())
        if options.isa and options.isa not in instruction_sets():
            known = ", ".join(instruction_sets())
            raise BackendError(
                self.name, "start", f"no {options.isa!r} kernels here; there are {known}"
            )
        self._engine = _native.Engine(
            options.isa, options.precision, options.threads or processors()
        )
        self._asked = options.precision
        # Operations describe their weights to the kernels once. Keyed by identity; the values keep the keys alive.
        self._described: dict[int, tuple[object, Any]] = {}
        self._mixtures: list[_native.Mixture] = []  # those that no choice uses

    @property
    @override
    def detail(self) -> str:
        """Such as `avx2, 2 threads, int16 activations`."""
        isa, precision, threads = self._engine.isa, self._engine.precision, self._engine.threads
        text = f"{isa}, {threads} thread{'s' if threads > 1 else ''}, {precision} activations"
        return text if self._asked in {"", precision} else f"{text} ({isa} offers no {self._asked})"

    @override
    def close(self) -> None:
        """Join the threads and free the scratch memory."""
        self._engine.close()
        self._described.clear()
        self._mixtures.clear()

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
        first, count = rows[0], len(rows)
        if rows[-1] - first == count - 1 and list(rows) == list(range(first, first + count)):
            return array[first : first + count]
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
        given = [features.get(i) for i in range(len(blocks))]
        found = self._run(blocks, layers, wide, spans, given, resident, flow=True)
        ran = blocks[layers.start : min(layers.start + len(found.ids) + 1, layers.stop)]
        for s in spans:
            advance(ran, s)
        return found

    @override
    def draft_step(
        self,
        w: DraftFuse[Matrix, Floats],
        block: Block[Matrix, Floats],
        embedding: Embedding[Matrix],
        tokens: Ids,
        wide: Floats,
        spans: Sequence[Span[Memory[Floats]]],
        resident: Resident,
    ) -> Stretch[Floats]:
        wide = self.fuse(w, embedding, tokens, wide)
        blocks = self._describe(block, lambda only: (only,))  # a trunk of one layer
        found = self._run(blocks, range(1), wide, spans, [None], resident, flow=False)
        advance_head(spans)
        return found

    def _run(
        self,
        blocks: Sequence[Block[Matrix, Floats]],
        layers: range,
        wide: Floats,
        spans: Sequence[Span[Memory[Floats]]],
        features: list[Floats | None],
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

    def _lower(self, pool: ExpertPool) -> tuple[_native.Record | None, NDArray[np.uint8] | None]:
        """The other layout that records may have, and which slots hold such."""
        if pool.lower is None:
            return None, None
        return self._describe(pool.lower, describe.expert_record), pool.tags

    def _memory(self) -> _native.Mixture:
        return self._mixtures.pop() if self._mixtures else _native.Mixture()

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

    def _trunk(self, blocks: Sequence[Block[Matrix, Floats]]) -> _native.Trunk:
        return _native.trunk([self._layer(block) for block in blocks])

    def _layer(self, block: Block[Matrix, Floats]) -> tuple[Any, ...]:
        mixer = block.mixer
        return (
            self._describe(block.mixer_read, describe.residual_weights),
            self._describe(mixer, describe.delta_weights)
            if isinstance(mixer, DeltaNet)
            else self._describe(mixer, describe.attention_weights),
            self._describe(block.moe_read, describe.residual_weights),
            block.router.gate.placed,
            block.router.normalise,
            block.router.top_k,
            self._describe(block.shared, describe.shared_weights),
            None if block.ple is None else self._describe(block.ple, describe.ple_weights),
        )

    def _bound(
        self,
        trunk: _native.Trunk,
        blocks: Sequence[Block[Matrix, Floats]],
        memory: Memory[Floats],
    ) -> _native.Memory:
        """A sequence's arrays, described to the kernels once."""
        bound = memory.bound
        if not isinstance(bound, _native.Memory):
            ple = [memory.ple.get(block.index) for block in blocks]
            memory.bound = bound = _native.memory(trunk, memory.layers, ple)
        return bound

    def _describe(self, w: T, describe: Callable[[T], object]) -> Any:
        try:
            return self._described[id(w)][1]
        except KeyError:
            described = describe(w)
            self._described[id(w)] = w, described
            return described
