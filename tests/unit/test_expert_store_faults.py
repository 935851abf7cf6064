"""The expert store over a disk that is slow, out of order and faulty."""

import errno
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cherenkov.backends.base import ExpertPool
from cherenkov.errors import CorruptModel, DiskError
from cherenkov.experts.policy import Lru
from cherenkov.experts.store import ExpertStore
from cherenkov.packing.integrity import record_checksum
from cherenkov.packing.layout import ExpertLayout
from tests.faulty_disk import FaultyDisk

LAYERS, EXPERTS = 3, 8
LAYOUT = ExpertLayout(inter=32, hidden=32, group=32)
STRIDE = LAYOUT.stride_bytes


def content(record):
    return np.random.default_rng(record).integers(0, 256, STRIDE, dtype=np.uint8)


CONTENT = [content(i) for i in range(LAYERS * EXPERTS)]
CHECKSUMS = np.array([record_checksum(c.data) for c in CONTENT], dtype=np.uint64)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("records") / "experts.bin"
    path.write_bytes(b"".join(c.tobytes() for c in CONTENT))
    return path


def open_store(path, disk, slots, threads=3):
    pool = ExpertPool(LAYOUT, np.zeros((slots, STRIDE), dtype=np.uint8))
    reader = disk.reader(path, STRIDE, EXPERTS, CHECKSUMS, threads=threads)
    return ExpertStore(pool, reader, LAYERS, EXPERTS, policy=Lru)


@pytest.fixture
def make(path):
    opened = []

    def make(slots, **what):
        threads = what.pop("threads", 3)
        disk = FaultyDisk(**what)
        opened.append((open_store(path, disk, slots, threads), disk))
        return opened[-1]

    yield make
    for store, disk in opened:
        disk.gate.set()
        store.close()


def ids(*experts):
    return np.array(experts, dtype=np.int32)


def take(store, layer, experts, expect=None):
    """Every expert asked for comes once, whole, and what the table says is true; the experts in the order they came."""
    seen = []
    with store.acquire(layer, ids(*experts)) as lease:
        if expect is not None:
            store.expect(*expect)
        for wave in lease:
            for expert, slot in zip(wave.experts.tolist(), wave.slots.tolist(), strict=True):
                np.testing.assert_array_equal(
                    lease.pool.memory[slot], CONTENT[layer * EXPERTS + expert]
                )
            seen += wave.experts.tolist()
    assert sorted(seen) == sorted(set(experts))
    check_table(store)
    return seen


def check_table(store):
    """Slots and records point at each other, and what is in a slot is what the table says."""
    layers, experts = np.nonzero(store.slot_table >= 0)
    slots = store.slot_table[layers, experts]
    assert len(set(slots.tolist())) == len(slots) == store.resident
    for layer, expert, slot in zip(layers, experts, slots, strict=True):
        np.testing.assert_array_equal(store.pool.memory[slot], CONTENT[layer * EXPERTS + expert])


def until_busy(disk):
    """Wait until a thread is at its first read."""
    while not disk.calls:
        time.sleep(0.001)


def settle(store, disk):
    """Wait until nothing is under way."""
    while store._slots.coming:
        store._land(wait=True)


def test_one_fault_is_read_again(make):
    store, disk = make(2)
    disk.errors = [errno.EIO]
    take(store, 0, [0])
    assert disk.calls == [0, 0]


def test_two_faults_name_the_record_and_the_store_goes_on(make):
    store, disk = make(2)
    take(store, 2, [6, 7])
    disk.errors = [errno.EIO, errno.EIO]
    with pytest.raises(
        DiskError, match=r"cannot read record 20 \(layer 2, expert 4\): Input/output"
    ) as caught:
        take(store, 2, [7, 4])
    assert caught.value.errno == errno.EIO
    assert store.stats.demand.failed == 1
    check_table(store)
    assert store.slot_table[2, 4] == -1
    take(store, 2, [4, 5])
    take(store, 2, range(8))


