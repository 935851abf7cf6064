"""Points on disk: written whole, read back to the bit, bounded, refused when damaged, apart by owner and by store."""

import fcntl
import hashlib
import os

import numpy as np
import pytest
import xxhash

from cherenkov import Model
from cherenkov.errors import BackendError, ConfigError, DiskError
from cherenkov.prefill import prefill
from cherenkov.prefix_cache import PrefixCache
from cherenkov.prefix_files import PrefixFiles

BIG = 1 << 30
TOKENS = list(range(100, 420))
OWNER = "a secret name"


@pytest.fixture(scope="module")
def loaded(glow_store):
    try:
        model = Model.load(glow_store, backend="native", context_tokens=512)
    except BackendError as error:
        pytest.skip(str(error))
    with model:
        yield model.responder.loaded


@pytest.fixture(scope="module")
def state(loaded):
    state = loaded.network.new_state(512)
    prefill(loaded.network, state, TOKENS[:300], loaded.chunk_rows, lambda: None)
    return state


@pytest.fixture
def files_of(loaded, tmp_path):
    made = []

    def make(limit=BIG, belongs="store 1", folder=tmp_path / "prefixes"):
        template = loaded.network.new_state(1)
        made.append(PrefixFiles(folder, limit, belongs, loaded.backend, template))
        return made[-1]

    yield make
    for files in made:
        files.close()


def cache_of(loaded, files=None, **options):
    return PrefixCache(loaded.backend, limit_bytes=BIG, elsewhere=files, **options)


def spilled(loaded, state, files, logits=None):
    """The path of a file with the point where a state is."""
    cache = cache_of(loaded)
    cache.store(OWNER, state, logits)
    files.put(next(cache.points()))
    files.close()
    (path,) = list(files._folder.glob("*.prefix"))
    return path


def following(loaded, state):
    logits = prefill(loaded.network, state, [7, 8, 9], loaded.chunk_rows, lambda: None)
    return logits.copy()


@pytest.mark.parametrize("complete", [False, True])
def test_what_was_written_is_read_back(loaded, state, files_of, complete):
    logits = np.arange(5, dtype=np.float32)[None] if complete else None
    path = spilled(loaded, state, files_of(), logits)
    assert path.stat().st_mode & 0o077 == 0o044  # in a folder that is nobody else's
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert OWNER.encode() not in path.read_bytes()
    files = files_of()
    assert len(files) == 1
    assert files.size_bytes == path.stat().st_size
    cache = cache_of(loaded, files)
    point = cache.find(OWNER, TOKENS)
    assert point.position == 300
    assert (point.logits is not None) == complete
    again = loaded.network.new_state(310)
    point.resume(again, loaded.backend)
    np.testing.assert_array_equal(
        following(loaded, again), following(loaded, state.copy(loaded.backend))
    )
    assert files.counts.loaded == 1
    assert cache.find(OWNER, TOKENS) is point or cache.find(OWNER, TOKENS).position == 300
    assert files.counts.loaded == 1  # it is in memory now
    assert (cache_of(loaded, files).find(OWNER, TOKENS[:300]) is not None) == complete
    assert cache_of(loaded, files).find("another", TOKENS) is None
    assert len(files_of(belongs="store 2")) == 0
    assert path.exists()


@pytest.mark.parametrize("count", [1, 3, 257])
def test_pages_without_a_whole_block(loaded, files_of, count):
    state = loaded.network.new_state(512)
    prefill(loaded.network, state, TOKENS[:count], loaded.chunk_rows, lambda: None)
    spilled(loaded, state, files_of())
    assert cache_of(loaded, files_of()).find(OWNER, TOKENS).position == count


def test_what_leaves_memory_is_found_on_disk(loaded, state, files_of):
    files = files_of()
    cache = cache_of(loaded, files, limit_points=1)
    cache.store(OWNER, state)
    short = loaded.network.new_state(64)
    prefill(loaded.network, short, TOKENS[:40], loaded.chunk_rows, lambda: None)
    cache.store(OWNER, short)
    files.close()
    assert files.counts.spilled == 1
    assert cache.find(OWNER, TOKENS).position == 300
    files.close()  # the other one has left meanwhile
    assert cache.find(OWNER, TOKENS[:41]).position == 40


