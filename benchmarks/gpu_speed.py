"""How fast each operation is on a GPU, as a share of what memory gives."""

# ruff: noqa: PLC0415 - each part imports what it needs, so that the others run where that is missing
from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
from gpu_parts import (
    EXPERTS,
    HIDDEN,
    INTER,
    PEAK,
    SMALL,
    TOP,
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
    for rows in (1, 2, 3, 4):
        found.attempt(f"experts, {rows} rows", lambda r=rows: on_owner(lambda: _experts(ops, r)))
    for rows in (1, 4):
        found.attempt(f"gather_qmm bf16, {rows} rows", lambda r=rows: on_owner(lambda: _gather(r)))
    found.attempt(
        "bf16 matmul of 10 experts, dequantised", lambda: on_owner(lambda: _dense_bf16(1))
    )
    found.attempt("bf16 matmul of 10 experts, 4 rows", lambda: on_owner(lambda: _dense_bf16(4)))
    for rows in (1, 4):
        found.attempt(f"LM head, {rows} rows", lambda r=rows: on_owner(lambda: _head(ops, r)))
    for shape in ((16384, 2560), (2560, 6144), (320, 10240)):
        found.attempt(f"product {shape}", lambda s=shape: on_owner(lambda: _product(ops, s)))
    found.attempt("DeltaNet step", lambda: on_owner(lambda: _delta(ops)))
    for context in (4096, 65536):
        found.attempt(f"QSA at {context}", lambda c=context: on_owner(lambda: _qsa(ops, c)))
    found.attempt("shapes of expert products", lambda: on_owner(lambda: _shapes(ops)))
    found.attempt("argmax", lambda: on_owner(lambda: _argmax(ops)))


def _bits(*shape: int) -> Any:
    """Random words."""
    import mlx.core as mx

    return mx.random.randint(-(1 << 31), (1 << 31) - 1, shape, mx.int32).view(mx.uint32)


def _quantised(out: int, columns: int, count: int = 0) -> Any:
    """Random codes, small scales: a matrix, or a stack."""
    import mlx.core as mx

    from cherenkov.backends.mlx_matrices import Matrix

    lead = (count,) if count else ()
    codes = _bits(*lead, out, columns // 8)
    shape = (*lead, out, columns // 64)
    scales = (mx.random.uniform(0.5, 1.5, shape) * (0.2 / columns**0.5)).astype(mx.bfloat16)
    biases = (-7.5 * scales).astype(mx.bfloat16)
    mx.eval(codes, scales, biases)
    return Matrix((out, columns), 4, 64, codes, scales, biases)


def _random_words(layout: Any, slots: int) -> Any:
    """A pool of random records, made on the device."""
    import mlx.core as mx

    codes = 3 * layout.codes_bytes // 4
    total = layout.stride_bytes // 4
    words = mx.concatenate(
        [
            _bits(slots, codes),
            # both BF16 halves of a word near 0.01, of either sign
            (_bits(slots, total - codes) & 0x807F807F) | 0x3C003C00,
        ],
        axis=1,
    )
    mx.eval(words)
    return words


def _experts(ops: Any, rows: int) -> Any:
    import mlx.core as mx

    from cherenkov.backends import product_calls as products
    from cherenkov.packing.layout import ExpertLayout

    layout = ExpertLayout(INTER, HIDDEN)
    words = _random_words(layout, EXPERTS)
    tags = mx.full((EXPERTS,), 4, mx.int32)
    rng = np.random.default_rng(rows)
    places = [
        mx.array(
            np.concatenate([rng.permutation(EXPERTS)[:TOP] for _ in range(rows)]).astype(np.int32)
        )
        for _ in range(32)
    ]
    listed = mx.array(np.repeat(np.arange(rows, dtype=np.int32), TOP))
    x0 = mx.random.normal((rows, HIDDEN))
    launch = ops._launch if hasattr(ops, "_launch") else None
    if launch is None:
        return "no kernels here"

    def chain(steps: int, x: Any, first: int = 0) -> Any:
        for i in range(first, first + steps):
            (h,) = launch(products.expert_up(layout, words, tags, places[i % 32], listed, x))
            (y,) = launch(products.expert_down(layout, words, tags, places[i % 32], h))
            x = y[:rows]
        return x

    size = rows * TOP * layout.record_bytes
    both = _with_share(_median_s(chain, 32, x0), size)

    def only_up(steps: int, x: Any, first: int = 0) -> Any:
        for i in range(first, first + steps):
            (h,) = launch(products.expert_up(layout, words, tags, places[i % 32], listed, x))
            x = mx.concatenate([h[:rows]] * (HIDDEN // INTER), axis=1)
        return x

    up = _with_share(_median_s(only_up, 32, x0), rows * TOP * layout.record_bytes * 2 // 3)
    # experts that every row shares, as a tile: each record is read once
    if rows > 1:
        tiled = mx.array(np.tile(np.array([*range(rows), *[-1] * (4 - rows)], np.int32), TOP))

        def tile(steps: int, x: Any, first: int = 0) -> Any:
            for i in range(first, first + steps):
                slots = places[i % 32][:TOP]
                (h,) = launch(products.expert_up(layout, words, tags, slots, tiled, x))
                (y,) = launch(products.expert_down(layout, words, tags, slots, h))
                x = y[:rows]
            return x

        return {
            "up and down": both,
            "up": up,
            "tile": _with_share(_median_s(tile, 32, x0), TOP * layout.record_bytes),
        }
    return {"up and down": both, "up": up}


def _shapes(ops: Any) -> Any:
    """Microseconds of expert_up and expert_down together, by lanes a row and rows a lane of one of them."""
    from cherenkov.backends import kernel_calls as calls

    lanes_of, rows_of = calls._lanes, calls._rows_each
    found = {}
    try:
        for part, width in (("up", HIDDEN), ("down", INTER)):
            for lanes in (8, 16, 32):
                for rows in (1, 2, 4, 8):

                    def pick(bits: int, columns: int, n: int = lanes, w: int = width) -> int:
                        return n if columns == w else lanes_of(bits, columns)

                    def each(n: int, out: int, r: int = rows, w: int = width) -> int:
                        return r if out == INTER + HIDDEN - w else rows_of(n, out)

                    calls._lanes, calls._rows_each = pick, each
                    found[f"{part}, {lanes} lanes, {rows} rows"] = _pair_us(ops, calls)
    finally:
        calls._lanes, calls._rows_each = lanes_of, rows_of
    return found


def _pair_us(ops: Any, calls: Any) -> float:
    import mlx.core as mx

    from cherenkov.packing.layout import ExpertLayout

    layout = ExpertLayout(INTER, HIDDEN)
    if "words" not in _KEPT:
        _KEPT["words"] = _random_words(layout, EXPERTS)
    words, tags = _KEPT["words"], mx.full((EXPERTS,), 4, mx.int32)
    rng = np.random.default_rng(0)
    places = [mx.array(rng.permutation(EXPERTS)[:TOP].astype(np.int32)) for _ in range(32)]
    listed, x0 = mx.zeros((TOP,), mx.int32), mx.random.normal((1, HIDDEN))

    def chain(steps: int, x: Any, first: int = 0) -> Any:
        for i in range(first, first + steps):
            (h,) = ops._launch(products.expert_up(layout, words, tags, places[i % 32], listed, x))
            (y,) = ops._launch(products.expert_down(layout, words, tags, places[i % 32], h))
            x = y[:1]
        return x

    return round(_median_s(chain, 32, x0, rounds=5)["us"], 2)


_KEPT: dict[str, Any] = {}


def _gather(rows: int) -> Any:
    import mlx.core as mx

    gate, up, down = (
        _quantised(INTER, HIDDEN, EXPERTS),
        _quantised(INTER, HIDDEN, EXPERTS),
        _quantised(HIDDEN, INTER, EXPERTS),
    )
    rng = np.random.default_rng(rows)
    places = [
        mx.array(
            np.concatenate([rng.permutation(EXPERTS)[:TOP] for _ in range(rows)]).astype(np.uint32)
        )
        for _ in range(32)
    ]
    which = mx.array(np.repeat(np.arange(rows, dtype=np.uint32), TOP))
    every = mx.arange(rows * TOP).astype(mx.uint32)
    x0 = mx.random.normal((rows, 1, HIDDEN)).astype(mx.bfloat16)

    def through(x: Any, m: Any, lhs: Any, rhs: Any) -> Any:
        return mx.gather_qmm(
            x, m.codes, m.scales, m.biases, lhs, rhs, transpose=True, group_size=64, bits=4
        )

    def chain(steps: int, x: Any, first: int = 0) -> Any:
        for i in range(first, first + steps):
            g, u = through(x, gate, which, places[i % 32]), through(x, up, which, places[i % 32])
            x = through(g * mx.sigmoid(g) * u, down, every, places[i % 32])[:rows]
        return x

    size = rows * TOP * 3 * INTER * HIDDEN * 9 // 16
    return _with_share(_median_s(chain, 32, x0), size)


def _dense_bf16(rows: int) -> Any:
    import mlx.core as mx

    stack = mx.random.normal((24, TOP, INTER, HIDDEN)).astype(mx.bfloat16) * 0.02
    mx.eval(stack)
    x0 = mx.random.normal((1, rows, HIDDEN)).astype(mx.bfloat16)

    def chain(steps: int, x: Any, first: int = 0) -> Any:
        for i in range(first, first + steps):
            h = x @ mx.swapaxes(stack[i % 8], -1, -2)
            u = x @ mx.swapaxes(stack[8 + i % 8], -1, -2)
            x = ((h * mx.sigmoid(h) * u) @ stack[16 + i % 8])[:1]
        return x

    return _with_share(_median_s(chain, 8, x0), TOP * 3 * INTER * HIDDEN * 2)


def _head(ops: Any, rows: int) -> Any:
    import mlx.core as mx

    matrices = [_quantised(VOCAB, HIDDEN) for _ in range(4)]
    x0 = mx.random.normal((rows, HIDDEN))

    def chain(steps: int, x: Any, first: int = 0) -> Any:
        for i in range(first, first + steps):
            x = ops.times(x, matrices[i % 4])[:, :HIDDEN] + 0
        return x

    return _with_share(_median_s(chain, 4, x0), VOCAB * HIDDEN * 9 // 16)


def _product(ops: Any, shape: tuple[int, int]) -> Any:
    import mlx.core as mx

    out, columns = shape if not SMALL else (256, 256)
    matrices = [_quantised(out, columns) for _ in range(16)]
    x0 = mx.random.normal((1, columns))

    def chain(steps: int, x: Any, first: int = 0) -> Any:
        for i in range(first, first + steps):
            y = ops.times(x, matrices[i % 16])
            x = x0 + y[:, :1]
        return x

    return _with_share(_median_s(chain, 16, x0), out * columns * 9 // 16)


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
        copies = [mx.random.normal(start.shape) for _ in range(24)]
        mx.eval(copies)

        def recurrence(steps: int, zz: Any, first: int = 0) -> Any:
            for i in range(first, first + steps):
                y, _ = ops._launch(calls.delta_step(w, conv, a, a, zz, copies[i % 24]))
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
