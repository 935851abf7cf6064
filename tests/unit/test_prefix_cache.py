"""Points of sequences: found by the longest prefix, shared by the page, bounded, apart by owner, exact."""

import numpy as np
import pytest

from cherenkov import Model
from cherenkov.errors import BackendError
from cherenkov.pages import PAGE_TOKENS
from cherenkov.prefill import prefill
from cherenkov.prefix_cache import PrefixCache

BIG = 1 << 30


@pytest.fixture(scope="module")
def loaded(glow_store):
    try:
        model = Model.load(glow_store, backend="native", context_tokens=1024)
    except BackendError as error:
        pytest.skip(str(error))
    with model:
        yield model.responder.loaded


@pytest.fixture(scope="module")
def tokens():
    return np.random.default_rng(1).integers(3, 4000, 900).tolist()


@pytest.fixture(scope="module")
def states(loaded, tokens):
    """States after so many of the tokens, and the logits there."""
    state, found = loaded.network.new_state(1024), {}
    for stop in (5, 100, PAGE_TOKENS, PAGE_TOKENS + 1, 600):
        logits = run(loaded, state, tokens[state.position : stop])
        found[stop] = state.copy(loaded.backend), logits
    return found


def run(loaded, state, tokens):
    logits = prefill(loaded.network, state, tokens, loaded.chunk_rows, lambda: None)
    return loaded.backend.copy(logits)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def cache_of(loaded, limit_bytes=BIG, **options):
    return PrefixCache(loaded.backend, limit_bytes=limit_bytes, **options)


def test_the_longest_prefix(loaded, tokens, states):
    cache = cache_of(loaded)
    assert cache.find("a", tokens) is None
    for stop in (600, 5, 256):
        assert cache.store("a", states[stop][0])
    assert cache.find("a", tokens).position == 600
    assert cache.find("a", tokens[:600]).position == 256  # the logits of what follows are not known
    assert cache.find("a", tokens[:601]).position == 600
    assert cache.find("a", [*tokens[:300], 7]).position == 256
    assert cache.find("a", [*tokens[:4], 7]) is None
    assert cache.shared("a", [*tokens[:300], 7, 8]) == 300
    assert cache.shared("a", [9]) == 0
    assert cache.store("a", *states[600])
    assert cache.find("a", tokens[:600]).position == 600
    assert len(cache) == 3


def test_owners_are_apart(loaded, tokens, states):
    cache = cache_of(loaded)
    cache.store("a", states[100][0])
    assert cache.find("b", tokens) is None
    assert cache.shared("b", tokens) == 0
    before = cache.size_bytes
    cache.store("b", states[100][0])
    assert cache.size_bytes == 2 * before  # not even pages are shared
    assert cache.find("b", tokens).owner == "b"


@pytest.mark.parametrize("stop", [5, 100, PAGE_TOKENS, PAGE_TOKENS + 1, 600])
def test_going_on_from_a_point_is_exact(loaded, tokens, states, stop):
    cache = cache_of(loaded)
    for one in states.values():
        cache.store("", one[0])
    point = cache.find("", tokens[: stop + 1])
    assert point.position == stop
    for _ in range(2):  # it is not used up
        state = loaded.network.new_state(640)
        point.resume(state, loaded.backend)
        assert state.tokens == tokens[:stop]
        following = tokens[stop : stop + 21]
        found = [run(loaded, state, [token]) for token in following[:3]]
        found.append(run(loaded, state, following[3:]))
        fresh = states[stop][0].copy(loaded.backend)
        wanted = [run(loaded, fresh, [token]) for token in following[:3]]
        wanted.append(run(loaded, fresh, following[3:]))
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one, other)


def test_pages_are_shared(loaded, states):
    one, both = cache_of(loaded), cache_of(loaded)
    both.store("", states[600][0])
    alone = both.size_bytes
    both.store("", states[PAGE_TOKENS][0])
    one.store("", states[5][0])
    # A page more than one of five tokens costs nothing: it is there. What differs is the tokens themselves.
    assert both.size_bytes - alone <= one.size_bytes + 4 * PAGE_TOKENS
    first = both.find("", [*states[600][0].tokens, 1]).pages[0]
    assert first is both.find("", [*states[PAGE_TOKENS][0].tokens, 1]).pages[0]


def test_bytes_are_counted_and_bounded(loaded, states):
    cache = cache_of(loaded)
    for one, _ in states.values():
        cache.store("", one)
    full = cache.size_bytes
    for limit in range(0, full, full // 7):
        small = cache_of(loaded, limit)
        for one, logits in states.values():
            small.store("", one, logits)
            assert small.size_bytes <= limit
            assert small.size_bytes == counted(small)
        small.clear()
        assert small.size_bytes == 0


def counted(cache):
    pages = {id(page): page.size_bytes for point in cache.points() for page in point.pages}
    return sum(pages.values()) + sum(point.own_bytes for point in cache.points())


def test_what_was_used_longest_ago_goes_first(loaded, tokens, states):
    gone, clock = [], Clock()
    cache = cache_of(loaded, limit_points=2, idle_s=10, clock=clock, elsewhere=Gone(gone))
    cache.store("", states[5][0])
    clock.now = 1
    cache.store("", states[100][0])
    clock.now = 2
    assert cache.find("", tokens[:50]).position == 5
    cache.store("", states[600][0])
    assert gone == [100]
    clock.now = 11.5
    cache.sweep()
    assert gone == [100]
    clock.now = 12.5
    cache.sweep()
    assert gone == [100, 5, 600]
    assert cache.counts.evictions == 3
    assert cache.size_bytes == len(cache) == 0


class Gone:
    """Notes what leaves, and finds nothing."""

    def __init__(self, positions):
        self.positions = positions

    def put(self, point):
        self.positions.append(point.position)

    def find(self, owner, prompt, longer_than):
        return None


def test_no_cache(loaded, tokens, states):
    for cache in (cache_of(loaded, 0), cache_of(loaded, limit_points=0)):
        assert not cache.is_on
        assert not cache.store("", *states[100])
        assert cache.find("", tokens) is None
