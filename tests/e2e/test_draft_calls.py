"""The kernels' call that drafts, called as nobody should: refused, or right whoever else calls."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from cherenkov import Model
from cherenkov.errors import BackendError

MOST = 2**31 - 1


class Recorder:
    """An engine that remembers what its latest call to `guess` was given."""

    def __init__(self, engine):
        self._engine = engine

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def guess(self, *given):
        self.given = given
        return self._engine.guess(*given)


@pytest.fixture(scope="module")
def call(glow_store):
    """What calls `guess`, with arguments of its own where some are given by position."""
    try:
        model = Model.load(
            glow_store, backend="native", context_tokens=64, speculate="mtp", threads=2
        )
    except BackendError as error:
        pytest.skip(str(error))
    with model:
        backend = model.responder.loaded.backend
        engine, recorder = backend._engine, Recorder(backend._engine)
        backend._engine = recorder
        model.responder.loaded.speculation.pace.fixed = 2
        model.generate("One two three", raw=True, max_tokens=4, ignore_eos=True)
        backend._engine = engine

        def called(**changed):
            names = ("drafts", "tokens", "wide", "spans", "mixture", "ids", "whole")
            given = dict(zip(names, recorder.given, strict=True)) | changed
            return engine.guess(*given.values())

        called.given = recorder.given
        called.backend = backend
        yield called


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("position", [MOST - 8, MOST - 2, 65, 64])
def test_a_position_beyond_the_cache(call, position, depth):
    _, tokens, _, ((_, _, _, memory),), _, ids, _ = call.given
    rows = len(tokens)
    position = min(position, MOST - rows)
    deep = np.empty((depth, 1, ids.shape[2]), np.int32)
    with pytest.raises(BackendError, match="the cache is full"):
        call(spans=[(0, rows, position, memory)], ids=deep)


def test_an_embedding_without_all_that_may_be_guessed(call):
    import cherenkov._native as native

    backend = call.backend
    held = backend._head
    block, drafts = held.drafts.block, held.drafts
    describe = backend._described
    fuse, head = (describe[id(part)][1] for part in (drafts.fuse, drafts.head))
    record = describe[id(held.pool.layout)][1]
    experts = (record, held.pool.memory, held.table[block.index :], None, None)
    small = block.router.gate.placed  # as wide, and of fewer rows
    with pytest.raises(BackendError, match="no row in the embedding"):
        native.Drafts(fuse, small, held.trunk, head, experts)


def test_several_threads(call):
    """Each has its own sequence and its own guesses."""
    expected = {depth: chain(call, depth) for depth in (1, 2, 3, 4)}
    with ThreadPoolExecutor(4) as pool:
        for depth, found in pool.map(
            lambda depth: (depth, [chain(call, depth) for _ in range(200)]), expected
        ):
            assert found == [expected[depth]] * 200


def chain(call, depth):
    import cherenkov._native as native

    ids = np.empty((depth, 1, call.given[5].shape[2]), np.int32)
    return call(ids=ids, mixture=native.Mixture())
