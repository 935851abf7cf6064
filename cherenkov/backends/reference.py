"""The `reference` backend: NumPy in float32, slow and obvious.

It follows the published model, not our kernels, and it is what every other backend is tested against.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from cherenkov.backends.base import (
    Arrivals,
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
from cherenkov.backends.operands import LEFT_OUT
from cherenkov.backends.records import expert_matrices
from cherenkov.checkpoint.affine import HostMatrix, dequantise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cherenkov.packing.layout import ExpertLayout

__all__ = ["Reference"]

Matrix = NDArray[np.float32]  # [out, in], dequantised


class Reference(Backend[Matrix, Floats]):
    """NumPy float32. Options are accepted and make no difference."""

    name = "reference"
    approximates = True
    matrix_bits = 32

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()

    @property
    @override
    def detail(self) -> str:
        return "NumPy float32"

    @override
    def matrix(self, host: HostMatrix) -> Matrix:
        return dequantise(host)

    @override
    def array(self, host: Floats) -> Floats:
        return host

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
        return state.matrix.copy()

    @override
    def pool(self, layout: ExpertLayout, slots: int) -> ExpertPool:
        return ExpertPool(layout, np.zeros((slots, layout.stride_bytes), dtype=np.uint8))

    @override
    def embed(self, w: Embedding[Matrix], tokens: Ids) -> Floats:
        return np.tile(w.table[tokens], (1, w.streams))

    @override
    def read_residual(
        self, w: GatedResidual[Matrix, Floats], wide: Floats
    ) -> tuple[Floats, Floats | None]:
        normed = _stream_norm(wide, w.norm, w.streams, w.eps)  # [R, S*D]
        mix = _sigmoid(_silu(normed @ w.down.T / np.float32(w.streams)) @ w.up.T)  # [R, S*D]
        block: Floats = (mix * normed).reshape(len(wide), w.streams, -1).mean(axis=1)  # [R, D]
        if w.inject is None:
            return block, None
        gain = np.float32(2) * _sigmoid(normed @ w.inject.T / np.float32(w.streams))
        return block, gain

    @override
    def inject(self, wide: Floats, block: Floats, gain: Floats) -> Floats:
        return wide + (gain[:, :, None] * block[:, None, :]).reshape(wide.shape)

    @override
    def delta_net(
        self, w: DeltaNet[Matrix, Floats], x: Floats, spans: Sequence[Span[DeltaState[Floats]]]
    ) -> Floats:
        channels = x @ w.qkv.T  # [R, C]
        decay = -np.exp(w.a_log) * _softplus(x @ w.a.T + w.dt_bias)  # [R, Hv], log of the decay
        beta = _sigmoid(x @ w.b.T)  # [R, Hv]
        mixed = np.empty((len(x), w.value_heads, w.value_dim), dtype=np.float32)
        for span in spans:
            rows = slice(span.start, span.stop)
            convolved = _silu(_convolve(span.state, channels[rows], w.conv, dilation=1))
            mixed[rows] = _delta_rule(w, span.state, convolved, decay[rows], beta[rows])
        gate = (x @ w.z.T).reshape(mixed.shape)
        gate = _sigmoid(gate) if w.gate == "sigmoid" else _silu(gate)
        gated: Floats = (_norm(mixed, w.norm, w.eps) * gate).reshape(len(x), -1)
        return gated @ w.out.T

    @override
    def sparse_attention(
        self,
        w: SparseAttention[Matrix, Floats],
        x: Floats,
        spans: Sequence[Span[AttentionState[Floats]]],
    ) -> Floats:
        shape = (len(x), w.heads, w.head_dim)
        queries, gate = np.split(_linear(x, w.q, w.q_bias).reshape(*shape[:2], -1), 2, axis=-1)
        queries = _norm(queries, w.q_norm, w.eps)
        keys = _norm(_linear(x, w.k, w.k_bias).reshape(len(x), w.kv_heads, -1), w.k_norm, w.eps)
        values = _linear(x, w.v, w.v_bias).reshape(len(x), w.kv_heads, -1)
        index = (x @ w.index.T).reshape(len(x), w.index_heads + 1, w.index_dim)
        index_queries = _norm(index[:, :-1], w.index_q_norm, w.eps)
        mixed = np.empty(shape, dtype=np.float32)
        for span in spans:
            rows = slice(span.start, span.stop)
            positions = np.arange(span.position, span.position + span.stop - span.start)
            _append(w, span, _rotate(w, keys[rows], positions), values[rows], index[rows, -1])
            turned = _rotate(w, queries[rows], positions)
            turned_index = _rotate(w, index_queries[rows], positions)
            for i, position in enumerate(positions.tolist()):
                chosen = _select(w, span.state, turned_index[i], position)
                mixed[span.start + i] = _attend(w, span.state, turned[i], chosen)
        return _linear((mixed * _sigmoid(gate)).reshape(len(x), -1), w.o, w.o_bias)

    @override
    def ple(
        self,
        w: Ple[Matrix, Floats],
        wide: Floats,
        features: Floats,
        spans: Sequence[Span[PleState[Floats]]],
    ) -> Floats:
        split = (len(wide), w.streams, -1)
        key = _stream_norm(features @ w.key.T, w.norm_key, w.streams, w.eps).reshape(split)
        query = _stream_norm(wide, w.norm_query, w.streams, w.eps).reshape(split)
        value = features @ w.value.T  # [R, D]
        score = (key * query).sum(axis=-1, keepdims=True) / np.float32(np.sqrt(value.shape[1]))
        gate = _sigmoid(np.sign(score) * np.sqrt(np.maximum(np.abs(score), np.float32(1e-6))))
        gated = (gate * value[:, None, :]).reshape(wide.shape)
        normed = _stream_norm(gated, w.norm_conv, w.streams, w.eps)
        out = wide + gated
        for span in spans:
            rows = slice(span.start, span.stop)
            out[rows] += _silu(_convolve(span.state, normed[rows], w.conv, w.dilation))
        return out

    @override
    def route(self, w: Router[Matrix], x: Floats) -> Routes[Floats]:
        scores = _softmax(x @ w.gate.T)  # [R, E]
        ids = np.argsort(-scores, axis=-1, kind="stable")[:, : w.top_k]
        weights = np.take_along_axis(scores, ids, axis=-1)
        if w.normalise:
            weights = weights / weights.sum(axis=-1, keepdims=True)
        return Routes(ids.astype(np.int32), weights)

    @override
    def experts(
        self, shared: SharedExpert[Matrix], x: Floats, routes: Routes[Floats], arrivals: Arrivals
    ) -> Floats:
        each = np.empty((*routes.ids.shape, x.shape[1]), dtype=np.float32)  # [R, K, D]
        pool = arrivals.pool
        for wave in arrivals:
            for expert, slot in zip(wave.experts, wave.slots, strict=True):
                rows, ranks = np.nonzero(routes.ids == expert)
                if slot == LEFT_OUT:
                    each[rows, ranks] = 0
                    continue
                record = expert_matrices(pool.layout_in(slot), pool.memory[slot])
                gate, up, down = (dequantise(matrix) for matrix in record)
                each[rows, ranks] = _feed_forward(x[rows], gate, up, down)
        out = np.zeros_like(x)
        for rank in range(routes.ids.shape[1]):
            out += routes.weights[:, rank, None] * each[:, rank]
        return out + _sigmoid(x @ shared.switch.T) * _feed_forward(
            x, shared.gate, shared.up, shared.down
        )

    @override
    def fuse(
        self,
        w: DraftFuse[Matrix, Floats],
        embedding: Embedding[Matrix],
        tokens: Ids,
        wide: Floats,
    ) -> Floats:
        token = _norm(embedding.table[tokens], w.norm_embedding, w.eps) @ w.fc_embedding.T  # [R, D]
        hidden = _norm(wide, w.norm_hidden, w.eps).reshape(len(wide), w.streams, -1)
        return (hidden @ w.fc_hidden.T + token[:, None, :]).reshape(wide.shape)

    @override
    def logits(self, w: Head[Matrix, Floats], wide: Floats, rows: Sequence[int]) -> Floats:
        block, _ = self.read_residual(w.mixer, wide[np.asarray(rows, dtype=np.intp)])
        return block @ w.matrix.T


def _linear(x: Floats, matrix: Matrix, bias: Floats | None) -> Floats:
    return x @ matrix.T if bias is None else x @ matrix.T + bias


def _feed_forward(x: Floats, gate: Matrix, up: Matrix, down: Matrix) -> Floats:
    return (_silu(x @ gate.T) * (x @ up.T)) @ down.T


def _sigmoid(x: Floats) -> Floats:
    half: Floats = np.tanh(np.float32(0.5) * x)
    return np.float32(0.5) * (half + np.float32(1))


def _silu(x: Floats) -> Floats:
    return x * _sigmoid(x)


def _softplus(x: Floats) -> Floats:
    out: Floats = np.logaddexp(x, np.float32(0))
    return out


def _softmax(x: Floats) -> Floats:
    e: Floats = np.exp(x - x.max(axis=-1, keepdims=True))
    total: Floats = e.sum(axis=-1, keepdims=True)
    return e / total


def _norm(x: Floats, weight: Floats, eps: float) -> Floats:
    """RMS norm over the last axis."""
    scale: Floats = np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + np.float32(eps))
    return x / scale * weight


def _stream_norm(x: Floats, weight: Floats, streams: int, eps: float) -> Floats:
    """RMS norm of each stream by itself, with a weight over all of them."""
    split = x.reshape(len(x), streams, -1)
    return _norm(split, weight.reshape(streams, -1), eps).reshape(x.shape)


def _convolve(
    state: DeltaState[Floats] | PleState[Floats], x: Floats, taps: Floats, dilation: int
) -> Floats:
    """Causal depthwise convolution of rows that follow `state.history`, which moves on."""
    joined = np.concatenate([state.history, x])
    out = np.zeros_like(x)
    for tap in range(taps.shape[1]):
        out += joined[tap * dilation : tap * dilation + len(x)] * taps[:, tap]
    state.history[...] = joined[len(x) :]
    return out


def _delta_rule(
    w: DeltaNet[Matrix, Floats],
    state: DeltaState[Floats],
    convolved: Floats,
    decay: Floats,
    beta: Floats,
) -> Floats:
    """The gated delta recurrence, token by token: `[n, C]` to `[n, Hv, dv]`."""
    width = w.key_heads * w.key_dim
    heads = (len(convolved), w.key_heads, w.key_dim)
    repeats = w.value_heads // w.key_heads
    query = _unit(convolved[:, :width].reshape(heads)).repeat(repeats, axis=1)
    query = query / np.float32(np.sqrt(w.key_dim))
    key = _unit(convolved[:, width : 2 * width].reshape(heads)).repeat(repeats, axis=1)
    value = convolved[:, 2 * width :].reshape(len(convolved), w.value_heads, w.value_dim)
    out = np.empty_like(value)
    memory = state.matrix  # [Hv, dk, dv]
    for t in range(len(convolved)):
        memory *= np.exp(decay[t])[:, None, None]
        recalled = np.einsum("hkv,hk->hv", memory, key[t])
        change = beta[t][:, None] * (value[t] - recalled)
        memory += key[t][:, :, None] * change[:, None, :]
        out[t] = np.einsum("hkv,hk->hv", memory, query[t])
    return out


def _unit(x: Floats) -> Floats:
    """L2 normalisation; the epsilon is the model's own, whatever the config says of its norms."""
    length: Floats = np.sqrt(np.square(x).sum(axis=-1, keepdims=True) + np.float32(1e-6))
    return x / length


