"""Rows of the n-gram table, fetched by number."""

import errno
import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cherenkov.checkpoint.affine import HostMatrix, bf16_to_float32, dequantise, quantise
from cherenkov.errors import BackendError, CorruptModel, DiskError
from cherenkov.experts import rows as rows_module
from cherenkov.experts.rows import RowTable, memory_bytes
from cherenkov.packing.integrity import NgramBlocks, checksum
from cherenkov.packing.layout import NgramLayout
from tests.faulty_disk import FaultyDisk

ROWS = 40
LAYOUTS = [
    NgramLayout(ROWS, 160, 4, 32),
    NgramLayout(ROWS, 16, 4, 16),
    NgramLayout(ROWS, 24, 16, 0),
]


def write(path, layout):
    """A table of random values; returns what its rows stand for."""
    values = np.random.default_rng(layout.dim).normal(size=(layout.rows, layout.dim))
    values = values.astype(np.float32)
    if layout.bits == 16:
        codes = (values.view(np.uint32) >> 16).astype(np.uint16)
        path.write_bytes(codes.tobytes())
        return bf16_to_float32(codes)
    codes, scales, biases = quantise(values, layout.bits, layout.group)
    parts = [part.view(np.uint8).reshape(layout.rows, -1) for part in (codes, scales, biases)]
    path.write_bytes(np.concatenate(parts, axis=1).tobytes())
    assert path.stat().st_size == layout.total_bytes
    return dequantise(HostMatrix(values.shape, layout.bits, layout.group, codes, scales, biases))


@pytest.fixture(params=[False, True], ids=["on disk", "resident"])
def resident(request, monkeypatch):
    if not request.param:
        monkeypatch.setattr(rows_module, "RESIDENT_BYTES", 0)
    return request.param


@pytest.fixture(params=[True, False], ids=["kernels", "numpy"])
def kernels(request, monkeypatch):
    """Both ways to the same values."""
    if not request.param:
        monkeypatch.setattr(rows_module, "_native", None)
    elif rows_module._native is None:
        pytest.skip("the kernels are not built")


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"{layout.dim}x{layout.bits}")
def test_gathers_side_by_side(tmp_path, layout, resident):
    values = write(tmp_path / "ngram.bin", layout)
    table = RowTable(tmp_path / "ngram.bin", layout)
    assert table.resident_bytes == layout.total_bytes == memory_bytes(layout)  # the cache holds all
    assert table.on_disk is not resident
    ids = np.array([[0, 39, 7], [7, 7, 0]])
    expected = values[ids].reshape(2, -1)
    np.testing.assert_array_equal(table.gather(ids), expected)
    np.testing.assert_array_equal(table.gather(ids[:1, :1]), values[[0]])
    assert table.gather(ids).dtype == np.float32
    table.close()
    table.close()


@pytest.fixture
def on_disk(tmp_path, monkeypatch):
    """Makes a table that is read row by row from a disk of the test's."""
    monkeypatch.setattr(rows_module, "RESIDENT_BYTES", 0)
    opened = []

    def make(disk=None, layout=LAYOUTS[0], **options):
        if disk is not None:
            monkeypatch.setattr(rows_module, "reads_into", disk.reads_into)
        values = write(tmp_path / "ngram.bin", layout)
        opened.append(RowTable(tmp_path / "ngram.bin", layout, **options))
        return opened[-1], values

    yield make
    for table in opened:
        table.close()


def test_a_row_is_read_once_however_often_it_is_used(on_disk):
    disk = FaultyDisk(most=33)  # short reads are put together
    table, _ = on_disk(disk)
    table.gather(np.array([[5, 9], [5, 5]]))
    table.gather(np.array([[9, 5]]))
    assert sorted(disk.calls) == [5] * 4 + [9] * 4
    assert (table.stats.hits, table.stats.reads) == (2, 2)
    assert table.stats.read_bytes == 2 * LAYOUTS[0].row_bytes


def test_rows_are_read_while_nobody_waits_and_joined_on_their_way(on_disk):
    disk = FaultyDisk()
    table, values = on_disk(disk)
    disk.gate.clear()
    first = table.begin(np.array([[3, 4]]))
    second = table.begin(np.array([[4, 6]]))
    disk.gate.set()
    np.testing.assert_array_equal(second.take(), values[[4, 6]].reshape(1, -1))
    np.testing.assert_array_equal(first.take(), values[[3, 4]].reshape(1, -1))
    assert sorted(disk.calls) == [3, 4, 6]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    requests=st.lists(
        st.tuples(
            st.lists(
                st.lists(st.integers(0, ROWS - 1), min_size=3, max_size=3, unique=True),
                min_size=1,
                max_size=5,
            ),
            st.booleans(),
        ),
        min_size=1,
        max_size=12,
    ),
    cache_rows=st.integers(1, ROWS),
    seed=st.integers(0, 99),
)
def test_any_requests_with_any_cache_give_the_rows(on_disk, requests, cache_rows, seed):
    table, values = on_disk(FaultyDisk(delay_s=0.0005, seed=seed), cache_rows=cache_rows)
    given_up = []
    for ids, taken in requests:
        rows = np.array(ids)
        pending = table.begin(rows)
        if taken:
            np.testing.assert_array_equal(pending.take(), values[rows].reshape(len(rows), -1))
        else:
            given_up.append((pending, rows))
    for pending, rows in given_up:
        np.testing.assert_array_equal(pending.take(), values[rows].reshape(len(rows), -1))
    assert table.resident_bytes == cache_rows * LAYOUTS[0].row_bytes


