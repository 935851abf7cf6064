"""The arithmetic of the layers in stock MLX operations. It follows the `reference` backend line by line."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np

from cherenkov.backends.mlx_back import EveryDelta, EveryPle

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from cherenkov.backends.mlx_matrices import Matrix
    from cherenkov.backends.operands import (
        AttentionState,
        DeltaNet,
        DeltaState,
        PleState,
        SparseAttention,
    )

__all__ = [
    "append",
    "attend",
    "best_experts",
    "convolve",
    "delta_rule",
    "norm",
    "put",
    "rotate",
    "sigmoid",
    "silu",
    "stream_norm",
    "turns",
    "unit",
]

_MOST_SCORES = 1 << 24
"""Attention scores that are in memory at a time."""
_UNIT_EPS = 1e-6


def sigmoid(x: mx.array) -> mx.array:
    """The logistic function."""
    return mx.sigmoid(x)


def silu(x: mx.array) -> mx.array:
    """`x * sigmoid(x)`."""
    return x * mx.sigmoid(x)


def norm(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    """RMS norm over the last axis."""
    return mx.fast.rms_norm(x, weight, eps)


def stream_norm(x: mx.array, weight: mx.array, streams: int, eps: float) -> mx.array:
    """RMS norm of each stream by itself, with a weight over all of them."""
    split = x.reshape(x.shape[0], streams, -1)
    plain = mx.fast.rms_norm(split, None, eps)
    return plain.reshape(x.shape) * weight


def unit(x: mx.array) -> mx.array:
    """L2 normalisation over the last axis; the epsilon is the model's own."""
    return x * mx.rsqrt(mx.square(x).sum(axis=-1, keepdims=True) + _UNIT_EPS)


def convolve(
    state: DeltaState[mx.array] | PleState[mx.array], x: mx.array, taps: mx.array, dilation: int
) -> mx.array:
    """Causal depthwise convolution of rows `[n, C]` that follow `state.history`, which moves on.

    Of an `EveryDelta` or `EveryPle`, the history has what it needs after each of the rows.
    """
    joined = mx.concatenate([state.history, x])
    count = x.shape[0]
    out = joined[:count] * taps[:, 0]
    for tap in range(1, taps.shape[1]):
        out = out + joined[tap * dilation : tap * dilation + count] * taps[:, tap]
    state.history = joined[1 if isinstance(state, EveryDelta | EveryPle) else count :]
    return out


def delta_rule(
    w: DeltaNet[Matrix, mx.array],
    state: DeltaState[mx.array],
    convolved: mx.array,
    decay: mx.array,
    beta: mx.array,
) -> mx.array:
    """The gated delta recurrence, token by token: `[n, C]` to `[n, Hv, dv]`; `decay` and `beta` are `[n, Hv]`."""
    count, width = convolved.shape[0], w.key_heads * w.key_dim
    heads = (count, w.key_heads, w.key_dim)
    repeats = w.value_heads // w.key_heads
    query = unit(convolved[:, :width].reshape(heads)) * (w.key_dim**-0.5)
    key = unit(convolved[:, width : 2 * width].reshape(heads))
    if repeats > 1:
        query, key = mx.repeat(query, repeats, axis=1), mx.repeat(key, repeats, axis=1)
    value = convolved[:, 2 * width :].reshape(count, w.value_heads, w.value_dim)
    decay = mx.exp(decay)
    memory, out, every = state.matrix, [], []  # [Hv, dk, dv]
    for t in range(count):
        memory = memory * decay[t, :, None, None]
        recalled = (key[t, :, None, :] @ memory)[:, 0]
        change = beta[t, :, None] * (value[t] - recalled)
        memory = memory + key[t, :, :, None] * change[:, None, :]
        out.append((query[t, :, None, :] @ memory)[:, 0])
        every.append(memory)
    state.matrix = mx.stack(every) if isinstance(state, EveryDelta) else memory
    return mx.stack(out)