def _rotate(w: SparseAttention[Matrix, Floats], x: Floats, positions: NDArray[np.int64]) -> Floats:
    """Partial rotary embedding of `[n, heads, d]`: the first dimensions turn in pairs, half against half."""
    half = w.rotary_dim // 2
    frequencies = w.theta ** (-np.arange(half, dtype=np.float64) / half)
    # float32 angles, as the published model computes them
    angles = positions[:, None].astype(np.float32) * frequencies.astype(np.float32)
    cos, sin = np.cos(angles)[:, None, :], np.sin(angles)[:, None, :]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)


def _append(
    w: SparseAttention[Matrix, Floats],
    span: Span[AttentionState[Floats]],
    keys: Floats,
    values: Floats,
    index_keys: Floats,
) -> None:
    """Put new tokens into the cache, and finish the index blocks that they complete."""
    state, start = span.state, span.position
    stop = start + len(keys)
    state.keys[start:stop] = keys
    state.values[start:stop] = values
    state.index_keys[start:stop] = index_keys
    first, last = start // w.block, stop // w.block
    if last > first:
        raw = state.index_keys[first * w.block : last * w.block]
        means = raw.reshape(last - first, w.block, -1).mean(axis=1)
        normed = _norm(means, w.index_k_norm, w.eps)
        begins = np.arange(first, last) * w.block
        state.block_keys[first:last] = _rotate(w, normed[:, None], begins)[:, 0]
    state.length = stop


