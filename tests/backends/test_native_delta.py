"""DeltaNet in chunks: against the reference, token by token, and the same bits however the rows come."""

from dataclasses import replace

import numpy as np
import pytest

from cherenkov.backends.base import Span
from cherenkov.backends.native import Native
from cherenkov.backends.reference import Reference
from cherenkov.errors import BackendError
from tests.backends.choices import ISAS, needs_kernels, start
from tests.backends.layers import ODD, PLAIN, WIDE, Geometry, Layers

pytestmark = needs_kernels

REFERENCE = Reference()
CHUNK = Native.delta_chunk
LIMIT = 2e-5
UNEVEN = Geometry(key_heads=2, value_heads=6, key_dim=19, value_dim=35, hidden=32, bits=32)
SHAPES = [UNEVEN, ODD, replace(PLAIN, key_dim=3, value_dim=6), replace(WIDE, bits=32)]


class Pair:
    """One layer, on a native backend and on the reference."""

    def __init__(self, isa="", geometry=UNEVEN, threads=2, change=lambda _layers, w: w):
        self.ops, self.g = start(isa, threads=threads), geometry
        ours, theirs = Layers(self.ops, geometry), Layers(REFERENCE, geometry)
        self.w, self.reference = (change(each, each.delta()) for each in (ours, theirs))
        self.draw = ours.draw

    def state(self):
        return self.ops.delta_state(self.w)

    def run(self, x, cut, state=None, start=0):
        """Rows in calls of the lengths in `cut`; the state is left at their end."""
        state = state or self.state()
        parts, at = [], 0
        for count in cut:
            rows = np.ascontiguousarray(x[at : at + count])
            parts.append(self.ops.delta_net(self.w, rows, [Span(0, count, start + at, state)]))
            at += count
        assert at == len(x)
        return np.concatenate(parts)

    def double(self):
        """A state of the reference that makes it compute in float64: tiny heads magnify rounding, also its own."""
        state = REFERENCE.delta_state(self.reference)
        return replace(
            state,
            history=state.history.astype(np.float64),
            matrix=state.matrix.astype(np.float64),
        )

    def expect(self, x, state):
        rows = x.astype(np.float64)
        return REFERENCE.delta_net(self.reference, rows, [Span(0, len(x), 0, state)])


def near(actual, expected):
    scale = max(1.0, float(np.abs(expected).max()))
    assert np.isfinite(actual).all()
    assert float(np.abs(actual - expected).max()) <= LIMIT * scale


def compare(pair, cut):
    x = pair.draw(sum(cut), pair.g.hidden, scale=2)
    mine, theirs = pair.state(), pair.double()
    near(pair.run(x, cut, mine), pair.expect(x, theirs))
    near(pair.ops.settled(pair.w, mine, len(x)), theirs.matrix)
    near(pair.ops.behind(mine, len(x)), theirs.history)


@pytest.mark.parametrize("geometry", SHAPES)
@pytest.mark.parametrize("isa", ISAS)
def test_any_shape_and_any_number_of_rows(isa, geometry):
    pair = Pair(isa, geometry)
    for rows in (1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 5):
        compare(pair, [rows])
    compare(pair, [3, CHUNK, 1, CHUNK - 4, 2 * CHUNK, 5, CHUNK + 7])
    pair.ops.close()


def _decays(layers, w):
    """Heads that forget everything at once, heads that forget nothing, and heads between."""
    a_log = np.resize(np.array([6, -30, 1.5, 0, -3], np.float32), w.value_heads)
    dt_bias = np.resize(np.array([25, -30, 8, 1], np.float32), w.value_heads)
    return replace(w, a_log=layers.ops.array(a_log), dt_bias=layers.ops.array(dt_bias))


def _moods(layers, w):
    """Tokens that forget everything among tokens that forget nothing, and correct fully or not at all."""
    g = layers.g
    strong = replace(
        w,
        a=layers.matrix(g.value_heads, g.hidden, 40),
        b=layers.matrix(g.value_heads, g.hidden, 99),
    )
    return replace(strong, a_log=layers.ops.array(np.full(w.value_heads, 3, np.float32)))


@pytest.mark.parametrize("change", [_decays, _moods])
@pytest.mark.parametrize("isa", ISAS)
def test_decays_that_underflow(isa, change):
    pair = Pair(isa, change=change)
    compare(pair, [4 * CHUNK])
    compare(pair, [1] * (CHUNK + 3))
    pair.ops.close()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("geometry", [UNEVEN, ODD])
