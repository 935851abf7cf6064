"""Slots with records of two widths, and experts that are left out: kernels and reference read the tags alike."""

import numpy as np
import pytest

from cherenkov.backends.base import Routes, Wave
from cherenkov.backends.operands import LEFT_OUT
from cherenkov.backends.reference import Reference
from cherenkov.errors import BackendError
from cherenkov.packing.layout import ExpertLayout
from tests.backends.choices import DEFAULTS, FLOAT32, needs_kernels, start
from tests.backends.layers import SMALL, WIDE, Layers, record
from tests.backends.test_native_operations import LIMIT

pytestmark = needs_kernels
REFERENCE = Reference()


class Mixed:
    """A pool in which every other expert has fewer bits; all come in one wave."""

    def __init__(self, ops, geometry, bits, out=()):
        g, self.pool = geometry, None
        layout, records = Layers(REFERENCE, geometry).records()
        lower = ExpertLayout(g.inter, g.hidden, bits, g.group)
        self.pool = ops.pool(layout, len(records))
        self.pool.lower = lower
        shapes = (g.inter, g.hidden), (g.inter, g.hidden), (g.hidden, g.inter)
        for slot, whole in enumerate(records):
            draw = np.random.default_rng(slot)
            parts = [draw.normal(0, s[1] ** -0.5, s).astype(np.float32) for s in shapes]
            own = slot % 2 == 0
            data = whole if own else record(lower, parts)
            self.pool.memory[slot, : len(data)] = data
            self.pool.tags[slot] = not own
        self.slots = np.arange(len(records), dtype=np.int32)
        self.slots[list(out)] = LEFT_OUT
        self.steady = True

    def __iter__(self):
        yield Wave(np.arange(len(self.slots), dtype=np.int32), self.slots)


def inputs(geometry, rows):
    draw = np.random.default_rng(rows)
    x = draw.normal(size=(rows, geometry.hidden)).astype(np.float32)
    order = draw.random((rows, geometry.experts)).argsort(axis=1)[:, : geometry.top_k]
    weights = draw.random((rows, geometry.top_k)).astype(np.float32)
    return x, Routes(order.astype(np.int32), weights)


@pytest.mark.parametrize("bits", [3, 2])
@pytest.mark.parametrize("geometry", [SMALL, WIDE])
@pytest.mark.parametrize(("isa", "precision"), FLOAT32 + DEFAULTS)
def test_records_of_two_widths_side_by_side(isa, precision, geometry, bits):
    ops = start(isa, precision)
    limit = LIMIT[ops.detail.split()[-2]]
    for rows in (1, 2, 13):
        x, routes = inputs(geometry, rows)
        made = [
            backend.experts(
                Layers(backend, geometry).shared(), x, routes, Mixed(backend, geometry, bits)
            )
            for backend in (ops, REFERENCE)
        ]
        scale = max(1.0, float(np.abs(made[1]).max()))
        assert np.abs(made[0] - made[1]).max() / scale <= limit
    ops.close()


@pytest.mark.parametrize("isa", [choice[0] for choice in FLOAT32])
def test_what_is_left_out_counts_as_nothing(isa):
    """Bit for bit what a weight of zero makes of it, also when nothing at all comes."""
    ops = start(isa)
    for backend in (ops, REFERENCE):
        shared = Layers(backend, SMALL).shared()
        for rows, out in ((1, [2, 5]), (6, [0, 1, 7]), (3, range(SMALL.experts))):
            x, routes = inputs(SMALL, rows)
            without = np.where(np.isin(routes.ids, list(out)), np.float32(0), routes.weights)
            expected = backend.experts(
                shared, x, Routes(routes.ids, without), Mixed(backend, SMALL, 3)
            )
            found = backend.experts(shared, x, routes, Mixed(backend, SMALL, 3, out))
            np.testing.assert_array_equal(found, expected)
    ops.close()


def test_tags_must_fit_the_slots():
    ops = start("")
    x, routes = inputs(SMALL, 1)
    shared, mixed = Layers(ops, SMALL).shared(), Mixed(ops, SMALL, 3)
    mixed.pool.tags = mixed.pool.tags[1:].copy()
    with pytest.raises(BackendError, match="a tag for each slot"):
        ops.experts(shared, x, routes, mixed)
    mixed = Mixed(ops, SMALL, 3)
    mixed.pool.lower = ExpertLayout(SMALL.inter, 2 * SMALL.hidden, 3, SMALL.group)
    with pytest.raises(BackendError, match="fewer bits are of another shape"):
        ops.experts(shared, x, routes, mixed)
    ops.close()


@pytest.mark.parametrize("name", ["mlx", "emulated"])
@pytest.mark.parametrize("bits", [3, 2])
def test_the_same_on_mlx(name, bits):
    pytest.importorskip("mlx.core")
    if name == "mlx":
        from cherenkov.backends.mlx import Mlx as Backend
    else:
        from tests.kernels.emulated import Emulated as Backend
    ops = Backend()
    for rows, out in ((1, ()), (2, (3,)), (13, (0, 7)), (1, range(WIDE.experts))):
        x, routes = inputs(WIDE, rows)
        shared = Layers(ops, WIDE).shared()
        placed = Routes(routes.ids, ops.array(routes.weights))
        made = ops.host(ops.experts(shared, ops.array(x), placed, Mixed(ops, WIDE, bits, out)))
        mixed = Mixed(REFERENCE, WIDE, bits, out)
        expected = REFERENCE.experts(Layers(REFERENCE, WIDE).shared(), x, routes, mixed)
        scale = max(1.0, float(np.abs(expected).max()))
        assert np.abs(made - expected).max() / scale <= 1e-4
    ops.close()