def _select(
    w: SparseAttention[Matrix, Floats],
    state: AttentionState[Floats],
    queries: Floats,
    position: int,
) -> NDArray[np.int64]:
    """Positions that the token at `position` attends to, ascending."""
    complete = (position + 1) // w.block
    keep = w.budget // w.block
    if complete <= keep:
        return np.arange(position + 1)
    scores = np.maximum(queries @ state.block_keys[:complete].T, 0).sum(axis=0)
    blocks = np.sort(np.argsort(-scores, kind="stable")[:keep])
    tokens = (blocks[:, None] * w.block + np.arange(w.block)).ravel()
    return np.concatenate([tokens, np.arange(complete * w.block, position + 1)])


def _attend(
    w: SparseAttention[Matrix, Floats],
    state: AttentionState[Floats],
    queries: Floats,
    chosen: NDArray[np.int64],
) -> Floats:
    """One token's heads `[H, d]` over the chosen positions."""
    grouped = queries.reshape(w.kv_heads, -1, w.head_dim)  # [Hkv, H/Hkv, d]
    keys = state.keys[chosen].swapaxes(0, 1)  # [Hkv, n, d]
    values = state.values[chosen].swapaxes(0, 1)
    scores = grouped @ keys.swapaxes(1, 2) / np.float32(np.sqrt(w.head_dim))
    return (_softmax(scores) @ values).reshape(queries.shape)
