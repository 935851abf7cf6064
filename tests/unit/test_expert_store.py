"""The expert store: what stays in memory, what a lease sees, and what happens when reading fails."""

import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cherenkov.backends.base import ExpertPool
from cherenkov.errors import CorruptModel, DiskError
from cherenkov.experts import store as store_module
from cherenkov.experts.policy import Lru
from cherenkov.experts.reader import RecordReader
from cherenkov.experts.store import ExpertStore
from cherenkov.packing.integrity import record_checksum
from cherenkov.packing.layout import ExpertLayout

LAYERS, EXPERTS = 3, 8
LAYOUT = ExpertLayout(inter=32, hidden=32, group=32)
STRIDE = LAYOUT.stride_bytes


def content(record):
    return np.random.default_rng(record).integers(0, 256, STRIDE, dtype=np.uint8)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("records") / "experts.bin"
    path.write_bytes(b"".join(content(i).tobytes() for i in range(LAYERS * EXPERTS)))
    return path


CHECKSUMS = np.array(
    [record_checksum(content(i).data) for i in range(LAYERS * EXPERTS)], dtype=np.uint64
)


def open_store(path, slots, checksums=CHECKSUMS):
    pool = ExpertPool(LAYOUT, np.zeros((slots, STRIDE), dtype=np.uint8))
    reader = RecordReader(path, STRIDE, EXPERTS, checksums)
    return ExpertStore(pool, reader, LAYERS, EXPERTS, policy=Lru)


@pytest.fixture
def make(path):
    opened = []

    def make(slots, checksums=CHECKSUMS):
        opened.append(open_store(path, slots, checksums))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


def take(store, layer, ids):
    """Lease experts as a backend does, each checked in its slot: those that were here, in order, and those that came."""
    distinct = list(dict.fromkeys(np.array(ids).ravel().tolist()))
    here = [e for e in distinct if store.slot_table[layer, e] >= 0]
    waves = waves_of(store, layer, ids)
    came = [e for wave in waves[bool(here) :] for e in wave]
    assert not here or waves[0] == here
    assert sorted(came) == sorted(set(distinct) - set(here))
    return here, sorted(came)


def waves_of(store, layer, ids):
    waves = []
    with store.acquire(layer, np.array(ids, dtype=np.int32)) as lease:
        for wave in lease:
            assert len(wave.experts) == len(wave.slots) == len(set(wave.slots.tolist()))
            for expert, slot in zip(wave.experts.tolist(), wave.slots.tolist(), strict=True):
                expected = content(layer * EXPERTS + expert)
                np.testing.assert_array_equal(lease.pool.memory[slot], expected)
            waves.append(wave.experts.tolist())
    assert store.resident <= store.slots
    return waves


def test_resident_first_then_missing(make):
    store = make(6)
    assert take(store, 0, [[1, 2], [2, 3]]) == ([], [1, 2, 3])
    assert take(store, 0, [[4, 3], [1, 5]]) == ([3, 1], [4, 5])
    assert (store.stats.hits, store.stats.misses) == (2, 5)
    assert store.stats.read_bytes == 5 * STRIDE
    assert store.stats.read_s > 0
    assert store.stats.stall_s > 0
    assert (store.resident, store.slots) == (5, 6)


def test_layers_do_not_share_records(make):
    store = make(6)
    take(store, 0, [1, 2])
    assert take(store, 1, [1, 2]) == ([], [1, 2])
    assert store.stats.hits == 0


def test_least_recently_used_leaves_first(make):
    store = make(3)
    for ids in ([0], [1], [2], [0], [3]):  # 0 was touched again, so 1 is the oldest
        take(store, 0, ids)
    before = store.stats.copy()
    assert take(store, 0, [0, 2, 3]) == ([0, 2, 3], [])
    assert take(store, 0, [1]) == ([], [1])
    found = store.stats.since(before)
    assert (found.hits, found.misses, found.read_bytes) == (3, 1, STRIDE)
    assert found.demand.completed == 1


@pytest.mark.parametrize("most", [1, 2, 3])
def test_touches_count_in_order_however_many_are_counted_at_once(make, monkeypatch, most):
    monkeypatch.setattr(store_module, "_MOST_NOTED", most)
    store = make(3)
    take(store, 0, [0, 1, 2])
    for ids in ([2], [0, 1], [2, 0], [0]):
        take(store, 0, ids)
    for new, left in ((3, [2, 0, 3]), (4, [0, 3, 4]), (5, [3, 4, 5])):  # 1 leaves, then 2, then 0
        take(store, 0, [new])
        assert set(np.flatnonzero(store.slot_table[0] >= 0)) == set(left)


def test_a_layer_may_need_more_than_there_are_slots(make):
    store = make(3)
    take(store, 0, [5, 6])
    assert take(store, 0, [0, 5, 1, 6, 2, 3, 4, 7]) == ([5, 6], [0, 1, 2, 3, 4, 7])
    one = make(1)
    assert waves_of(one, 0, [2, 1, 0]) == [[2], [1], [0]]


def test_everything_resident_reads_nothing(make):
    store = make(LAYERS * EXPERTS)
    for _ in range(2):
        for layer in range(LAYERS):
            take(store, layer, range(EXPERTS))
    assert (store.stats.hits, store.stats.misses) == (24, 24)
    assert repr(store) == "<ExpertStore 24 slots for 24 records, 24 in memory>"