def test_a_disk_that_was_unplugged_and_comes_back(make):
    store, disk = make(4)
    take(store, 0, [0, 1])
    disk.broken = errno.EIO
    for layer in (1, 2):
        with pytest.raises(DiskError):
            take(store, layer, [0, 1, 2, 3, 4, 5])
        check_table(store)
    disk.broken = None
    take(store, 1, range(8))
    assert take(store, 1, [6]) == [6]


@pytest.mark.parametrize("most", [STRIDE // 50, 4096, STRIDE - 1])
def test_short_reads_are_put_together(make, most):
    store, _ = make(2, most=most)
    take(store, 0, [3, 1])


def test_interrupted_calls_are_made_again(make):
    store, disk = make(2)
    disk.errors = [errno.EINTR] * 5
    take(store, 0, [3])
    assert disk.calls == [3] * 6


def test_a_record_that_is_wrong_once_is_read_again(make):
    store, disk = make(2)
    disk.flipped = {EXPERTS + 2: 1}
    take(store, 1, [2])
    assert disk.calls == [EXPERTS + 2] * 2


def test_a_record_that_stays_wrong_fails_that_request_only(make):
    store, disk = make(4)
    disk.flipped = {EXPERTS + 2: 2}
    with pytest.raises(CorruptModel, match=r"record 10 \(layer 1, expert 2\)") as caught:
        take(store, 1, [0, 2])
    assert caught.value.offset == 10 * STRIDE
    check_table(store)
    take(store, 1, [0, 2])


def test_a_record_under_way_is_joined_and_not_read_twice(make):
    store, disk = make(8, threads=1)
    disk.gate.clear()
    store.expect(1, ids(4, 5))
    threading.Timer(0.02, disk.gate.set).start()
    take(store, 1, [4, 5, 6])
    assert sorted(disk.calls) == [EXPERTS + e for e in (4, 5, 6)]
    stats = store.stats
    assert (stats.joined, stats.misses, stats.right_predictions, stats.predicted_asks) == (
        2,
        3,
        2,
        3,
    )
    assert (stats.precision, stats.recall) == (1.0, 2 / 3)


def test_what_is_required_is_read_before_what_is_predicted(make):
    store, disk = make(16, threads=1)
    disk.gate.clear()
    store.expect(1, ids(4, 5, 6))
    until_busy(disk)
    with store.acquire(0, ids(1, 2)) as lease:
        disk.gate.set()
        list(lease)
    settle(store, disk)
    assert disk.calls == [EXPERTS + 4, 1, 2, EXPERTS + 5, EXPERTS + 6]


def test_predictions_that_turn_out_wrong_are_not_read(make):
    store, disk = make(16, threads=1)
    disk.gate.clear()
    store.expect(1, ids(4, 5, 6))
    until_busy(disk)
    with store.acquire(1, ids(0)) as lease:
        disk.gate.set()
        list(lease)
    settle(store, disk)
    assert disk.calls == [EXPERTS + 4, EXPERTS + 0]
    assert store.stats.prediction.cancelled == 2
    assert store.stats.prediction.requested == 3
    assert store.slot_table[1, 4] >= 0
    check_table(store)


def test_wasted_bytes_are_counted(make):
    store, disk = make(4)
    store.expect(1, ids(4))
    settle(store, disk)
    take(store, 1, [0])
    for layer in (0, 2):
        take(store, layer, range(8))
    assert store.stats.wasted_bytes == STRIDE
    assert store.stats.useful_predictions == 0
    store.expect(1, ids(4))
    settle(store, disk)
    take(store, 1, [4])
    assert store.stats.useful_predictions == 1
    take(store, 0, range(8))
    assert store.stats.wasted_bytes == STRIDE


def test_predictions_never_take_a_slot_in_use(make):
    store, _disk = make(4, threads=1)
    take(store, 0, [0, 1, 2, 3])
    with store.acquire(0, ids(0, 1, 2, 3)) as lease:
        store.expect(1, ids(0, 1))
        assert not store._slots.coming
        (wave,) = lease
        np.testing.assert_array_equal(lease.pool.memory[wave.slots], CONTENT[:4])


def test_predictions_make_way_for_what_is_required(make):
    store, disk = make(8, threads=1)
    disk.gate.clear()
    store.most_ahead = 8
    store.expect(1, ids(*range(8)))
    until_busy(disk)
    with store.acquire(0, ids(*range(8))) as lease:
        disk.gate.set()
        list(lease)
    settle(store, disk)
    assert disk.calls[1:9] == list(range(8))
    assert store.stats.prediction.cancelled == 7


def test_predictions_can_be_switched_off(make):
    store, _disk = make(8)
    store.most_ahead = 0
    store.expect(1, ids(1, 2))
    assert not store._slots.coming
    take(store, 1, [1, 3])
    assert store.stats.recall == 0.5


def test_a_prediction_that_fails_hurts_nobody(make):
    store, disk = make(8, threads=1)
    disk.errors = [errno.EIO, errno.EIO]
    store.expect(1, ids(1))
    settle(store, disk)
    assert store.stats.prediction.failed == 1
    take(store, 1, [1, 2])


def test_layers_that_ran_without_a_lease(make):
    store, _ = make(24)
    heard = []
    for layer in range(LAYERS):
        take(store, layer, [0, 1, 2])
    store.listener = lambda layer, each: heard.append((layer, each.tolist()))
    before = store.stats.copy()
    store.used(1, np.array([[[0, 1]], [[1, 2]]], dtype=np.int32))
    store.used(0, np.array([[[0, 1], [1, 2]]], dtype=np.int32))
    assert store.stats.since(before).hits == 4 + 3
    assert heard == [(1, [[0, 1]]), (2, [[1, 2]]), (0, [[0, 1], [1, 2]])]
    assert store.counts.asks.tolist() == [6, 5, 5]
    assert store.counts.hits.tolist() == [3, 2, 2]
    assert store.counts.rows[0].tolist()[:4] == [2, 3, 2, 0]


requests = st.lists(
    st.tuples(
        st.integers(0, LAYERS - 1),
        st.lists(st.integers(0, EXPERTS - 1), min_size=1, max_size=12),
        st.none()
        | st.tuples(
            st.integers(0, LAYERS - 1),
            st.lists(st.integers(0, EXPERTS - 1), min_size=1, max_size=8),
        ),
        st.booleans(),
    ),
    max_size=15,
)


@settings(max_examples=150, deadline=None)
@given(
    slots=st.integers(1, 24),
    threads=st.integers(1, 8),
    ahead=st.integers(0, 24),
    seed=st.integers(0, 99),
    flaky=st.booleans(),
    wanted=requests,
)
def test_any_pool_over_any_disk_delivers_what_was_asked(
    path, slots, threads, ahead, seed, flaky, wanted
):
    disk = FaultyDisk(delay_s=0.0005, seed=seed)
    store = open_store(path, disk, slots, threads)
    store.most_ahead = ahead
    for layer, experts, guess, fault in wanted:
        expect = guess and (guess[0], ids(*guess[1]))
        if fault and flaky:
            disk.errors = [errno.EIO, errno.EIO, None, errno.EINTR]
            try:
                take(store, layer, experts, expect)
            except DiskError:
                check_table(store)
            settle(store, disk)
            disk.errors = []
        else:
            take(store, layer, experts, expect)
    settle(store, disk)
    check_table(store)
    store.close()


def test_interrupted_anywhere_the_store_goes_on(path):
    """An exception between any two lines of the store, as Ctrl-C makes them."""
    for line in range(1, 2000, 4):
        disk = FaultyDisk()
        store = open_store(path, disk, 6, 2)
        take(store, 0, [0, 1])
        store.expect(1, ids(1, 2))
        struck = interrupted(store, line)
        check_table(store)
        for layer in (1, 0, 2):
            take(store, layer, range(8), (1, ids(3, 4)))
        store.close()
        if not struck:
            break
    assert not struck
    assert line > 100


def take_quietly(store):
    with store.acquire(1, ids(0, 1, 2, 3)) as lease:
        store.expect(2, ids(0, 1))
        for _ in lease:
            pass


def interrupted(store, line):
    """Take; raise KeyboardInterrupt before the n-th line of the store's modules."""
    left = [line]

    def trace(frame, event, _):
        if event == "call":
            name = frame.f_code.co_filename
            return trace if "experts/s" in name or "experts/lease" in name else None
        if event == "line":
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        take_quietly(store)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False