def test_the_row_used_longest_ago_leaves_first(on_disk):
    disk = FaultyDisk()
    table, _ = on_disk(disk, cache_rows=3)
    for row in (1, 2, 3, 1, 4):
        table.gather(np.array([[row]]))
    disk.calls.clear()
    table.gather(np.array([[3, 1, 4]]))
    assert disk.calls == []
    table.gather(np.array([[2]]))
    assert disk.calls == [2]


def test_a_read_that_fails_is_told_once_and_tried_anew(on_disk):
    disk = FaultyDisk(broken=errno.EIO)
    table, values = on_disk(disk, cache_rows=2)
    for _ in range(3):
        with pytest.raises(DiskError, match="row 7 of the n-gram table") as caught:
            table.gather(np.array([[7]]))
        assert caught.value.errno == errno.EIO
    table.begin(np.array([[1, 2]]))  # given up, and fails meanwhile
    while table._cache._coming:
        table._cache._land()
    disk.broken = None
    np.testing.assert_array_equal(table.gather(np.array([[7, 8]])), values[[7, 8]].reshape(1, -1))


def test_an_interruption_before_reads_begin_loses_neither_rows_nor_slots(on_disk, monkeypatch):
    table, values = on_disk(FaultyDisk(), cache_rows=3)
    table.gather(np.array([[0]]))
    reads = table._cache._reads
    with monkeypatch.context() as patch:
        patch.setattr(reads, "submit", lambda *_: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            table.begin(np.array([[1, 2, 3]]))
    for rows in ([[1, 2, 3]], [[4, 5, 6]]):
        np.testing.assert_array_equal(table.gather(np.array(rows)), values[rows].reshape(1, -1))
    table.close()


def test_nothing_is_left_running_and_nothing_starts_again(on_disk):
    before = threading.active_count()
    table, _ = on_disk(FaultyDisk())
    assert threading.active_count() == before
    table.gather(np.array([[1]]))
    assert threading.active_count() > before
    table.close()
    assert threading.active_count() == before
    with pytest.raises(DiskError):
        table.gather(np.array([[2]]))
    assert threading.active_count() == before


def test_a_table_that_ends_early(tmp_path, resident):
    layout = LAYOUTS[0]
    path = tmp_path / "ngram.bin"
    write(path, layout)
    os.truncate(path, layout.total_bytes - 1)
    with pytest.raises(CorruptModel, match="ends early") as caught:
        RowTable(path, layout).gather(np.array([[ROWS - 1]]))
    assert caught.value.offset == layout.total_bytes - 1


def test_a_disk_that_fails_while_a_table_is_read_whole(tmp_path, monkeypatch):
    write(tmp_path / "ngram.bin", LAYOUTS[0])

    def broken(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(rows_module.os, "preadv", broken)
    with pytest.raises(DiskError, match="read the n-gram table") as caught:
        RowTable(tmp_path / "ngram.bin", LAYOUTS[0])
    assert caught.value.errno == errno.EIO


def test_a_missing_table(tmp_path):
    with pytest.raises(DiskError, match="open the n-gram table"):
        RowTable(tmp_path / "ngram.bin", LAYOUTS[0])


def _sums(path, layout, block_rows):
    data, size = path.read_bytes(), block_rows * layout.row_bytes
    blocks = tuple(checksum(data[at : at + size]) for at in range(0, len(data), size))
    return NgramBlocks(path.name, block_rows, blocks)


@pytest.mark.parametrize("row", [0, 15, 16, 39])
def test_a_table_that_is_read_whole_is_checked_whole(tmp_path, row):
    layout, path = LAYOUTS[0], tmp_path / "ngram.bin"
    write(path, layout)
    sums = _sums(path, layout, 16)  # 16, 16, 8 rows
    RowTable(path, layout, sums).close()
    damaged = bytearray(path.read_bytes())
    damaged[row * layout.row_bytes + 3] ^= 1
    path.write_bytes(damaged)
    before = len(list(Path("/dev/fd").iterdir()))
    block = row // 16
    with pytest.raises(CorruptModel, match=f"block {block}") as caught:
        RowTable(path, layout, sums)
    assert caught.value.offset == block * 16 * layout.row_bytes
    assert len(list(Path("/dev/fd").iterdir())) == before
    RowTable(path, layout).close()  # without checksums there is nothing to compare


def test_a_table_on_disk_is_not_read_to_be_checked(tmp_path, monkeypatch):
    monkeypatch.setattr(rows_module, "RESIDENT_BYTES", 0)
    layout, path = LAYOUTS[0], tmp_path / "ngram.bin"
    write(path, layout)
    RowTable(path, layout, NgramBlocks("ngram.bin", 16, (0, 0, 0))).close()


@pytest.mark.parametrize("row", [-1, ROWS, 1 << 40])
def test_kernels_refuse_a_row_that_is_not_there(tmp_path, row):
    if rows_module._native is None:
        pytest.skip("the kernels are not built")
    layout = LAYOUTS[0]
    write(tmp_path / "ngram.bin", layout)
    table = RowTable(tmp_path / "ngram.bin", layout)
    with pytest.raises(BackendError, match="no such row"):
        table.gather(np.array([[row]]))
    table.close()
