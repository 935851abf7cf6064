"""N-gram rows on a disk as slow as that of the experts: they come while the layers before theirs run, and nobody waits."""

import time

import numpy as np
import pytest

from cherenkov import prepare
from cherenkov.backends import native_weights
from cherenkov.experts import rows as rows_module
from tests.faulty_disk import FaultyDisk
from tests.golden.engine import Engine
from tests.tiny import TINY, weights, write_hf

PROMPT = [7, 3, 9, 4, 1, 8]


class SlowDisk(FaultyDisk):
    """Reads of experts do not end before the rows that are on their way have landed, however slow those are."""

    def __init__(self, table_disk):
        super().__init__()
        self.table_disk = table_disk

    def pread(self, read, record, part):
        for _ in range(2000):
            if not self.table_disk.busy:
                return super().pread(read, record, part)
            time.sleep(0.005)
        raise AssertionError("rows did not land while a layer waited for experts")


class TableDisk(FaultyDisk):
    """Every read takes its time."""

    reads = None

    def reads_into(self, *given, **how):
        self.reads = super().reads_into(*given, **how)
        return self.reads

    @property
    def busy(self):
        return self.reads is not None and self.reads._busy()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    tiny, folder = TINY["plain"], tmp_path_factory.mktemp("tiny")
    source = write_hf(folder / "source", tiny.config, weights(tiny.text, 3))
    return prepare(source, folder / "store")


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_steady_decode_never_waits_for_rows(store, backend, monkeypatch):
    if backend == "native" and native_weights.missing:
        pytest.skip(f"no native kernels here: {native_weights.missing}")
    with Engine(store, backend) as engine:
        expected = engine.greedy(PROMPT, 12)
    table_disk = TableDisk(delay_s=0.02)
    monkeypatch.setattr(rows_module, "RESIDENT_BYTES", 0)
    monkeypatch.setattr(rows_module, "reads_into", table_disk.reads_into)
    disk = SlowDisk(table_disk)
    with Engine(store, backend, slots=1, make_reader=disk.reader) as engine:
        (table,) = engine.network.tables.values()
        assert table.on_disk
        assert engine.greedy(PROMPT, 12) == expected
        assert table.stats.reads > 20
        assert len(table_disk.calls) == table.stats.reads
        assert table.stats.stall_s == 0
        assert engine.experts.stats.misses > 12 * len(engine.network.weights.layers)


def test_a_layer_that_comes_too_soon_waits_and_says_how_long(store, monkeypatch):
    """With the experts in memory nothing hides the disk: the counter tells."""
    table_disk = TableDisk(delay_s=0.01)
    monkeypatch.setattr(rows_module, "RESIDENT_BYTES", 0)
    monkeypatch.setattr(rows_module, "reads_into", table_disk.reads_into)
    with Engine(store, "reference") as engine:
        engine.greedy(PROMPT, 2)
        (table,) = engine.network.tables.values()
        waited = table.stats.stall_s
        assert waited > 0
        reads = table.stats.reads
        engine.greedy(PROMPT, 2)  # the same rows: all of them are in the cache
        assert (table.stats.stall_s, table.stats.reads) == (waited, reads)
    assert np.isfinite(waited)
