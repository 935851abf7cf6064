"""The expert store in mixed mode: misses in fewer bits, predictions in full, tags that are right; and what is cut."""

import numpy as np
import pytest

from cherenkov.backends.base import ExpertPool
from cherenkov.backends.operands import LEFT_OUT
from cherenkov.errors import CorruptModel, DiskError
from cherenkov.experts.policy import Lru
from cherenkov.experts.reader import RecordReader
from cherenkov.experts.store import ExpertStore
from cherenkov.packing.integrity import record_checksum
from cherenkov.packing.layout import ExpertLayout
from tests.faulty_disk import EIO, FaultyDisk

LAYERS, EXPERTS = 3, 8
LAYOUT = ExpertLayout(inter=128, hidden=256, group=32)
LOWER = ExpertLayout(inter=128, hidden=256, bits=2, group=32)
assert LOWER.stride_bytes < LAYOUT.stride_bytes


def content(layout, record):
    draw = np.random.default_rng([layout.bits, record])
    return draw.integers(0, 256, layout.stride_bytes, dtype=np.uint8)


def sums_of(layout):
    records = range(LAYERS * EXPERTS)
    return np.array([record_checksum(content(layout, i).data) for i in records], dtype=np.uint64)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    for layout in (LAYOUT, LOWER):
        data = b"".join(content(layout, i).tobytes() for i in range(LAYERS * EXPERTS))
        (folder / f"{layout.bits}.bin").write_bytes(data)
    return folder


@pytest.fixture
def make(files):
    opened = []

    def make(slots, disk=None, *, mixed=True, **options):
        pool, below = ExpertPool(LAYOUT, np.zeros((slots, LAYOUT.stride_bytes), np.uint8)), None
        make_reader = RecordReader if disk is None else disk.reader
        if mixed:
            pool.lower = LOWER
            path = files / "2.bin"
            below = RecordReader(path, LOWER.stride_bytes, EXPERTS, sums_of(LOWER))
        shape = (files / "4.bin", LAYOUT.stride_bytes, EXPERTS, sums_of(LAYOUT))
        reader = make_reader(*shape, lower=below)
        store = ExpertStore(pool, reader, LAYERS, EXPERTS, policy=Lru, **options)
        opened.append(store)
        return store

    yield make
    for store in opened:
        store.close()


def take(store, layer, ids, weights=None):
    """Lease experts; of each, the bits that its slot holds, checked, or None if it is left out."""
    found = {}
    ids = np.array(ids, dtype=np.int32)
    weights = None if weights is None else np.array(weights, dtype=np.float32)
    with store.acquire(layer, ids, weights) as lease:
        for wave in lease:
            for expert, slot in zip(wave.experts.tolist(), wave.slots.tolist(), strict=True):
                assert expert not in found
                found[expert] = None
                if slot != LEFT_OUT:
                    layout = store.pool.layout_in(slot)
                    expected = content(layout, layer * EXPERTS + expert)
                    held = store.pool.memory[slot, : layout.stride_bytes]
                    np.testing.assert_array_equal(held, expected)
                    found[expert] = layout.bits
    return found


def test_misses_come_in_fewer_bits_and_keep_them(make):
    store = make(6)
    assert take(store, 0, [[1, 2], [2, 3]]) == dict.fromkeys((1, 2, 3), 2)
    assert take(store, 0, [1, 4]) == {1: 2, 4: 2}
    low = store.stats.lower
    assert (low.hits, low.misses, low.reads) == (1, 4, 4)
    assert low.read_bytes == store.stats.read_bytes == 4 * LOWER.stride_bytes
    assert store.stats.demand.requested_bytes == store.stats.demand.completed_bytes


def test_predictions_come_in_full(make):
    store = make(16, lookahead="on")
    store.begin_step(1)
    with store.acquire(0, np.array([0, 1], dtype=np.int32)) as lease:
        store.expect(1, np.array([5, 6], dtype=np.int32))
        list(lease)
    found = take(store, 1, [5, 6, 7])
    assert found == {5: 4, 6: 4, 7: 2}
    assert store.stats.prediction.completed_bytes == 2 * LAYOUT.stride_bytes
    assert store.stats.lower.misses == 3  # two of layer 0, and the last
    store.used(1, np.array([[[5, 6, 7]]], dtype=np.int32))
    assert store.stats.lower.hits == 1