def test_any_cut_gives_the_same_bits(isa, geometry):
    rows = 3 * CHUNK + 5
    x = Pair(isa, geometry).draw(rows, geometry.hidden)
    cuts = [[rows], [1] * rows, [2] * (rows // 2) + [rows % 2], [CHUNK - 1, 2, CHUNK, CHUNK + 4]]
    cuts = [[n for n in cut if n] for cut in cuts]
    cuts[-1].append(rows - sum(cuts[-1]))
    found = []
    for cut, threads in zip(cuts, (1, 2, 3, 7), strict=True):
        pair = Pair(isa, geometry, threads)
        state = pair.state()
        found.append((pair.run(x, cut, state), pair.ops.settled(pair.w, state, rows)))
        pair.ops.close()
    for out, matrix in found[1:]:
        np.testing.assert_array_equal(out, found[0][0])
        np.testing.assert_array_equal(matrix, found[0][1])


@pytest.mark.parametrize("isa", ISAS)
def test_sequences_at_different_places_do_not_meet(isa):
    pair = Pair(isa)
    ends = (CHUNK - 3, 0, 2 * CHUNK, 5)  # where each sequence stands before the common call
    counts = (7, CHUNK + 1, 1, 2)
    rows = [pair.draw(end + count, pair.g.hidden) for end, count in zip(ends, counts, strict=True)]
    alone = [pair.run(x, [len(x)])[end:] for x, end in zip(rows, ends, strict=True)]
    spans, at = [], 0
    for x, end, count in zip(rows, ends, counts, strict=True):
        state = pair.state()
        if end:
            pair.run(x[:end], [end], state)
        spans.append(Span(at, at + count, end, state))
        at += count
    joined = np.concatenate([x[end:] for x, end in zip(rows, ends, strict=True)])
    together = pair.ops.delta_net(pair.w, joined, spans)
    np.testing.assert_array_equal(together, np.concatenate(alone))
    pair.ops.close()


def test_rows_within_a_chunk_can_be_forgotten():
    """Rows are taken back by going back to their position, and to the convolution's history there."""
    pair = Pair()
    x, drafts = (pair.draw(rows, pair.g.hidden) for rows in (CHUNK + 9, 4))
    expected = pair.run(x, [len(x)])
    state = pair.state()
    pair.run(x[: CHUNK + 2], [CHUNK + 2], state)
    history = state.history.copy()
    pair.run(drafts, [4], state, start=CHUNK + 2)
    state.history[...] = history
    again = pair.run(x[CHUNK + 2 :], [7], state, start=CHUNK + 2)
    np.testing.assert_array_equal(again, expected[CHUNK + 2 :])
    pair.ops.close()


def test_settling_leaves_the_state_alone():
    pair = Pair()
    x = pair.draw(2 * CHUNK + 1, pair.g.hidden)
    mine, theirs = pair.state(), REFERENCE.delta_state(pair.reference)
    assert not pair.ops.settled(pair.w, mine, 0).any()
    for position in range(len(x)):
        row = x[position : position + 1]
        before = [part.copy() for part in (mine.history, mine.matrix, mine.pending)]
        pair.ops.settled(pair.w, mine, position)
        for part, now in zip(before, (mine.history, mine.matrix, mine.pending), strict=True):
            np.testing.assert_array_equal(part, now)
        pair.ops.delta_net(pair.w, row, [Span(0, 1, position, mine)])
        REFERENCE.delta_net(pair.reference, row, [Span(0, 1, position, theirs)])
        near(pair.ops.settled(pair.w, mine, position + 1), theirs.matrix)
    pair.ops.close()


def test_what_is_not_finite_shows():
    pair = Pair()
    x = pair.draw(2 * CHUNK, pair.g.hidden)
    x[5, 0] = np.nan
    whole, single = pair.run(x, [len(x)]), pair.run(x, [1] * len(x))
    assert np.isfinite(whole[:5]).all()
    assert np.isnan(whole[5:]).any(axis=1).all()
    np.testing.assert_array_equal(np.isnan(whole), np.isnan(single))
    pair.ops.close()


def test_a_state_of_another_shape_is_refused():
    pair = Pair()
    x, state = pair.draw(1, pair.g.hidden), pair.state()
    good = state.pending
    for pending in (
        None,
        good[:-1],
        np.append(good, good[:1]),
        good.astype(np.float64),
        good[::-1],
    ):
        state.pending = pending
        with pytest.raises(BackendError, match="state"):
            pair.ops.delta_net(pair.w, x, [Span(0, 1, 0, state)])
    state.pending = good
    with pytest.raises(BackendError, match="state"):
        pair.ops.settled(pair.w, state, -1)
    described = pair.ops._described[id(pair.w)][1]
    with pytest.raises(BackendError, match="state"):
        pair.ops._engine.settle(described, 1, good[:-1].copy(), state.matrix)
    pair.ops.close()
