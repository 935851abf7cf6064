"""A call of every kernel, in the variants that differ: what is linted, compiled and run in every order of lanes."""

import mlx.core as mx
import numpy as np

from cherenkov.backends import kernel_calls as calls
from cherenkov.backends import product_calls as products
from cherenkov.backends import tile_calls as tiles
from cherenkov.backends.kernel_calls import Columns
from cherenkov.backends.launches import place
from cherenkov.backends.mlx_matrices import Matrix
from cherenkov.backends.product_calls import Activation
from cherenkov.packing.layout import ExpertLayout
from tests.backends.layers import Geometry, Layers

__all__ = ["cases"]


def cases():
    """By name, in order."""
    return dict(_cases())


def _values(*shape, seed=0):
    return mx.array(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def _matrix(out, columns, bits, group=32):
    if bits > 8:
        kind = mx.bfloat16 if bits == 16 else mx.float32
        return Matrix((out, columns), bits, 0, _values(out, columns).astype(kind))
    parts = mx.quantize(_values(out, columns).astype(mx.bfloat16), group_size=group, bits=bits)
    return Matrix((out, columns), bits, group, *parts)


def _cases():
    for bits in (2, 3, 4, 8, 16, 32):
        for rows in (1, 3):
            yield (
                f"product-{bits}-{rows}",
                products.product(_values(rows, 96), _matrix(37, 96, bits)),
            )
    yield (
        "product-long",
        products.product(_values(1, 2112), _matrix(8, 2112, 4, 64), Activation(1, 0.5)),
    )
    yield "product-few", products.product(_values(2, 64), _matrix(3, 64, 4), Activation(2, 0.25))
    act = Activation(1, 0.5, 2, 11)
    yield "product-parted", products.product(_values(2, 64), _matrix(13, 64, 4), act)
    yield "product-parted-values", products.product(_values(2, 64), _matrix(13, 64, 16), act)
    yield from _tile_cases(act)
    yield "swiglu", products.swiglu(_values(1, 64), _matrix(33, 64, 4), _matrix(33, 64, 4))
    yield "swiglu-rows", products.swiglu(_values(4, 64), _matrix(5, 64, 8), _matrix(5, 64, 8))
    yield from _expert_cases()
    yield from _residual_cases()
    yield from _delta_cases()
    yield from _attention_cases()
    for experts, top in ((9, 3), (70, 40)):
        table = mx.array(np.arange(experts)[::-1].astype(np.int32)) if experts == 9 else None
        scores = _values(2, experts + 1)
        yield (
            f"route-{experts}",
            calls.route(scores, experts, top, normalise=experts == 9, table=table),
        )
    logits = _values(2, 5000)
    yield "argmax", calls.argmax(logits)
    yield (
        "argmax-last",
        calls.argmax(
            _values(2, 64), mx.array(np.arange(128).reshape(2, 64)[:, ::-1].astype(np.int32))
        ),
    )
    draws = mx.array([0.0, 0.999999])
    yield "sample", calls.sample(logits, logits.max(axis=-1), draws, mx.array([1.0, 1.5]))


def _tile_cases(act):
    """Matrix units: every width, one simdgroup for a row and several, more activations than fit, few outputs and many."""
    yield "tile-2-1", tiles.product(_values(1, 128), _matrix(37, 128, 2, 64), act)
    yield "tile-8-3", tiles.product(_values(3, 256), _matrix(37, 256, 8, 64))
    for rows in (1, 4):
        yield f"tile-split-{rows}", tiles.product(_values(rows, 2560), _matrix(20, 2560, 4, 64))
    many, large = tiles.tiling_of((10_000, 1280)), tiles.tiling_of((40_000, 512))
    assert (many.tiles, many.side, large.span, large.side) == (2, 2, 2, 8)
    yield "tile-many", tiles.product(_values(2, 1280), _matrix(70, 1280, 4, 64), tiling=many)
    yield "tile-large", tiles.product(_values(1, 512), _matrix(140, 512, 4, 64), tiling=large)
    layout = ExpertLayout(128, 256, 4, 64)
    words = np.random.default_rng(1).integers(
        0, 1 << 32, (3, layout.stride_bytes // 4), dtype=np.uint32
    )
    pool = mx.array(words & np.uint32(0x3FFF3FFF))
    for tile in (1, 4):
        slots, rows = (
            mx.array([2, 0], mx.int32),
            mx.array(([1, -1, 0, 1] * 2)[: 2 * tile], mx.int32),
        )
        yield f"tile-up-{tile}", tiles.expert_up(layout, pool, slots, rows, _values(2, 256))
        yield f"tile-down-{tile}", tiles.expert_down(layout, pool, slots, _values(2 * tile, 128))


def _expert_cases():
    for bits in (2, 3, 4, 8):
        layout = ExpertLayout(64, 96, bits, 32)
        words = np.random.default_rng(bits).integers(
            0, 1 << 32, (5, layout.stride_bytes // 4), dtype=np.uint32
        )
        words &= np.uint32(0x3FFF3FFF)  # no BF16 scale becomes infinite
        pool, tags = mx.array(words), mx.array([bits] * 8, mx.int32)
        slots = mx.array([4, 0, 2], mx.int32)
        for tile in (1, 4):
            rows = mx.array(([0, 1, -1, 1] * 3)[: 3 * tile], mx.int32)
            mixed = bits == 4 and tile == 1
            what = f"{bits}-{tile}{'-tagged' if mixed else ''}"
            yield (
                f"expert-up-{what}",
                products.expert_up(layout, pool, tags, slots, rows, _values(2, 96), mixed=mixed),
            )
            h = _values(3 * tile, 64)
            yield (
                f"expert-down-{what}",
                products.expert_down(layout, pool, tags, slots, h, mixed=mixed),
            )
    place = mx.array([5, 4, 3, 2, 1, 0], mx.int32)
    yield (
        "combine",
        calls.combine(
            _values(6, 40),
            place,
            _values(2, 3),
            _values(2, 40),
            Columns(_values(2, 5), 3),
            _values(2, 2),
            _values(2, 80),
        ),
    )


def _residual_cases():
    for width in (33, 300):
        yield (
            f"group-norm-{width}",
            calls.group_norm(_values(2, 3 * width), _values(3 * width), 3, 1e-5),
        )
    for rows in (1, 3):
        yield (
            f"residual-mix-{rows}",
            products.residual_mix(_values(rows, 64), _matrix(3 * 20, 64, 4), _values(rows, 60), 3),
        )
    yield "inject", calls.inject(_values(2, 120), _values(2, 40), _values(2, 3))


def _delta_cases():
    history = _values(3, 40)
    yield "causal-conv", calls.causal_conv(Columns(_values(2, 40)), history, _values(40, 4), 1)
    wider = Columns(_values(2, 50), 7)
    yield "causal-conv-back", calls.causal_conv(wider, history, _values(40, 4), 1, back=1)
    yield (
        "causal-conv-add",
        calls.causal_conv(
            Columns(_values(5, 40)), _values(9, 40), _values(40, 4), 3, _values(5, 40)
        ),
    )
    from cherenkov.backends.mlx import Mlx

    for name, g in (("", Geometry()), ("-wide", Geometry(key_dim=96, gate="silu"))):
        layers = Layers(Mlx(), g)
        w = layers.delta()
        channels = 2 * g.key_heads * g.key_dim + g.value_heads * g.value_dim
        for every in (False, True):
            yield (
                f"delta-step{name}{'-every' * every}",
                calls.delta_step(
                    w,
                    _values(3, channels),
                    [
                        Columns(_values(3, g.value_heads)),
                        Columns(_values(3, g.value_heads + 3), 2),
                        Columns(_values(3, g.value_heads * g.value_dim)),
                    ],
                    _values(g.value_heads, g.key_dim, g.value_dim),
                    every=every,
                ),
            )
    w = layers.ple()
    yield "ple-gate", calls.ple_gate(w, _values(2, 192), _values(2, 192), _values(2, 64))


def _attention_cases():
    from cherenkov.backends.mlx import Mlx

    g = Geometry(head_dim=40, index_dim=20, block=4, budget=12)
    w = Layers(Mlx(), g).attention()
    turn = _values(2, 8), _values(2, 8)
    projected = _values(2, g.heads * 2 * 40)
    yield "prepare-heads", calls.prepare_heads(Columns(projected), w.q_norm, turn, (4, 80), 1e-5)
    for kind in (mx.float32, mx.bfloat16):
        name = "" if kind == mx.float32 else "-bf16"
        raw = _values(40, 20).astype(kind)
        yield f"block-keys{name}", calls.block_keys(w, raw, place(3), turn)
        query = _values(2, g.index_heads, 20)
        yield f"scores{name}", calls.scores(w, query, _values(9, 20).astype(kind), place(33), 8)
        caches = _values(40, 2, 40).astype(kind), _values(40, 2, 40, seed=1).astype(kind)
        chosen = mx.array([[0, 3, 7], [1, 2, 5]], mx.int32)
        yield f"attend{name}", calls.attend(w, _values(2, 4, 40), caches, chosen, place(36), 2)
        yield f"attend-all{name}", calls.attend(w, _values(2, 4, 40), caches, chosen, place(9), 1)
    found = np.random.default_rng(3).integers(0, 4, (2, 700)).astype(np.float32)
    found[1, 50:] = -1
    yield "select", calls.select(mx.array(found), 60)
    yield "select-few", calls.select(mx.array(found[:, :70]), 64)
    yield "merge", calls.merge(w, _values(8, 3, 40), mx.abs(_values(8, 3, 2)), Columns(projected))
