"""Every operation of the native backend against the reference, on every instruction set, in float32 and by default."""

import numpy as np
import pytest

from cherenkov.backends.base import Routes, Span
from cherenkov.backends.reference import Reference
from tests.backends.choices import DEFAULTS, FLOAT32, needs_kernels, start
from tests.backends.layers import ODD, PLAIN, SMALL, WIDE, Arrivals, Geometry, Layers

pytestmark = needs_kernels

REFERENCE = Reference()
GEOMETRIES = [PLAIN, SMALL, WIDE, ODD, Geometry(bits=3), Geometry(bits=2), Geometry(bits=8)]
CASES = [
    pytest.param((choice, geometry), id=f"{choice[0]}-{choice[1] or 'default'}-{i}")
    for i, geometry in enumerate(GEOMETRIES)
    for choice in FLOAT32 + (DEFAULTS if geometry in {SMALL, WIDE} else [])
]
# relative to the largest number, at least 1; the default is int16 or BF16
LIMIT = {"float32": 2e-5, "int16": 2e-3, "bf16": 4e-2}


@pytest.fixture(params=CASES)
def pair(request):
    """The same layers on the native backend and on the reference."""
    (isa, precision), geometry = request.param
    ops = start(isa, precision)
    yield Pair(Layers(ops, geometry), Layers(REFERENCE, geometry))
    ops.close()


class Pair:
    """Two backends that must agree."""

    def __init__(self, native, reference):
        self.native, self.reference = native, reference
        self.ops = native.ops
        self.g = native.g
        self.limit = LIMIT[self.ops.detail.split()[-2]]

    def close(self, actual, expected, limit=None):
        assert actual.dtype == np.float32
        assert actual.shape == expected.shape
        scale = max(1.0, float(np.abs(expected).max()))
        error = float(np.abs(actual - expected).max()) / scale
        assert error <= (limit or self.limit), error

    def both(self, make):
        return make(self.native), make(self.reference)

    def rows(self, count, scale=1.0, width=None):
        """The same activations for both; what each does to them must not reach the other."""
        width = width or self.g.streams * self.g.hidden
        return self.native.draw(count, width, scale=scale)