@lru_cache(maxsize=4)
def _turns(
    theta: float, half: int, start: int, count: int, step: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    frequencies = theta ** (-np.arange(half, dtype=np.float64) / half)
    positions = (start + step * np.arange(count)).astype(np.float32)
    # float32 angles, as the published model computes them
    angles = positions[:, None] * frequencies.astype(np.float32)
    return np.cos(angles), np.sin(angles)


def turns(
    w: SparseAttention[Matrix, mx.array], start: int, count: int, step: int = 1
) -> tuple[mx.array, mx.array]:
    """Cosines and sines `[count, rotary / 2]` of positions `start`, `start + step`, ..."""
    cos, sin = _turns(w.theta, w.rotary_dim // 2, start, count, step)
    return mx.array(cos), mx.array(sin)


def rotate(x: mx.array, turn: tuple[mx.array, mx.array]) -> mx.array:
    """Partial rotary embedding of `[n, heads, d]`: the first dimensions turn in pairs, half against half."""
    cos, sin = turn[0][:, None, :], turn[1][:, None, :]
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return mx.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)


def append(
    w: SparseAttention[Matrix, mx.array],
    state: AttentionState[mx.array],
    position: int,
    keys: mx.array,
    values: mx.array,
    index_keys: mx.array,
) -> None:
    """Put new tokens into the cache, and finish the index blocks that they complete."""
    stop = position + keys.shape[0]
    state.keys = put(state.keys, keys, position)
    state.values = put(state.values, values, position)
    state.index_keys = put(state.index_keys, index_keys, position)
    first, last = position // w.block, stop // w.block
    if last > first:
        raw = state.index_keys[first * w.block : last * w.block].astype(mx.float32)
        means = raw.reshape(last - first, w.block, -1).mean(axis=1)
        normed = norm(means, w.index_k_norm, w.eps)[:, None]
        turn = turns(w, first * w.block, last - first, w.block)
        state.block_keys = put(state.block_keys, rotate(normed, turn)[:, 0], first)
    state.length = stop


def put(cache: mx.array, rows: mx.array, start: int | mx.array) -> mx.array:
    """The cache with rows written to it: in place where nobody else holds it. `start`: a number, or the first of some."""
    begin = mx.array([start], mx.int32) if isinstance(start, int) else start[:1]
    return mx.slice_update(cache, rows.astype(cache.dtype), begin, axes=(0,))


def attend(
    w: SparseAttention[Matrix, mx.array],
    state: AttentionState[mx.array],
    queries: mx.array,
    index_queries: mx.array,
    position: int,
) -> mx.array:
    """Rows from `position` on over what each may see: `[n, H, d]` and `[n, Hi, di]` to `[n, H, d]`."""
    stop = position + queries.shape[0]
    at_once = max(1, _MOST_SCORES // (w.heads * stop))
    parts = []
    for begin in range(position, stop, at_once):
        rows = slice(begin - position, min(begin + at_once, stop) - position)
        allowed = _allowed(w, state, index_queries[rows], begin, stop)
        parts.append(
            mx.fast.scaled_dot_product_attention(
                mx.swapaxes(queries[rows], 0, 1)[None],
                mx.swapaxes(state.keys[:stop].astype(mx.float32), 0, 1)[None],
                mx.swapaxes(state.values[:stop].astype(mx.float32), 0, 1)[None],
                scale=w.head_dim**-0.5,
                mask=allowed[None, None],
            )[0]
        )
    mixed = parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=1)
    return mx.swapaxes(mixed, 0, 1)


def _allowed(
    w: SparseAttention[Matrix, mx.array],
    state: AttentionState[mx.array],
    queries: mx.array,
    position: int,
    stop: int,
) -> mx.array:
    """Which of the tokens `0:stop` each row attends to, bool `[n, stop]`."""
    rows = position + mx.arange(queries.shape[0])[:, None]  # [n, 1]
    tokens = mx.arange(stop)[None]
    seen = tokens <= rows
    keep, blocks = w.budget // w.block, stop // w.block
    if blocks <= keep:
        return seen
    complete = (rows + 1) // w.block
    block_keys = state.block_keys[:blocks].astype(mx.float32)
    scores = mx.maximum(queries @ block_keys.T, 0).sum(axis=1)  # [n, B]
    scores = mx.where(mx.arange(blocks)[None] < complete, scores, -mx.inf)
    bound = mx.sort(scores, axis=-1)[:, blocks - keep, None]
    above, equal = scores > bound, scores == bound
    room = keep - above.sum(axis=-1, keepdims=True)
    chosen = above | (equal & (mx.cumsum(equal.astype(mx.int32), axis=-1) <= room))
    of_token = mx.repeat(chosen, w.block, axis=1)
    if of_token.shape[1] < stop:
        tail = mx.zeros((of_token.shape[0], stop - of_token.shape[1]), mx.bool_)
        of_token = mx.concatenate([of_token, tail], axis=1)
    return seen & (of_token | (tokens >= complete * w.block))


def best_experts(scores: mx.array, count: int) -> mx.array:
    """Ids of the best, int32 `[R, K]` by falling score, ties to the lower id. Scores are not negative."""
    falling = mx.array(0xFFFFFFFF, mx.uint32) - scores.view(mx.uint32)
    ids = mx.arange(scores.shape[1]).astype(mx.uint64)
    keys = (
        falling.astype(mx.uint64) << 32
    ) | ids  # floats that are not negative sort as their bits
    return (mx.sort(keys, axis=-1)[:, :count] & 0xFFFFFFFF).astype(mx.int32)
