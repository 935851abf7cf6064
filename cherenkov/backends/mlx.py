"""The `mlx` backend: the whole table in stock MLX operations, on whatever device MLX takes by itself.

It needs no kernel of ours, so it is what `metal` and `cuda` fall back to, and what CI can run: those two replace
operations by kernels and nothing else.

What keeps it correct:

- One thread owns MLX (`mlx_owner`); whoever calls an operation waits for it there.
- Arrays are values. No operation writes into one that the caller may still hold; a sequence's memory is replaced by
  the updated array, and MLX reuses the buffer where nobody else holds the old one. So `copy` costs nothing.
- The pool is written by reader threads alone (`mlx_matrices.Pool`). What reads its slots has been computed before any
  operation that shows the host something returns, and a store empties slots only after one of those: between a layer's
  routes and the next one's. Where it must empty some of those that this layer uses (`Arrivals.steady` is false), what
  reads them has been computed before the next wave is asked for.
- Nothing is computed until the host must see it: ids of experts that may not be in memory, and what a step ends in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np
from typing_extensions import override

from cherenkov.backends.base import (
    Arrivals,
    AttentionState,
    Block,
    Choice,
    DeltaNet,
    DeltaState,
    Embedding,
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
    Wave,
)
from cherenkov.backends.mlx_back import MOST_BACK, EveryDelta, EveryPle, begin, go_back, kept_of
from cherenkov.backends.mlx_experts import Gathering, feed_forward
from cherenkov.backends.mlx_matrices import Matrix, Pool
from cherenkov.backends.mlx_owner import owned
from cherenkov.backends.mlx_steps import (
    Chosen,
    Guess,
    Places,
    cache_of,
    delta_of,
    listed,
    pool_of,
    present,
    stacked,
)
from cherenkov.backends.mlx_table import Array, Table
from cherenkov.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cherenkov.backends.mlx_traces import Traces

__all__ = ["Mlx"]

_ROWS_AT_ONE_GO = 8
"""Rows that may go through several layers in one call; more go layer by layer, and Ctrl-C is heard in between."""


class Mlx(Table):
    """MLX on its default device. `precision` is `float32`, or `bf16` for products with quantised matrices."""

    name = "mlx"
    late_features = True
    approximates = True
    most_back = MOST_BACK
    matrices_back = MOST_BACK
    traces: Traces | None = None
    """Where parts that are traced are kept, if they are."""

    def __init__(self, options: Options | None = None) -> None:
        super().__init__(options)
        self._places = Places()
        self._ready: object = None  # the layers whose weights are laid out
        self._guesses = False  # the last layer was asked for the next one's likely experts
        self._guess: Guess | None = None

    @override
    def close(self) -> None:
        if self.traces is not None:
            self.traces.clear()
        super().close()

    @owned
    @override
    def rewind(self, memory: Memory[Array], position: int) -> None:
        go_back(memory, position)

    @override
    def experts(
        self, shared: SharedExpert[Matrix], x: Array, routes: Routes[Array], arrivals: Arrivals
    ) -> Array:
        return self._gathered(shared, x, routes, arrivals, None)

    # around the layers

    @owned
    @override
    def embed(self, w: Embedding[Matrix], tokens: Ids) -> Array:
        if self.traces is None or len(tokens) > _ROWS_AT_ONE_GO:
            return super().embed(w, tokens)
        return self.traces.embedded(self, w, listed(tokens))

    @owned
    @override
    def logits(self, w: Head[Matrix, Array], wide: Array, rows: Sequence[int]) -> Array:
        if self.traces is None or len(rows) > _ROWS_AT_ONE_GO:
            return super().logits(w, wide, rows)
        return self.traces.scored(self, w, self.take(wide, rows))

    @owned
    @override
    def argmax(self, w: Head[Matrix, Array], wide: Array, rows: Sequence[int]) -> Ids:
        if self.traces is None or len(rows) > _ROWS_AT_ONE_GO:
            return super().argmax(w, wide, rows)
        best = self.traces.chosen(self, w, self.take(wide, rows))
        self._show(best)
        return np.array(best)

    # a layer's steps

    @owned
    @override
    def mix_delta(
        self,
        read: GatedResidual[Matrix, Array],
        w: DeltaNet[Matrix, Array],
        wide: Array,
        spans: Sequence[Span[DeltaState[Array]]],
    ) -> Array:
        return super().mix_delta(read, w, wide, spans)

    @owned
    @override
    def mix_attention(
        self,
        read: GatedResidual[Matrix, Array],
        w: SparseAttention[Matrix, Array],
        wide: Array,
        spans: Sequence[Span[AttentionState[Array]]],
    ) -> Array:
        return super().mix_attention(read, w, wide, spans)

    @owned
    @override
    def choose(
        self, read: GatedResidual[Matrix, Array], router: Router[Matrix], wide: Array
    ) -> Choice:
        x, gain = self.read_residual(read, wide)
        return Chosen(x, present(gain), self.route(router, x))

    @owned
    @override
    def likely(
        self, read: GatedResidual[Matrix, Array], router: Router[Matrix], wide: Array
    ) -> Ids:
        guess, self._guess, self._guesses = self._guess, None, True
        if guess is not None and guess.wide is wide and guess.router is router:
            return guess.ids
        return super().likely(read, router, wide)

    @override
    def weights(self, choice: Choice) -> Floats:
        assert isinstance(choice, Chosen)
        return self.host(choice.routes.weights)

    @override
    def mixture(
        self, shared: SharedExpert[Matrix], wide: Array, choice: Choice, arrivals: Arrivals
    ) -> Array:
        assert isinstance(choice, Chosen)
        return self._gathered(shared, choice.x, choice.routes, arrivals, (wide, choice.gain))

    @owned
    @override
    def stretch(
        self,
        blocks: Sequence[Block[Matrix, Array]],
        reach: range,
        wide: Array,
        spans: Sequence[Span[Memory[Array]]],
        features: Mapping[int, Array],
        resident: Resident,
    ) -> Stretch[Array]:
        """Layers whose experts are all in memory run without the host; at others it looks whether those wanted are."""
        rows = wide.shape[0]
        if not reach.start:
            begin(spans)
        if self._ready is not blocks:
            for block in blocks:
                self._make_ready(block)
            self._ready = blocks
        seen: list[Array | Ids] = []
        for at in reach if rows <= _ROWS_AT_ONE_GO else reach[:1]:
            block, slots = blocks[at], resident.slot_table[blocks[at].index]
            wide = self._mixed(block, wide, spans, features)
            mixed = resident.pool.lower is not None  # then `mixture` looks which records are which
            if slots.min() < 0 or rows > _ROWS_AT_ONE_GO or mixed:
                following = blocks[at + 1] if at + 1 < len(blocks) else None
                choice = self._chosen_here(block, following, wide, seen)
                if mixed or (slots[choice.ids] < 0).any():
                    return Stretch(wide, stacked(seen, choice.ids), choice)
                places = mx.array(slots[choice.ids])
                wide = self._from_memory(block.shared, wide, choice, places, pool_of(resident))
                self._pending = [wide]
                seen.append(choice.routes.ids)
                continue
            row = self._places.on_device(resident.slot_table)[block.index]
            wide, ids = self._routed(block, wide, row, pool_of(resident))
            self._pending = [wide]
            seen.append(ids)
        self._show(wide, *seen)
        return Stretch(wide, stacked(seen, np.empty((rows, 0), np.int32)), None)

    def _make_ready(self, block: Block[Matrix, Array]) -> None:
        """Lay a layer's weights as its operations want them, before any is traced."""

    def _chosen_here(
        self,
        block: Block[Matrix, Array],
        following: Block[Matrix, Array] | None,
        wide: Array,
        seen: Sequence[Array | Ids],
    ) -> Chosen:
        """A layer's routes, which the host waits for; and what the next layer's would be, if that is asked for."""
        x, gain, ids, weights = self._routes(block.moe_read, block.router, wide)
        guess = None
        if self._guesses and following is not None:
            guess = self._routes(following.moe_read, following.router, wide)[2]
        self._guesses = False
        self._show(ids, weights, x, wide, guess, *seen)
        if guess is not None and following is not None:
            self._guess = Guess(wide, following.router, np.array(guess))
        return Chosen(x, gain, Routes(np.array(ids), weights))

    def _routes(
        self, read: GatedResidual[Matrix, Array], router: Router[Matrix], wide: Array
    ) -> tuple[Array, Array, Array, Array]:
        """What experts get, the gain of their results, ids and weights."""
        if self.traces is not None and wide.shape[0] <= _ROWS_AT_ONE_GO:
            return self.traces.routes(self, read, router, wide)
        x, gain = self.read_residual(read, wide)
        ids, weights = self.best(router, x)
        return x, present(gain), ids, weights

    def _routed(
        self, block: Block[Matrix, Array], wide: Array, slots: Array, pool: Pool
    ) -> tuple[Array, Array]:
        """The residual after a layer's experts, and their ids; `slots` `[E]` says where each is."""
        if self.traces is not None:
            return self.traces.experts(self, block, wide, slots, pool)
        return self.all_here(block, wide, slots, pool)

    def all_here(
        self, block: Block[Matrix, Array], wide: Array, table: Array, pool: Pool
    ) -> tuple[Array, Array]:
        """The residual after a layer's experts, and their ids; `table` `[E]` says in which slot each is."""
        x, gain = self.read_residual(block.moe_read, wide)
        ids, weights = self.best(block.router, x)
        target = (wide, present(gain))
        return self.resident(block.shared, x, weights, table[ids], pool, target), ids

    def _from_memory(
        self,
        shared: SharedExpert[Matrix],
        wide: Array,
        choice: Chosen,
        slots: Array,
        pool: Pool,
    ) -> Array:
        """The residual after experts that the host knows to be in `slots` `[R, K]`."""
        weights, target = choice.routes.weights, (wide, choice.gain)
        if self.traces is not None and wide.shape[0] <= _ROWS_AT_ONE_GO:
            out = self.traces.resident(self, shared, choice.x, weights, slots, pool, target)
        else:
            out = self.resident(shared, choice.x, weights, slots, pool, target)
        return out

    def resident(
        self,
        shared: SharedExpert[Matrix],
        x: Array,
        weights: Array,
        slots: Array,
        pool: Pool,
        target: tuple[Array, Array],
    ) -> Array:
        """`mixture` of experts that are all in memory, in `slots` `[R, K]`. Not computed yet."""
        each = feed_forward(pool, x, slots, exact=self.exact)
        return self._summed(shared, x, weights, each, target)

    # inside

    def _mixed(
        self,
        block: Block[Matrix, Array],
        wide: Array,
        spans: Sequence[Span[Memory[Array]]],
        features: Mapping[int, Array],
    ) -> Array:
        """The residual after a layer's n-gram features and mixer."""
        at = block.index
        if block.ple is not None:
            wide = self._with_features(block.ple, at, wide, spans, features[at])
        if self.traces is not None and wide.shape[0] <= _ROWS_AT_ONE_GO:
            traced = self.traces.mixed(self, block, wide, spans)
            if traced is not None:
                return traced
        if isinstance(block.mixer, DeltaNet):
            delta = [Span(s.start, s.stop, s.position, _going(s, at)) for s in spans]
            wide = self.mix_delta(block.mixer_read, block.mixer, wide, delta)
            for s, own in zip(spans, delta, strict=True):
                kept = kept_of(s)
                if kept is not None and isinstance(own.state, EveryDelta):
                    kept.add_delta(at, own.state, delta_of(s.state.layers[at]))
            return wide
        caches = [Span(s.start, s.stop, s.position, cache_of(s.state.layers[at])) for s in spans]
        return self.mix_attention(block.mixer_read, block.mixer, wide, caches)

    def _with_features(
        self,
        w: Ple[Matrix, Array],
        at: int,
        wide: Array,
        spans: Sequence[Span[Memory[Array]]],
        features: Array,
    ) -> Array:
        if self.traces is not None and wide.shape[0] <= _ROWS_AT_ONE_GO and len(spans) == 1:
            return self.traces.features(self, w, at, wide, spans[0], features)
        own: list[Span[PleState[Array]]] = []
        for s in spans:
            state = s.state.ple[at]
            going = state if kept_of(s) is None else EveryPle(state.history)
            own.append(Span(s.start, s.stop, s.position, going))
        wide = self.ple(w, wide, features, own)
        for s, each in zip(spans, own, strict=True):
            kept = kept_of(s)
            if kept is not None and isinstance(each.state, EveryPle):
                kept.add_ple(at, each.state, s.state.ple[at])
        return wide

    def _gathering(self, ids: Ids, x: Array) -> Gathering:
        return Gathering(ids, x, exact=self.exact)

    def _gathered(
        self,
        shared: SharedExpert[Matrix],
        x: Array,
        routes: Routes[Array],
        arrivals: Arrivals,
        target: tuple[Array, Array] | None,
    ) -> Array:
        """Compute waves as they arrive, then the sum. The store is asked from the thread that called."""
        gathering = self._gathering(routes.ids, x)
        pool = arrivals.pool
        assert isinstance(pool, Pool)
        if arrivals.steady:
            waves = list(arrivals)
            pool.settle()
            return self._at_once(shared, x, routes, waves, gathering, pool, target)
        for wave in arrivals:
            pool.settle()
            self._wave(gathering, pool, wave.experts, wave.slots)
        return self._finished(shared, x, routes, gathering, target)

    @owned
    def _at_once(
        self,
        shared: SharedExpert[Matrix],
        x: Array,
        routes: Routes[Array],
        waves: Sequence[Wave],
        gathering: Gathering,
        pool: Pool,
        target: tuple[Array, Array] | None,
    ) -> Array:
        """All experts, when the last has come: nothing needs to be computed before the host wants to see something."""
        experts, slots = (np.concatenate(parts) for parts in zip(*waves, strict=True))
        plain = pool.lower is None and slots.min() >= 0
        if target is None or len(x) > _ROWS_AT_ONE_GO or not plain:
            self._pending += gathering.take(pool, experts, slots)
            return self._finished(shared, x, routes, gathering, target)
        places = np.full(int(max(experts.max(), routes.ids.max())) + 1, -1, np.int32)
        places[experts] = slots
        if (places[routes.ids] < 0).any():
            raise BackendError(self.name, "experts", "not every expert has arrived")
        choice = Chosen(x, target[1], routes)
        out = self._from_memory(shared, target[0], choice, mx.array(places[routes.ids]), pool)
        self._pending.append(out)
        return out

    @owned
    def _wave(self, gathering: Gathering, pool: Pool, experts: Ids, slots: Ids) -> None:
        made = gathering.take(pool, experts, slots)
        if not gathering.complete:
            self._show(*made)  # its slots are given away next
        else:
            self._pending += made

    @owned
    def _finished(
        self,
        shared: SharedExpert[Matrix],
        x: Array,
        routes: Routes[Array],
        gathering: Gathering,
        target: tuple[Array, Array] | None,
    ) -> Array:
        if not gathering.complete:
            raise BackendError(self.name, "experts", "not every expert has arrived")
        out = self._summed(shared, x, routes.weights, gathering.each(), target)
        self._pending.append(out)
        return out


def _going(span: Span[Memory[Array]], at: int) -> DeltaState[Array]:
    """The state that a step's rows go through: a DeltaNet layer's, or one that remembers each of them."""
    state = delta_of(span.state.layers[at])
    return state if kept_of(span) is None else EveryDelta(state.history, state.matrix)
