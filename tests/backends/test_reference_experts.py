"""Routing and experts of the reference backend against formulas in float64; and the registry of backends."""

import numpy as np
import pytest

from cherenkov.backends import available, create
from cherenkov.backends.base import Options, Router, SharedExpert, Wave
from cherenkov.backends.reference import Reference
from cherenkov.checkpoint.affine import HostMatrix, dequantise, quantise
from cherenkov.errors import BackendError, ConfigError
from cherenkov.packing.layout import ExpertLayout
from tests.backends.arithmetic import close, double, random, sigmoid, silu

D = 24
OPS = Reference()


@pytest.mark.parametrize("normalise", [False, True])
def test_routing(normalise):
    draw = random(13)
    gate, x = draw(11, D), draw(6, D)
    routes = OPS.route(Router(gate, 3, normalise), x)
    for r, row in enumerate(double(*x)):
        scores = np.exp(double(gate)[0] @ row)
        scores /= scores.sum()
        best = sorted(range(11), key=lambda e: -scores[e])[:3]
        assert routes.ids[r].tolist() == best
        weights = scores[best] / (scores[best].sum() if normalise else 1)
        close(routes.weights[r], weights)
    assert routes.ids.dtype == np.int32


def test_equal_scores_go_to_the_lowest_expert():
    routes = OPS.route(Router(np.zeros((7, D), np.float32), 3, True), random(1)(2, D))
    assert routes.ids.tolist() == [[0, 1, 2]] * 2


class Arrivals:
    """Every expert in a slot of its own, in the waves that are told."""

    def __init__(self, layout, records, waves):
        self.pool = OPS.pool(layout, len(records))
        for slot, record in enumerate(records):
            self.pool.memory[slot, : len(record)] = record
        self.waves = waves

    steady = True

    def __iter__(self):
        for wave in self.waves:
            ids = np.array(wave, dtype=np.int32)
            yield Wave(ids, ids)


def record(layout, matrices):
    """An expert's record, and the values that it stands for."""
    codes, others, values = [], [], []
    for matrix in matrices:
        if layout.bits == 16:
            raw = (matrix.view(np.uint32) >> 16).astype(np.uint16)
            codes.append(raw)
            values.append((raw.astype(np.uint32) << 16).view(np.float32))
        else:
            parts = quantise(matrix, layout.bits, layout.group)
            codes.append(parts[0])
            others += parts[1:]
            values.append(dequantise(HostMatrix(matrix.shape, layout.bits, layout.group, *parts)))
    body = np.concatenate([part.view(np.uint8).ravel() for part in codes + others])
    assert len(body) == layout.record_bytes
    return body, values


@pytest.mark.parametrize("bits", [2, 3, 4, 8, 16])
def test_experts(bits):
    inter, hidden, count = 32, 64, 5
    draw = random(bits)
    layout = ExpertLayout(inter, hidden, bits, 32)
    shapes = ((inter, hidden), (inter, hidden), (hidden, inter))
    made = [record(layout, [draw(*s, scale=0.3) for s in shapes]) for _ in range(count)]
    shared = SharedExpert(draw(9, hidden), draw(9, hidden), draw(hidden, 9), draw(1, hidden))
    x = draw(4, hidden)
    routes = OPS.route(Router(draw(count, hidden), 2, True), x)

    def feed(row, gate, up, down):
        return down @ (silu(gate @ row) * (up @ row))

    expected = []
    for r, row in enumerate(double(*x)):
        total = sum(
            float(routes.weights[r, i]) * feed(row, *double(*made[e][1]))
            for i, e in enumerate(routes.ids[r])
        )
        own = feed(row, *double(shared.gate, shared.up, shared.down))
        expected.append(total + sigmoid(double(shared.switch)[0] @ row)[0] * own)
    used = sorted(set(routes.ids.ravel().tolist()))
    orders = [[used], [[e] for e in reversed(used)], [used[1:], used[:1]]]
    records = [body for body, _ in made]
    outs = [OPS.experts(shared, x, routes, Arrivals(layout, records, waves)) for waves in orders]
    close(outs[0], expected)
    for other in outs[1:]:  # whatever arrives first, the sum is made in the order of ranks
        np.testing.assert_array_equal(outs[0], other)


# --- placing, and the registry


def test_placing():
    matrix = HostMatrix((2, 3), 32, 0, random(0)(2, 3))
    np.testing.assert_array_equal(OPS.matrix(matrix), matrix.codes)
    array = OPS.array(random(1)(4))
    copied = OPS.copy(array)
    copied += 1
    assert (OPS.host(array) != OPS.host(copied)).all()
    assert OPS.detail


def test_registry():
    names = [a.name for a in available()]
    assert names[-1] == "reference"
    assert all(a.reason for a in available())
    assert create("reference").name == "reference"
    assert create("auto", Options(threads=1)).name in names
    with pytest.raises(ConfigError, match="choose auto"):
        create("abacus")
    for absent in [a for a in available() if not a.usable]:
        with pytest.raises(BackendError, match=absent.name):
            create(absent.name)
