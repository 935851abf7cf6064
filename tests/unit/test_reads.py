"""Reads under way, by the C++ threads and by Python's: order, faults, checksums, threads."""

import errno
import mmap
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import xxhash

from cherenkov.errors import CapacityError
from cherenkov.experts.reads import ENDS_EARLY, LANDED, WRONG_CHECKSUM, ThreadedReads, begin
from cherenkov.packing.integrity import record_checksum

native = pytest.importorskip("cherenkov._native", reason="the C++ kernels are not built")

STRIDE, RECORDS, SLOTS = 16_384, 24, 8
KINDS = {"native": native.Reads, "threaded": ThreadedReads}


def content(record):
    return np.random.default_rng(record).integers(0, 256, STRIDE, dtype=np.uint8)


CHECKSUMS = np.array([record_checksum(content(i).data) for i in range(RECORDS)], dtype=np.uint64)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "experts.bin"
    path.write_bytes(b"".join(content(i).tobytes() for i in range(RECORDS)))
    return path


@pytest.fixture(params=KINDS)
def make(request, path):
    opened, files = [], []

    def make(threads=3, checksums=CHECKSUMS, *, direct=True, every_time=False, memory=None):
        files.append(os.open(path, os.O_RDONLY))
        files.append(os.open(path, os.O_RDONLY | os.O_DIRECT) if direct else -1)
        memory = aligned() if memory is None else memory
        reads = KINDS[request.param](*files[-2:], memory, threads, checksums, every_time)
        opened.append(reads)
        return reads, memory

    yield make
    for reads in opened:
        reads.close()
    for file in files:
        if file >= 0:
            os.close(file)


def aligned():
    pages = mmap.mmap(-1, SLOTS * STRIDE)
    return np.frombuffer(pages, dtype=np.uint8).reshape(SLOTS, STRIDE)


def drain(reads):
    found = {}
    while landed := reads.landed(True):
        found |= {slot: status for slot, status, _ in landed}
    assert reads.outstanding == 0
    return found


def threads_of_this_process():
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("threads", [1, 2, 8])
def test_records_land_in_their_slots(make, threads, direct):
    reads, memory = make(threads, direct=direct)
    reads.submit([3, 20, 7, 0], [5, 0, 7, 2], True)
    assert drain(reads) == dict.fromkeys((5, 0, 7, 2), LANDED)
    for record, slot in ((3, 5), (20, 0), (7, 7), (0, 2)):
        np.testing.assert_array_equal(memory[slot], content(record))
    assert reads.direct == direct
    assert reads.preads == 4


def test_memory_that_is_not_aligned_is_read_through_the_cache(make):
    memory = np.zeros(SLOTS * STRIDE + 8192, dtype=np.uint8)
    start = -memory.ctypes.data % 4096 + 64
    memory = memory[start : start + SLOTS * STRIDE].reshape(SLOTS, STRIDE)
    reads, memory = make(memory=memory)
    reads.submit([4], [1], True)
    assert drain(reads) == {1: LANDED}
    np.testing.assert_array_equal(memory[1], content(4))


def test_nothing_under_way_is_not_waited_for(make):
    reads, _ = make()
    assert reads.landed(True) == []
    assert reads.landed(False) == []


def test_what_is_predicted_waits_for_what_is_required(make):
    """One thread, so that the order shows; as a rule it is still at the first when the others have been asked for."""
    orders = []
    for _ in range(20):
        reads, _ = make(1)
        reads.submit([0, 1, 2], [0, 1, 2], False)
        reads.submit([3], [3], True)
        reads.promote([2])
        order = []
        while landed := reads.landed(True):
            order += [slot for slot, _, _ in landed]
        orders.append(order)
        reads.close()
    assert [0, 3, 2, 1] in orders or [3, 2, 0, 1] in orders  # or it had not begun


def test_what_has_not_begun_is_taken_back(make):
    for _ in range(20):
        reads, _ = make(1)
        reads.submit(list(range(8)), list(range(8)), False)
        cancelled = reads.cancel([3, 4, 5, 6, 7])
        landed = drain(reads)
        assert sorted([*cancelled, *landed]) == list(range(8))
        assert reads.preads == len(landed)
        reads.close()


def test_a_wrong_record_is_read_once_more(make, path):
    wrong = CHECKSUMS.copy()
    wrong[2] ^= 1
    reads, _ = make(checksums=wrong)
    reads.submit([1, 2], [0, 1], True)
    assert drain(reads) == {0: LANDED, 1: WRONG_CHECKSUM}
    assert reads.preads == 3


