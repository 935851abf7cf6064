"""The operations of the table in stock MLX: what it computes, on whatever device MLX takes by itself.

Arrays are values. No operation writes into one that the caller may still hold; a sequence's memory is replaced by the
updated array, and MLX reuses the buffer where nobody else holds the old one. So `copy` costs nothing.
"""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np
from typing_extensions import override

from cherenkov.backends import mlx_layers as layers
from cherenkov.backends.base import (
    AttentionState,
    Backend,
    DeltaNet,
    DeltaState,
    DraftFuse,
    Embedding,
    ExpertPool,
    Floats,
    GatedResidual,
    Head,
    Ids,
    Options,
    Ple,
    PleState,
    Router,
    Routes,
    SharedExpert,
    Span,
    SparseAttention,
)
from cherenkov.backends.mlx_layers import norm, sigmoid, silu, stream_norm
from cherenkov.backends.mlx_matrices import Matrix, Pool, place, rows_of, times
from cherenkov.backends.mlx_owner import OWNER, owned
from cherenkov.backends.mlx_steps import joined, listed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cherenkov.checkpoint.affine import HostMatrix
    from cherenkov.packing.layout import ExpertLayout

__all__ = ["Array", "Table"]

Array = mx.array


class Table(Backend[Matrix, Array]):
    """Stock operations. `precision` is `float32`, or `bf16` for products with quantised matrices."""

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        self.exact = self.options.precision != "bf16"
        self._pending: list[Array] = []  # reads slots of a pool, and has not been computed
        self._device = OWNER.call(lambda: str(mx.default_device()))

    @property
    @override
    def detail(self) -> str:
        kind = "float32" if self.exact else "bf16"
        device = self._device.removeprefix("Device(").removesuffix(")").split(",")[0].upper()
        text = f"MLX {metadata.version('mlx')} on the {device}, {kind} products"
        asked = self.options.precision
        return text if asked in {"", kind} else f"{text} (MLX offers no {asked})"

    @override
    def close(self) -> None:
        self._pending.clear()
        OWNER.call(mx.clear_cache)

    # placing

    @owned
    @override
    def matrix(self, host: HostMatrix) -> Matrix:
        made = place(host)
        scales = None if made.scales is None else self.kept(made.scales)
        biases = None if made.biases is None else self.kept(made.biases)
        return Matrix(made.shape, made.bits, made.group, self.kept(made.codes), scales, biases)

    @owned
    @override
    def array(self, host: Floats) -> Array:
        return self.kept(mx.array(np.ascontiguousarray(host, dtype=np.float32)))

    @owned
    @override
    def host(self, array: Array) -> Floats:
        self._show(array)
        return np.array(array, dtype=np.float32)

    @owned
    @override
    def zeros(self, shape: tuple[int, ...]) -> Array:
        made = mx.zeros(shape, mx.float32)
        mx.eval(made)
        return made

    @override
    def copy(self, array: Array) -> Array:
        return array  # arrays are never written to

    @owned
    @override
    def page(self, cache: Array, first: int, last: int) -> Array:
        made = cache[mx.arange(first, last)]  # a slice would keep the whole cache
        self._show(made)
        return made

    @owned
    @override
    def fill(self, cache: Array, first: int, rows: Array) -> Array:
        made = layers.put(cache, rows, first)
        self._show(made)
        return made

    @override
    def _behind(self, past: int) -> int:
        return past  # what is needed to go back lies beside the states

    @override
    def settled(self, w: DeltaNet[Matrix, Array], state: DeltaState[Array], position: int) -> Array:
        return state.matrix

    @owned
    @override
    def take(self, array: Array, rows: Sequence[int]) -> Array:
        if list(rows) == list(range(array.shape[0])):
            return array
        return array[mx.array(list(rows), mx.int32)]

    @owned
    @override
    def stack(self, arrays: Sequence[Array]) -> Array:
        return joined(arrays)

    @owned
    @override
    def pool(self, layout: ExpertLayout, slots: int) -> ExpertPool:
        return Pool(layout, slots)

    # operations

    @owned
    @override
    def embed(self, w: Embedding[Matrix], tokens: Ids) -> Array:
        return self.embedded(w, listed(tokens))

    @owned
    @override
    def read_residual(
        self, w: GatedResidual[Matrix, Array], wide: Array
    ) -> tuple[Array, Array | None]:
        normed = stream_norm(wide, w.norm, w.streams, w.eps)  # [R, S*D]
        low = silu(self.times(normed, w.down) / w.streams)
        mix = sigmoid(self.times(low, w.up))  # [R, S*D]
        block = (mix * normed).reshape(wide.shape[0], w.streams, -1).mean(axis=1)  # [R, D]
        if w.inject is None:
            return block, None
        return block, 2 * sigmoid(self.times(normed, w.inject) / w.streams)

    @owned
    @override
    def inject(self, wide: Array, block: Array, gain: Array) -> Array:
        return wide + (gain[:, :, None] * block[:, None, :]).reshape(wide.shape)

    @owned
    @override
    def delta_net(
        self, w: DeltaNet[Matrix, Array], x: Array, spans: Sequence[Span[DeltaState[Array]]]
    ) -> Array:
        channels = self.times(x, w.qkv)  # [R, C]
        step = mx.logaddexp(self.times(x, w.a) + w.dt_bias, mx.array(0.0))
        decay = -mx.exp(w.a_log) * step  # [R, Hv], log of the decay
        beta = sigmoid(self.times(x, w.b))  # [R, Hv]
        parts = []
        for span in spans:
            rows = slice(span.start, span.stop)
            convolved = silu(layers.convolve(span.state, channels[rows], w.conv, 1))
            parts.append(layers.delta_rule(w, span.state, convolved, decay[rows], beta[rows]))
        mixed = joined(parts)  # [R, Hv, dv]
        gate = self.times(x, w.z).reshape(mixed.shape)
        gate = sigmoid(gate) if w.gate == "sigmoid" else silu(gate)
        return self.times((norm(mixed, w.norm, w.eps) * gate).reshape(x.shape[0], -1), w.out)

    @owned
    @override
    def sparse_attention(
        self,
        w: SparseAttention[Matrix, Array],
        x: Array,
        spans: Sequence[Span[AttentionState[Array]]],
    ) -> Array:
        rows = x.shape[0]
        projected = self._biased(x, w.q, w.q_bias).reshape(rows, w.heads, -1)
        queries, gate = mx.split(projected, 2, axis=-1)
        queries = norm(queries, w.q_norm, w.eps)
        keys = norm(self._biased(x, w.k, w.k_bias).reshape(rows, w.kv_heads, -1), w.k_norm, w.eps)
        values = self._biased(x, w.v, w.v_bias).reshape(rows, w.kv_heads, -1)
        index = self.times(x, w.index).reshape(rows, w.index_heads + 1, w.index_dim)
        index_queries = norm(index[:, :-1], w.index_q_norm, w.eps)
        parts = []
        for span in spans:
            own = slice(span.start, span.stop)
            turn = layers.turns(w, span.position, span.stop - span.start)
            turned = layers.rotate(keys[own], turn)
            layers.append(w, span.state, span.position, turned, values[own], index[own, -1])
            turned = layers.rotate(queries[own], turn)
            turned_index = layers.rotate(index_queries[own], turn)
            parts.append(layers.attend(w, span.state, turned, turned_index, span.position))
        mixed = joined(parts) * sigmoid(gate)
        return self._biased(mixed.reshape(rows, -1), w.o, w.o_bias)

    @owned
    @override
    def ple(
        self,
        w: Ple[Matrix, Array],
        wide: Array,
        features: Array,
        spans: Sequence[Span[PleState[Array]]],
    ) -> Array:
        split = (wide.shape[0], w.streams, -1)
        key = stream_norm(self.times(features, w.key), w.norm_key, w.streams, w.eps).reshape(split)
        query = stream_norm(wide, w.norm_query, w.streams, w.eps).reshape(split)
        value = self.times(features, w.value)  # [R, D]
        score = (key * query).sum(axis=-1, keepdims=True) * (value.shape[1] ** -0.5)
        gate = sigmoid(mx.sign(score) * mx.sqrt(mx.maximum(mx.abs(score), 1e-6)))
        gated = (gate * value[:, None, :]).reshape(wide.shape)
        normed = stream_norm(gated, w.norm_conv, w.streams, w.eps)
        turned = [
            silu(layers.convolve(s.state, normed[s.start : s.stop], w.conv, w.dilation))
            for s in spans
        ]
        return wide + gated + joined(turned)

    @owned
    @override
    def route(self, w: Router[Matrix], x: Array) -> Routes[Array]:
        ids, weights = self.best(w, x)
        self._show(ids, weights, x)
        return Routes(np.array(ids), weights)

    def best(self, w: Router[Matrix], x: Array) -> tuple[Array, Array]:
        """Ids `[R, K]` and weights of each row's experts, not computed yet."""
        scores = mx.softmax(self.times(x, w.gate), axis=-1, precise=True)
        ids = layers.best_experts(scores, w.top_k)
        weights = mx.take_along_axis(scores, ids, axis=-1)
        return ids, weights / weights.sum(axis=-1, keepdims=True) if w.normalise else weights

    # around the layers

    @owned
    @override
    def fuse(
        self,
        w: DraftFuse[Matrix, Array],
        embedding: Embedding[Matrix],
        tokens: Ids,
        wide: Array,
    ) -> Array:
        found = norm(rows_of(embedding.table, mx.array(tokens)), w.norm_embedding, w.eps)
        token = self.times(found, w.fc_embedding)  # [R, D]
        hidden = norm(wide, w.norm_hidden, w.eps).reshape(wide.shape[0] * w.streams, -1)
        turned = self.times(hidden, w.fc_hidden).reshape(wide.shape[0], w.streams, -1)
        return (turned + token[:, None, :]).reshape(wide.shape)

    @owned
    @override
    def logits(self, w: Head[Matrix, Array], wide: Array, rows: Sequence[int]) -> Array:
        return self.scored(w, self.take(wide, rows))

    @owned
    @override
    def argmax(self, w: Head[Matrix, Array], wide: Array, rows: Sequence[int]) -> Ids:
        best = self.chosen(w, self.take(wide, rows))
        self._show(best)
        return np.array(best)

    # inside

    def embedded(self, w: Embedding[Matrix], tokens: Array) -> Array:
        """`embed` of tokens on the device."""
        return mx.tile(rows_of(w.table, tokens), (1, w.streams))

    def scored(self, w: Head[Matrix, Array], wide: Array) -> Array:
        """`logits` of all rows."""
        return self.times(self.read_residual(w.mixer, wide)[0], w.matrix)

    def chosen(self, w: Head[Matrix, Array], wide: Array) -> Array:
        """`argmax` of all rows, int32 `[R]`."""
        return mx.argmax(self.scored(w, wide), axis=-1).astype(mx.int32)

    def kept(self, array: Array) -> Array:
        """An array that the host made, where the device reads it best."""
        return array

    def times(self, x: Array, matrix: Matrix) -> Array:
        """`x` `[R, in]` times a matrix, `[R, out]`."""
        return times(x, matrix, exact=self.exact)

    def _biased(self, x: Array, matrix: Matrix, bias: Array | None) -> Array:
        out = self.times(x, matrix)
        return out if bias is None else out + bias

    def _summed(
        self,
        shared: SharedExpert[Matrix],
        x: Array,
        weights: Array,
        each: Array,
        target: tuple[Array, Array] | None,
    ) -> Array:
        """Experts' results `[R, K, D]` summed by rank, the shared expert last; into a wide residual if one is given."""
        out = weights[:, 0, None] * each[:, 0]
        for rank in range(1, each.shape[1]):
            out = out + weights[:, rank, None] * each[:, rank]
        hidden = silu(self.times(x, shared.gate)) * self.times(x, shared.up)
        switch = sigmoid(self.times(x, shared.switch))
        out = out + switch * self.times(hidden, shared.down)
        return out if target is None else self.inject(target[0], out, target[1])

    def _show(self, *arrays: Array | Ids | None) -> None:
        """Compute what the host needs to see, and with it all that still reads slots of the pool."""
        given = [a for a in arrays if isinstance(a, mx.array)]
        wanted, self._pending = [*self._pending, *given], []
        mx.eval(wanted)
