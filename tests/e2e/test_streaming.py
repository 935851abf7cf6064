"""A model whose experts do not fit: what the machine sees of it, and what happens when the disk fails."""

import os
import shutil
from pathlib import Path

import pytest

from cherenkov import Model
from cherenkov.errors import CapacityError, CorruptModel
from cherenkov.packing.store import PackedStore

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/io").exists(), reason="the counters of Linux are not here"
)
PROMPT = "Once upon a time there was"


@pytest.fixture
def own_store(glow_store, tmp_path):
    """A store that a test may damage."""
    return Path(shutil.copytree(glow_store, tmp_path / "store"))


def load(store, share):
    """With room for so large a share of the experts."""
    opened = PackedStore.open(store)
    pool = opened.records * opened.expert_layout.stride_bytes * share / 1e9
    return Model.load(store, pool=pool, context_tokens=64, threads=1)


def answer(model, **options):
    return model.generate(PROMPT, max_tokens=12, raw=True, ignore_eos=True, **options)


def test_no_memory_for_the_pool_leaves_no_file_open(glow_store, monkeypatch):
    def full(*_):
        raise CapacityError("cannot reserve")

    def files():
        return len(list(Path("/proc/self/fd").iterdir()))

    load(glow_store, 0.5).close()
    before = files()
    monkeypatch.setattr("cherenkov.backends.native.Native.pool", full)
    monkeypatch.setattr("cherenkov.backends.reference.Reference.pool", full, raising=False)
    with pytest.raises(CapacityError, match="cannot reserve"):
        load(glow_store, 0.5)
    assert files() == before


def tasks():
    return len(list(Path("/proc/self/task").iterdir()))


def written_bytes():
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["write_bytes"])


@pytest.fixture(scope="module")
def expected(glow_store):
    with load(glow_store, 1.0) as model:
        return answer(model)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.7])
def test_a_small_pool_answers_alike_and_writes_nothing(glow_store, expected, share):
    before = tasks()
    with load(glow_store, share) as model:
        wrote = written_bytes()
        assert answer(model) == expected
        assert answer(model) == expected
        assert written_bytes() == wrote
        assert model.experts.stats.misses > 0
        assert (
            model.experts.resident
            <= model.experts.slots
            < model.experts.layers * model.experts.experts
        )
    assert tasks() == before


def test_a_file_that_shrinks_and_grows_again(own_store, expected):
    path = own_store / "experts.bin"
    whole = path.read_bytes()
    with load(own_store, 0.2) as model:
        assert answer(model) == expected
        os.truncate(path, 16_384)
        with pytest.raises(CorruptModel, match="ends early"):
            answer(model)
        path.write_bytes(whole)
        assert answer(model) == expected


def test_a_file_that_is_replaced(own_store, expected):
    """The open file stays what it was, whatever its name stands for now."""
    path = own_store / "experts.bin"
    with load(own_store, 0.2) as model:
        path.unlink()
        path.write_bytes(bytes(1000))
        assert answer(model) == expected


def test_records_that_are_overwritten_are_named(own_store, expected):
    path = own_store / "experts.bin"
    whole = path.read_bytes()
    with load(own_store, 0.2) as model:
        assert answer(model) == expected
        path.write_bytes(bytes(len(whole)))
        with pytest.raises(
            CorruptModel, match=r"record \d+ \(layer \d+, expert \d+\): the checksum"
        ):
            answer(model)
        path.write_bytes(whole)
        assert answer(model) == expected


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_streams_too(glow_store, expected):
    with load(glow_store, 0.2) as model:
        assert answer(model) == expected
        child = os.fork()
        if child == 0:
            os._exit(0 if answer(model) == expected else 1)
        assert answer(model) == expected
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
