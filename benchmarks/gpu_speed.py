"""How long whole operations take on a GPU, with all that MLX does around its kernels (`gpu_times.py` has the kernels alone)."""

# ruff: noqa: PLC0415 - each part imports what it needs, so that the others run where that is missing
from __future__ import annotations

import statistics
import time
from typing import Any

from gpu_parts import (
    HIDDEN,
    PEAK,
    SMALL,
    VOCAB,
    Findings,
    backend,
    copy_rate,
    on_owner,
)

# --- speed --------------------------------------------------------------------------------------------------------


def _median_s(chain: Any, steps: int, start: Any = None, rounds: int = 7) -> dict[str, Any]:
    """Microseconds of a step: of many, over different weights, that wait for nothing but the memory.

    Args:
        chain: makes so many steps, lazily.
        steps: how many.
        start: what the first step begins with, if nothing else goes from step to step. Then the steps are traced once
            (`mx.compile`), since building a call costs MLX more than running it, and run side by side; and, for
            comparison, as a chain in which each needs the one before, traced and not. Without it, the chain is all.
        rounds: repetitions.
    """
    import mlx.core as mx

    if start is None:
        return _timed(lambda: chain(steps), steps, rounds)
    plain = _timed(lambda: chain(steps, start), steps, rounds)
    if SMALL:
        return plain
    traced = mx.compile(lambda x: chain(steps, x))
    queued = mx.compile(lambda x: [chain(1, x, i) for i in range(steps)])
    one = _timed(lambda: traced(start), steps, rounds)
    many = _timed(lambda: queued(start), steps, rounds)
    return many | {"us_in_a_chain": one["us"], "us_untraced": plain["us"]}


def _timed(call: Any, steps: int, rounds: int) -> dict[str, Any]:
    import mlx.core as mx

    samples = []
    for _ in range(rounds + 2):
        begun = time.perf_counter()
        mx.eval(call())
        mx.synchronize()
        samples.append((time.perf_counter() - begun) / steps)
    samples = samples[2:]
    return {
        "us": statistics.median(samples) * 1e6,
        "samples_us": [round(s * 1e6, 2) for s in samples],
    }


def _with_share(timing: dict[str, Any], size: int) -> dict[str, Any]:
    rate = size / (timing["us"] * 1e-6)
    return timing | {"bytes": size, "bytes_s": rate, "share_of_4.8e12": rate / PEAK}


def speed(found: Findings) -> None:
    ops = backend()
    found["backend"] = ops.detail
    found.attempt("copy_bytes_s", lambda: on_owner(copy_rate))
    found.attempt("DeltaNet step", lambda: on_owner(lambda: _delta(ops)))
    for context in (4096, 65536):
        found.attempt(f"QSA at {context}", lambda c=context: on_owner(lambda: _qsa(ops, c)))
    found.attempt("argmax", lambda: on_owner(lambda: _argmax(ops)))


def _weights(ops: Any) -> Any:
    """Layers in the published geometry."""
    from tests.backends.layers import Geometry, Layers

    if SMALL:
        return Layers(ops, Geometry())
    g = Geometry(
        hidden=HIDDEN,
        streams=4,
        rank=320,
        key_heads=16,
        value_heads=48,
        key_dim=128,
        value_dim=128,
        heads=24,
        kv_heads=2,
        head_dim=256,
        rotary=64,
        index_heads=4,
        index_dim=128,
        block=4,
        budget=2048,
        group=64,
        gate="sigmoid",
    )
    return Layers(ops, g)


def _delta(ops: Any) -> Any:
    import mlx.core as mx

    from cherenkov.backends import kernel_calls as calls
    from cherenkov.backends.base import Span
    from cherenkov.backends.kernel_calls import Columns

    layers = _weights(ops)
    g, w = layers.g, layers.delta()
    state = ops.delta_state(w)
    out = {}
    x0 = mx.random.normal((1, g.hidden))

    def whole(steps: int) -> Any:
        x = x0
        for i in range(steps):
            x = ops.delta_net(w, x, [Span(0, 1, i, state)])
        return x, state.matrix

    out["layer"] = _median_s(whole, 32)
    if hasattr(ops, "_launch"):
        channels = 2 * g.key_heads * g.key_dim + g.value_heads * g.value_dim
        conv, a = mx.random.normal((1, channels)), mx.random.normal((1, g.value_heads))
        z = mx.random.normal((1, g.value_heads * g.value_dim))
        start = mx.zeros((g.value_heads, g.key_dim, g.value_dim))
        heads = Columns(a)
        copies = [mx.random.normal(start.shape) for _ in range(24)]
        mx.eval(copies)

        def recurrence(steps: int, zz: Any, first: int = 0) -> Any:
            for i in range(first, first + steps):
                y, _ = ops._launch(
                    calls.delta_step(w, conv, [heads, heads, Columns(zz)], copies[i % 24])
                )
                zz = y
            return zz

        out["recurrence"] = _with_share(_median_s(recurrence, 24, z), 2 * start.size * 4)
    return out


def _qsa(ops: Any, context: int) -> Any:
    import mlx.core as mx

    from cherenkov.backends.base import AttentionState, Span

    context = context if not SMALL else 60
    layers = _weights(ops)
    g, w = layers.g, layers.attention()
    room = context + 64
    state = AttentionState(
        mx.random.normal((room, g.kv_heads, g.head_dim)),
        mx.random.normal((room, g.kv_heads, g.head_dim)),
        mx.random.normal((room, g.index_dim)),
        mx.random.normal((room // g.block, g.index_dim)),
        length=context,
    )
    mx.eval(state.keys, state.values, state.index_keys, state.block_keys)
    x0 = mx.random.normal((1, g.hidden))

    def chain(steps: int) -> Any:
        x = x0
        for i in range(steps):
            x = ops.sparse_attention(w, x, [Span(0, 1, context + i, state)])
        return x

    size = (
        context // g.block * g.index_dim * 4
        + 2 * min(context, g.budget) * g.kv_heads * g.head_dim * 4
    )
    timing = _median_s(chain, 32)
    return timing | {"cache_bytes_read": size}


def _argmax(ops: Any) -> Any:
    import mlx.core as mx

    from cherenkov.backends import kernel_calls as calls

    if not hasattr(ops, "_launch"):
        return "no kernels here"
    logits = mx.random.normal((1, VOCAB))

    def chain(steps: int, x: Any, first: int = 0) -> Any:
        for i in range(first, first + steps):
            best, places = ops._launch(calls.argmax(x))
            value, _ = ops._launch(calls.argmax(best, places))
            x = x + value + i
        return x

    return _median_s(chain, 16, logits)