@pytest.mark.parametrize("every_time", [False, True])
def test_records_are_checked_the_first_time_or_every_time(make, path, every_time):
    reads, _ = make(every_time=every_time)
    wrong = path.read_bytes()
    reads.submit([3], [0], True)
    assert drain(reads) == {0: LANDED}
    before = path.stat()
    with path.open("r+b") as file:
        for record in (3, 4):
            file.seek(record * STRIDE)
            file.write(bytes([wrong[record * STRIDE] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # as a disk that forgets
    reads.submit([3, 4], [0, 1], True)
    assert drain(reads) == {0: WRONG_CHECKSUM if every_time else LANDED, 1: WRONG_CHECKSUM}


def test_a_file_that_was_written_to_is_checked_again(make, path):
    reads, _ = make()
    reads.submit([3], [0], True)
    assert drain(reads) == {0: LANDED}
    with path.open("r+b") as file:
        file.seek(3 * STRIDE)
        file.write(bytes([content(3)[0] ^ 1]))
    os.utime(path)
    reads.submit([3, 4], [0, 1], True)
    assert drain(reads) == {0: WRONG_CHECKSUM, 1: LANDED}


def test_a_file_that_shrinks(make, path):
    reads, _ = make()
    reads.submit([9], [0], True)
    assert drain(reads) == {0: LANDED}
    os.truncate(path, 9 * STRIDE + 5000)
    reads.submit([8, 9, 10], [0, 1, 2], True)
    assert drain(reads) == {0: LANDED, 1: ENDS_EARLY, 2: ENDS_EARLY}


def test_no_thread_before_the_first_read_and_none_after_closing(make):
    before = settled(threads_of_this_process)
    reads, _ = make(4)
    assert settled(threads_of_this_process) == before
    reads.submit([0], [0], True)
    assert settled(threads_of_this_process) == before + 4
    reads.close()
    assert settled(threads_of_this_process) == before
    reads.close()


def settled(count, seconds=0.05):
    """The count, once it has stayed the same for a while: the system counts a thread that was joined a little longer."""
    found, since = count(), time.monotonic()
    while time.monotonic() - since < seconds:
        time.sleep(0.005)
        if (now := count()) != found:
            found, since = now, time.monotonic()
    return found


@pytest.mark.parametrize("granted", [0, 1])
def test_a_system_that_has_few_threads_to_give(path, monkeypatch, granted):
    left, start = granted, threading.Thread.start

    def grudging(thread):
        nonlocal left
        left -= 1
        if left < 0:
            raise RuntimeError("can't start new thread")
        start(thread)

    with path.open("rb") as file:
        reads = ThreadedReads(file.fileno(), -1, aligned(), 3, CHECKSUMS, False)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", grudging)
            if granted:
                begin(reads, [1, 2], [0, 1], required=True)
            else:
                with pytest.raises(CapacityError, match="cannot start a thread"):
                    begin(reads, [1, 2], [0, 1], required=True)
                assert not reads.outstanding
        begin(reads, [3], [2], required=True)
        assert drain(reads) == dict.fromkeys([0, 1, 2] if granted else [2], LANDED)
        reads.close()


def test_closing_forgets_what_has_not_begun(make):
    reads, _ = make(1)
    reads.submit([0, 1, 2, 3] * 2, list(range(8)), True)
    reads.close()
    done = reads.preads
    time.sleep(0.01)
    assert reads.preads == done <= 8


def test_a_descriptor_that_was_closed_is_an_error_and_not_a_crash(make):
    reads, _ = make(direct=False)
    file = os.open("/dev/null", os.O_WRONLY)
    try:
        broken = type(reads)(file, -1, aligned(), 1, None, False)
        broken.submit([0], [0], True)
        assert drain(broken) == {0: errno.EBADF}
        broken.close()
    finally:
        os.close(file)


def test_the_native_reads_refuse_what_lies_outside():
    with Path("/dev/null").open("rb") as file:
        reads = native.Reads(file.fileno(), -1, aligned(), 1, CHECKSUMS, False)
        for records, slots in (([0], [SLOTS]), ([0], [-1]), ([RECORDS], [0]), ([-1], [0])):
            with pytest.raises(IndexError):
                reads.submit(records, slots, True)
        with pytest.raises(ValueError, match="a slot for each"):
            reads.submit([0, 1], [0], True)
        with pytest.raises(ValueError, match="threads"):
            native.Reads(file.fileno(), -1, aligned(), 0, None, False)
        assert reads.outstanding == 0


@pytest.mark.parametrize("size", [241, 256, 1023, 1024, 1025, 4096, 16_384, 442_368, 99_999])
def test_the_checksum_is_xxh3(size):
    data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    expected = xxhash.xxh3_64_intdigest(data.data)
    assert native.xxh3_64(data) == native.xxh3_64(data, portable=True) == expected