def test_a_wave_stays_put_until_the_next_is_asked_for(make):
    """The slots of a wave may not be reused by the reads that the same wave still waits for."""
    store = make(2)
    seen = []
    with store.acquire(0, np.arange(8, dtype=np.int32)) as lease:
        for wave in lease:
            time.sleep(0.002)  # time enough to read into a slot that is free
            expected = [content(e) for e in wave.experts.tolist()]
            np.testing.assert_array_equal(lease.pool.memory[wave.slots], expected)
            seen += wave.experts.tolist()
    assert sorted(seen) == list(range(8))


def test_a_lease_may_be_left_early(make):
    store = make(2)
    with store.acquire(0, np.arange(4, dtype=np.int32)) as lease:
        next(iter(lease))
    assert take(store, 1, range(4)) == ([], [0, 1, 2, 3])
    store.acquire(0, np.arange(4, dtype=np.int32))  # and forgotten
    assert take(store, 2, range(4)) == ([], [0, 1, 2, 3])


def test_records_are_checked(make):
    wrong = CHECKSUMS.copy()
    wrong[EXPERTS + 2] ^= 1
    store = make(4, wrong)
    with pytest.raises(CorruptModel, match=r"record 10 \(layer 1, expert 2\)") as caught:
        take(store, 1, [0, 2])
    assert caught.value.offset == 10 * STRIDE
    assert take(store, 1, [0, 1]) in (
        ([0], [1]),
        ([], [0, 1]),
    )  # it may not have come before the other failed
    with pytest.raises(CorruptModel):  # what failed is not taken for resident
        take(store, 1, [2])
    assert take(store, 1, [0, 1]) == ([0, 1], [])
    unchecked = make(4, None)
    assert take(unchecked, 1, [2]) == ([], [2])


def test_a_file_that_ends_early(tmp_path):
    path = tmp_path / "experts.bin"
    path.write_bytes(bytes(3 * STRIDE - 100))
    store = open_store(path, 2, None)
    assert store.acquire(0, np.array([0], dtype=np.int32))
    with pytest.raises(CorruptModel, match="ends early") as caught:
        list(store.acquire(0, np.array([2], dtype=np.int32)))
    assert caught.value.offset == 3 * STRIDE - 100
    assert caught.value.path == str(path)
    store.close()


def test_a_missing_file(tmp_path):
    with pytest.raises(DiskError, match="cannot open the expert records"):
        RecordReader(tmp_path / "experts.bin", STRIDE, EXPERTS, None)


def test_closing_twice(make):
    store = make(1)
    store.close()
    store.close()
    with pytest.raises(DiskError):
        take(store, 0, [0])


requests = st.lists(
    st.tuples(
        st.integers(0, LAYERS - 1),
        st.lists(st.integers(0, EXPERTS - 1), min_size=1, max_size=12),
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), requests)
def test_any_pool_covers_what_was_asked_exactly_once(path, slots, wanted):
    store, model = open_store(path, slots), []
    for layer, ids in wanted:
        here, came = take(store, layer, ids)
        model = least_recently_used(model, layer, ids, here, slots)
        assert store.resident == min(slots, len(model) + len(came))
        model = [r for r in model if store.slot_table.flat[r] >= 0]
        model += [layer * EXPERTS + e for e in came if store.slot_table[layer, e] >= 0]
    store.close()


def least_recently_used(model, layer, ids, here, slots):
    """The residents as a plain list, oldest first, after `here` were used; checks that the store agrees which those are."""
    records = [layer * EXPERTS + e for e in dict.fromkeys(ids)]
    assert [layer * EXPERTS + e for e in here] == [r for r in records if r in model]
    return [r for r in model if r not in records] + [r for r in records if r in model]


def test_uses_that_a_stretch_reports_count_like_leases(make):
    store, other = make(4), make(4)
    heard = []
    for one in (store, other):
        take(one, 0, [1, 2])
        take(one, 1, [3, 4])
    store.listener = lambda layer, ids: heard.append((layer, ids.tolist()))
    store.used(0, np.array([[[1, 2], [1, 2]], [[4, 3], [4, 3]]], dtype=np.int32))
    for layer, ids in ((0, [1, 2]), (1, [4, 3])):
        take(other, layer, ids)
    assert store.stats.hits == other.stats.hits == 4
    assert heard == [(0, [[1, 2], [1, 2]]), (1, [[4, 3], [4, 3]])]
    store.used(0, np.empty((0, 2, 2), dtype=np.int32))
    take(store, 2, [0])
    assert store.slot_table[0, 2] >= 0
    assert store.slot_table[0].max() >= 0
    assert sorted(np.argwhere(store.slot_table >= 0).tolist()) == [[0, 2], [1, 3], [1, 4], [2, 0]]


def test_what_waits_to_be_counted_of_a_long_prompt_is_little(make):
    store, rows = make(LAYERS * EXPERTS), 1 << 12
    ids = np.zeros((1, rows, 2), dtype=np.int32)
    ids[..., 1] = 5
    tracemalloc.start()
    try:
        for _ in range(1000):
            for layer in range(LAYERS):
                store.used(layer, ids.copy())
        assert tracemalloc.get_traced_memory()[0] < 16 << 20  # of 98 MB that went by
    finally:
        tracemalloc.stop()
    assert store.counts.rows[:, 5].tolist() == [1000 * rows] * LAYERS