def test_embedding(pair):
    ours, theirs = pair.both(Layers.embedding)
    tokens = np.array([pair.g.vocab - 1, 0, 7, 0], dtype=np.int32)
    expected = REFERENCE.embed(theirs, tokens)
    np.testing.assert_allclose(pair.ops.embed(ours, tokens), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("injects", [True, False])
def test_residual(pair, injects):
    ours, theirs = pair.both(lambda layers: layers.residual(injects=injects))
    wide = pair.rows(5, scale=3)
    block, gain = pair.ops.read_residual(ours, wide)
    expected_block, expected_gain = REFERENCE.read_residual(theirs, wide)
    pair.close(block, expected_block)
    if not injects:
        assert gain is None
        return
    pair.close(gain, expected_gain)
    expected = REFERENCE.inject(wide, expected_block, expected_gain)
    pair.close(pair.ops.inject(wide.copy(), expected_block, expected_gain), expected, 1e-6)


def test_delta_net(pair):
    ours, theirs = pair.both(Layers.delta)
    states = [pair.both(Layers.delta_state) for _ in range(2)]
    x = pair.rows(13, width=pair.g.hidden)
    # two sequences side by side, then the second alone
    for rows, parts in ((x[:7], [(0, 6, 0, 0), (6, 7, 0, 1)]), (x[7:], [(0, 6, 1, 1)])):
        mine, reference = (
            [Span(start, stop, at, states[s][i]) for start, stop, at, s in parts] for i in range(2)
        )
        expected = REFERENCE.delta_net(theirs, rows, reference)
        pair.close(pair.ops.delta_net(ours, rows, mine), expected)
    for (mine, reference), position in zip(states, (6, 7), strict=True):
        pair.close(pair.ops.behind(mine, position), reference.history)
        pair.close(pair.ops.settled(ours, mine, position), reference.matrix)


@pytest.mark.parametrize("biased", [True, False])
def test_sparse_attention(pair, biased):
    ours, theirs = pair.both(lambda layers: layers.attention(biased=biased))
    states = pair.both(Layers.attention_state)
    others = pair.both(Layers.attention_state)
    x = pair.rows(42, width=pair.g.hidden)
    # in float32 the choice of blocks is the same; rounded activations may choose others, so they stay within the budget
    stop = 40 if pair.limit == LIMIT["float32"] else pair.g.budget
    position = 0
    for count in (1, 3, stop - 5, 1):
        rows = np.ascontiguousarray(np.concatenate([x[position : position + count], x[40:]]))
        mine, reference = (
            [
                Span(0, count, position, states[i]),
                Span(count, count + 2, 2 * (position > 0), others[i]),
            ]
            for i in range(2)
        )
        actual = pair.ops.sparse_attention(ours, rows, mine)
        pair.close(actual, REFERENCE.sparse_attention(theirs, rows, reference))
        position += count
        assert states[0].length == position
    for name in ("keys", "values", "index_keys", "block_keys"):
        pair.close(getattr(states[0], name), getattr(states[1], name))


def test_features(pair):
    ours, theirs = pair.both(Layers.ple)
    states = pair.both(Layers.ple_state)
    position = 0
    for count in (1, 14, 3):
        wide, features = pair.rows(count), pair.rows(count, width=pair.g.features)
        expected = REFERENCE.ple(theirs, wide, features, [Span(0, count, position, states[1])])
        actual = pair.ops.ple(ours, wide.copy(), features, [Span(0, count, position, states[0])])
        pair.close(actual, expected)
        position += count
        pair.close(pair.ops.behind(states[0], position), states[1].history)


@pytest.mark.parametrize("normalise", [True, False])
def test_routing(pair, normalise):
    ours, theirs = pair.both(lambda layers: layers.router(normalise=normalise))
    x = pair.rows(11, scale=2, width=pair.g.hidden)
    actual, expected = pair.ops.route(ours, x), REFERENCE.route(theirs, x)
    np.testing.assert_array_equal(actual.ids, expected.ids)
    pair.close(actual.weights, expected.weights, 1e-6)


def test_experts(pair):
    ours, theirs = pair.both(Layers.shared)
    layout, records = pair.reference.records()
    g = pair.g
    x = pair.rows(7, width=g.hidden)
    ids = np.stack([np.roll(np.arange(g.experts), r * 2)[: g.top_k] for r in range(7)])
    weights = np.abs(pair.rows(7, width=g.top_k)) + np.float32(0.1)
    routes = Routes(ids.astype(np.int32), weights)
    used = sorted(set(ids.ravel().tolist()))
    expected = REFERENCE.experts(theirs, x, routes, Arrivals(REFERENCE, layout, records, [used]))
    outs = [
        pair.ops.experts(ours, x, routes, Arrivals(pair.ops, layout, records, waves))
        for waves in ([used], [used[3:], used[:3]], [[e] for e in reversed(used)])
    ]
    pair.close(outs[0], expected)
    for out in outs[1:]:  # whatever arrives first, the sum is made in the order of ranks
        np.testing.assert_array_equal(out, outs[0])


def test_draft_fusion(pair):
    ours, theirs = pair.both(Layers.fuse)
    embeddings = pair.both(Layers.embedding)
    tokens = np.array([3, 0, 12], dtype=np.int32)
    wide = pair.rows(3) * np.array([[1], [5], [20]], dtype=np.float32)
    expected = REFERENCE.fuse(theirs, embeddings[1], tokens, wide)
    pair.close(pair.ops.fuse(ours, embeddings[0], tokens, wide), expected)


def test_head(pair):
    ours, theirs = pair.both(Layers.head)
    wide = pair.rows(6, scale=2)
    rows = [5, 0, 5]
    actual, expected = pair.ops.logits(ours, wide, rows), REFERENCE.logits(theirs, wide, rows)
    pair.close(actual, expected)
    best = pair.ops.argmax(ours, wide, rows)
    assert best.dtype == np.int32
    np.testing.assert_array_equal(best, actual.argmax(axis=1))


# --- ties, which must go to the lowest index on every backend


@pytest.mark.parametrize(("isa", "precision"), FLOAT32)
def test_ties(isa, precision):
    ops = start(isa, precision)
    layers = Layers(ops, PLAIN)
    x = layers.draw(4, PLAIN.hidden)

    router = layers.router(bits=32)
    _zero(router.gate)
    assert ops.route(router, x).ids.tolist() == [[0, 1, 2]] * 4

    head = layers.head()
    _zero(head.matrix)
    wide = layers.draw(3, PLAIN.streams * PLAIN.hidden)
    assert ops.argmax(head, wide, [0, 2]).tolist() == [0, 0]

    # with index queries of zero the first blocks are chosen: what is in the others cannot matter
    attention = layers.attention()
    _zero(attention.index)
    rows = layers.draw(21, PLAIN.hidden)
    outs = []
    for change in (0, 1):
        rows[PLAIN.budget + 3] += change
        state = layers.attention_state()
        outs.append(ops.sparse_attention(attention, rows, [Span(0, 21, 0, state)]))
    np.testing.assert_array_equal(outs[0][20], outs[1][20])
    assert (outs[0][PLAIN.budget + 3] != outs[1][PLAIN.budget + 3]).any()


def _zero(matrix):
    matrix.host.codes[...] = 0
