"""Rows of the n-gram table, fetched by number."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from cherenkov.checkpoint.affine import HostMatrix, bf16_to_float32, dequantise, quantise
from cherenkov.errors import CorruptModel, DiskError
from cherenkov.experts import rows as rows_module
from cherenkov.experts.rows import RowTable
from cherenkov.packing.integrity import NgramBlocks, checksum
from cherenkov.packing.layout import NgramLayout

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


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"{layout.dim}x{layout.bits}")
def test_gathers_side_by_side(tmp_path, layout, resident):
    values = write(tmp_path / "ngram.bin", layout)
    table = RowTable(tmp_path / "ngram.bin", layout)
    assert table.resident_bytes == (layout.total_bytes if resident else 0)
    ids = np.array([[0, 39, 7], [7, 7, 0]])
    expected = values[ids].reshape(2, -1)
    np.testing.assert_array_equal(table.gather(ids), expected)
    np.testing.assert_array_equal(table.gather(ids[:1, :1]), values[[0]])
    assert table.gather(ids).dtype == np.float32
    table.close()
    table.close()


def test_a_row_is_read_once_however_often_it_is_used(tmp_path, monkeypatch):
    monkeypatch.setattr(rows_module, "RESIDENT_BYTES", 0)
    layout = LAYOUTS[0]
    write(tmp_path / "ngram.bin", layout)
    table = RowTable(tmp_path / "ngram.bin", layout)
    offsets = []
    real = os.preadv

    def seen(descriptor, buffers, offset):
        offsets.append(offset)
        return real(descriptor, [buffers[0][:33]], offset)  # short reads are put together

    monkeypatch.setattr(rows_module.os, "preadv", seen)
    table.gather(np.array([[5, 9], [5, 5]]))
    assert [o // layout.row_bytes for o in offsets] == [5] * 4 + [9] * 4
    table.close()


def test_a_table_that_ends_early(tmp_path, resident):
    layout = LAYOUTS[0]
    path = tmp_path / "ngram.bin"
    write(path, layout)
    os.truncate(path, layout.total_bytes - 1)
    with pytest.raises(CorruptModel, match="ends early") as caught:
        RowTable(path, layout).gather(np.array([[ROWS - 1]]))
    assert caught.value.offset == layout.total_bytes - 1


def test_a_disk_that_fails(tmp_path, monkeypatch, resident):
    layout = LAYOUTS[0]
    write(tmp_path / "ngram.bin", layout)

    def broken(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(rows_module.os, "preadv", broken)
    with pytest.raises(DiskError, match="read the n-gram table") as caught:
        RowTable(tmp_path / "ngram.bin", layout).gather(np.array([[0]]))
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
