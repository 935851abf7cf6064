"""Victims are ranked for several layers at a time; that must not show."""

import time

import numpy as np
import pytest

from cherenkov.backends.base import ExpertPool
from cherenkov.experts.policy import Lru
from cherenkov.experts.reader import RecordReader
from cherenkov.experts.store import ExpertStore
from cherenkov.packing.layout import ExpertLayout

LAYERS, EXPERTS, SLOTS = 4, 64, 128
LAYOUT = ExpertLayout(inter=32, hidden=32, group=32)
STRIDE = LAYOUT.stride_bytes


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("records") / "experts.bin"
    path.write_bytes(b"".join(bytes([i % 251]) * STRIDE for i in range(LAYERS * EXPERTS)))
    return path


@pytest.fixture
def store(path):
    pool = ExpertPool(LAYOUT, np.zeros((SLOTS, STRIDE), dtype=np.uint8))
    reader = RecordReader(path, STRIDE, EXPERTS, None)
    store = ExpertStore(pool, reader, LAYERS, EXPERTS, policy=Lru)
    yield store
    store.close()


def residents(store):
    return set(np.flatnonzero(store.slot_table >= 0).tolist())


def ask(store, layer, ids):
    with store.acquire(layer, np.array([ids], dtype=np.int32)) as lease:
        for wave in lease:
            for expert, slot in zip(wave.experts.tolist(), wave.slots.tolist(), strict=True):
                assert (store.pool.memory[slot] == (layer * EXPERTS + expert) % 251).all()


@pytest.mark.parametrize("stretches", [False, True])
def test_least_recently_used_leaves_first(store, stretches):
    random, order = np.random.default_rng(3), []
    for step in range(400):
        layer = step % LAYERS
        ids = random.permutation(np.r_[:EXPERTS, :16, :16])[:6].tolist()  # some are asked for more
        ids = list(dict.fromkeys(ids))
        records = [layer * EXPERTS + e for e in ids]
        if stretches and set(records) <= residents(store):
            store.used(layer, np.array([[ids]], dtype=np.int32))
        else:
            ask(store, layer, ids)
        order = [r for r in order if r not in records] + records
        assert residents(store) == set(order[-SLOTS:])
        order = order[-SLOTS:]


def test_what_is_expected_and_here_does_not_make_room(store):
    for layer in range(2):
        for first in range(0, EXPERTS, 8):
            ask(store, layer, range(first, first + 8))
    ask(store, 2, [0])  # ranks the oldest, of layer 0
    oldest = [e for e in range(EXPERTS) if store.slot_table[0, e] >= 0][:4]
    before = store.slot_table[0, oldest].copy()
    store.expect(0, np.array([*oldest, 0], dtype=np.int32))  # 0 has left
    assert len(store._slots.coming) == 1
    np.testing.assert_array_equal(store.slot_table[0, oldest], before)


def test_a_slot_that_is_being_read_into_is_nobodys(store):
    store.most_ahead = SLOTS
    for layer in range(LAYERS):
        store.expect(layer, np.arange(EXPERTS, dtype=np.int32))
    ask(store, 0, [1, 2, 3])
    for _ in range(200):
        ask(store, 1, [4, 5, 6])
        if not store._slots.coming:
            break
        time.sleep(0.002)
    for record in residents(store):
        slot = store.slot_table.flat[record]
        assert (store.pool.memory[slot] == record % 251).all()


def land(store):
    while store._slots.coming:
        store._land(wait=True)


def test_what_is_expected_stays_until_its_layer_has_run(store):
    expected = list(range(8))
    store.expect(1, np.array(expected, dtype=np.int32))
    land(store)
    for layer in (0, 2, 3):
        for first in range(0, EXPERTS, 8):
            ask(store, layer, range(first, first + 8))
    assert (store.slot_table[1, expected] >= 0).all()
    ask(store, 1, [0, 1])
    for layer in (0, 2, 3):
        ask(store, layer, range(EXPERTS))
    assert (store.slot_table[1, expected] < 0).all()


def test_what_is_expected_makes_way_where_nothing_else_can(path):
    pool = ExpertPool(LAYOUT, np.zeros((8, STRIDE), dtype=np.uint8))
    reader = RecordReader(path, STRIDE, EXPERTS, None)
    store = ExpertStore(pool, reader, LAYERS, EXPERTS, policy=Lru)
    store.most_ahead = 8
    store.expect(1, np.arange(8, dtype=np.int32))
    land(store)
    ask(store, 0, range(8))
    store.close()