def test_damage_is_found_wherever_it_is(loaded, state, files_of):
    path = spilled(loaded, state, files_of())
    whole = path.read_bytes()
    chance = np.random.default_rng(1)
    places = [0, 9, 17, 30, len(whole) - 1, *chance.integers(0, len(whole), 25).tolist()]
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(chance.integers(8))
        path.write_bytes(damaged)
        files = files_of()
        found = cache_of(loaded, files).find(OWNER, TOKENS)
        if (
            found is not None
        ):  # in what is no part of the point: the owner's hash would not be found at all
            again = loaded.network.new_state(310)
            found.resume(again, loaded.backend)
            assert again.tokens == TOKENS[:300]
        else:
            assert files.counts.damaged == (0 if path.exists() else 1)
    for length in (0, 7, 15, 40, 5000, len(whole) - 1):
        path.write_bytes(whole[:length])
        files = files_of()
        assert cache_of(loaded, files).find(OWNER, TOKENS) is None
        assert files.counts.damaged == 1
        assert not path.exists()


def test_damage_to_what_a_file_says_of_itself(loaded, state, files_of):
    path = spilled(loaded, state, files_of())
    whole = path.read_bytes()
    length = int.from_bytes(whole[8:16], "little")
    assert whole[24] == ord("{")
    for place in (*range(16, 24), *range(24, 24 + length, 16)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 7)
        path.write_bytes(damaged)
        files = files_of()
        assert len(files) == 0
        assert files.counts.damaged == 1
        assert not path.exists()


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 100_000,
        b"{}",
        b'{"belongs":"store 1","tokens":2,"owner":"","complete":false}',
        b'{"belongs":"store 1","tokens":1e999,"owner":"","complete":false}',
        b'{"belongs":"store 1","tokens":2,"owner":"","complete":false,"arrays":[["int32",[-1,-2]]]}',
    ],
    ids=lambda h: h[-20:].decode(),
)
def test_files_of_others_are_no_danger(files_of, header):
    owner = hashlib.blake2b(OWNER.encode(), digest_size=16).hexdigest().encode()
    header = header.replace(b'"owner":""', b'"owner":"%s"' % owner)
    folder = files_of()._folder
    lead = [b"CHKVPFX2", len(header).to_bytes(8, "little"), xxhash.xxh3_64_digest(header)]
    (folder / "a.prefix").write_bytes(b"".join([*lead, header, bytes(8)]))
    os.mkfifo(folder / "pipe.prefix")
    files = files_of()
    assert files.find(OWNER, np.zeros(5, np.int32), 0) is None
    assert not list(folder.iterdir())


def test_what_a_writer_left_that_died_goes(files_of):
    folder = files_of()._folder
    (folder / ".dead.prefix.tmp").write_bytes(b"half")
    with (folder / ".alive.prefix.tmp").open("wb") as writing:
        fcntl.flock(writing, fcntl.LOCK_EX)
        files_of()
        assert [path.name for path in folder.iterdir()] == [".alive.prefix.tmp"]


def test_files_are_bounded(loaded, files_of):
    files = files_of()
    cache = cache_of(loaded, files)
    state = loaded.network.new_state(64)
    for stop in (10, 20, 30, 40):
        prefill(
            loaded.network, state, TOKENS[state.position : stop], loaded.chunk_rows, lambda: None
        )
        cache.store("", state)
        point = next(p for p in cache.points() if p.position == stop)
        files.put(point, wait=True)
    files.close()
    paths = sorted(files._folder.iterdir(), key=lambda p: p.stat().st_size)
    assert len(paths) == 4
    for age, path in enumerate(paths):
        os.utime(path, ns=(age * 10**9 + 10**15, age * 10**9 + 10**15))
    sizes = [path.stat().st_size for path in paths]
    small = files_of(limit=sum(sizes[2:]))
    assert {path.name for path in small._folder.iterdir()} == {path.name for path in paths[2:]}
    assert files_of(limit=0)._folder.is_dir()
    assert not list(files._folder.iterdir())


def test_folders_that_are_not_ours(files_of, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(ConfigError, match="link"):
        files_of(folder=tmp_path / "link")
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError):
        files_of(folder=tmp_path / "file")


def test_a_link_in_the_folder_is_not_followed(loaded, state, files_of, tmp_path):
    path = spilled(loaded, state, files_of())
    path.rename(tmp_path / "elsewhere.bin")
    path.symlink_to(tmp_path / "elsewhere.bin")
    assert len(files_of()) == 0
    assert (tmp_path / "elsewhere.bin").exists()


def test_a_full_disk(loaded, state, files_of, monkeypatch):
    files = files_of()

    def full(path, data):
        raise DiskError(path, "write", 28)

    monkeypatch.setattr("cherenkov.prefix_files.write_file", full)
    cache = cache_of(loaded, files)
    cache.store(OWNER, state)
    files.put(next(cache.points()))
    files.close()
    assert files.counts.unwritten == 1
    assert len(files) == 0
