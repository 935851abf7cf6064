"""A row's bits depend neither on the rows beside it, nor on how a prompt was cut, nor on the threads."""

import numpy as np
import pytest

from cherenkov.backends.base import Routes, Span
from tests.backends.choices import CHOICES, needs_kernels, start
from tests.backends.layers import SMALL, WIDE, Arrivals, Layers

pytestmark = needs_kernels

ROWS = 24
CUTS = [[1] * ROWS, [2] * 12, [3] * 8, [4] * 6, [8] * 3, [23, 1], [5, 7, 12]]


class Sequence:
    """One sequence's way through every operation. `step` takes rows `a:b` of it."""

    def __init__(self, ops, geometry):
        self.ops, self.g = ops, geometry
        layers = Layers(ops, geometry)
        self.embedding, self.residual = layers.embedding(), layers.residual()
        self.delta, self.attention, self.ple = layers.delta(), layers.attention(), layers.ple()
        self.router, self.shared = layers.router(), layers.shared()
        self.fuse, self.head = layers.fuse(), layers.head()
        self.layout, self.records = layers.records()
        self.tokens = np.arange(ROWS, dtype=np.int32) % geometry.vocab
        self.features = layers.draw(ROWS, geometry.features)
        self.layers = layers

    def step(self, a, b):
        ops, w = self.ops, self.embedding
        delta, attention, ple = ([Span(0, b - a, a, state)] for state in self.states)
        wide = ops.embed(w, self.tokens[a:b])
        wide = ops.ple(self.ple, wide, np.ascontiguousarray(self.features[a:b]), ple)
        x, gain = ops.read_residual(self.residual, wide)
        wide = ops.inject(wide, ops.delta_net(self.delta, x, delta), gain)
        x, gain = ops.read_residual(self.residual, wide)
        wide = ops.inject(wide, ops.sparse_attention(self.attention, x, attention), gain)
        x, gain = ops.read_residual(self.residual, wide)
        routes = ops.route(self.router, x)
        wide = ops.inject(wide, self.experts(x, routes), gain)
        draft = ops.fuse(self.fuse, w, self.tokens[a:b], wide)
        rows = range(b - a)
        best = ops.argmax(self.head, draft, rows)
        return wide, draft, ops.logits(self.head, draft, rows), routes.ids, routes.weights, best

    def experts(self, x, routes: Routes):
        used = sorted(set(routes.ids.ravel().tolist()))
        arrivals = Arrivals(self.ops, self.layout, self.records, [used])
        return self.ops.experts(self.shared, x, routes, arrivals)

    def run(self, cut):
        layers, parts, at = self.layers, [], 0
        self.states = layers.delta_state(), layers.attention_state(), layers.ple_state()
        for count in cut:
            parts.append(self.step(at, at + count))
            at += count
        return [np.concatenate(rows) for rows in zip(*parts, strict=True)] + self.memory()

    def memory(self):
        delta, attention, ple = self.states
        matrix = self.ops.settled(self.delta, delta, ROWS)
        behind = [self.ops.behind(each, ROWS) for each in (delta, ple)]
        return [*behind, matrix, attention.keys, attention.block_keys]


@pytest.mark.parametrize("geometry", [SMALL, WIDE], ids=["small", "wide"])
@pytest.mark.parametrize(("isa", "precision"), CHOICES)
def test_bits_do_not_depend_on_the_company(isa, precision, geometry):
    sequence = Sequence(start(isa, precision, threads=2), geometry)
    whole = sequence.run([ROWS])
    assert all(np.isfinite(part).all() for part in whole)
    for cut in CUTS:
        same(sequence.run(cut), whole)
    sequence.ops.close()
    for threads in (1, 5):
        other = Sequence(start(isa, precision, threads), geometry)
        same(other.run([ROWS]), whole)
        same(other.run([1] * ROWS), whole)
        other.ops.close()


def same(actual, expected):
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("isa", "precision"), CHOICES)
def test_sequences_side_by_side(isa, precision):
    """Two sequences in one call: each gets what it would get alone."""
    ops = start(isa, precision)
    layers = Layers(ops, WIDE)
    delta, attention, ple = layers.delta(), layers.attention(), layers.ple()
    x = layers.draw(20, WIDE.hidden)
    wide, features = layers.draw(20, 4 * WIDE.hidden), layers.draw(20, WIDE.features)

    def call(rows, spans):
        x_rows, wide_rows, feature_rows = x[rows], wide[rows].copy(), features[rows]
        return [
            ops.delta_net(delta, x_rows, [Span(*s, layers.delta_state()) for s in spans]),
            ops.sparse_attention(
                attention, x_rows, [Span(*s, layers.attention_state()) for s in spans]
            ),
            ops.ple(ple, wide_rows, feature_rows, [Span(*s, layers.ple_state()) for s in spans]),
        ]

    together = call(slice(0, 20), [(0, 13, 0), (13, 20, 0)])
    apart = zip(call(slice(0, 13), [(0, 13, 0)]), call(slice(13, 20), [(0, 7, 0)]), strict=True)
    for both, parts in zip(together, apart, strict=True):
        np.testing.assert_array_equal(both, np.concatenate(parts))