def test_a_slot_changes_its_tag_with_its_record(make):
    store = make(4, lookahead="on")
    for round_ in range(12):
        store.begin_step(1)
        layer = round_ % LAYERS
        with store.acquire(layer, np.array([round_ % EXPERTS], dtype=np.int32)) as lease:
            store.expect((layer + 1) % LAYERS, np.array([(3 * round_) % EXPERTS], np.int32))
            list(lease)
        take(store, (layer + 1) % LAYERS, [(3 * round_) % EXPERTS, round_ % 5])
        store.end_step()
    assert store.stats.lower.reads
    assert store.stats.prediction.completed
    assert store.stats.wasted_bytes % LAYOUT.stride_bytes == 0


def test_a_prompt_keeps_in_full_what_stays(make):
    """There is room for four; the most used ones are read in full, the others pass through in fewer bits."""
    store = make(4)
    found = take(store, 0, [[expert] for expert in range(8) for _ in range(8)])
    assert sorted(found.values()) == [2, 2, 2, 2, 4, 4, 4, 4]
    assert store.stats.prefill.completed == 8
    assert store.stats.lower.misses == 4


def test_failures_name_the_file_that_was_read(make, files):
    disk = FaultyDisk(broken=EIO)
    store = make(4, disk)
    with pytest.raises(DiskError, match=r"2\.bin: .*record 1 \(layer 0, expert 1\)"):
        take(store, 0, [1])
    disk.broken = None
    disk.flipped = {2: 9}
    with pytest.raises(CorruptModel, match=r"2\.bin: .*record 2"):
        take(store, 0, [2])
    disk.flipped = {}
    assert take(store, 0, [1, 2]) == {1: 2, 2: 2}
    assert disk.low_calls == disk.calls


def test_without_a_second_file_nothing_is_mixed(make):
    store = make(6, mixed=False)
    assert take(store, 0, [1, 2]) == {1: 4, 2: 4}
    assert not store.pool.tags.any()
    assert store.stats.lower.reads == store.stats.lower.misses == 0


# --- what is cut


@pytest.mark.parametrize("mixed", [False, True])
def test_weak_experts_that_are_missing_are_not_read(make, mixed):
    disk = FaultyDisk()
    store = make(8, disk, mixed=mixed, cut_weak=0.1)
    bits = 2 if mixed else 4
    assert take(store, 0, [[1, 2]], [[0.9, 0.05]]) == {1: bits, 2: None}
    assert take(store, 0, [[2]], [[0.05]]) == {2: None}
    assert disk.calls == [1]
    assert (store.stats.cut, store.stats.misses, store.stats.hits) == (2, 3, 0)
    assert store.counts.misses[0].tolist() == [0, 1, 2, 0, 0, 0, 0, 0]
    # in one row it is strong: it is read for both, and then stays whole for all
    assert take(store, 0, [[1, 2], [2, 3]], [[0.9, 0.05], [0.1, 0.01]]) == {
        1: bits,
        2: bits,
        3: None,
    }
    assert take(store, 0, [[2]], [[0.001]]) == {2: bits}
    assert disk.calls == [1, 2]


def test_nothing_is_cut_of_a_prompt_or_unless_asked_for(make):
    store = make(8, cut_weak=0.5)
    rows = [[expert % 8] for expert in range(64)]
    assert None not in take(store, 1, rows, np.zeros((64, 1))).values()
    store = make(8)
    assert None not in take(store, 0, [[1, 2]], [[0.0, 0.0]]).values()
    assert store.stats.cut == 0


def test_what_a_prediction_brings_may_be_cut_and_used_later(make):
    disk = FaultyDisk()
    store = make(8, disk, mixed=False, cut_weak=0.5, lookahead="on")
    store.begin_step(1)
    with store.acquire(0, np.array([0], dtype=np.int32)) as lease:
        list(lease)
        disk.gate.clear()
        store.expect(1, np.array([4], dtype=np.int32))
    assert take(store, 1, [[4]], [[0.2]]) == {4: None}  # late: it is not waited for
    disk.gate.set()
    with store.acquire(2, np.array([0], dtype=np.int32)) as lease:
        list(lease)
    while store.slot_table[1, 4] < 0:
        take(store, 2, [0])
    assert take(store, 1, [[4]], [[0.2]]) == {4: 4}
