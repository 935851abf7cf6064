"""A stretch of layers is its layers one by one, bit for bit, and ends where an expert is not in memory."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from cherenkov.backends.base import Backend, Block, Span
from cherenkov.errors import BackendError
from tests.backends.choices import CHOICES, start
from tests.backends.layers import ODD, SMALL, WIDE, Arrivals, Layers

TOKENS = 64
KINDS = "delta", "attention", "delta", "delta", "attention"
FEATURED = 0, 3

every_choice = pytest.mark.parametrize(("isa", "precision"), CHOICES)


@dataclass
class Sequence:
    layers: list
    ple: dict
    bound: object = None
    position: int = 0


@dataclass
class Here:
    """Every expert of every layer in a slot of its own, until one is taken out of the table."""

    pool: object
    slot_table: np.ndarray

    def flow(self):
        return None


@dataclass
class Trunk:
    ops: Backend
    geometry: object
    features: dict = field(default_factory=dict)

    def __post_init__(self):
        layers = self.make = Layers(self.ops, self.geometry)
        self.blocks = tuple(
            Block(
                index=i,
                mixer_read=layers.residual(),
                moe_read=layers.residual(),
                mixer=getattr(layers, kind)(),
                router=layers.router(),
                shared=layers.shared(),
                ple=layers.ple() if i in FEATURED else None,
            )
            for i, kind in enumerate(KINDS)
        )
        self.layout, self.records = layers.records()
        everything = Arrivals(self.ops, self.layout, self.records, [range(len(self.records))])
        table = np.tile(np.arange(len(self.records), dtype=np.int32), (len(KINDS), 1))
        self.here = Here(everything.pool, table)

    def sequence(self, tokens=TOKENS):
        make = self.make
        states = [
            make.delta_state() if kind == "delta" else make.attention_state(tokens)
            for kind in KINDS
        ]
        return Sequence(states, {i: make.ple_state() for i in FEATURED})

    def rows(self, count, seed):
        g, draw = self.geometry, np.random.default_rng(seed)
        wide = draw.normal(size=(count, g.streams * g.hidden)).astype(np.float32)
        return wide, {i: draw.normal(size=(count, g.features)).astype(np.float32) for i in FEATURED}

    def mixture(self, layer, wide, choice):
        used = list(dict.fromkeys(choice.ids.ravel().tolist()))
        arrivals = Arrivals(self.ops, self.layout, self.records, [used])
        return self.ops.mixture(self.blocks[layer].shared, wide, choice, arrivals)

    def run(self, stretch, wide, spans, features):
        """All layers; the ids of each, and how many calls that took."""
        at, ids, calls = 0, [], 0
        while at < len(self.blocks):
            reach = range(at, len(self.blocks))
            wide, ran, choice = stretch(self.blocks, reach, wide, spans, features, self.here)
            ids += list(ran)
            at, calls = at + len(ran), calls + 1
            if choice is not None:
                ids.append(choice.ids)
                wide = self.mixture(at, wide, choice)
                at += 1
        return wide, np.array(ids), calls


def one_by_one(ops):
    return lambda *given: Backend.stretch(ops, *given)


def spans_of(sequences, counts):
    stops = np.cumsum(counts).tolist()
    return [
        Span(stop - count, stop, sequence.position, sequence)
        for stop, count, sequence in zip(stops, counts, sequences, strict=True)
    ]


def arrays_of(sequence):
    states = [*sequence.layers, *sequence.ple.values()]
    names = "history", "matrix", "pending", "keys", "values", "index_keys", "block_keys", "length"
    return [np.asarray(getattr(s, name)) for s in states for name in names if hasattr(s, name)]


@every_choice
@pytest.mark.parametrize("geometry", [SMALL, WIDE, ODD], ids=["small", "wide", "odd"])
@pytest.mark.parametrize("absent", [0, 1, 3], ids=["all here", "one out", "three out"])
def test_a_stretch_is_its_layers_one_by_one(isa, precision, geometry, absent):
    ops = start(isa, precision, 2)
    trunk = Trunk(ops, geometry)
    ours, theirs = ([trunk.sequence() for _ in range(3)] for _ in range(2))
    random = np.random.default_rng(absent)
    for turn, counts in enumerate([[1, 1, 1], [3, 1, 2], [1, 0, 4], [9, 2, 6], [1, 1, 1]]):
        everything = trunk.here.slot_table.copy()
        for layer in random.choice(len(KINDS), size=absent, replace=False):
            trunk.here.slot_table[layer] = -1
        wide, features = trunk.rows(sum(counts), turn)
        copy = wide.copy()
        expected, routed, _ = trunk.run(one_by_one(ops), copy, spans_of(theirs, counts), features)
        found, ids, calls = trunk.run(ops.stretch, wide, spans_of(ours, counts), features)
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(ids, routed)
        if sum(counts) <= 8 and not absent:
            assert calls == 1
        trunk.here.slot_table[:] = everything
        for one, other, count in zip(ours, theirs, counts, strict=True):
            for a, b in zip(arrays_of(one), arrays_of(other), strict=True):
                np.testing.assert_array_equal(a, b)
            one.position += count
            other.position += count
    ops.close()


@every_choice
def test_a_stretch_ends_at_the_first_layer_that_lacks_an_expert(isa, precision):
    ops = start(isa, precision, 2)
    trunk = Trunk(ops, SMALL)
    _, routed, _ = trunk.run(
        ops.stretch, trunk.rows(2, 0)[0], spans_of([trunk.sequence()], [2]), trunk.rows(2, 0)[1]
    )
    for slot in (-1, len(trunk.records), 2**31 - 1, -(2**31)):  # none of these is a slot
        for layer in range(len(KINDS)):
            wide, features = trunk.rows(2, 0)
            trunk.here.slot_table[layer, routed[layer, 1, -1]] = slot
            spans = spans_of([trunk.sequence()], [2])
            _, ids, choice = ops.stretch(
                trunk.blocks, range(len(KINDS)), wide, spans, features, trunk.here
            )
            np.testing.assert_array_equal(ids, routed[:layer])
            np.testing.assert_array_equal(choice.ids, routed[layer])
            trunk.here.slot_table[layer] = np.arange(len(trunk.records))
    ops.close()


@every_choice
def test_a_sequence_whose_arrays_were_replaced_is_bound_anew(isa, precision):
    ops = start(isa, precision, 1)
    trunk = Trunk(ops, SMALL)
    sequence, fresh = trunk.sequence(), trunk.sequence()
    for turn in range(2):
        wide, features = trunk.rows(1, turn)
        trunk.run(ops.stretch, wide, spans_of([sequence], [1]), features)
        sequence.position += 1
    for state, other in zip(sequence.layers, fresh.layers, strict=True):
        if hasattr(state, "matrix"):
            state.matrix, state.history, state.pending = other.matrix, other.history, other.pending
    for layer, other in fresh.ple.items():
        sequence.ple[layer].history = other.history
    sequence.position, sequence.bound = 0, None
    wide, features = trunk.rows(1, 7)
    found, _, _ = trunk.run(ops.stretch, wide.copy(), spans_of([sequence], [1]), features)
    anew = spans_of([trunk.sequence()], [1])
    np.testing.assert_array_equal(found, trunk.run(ops.stretch, wide, anew, features)[0])
    ops.close()


def small():
    ops = start("portable", "float32", 1)
    return ops, Trunk(ops, SMALL)


def refused(trunk, spans, match, **changes):
    wide, features = trunk.rows(2, 0)
    given = {"wide": wide, "features": features, "reach": range(len(KINDS))} | changes
    with pytest.raises(BackendError, match=match):
        trunk.ops.stretch(
            trunk.blocks, given["reach"], given["wide"], spans, given["features"], trunk.here
        )


def test_what_does_not_fit_is_refused_before_it_is_read():
    ops, trunk = small()
    wide, features = trunk.rows(2, 0)
    good = spans_of([trunk.sequence()], [2])
    refused(trunk, good, "shapes do not fit", wide=wide[:, :-1].copy())
    refused(trunk, good, "shapes do not fit", wide=wide[:0])
    refused(trunk, good, "features do not have", features={})
    refused(trunk, good, "features do not have", features=features | {0: features[0][:1]})
    refused(trunk, good, "no such layers", reach=range(2, 9))
    refused(trunk, good, "no such layers", reach=range(3, 3))
    refused(trunk, [], "every row must belong")
    refused(trunk, [good[0]._replace(start=1)], "every row must belong")
    refused(trunk, [good[0]._replace(position=-1)], "outside the rows")
    refused(trunk, [good[0]._replace(position=TOKENS - 1)], "the cache is full")
    refused(trunk, [good[0]._replace(position=2**31 - 1)], "outside the rows")
    other = Trunk(ops, SMALL)
    stranger = other.sequence()
    other.run(ops.stretch, *_given(other, stranger))
    refused(trunk, spans_of([stranger], [2]), "another trunk")
    short = trunk.sequence()
    short.layers[1].block_keys = short.layers[1].block_keys[:1].copy()
    refused(trunk, [Span(0, 2, 2, short)], "the cache is full")
    for part in ("history", "matrix", "pending"):
        broken = trunk.sequence()
        setattr(broken.layers[2], part, getattr(broken.layers[2], part)[:-1].copy())
        refused(trunk, spans_of([broken], [2]), "shape")
    broken = trunk.sequence()
    broken.ple[3].history = broken.ple[3].history.astype(np.float64)
    refused(trunk, spans_of([broken], [2]), "float32")
    for table in (trunk.here.slot_table[:-1], trunk.here.slot_table[:, :-1]):
        wrong = Here(trunk.here.pool, np.ascontiguousarray(table))
        with pytest.raises(BackendError, match="slot table"):
            ops.stretch(trunk.blocks, range(len(KINDS)), wide, good, features, wrong)
    ops.close()
    with pytest.raises(BackendError, match="closed"):
        ops.stretch(trunk.blocks, range(len(KINDS)), wide, good, features, trunk.here)


def _given(trunk, sequence):
    wide, features = trunk.rows(2, 0)
    return wide, spans_of([sequence], [2]), features
