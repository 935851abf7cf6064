"""Missing experts brought by the kernels: the store afterwards is what it would be, and either side goes on for the other."""

import os

import numpy as np
import pytest

from cherenkov import prepare
from cherenkov.backends import native_weights
from cherenkov.errors import BackendError, DiskError
from cherenkov.experts.reader import RecordReader
from tests.golden.engine import Engine
from tests.tiny import TINY, weights, write_hf

pytestmark = pytest.mark.skipif(bool(native_weights.missing), reason="no native kernels here")
PROMPT, COUNT = [7, 3, 9, 4, 1, 8], 25


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    tiny, folder = TINY["many-experts"], tmp_path_factory.mktemp("tiny")
    source = write_hf(folder / "source", tiny.config, weights(tiny.text, 3))
    return prepare(source, folder / "store")


def run(store, slots, *, flows=True, **how):
    with Engine(store, "native", slots=slots, **how) as engine:
        if not flows:
            engine.experts.flow = lambda: None
        calls = spy(engine.experts)
        found = engine.greedy(PROMPT, COUNT)
        check(engine.experts)
        return found, engine.experts.stats.copy(), calls


def spy(experts):
    """How often layers came to Python for experts."""
    calls, acquire = [], experts.acquire

    def counted(layer, *given):
        calls.append(layer)
        return acquire(layer, *given)

    experts.acquire = counted
    return calls


def check(experts, *, counted=True):
    """Everything that is said twice is said alike; an interruption may cost counts of one step."""
    slots, stats = experts._slots, experts.stats
    table = slots.table.ravel()
    for record in np.flatnonzero(table >= 0).tolist():
        assert slots.record_in[table[record]] == record
    held = {int(r) for r in slots.record_in if r >= 0}
    assert held == set(np.flatnonzero(table >= 0).tolist())
    assert {c.record for c in slots.awaiting.values()} == set(slots.coming)
    assert not held & set(slots.coming)
    policy = experts._policy
    for slot in range(experts.slots):
        coming = slots.awaiting.get(slot)
        expected = slots.record_in[slot] if coming is None else coming.record
        assert policy.record_in[slot] == expected
    assert bool(slots._settled.all()) == (not slots.awaiting)
    kinds = (stats.demand, stats.prefill, stats.prediction)
    under_way = sum(k.requested - k.completed - k.cancelled - k.failed for k in kinds)
    assert under_way == len(slots.awaiting)
    assert stats.misses == stats.demand.requested + stats.prefill.requested + stats.joined
    counts = experts.counts
    assert not counted or counts.misses.sum() == stats.misses
    assert not counted or counts.asks.sum() == stats.hits + stats.misses
    assert not counted or counts.predicted.sum() == stats.prediction.requested
    assert set(np.flatnonzero(slots.unasked)) <= held


@pytest.mark.parametrize("lookahead", ["off", "on"])
@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_the_store_is_left_as_it_should_be(store, share, lookahead):
    with Engine(store, "native") as engine:
        records, expected = engine.experts.slots, engine.greedy(PROMPT, COUNT)
    slots = int(share * records)
    tokens, stats, calls = run(store, slots, lookahead=lookahead)
    without, plain, all_calls = run(store, slots, lookahead=lookahead, flows=False)
    assert tokens == without == expected
    assert len(calls) < len(all_calls)
    assert stats.hits + stats.misses == plain.hits + plain.misses
    if lookahead == "on":
        assert stats.predictions > 0
        assert stats.useful_predictions + stats.joined > 0
    else:
        assert stats.prediction.requested == 0


@pytest.mark.parametrize("slots", [4, 5, 7, 12, 20])
def test_small_pools_change_hands_all_the_time(store, slots):
    with Engine(store, "native") as engine:
        expected = engine.greedy(PROMPT, COUNT)
    assert run(store, slots, lookahead="on")[0] == expected


def test_a_predictor_of_ones_own_is_asked(store):
    """Kernels know but one: with another, layers that lack experts come to Python."""
    with Engine(store, "native", slots=20, lookahead="on") as engine:
        asked, router = [], engine.network.predict

        def predict(block, wide):
            asked.append(block.index)
            return router(block, wide)

        engine.network.predict = predict
        engine.greedy(PROMPT, 5)
        assert asked
        check(engine.experts)


def test_an_interruption_while_taking_over_loses_nothing(store):
    with Engine(store, "native") as engine:
        expected = engine.greedy(PROMPT, COUNT)
    with Engine(store, "native", slots=20, lookahead="on") as engine:
        flow = engine.experts._slots.flow
        take, left = flow._take, [0]

        def interrupted(*event):
            left[0] += 1
            if left[0] % 40 == 7:
                raise KeyboardInterrupt
            take(*event)

        flow._take = interrupted
        struck, found = 0, []
        while len(found) < 8:
            try:
                found = engine.greedy(PROMPT, 8)
            except KeyboardInterrupt:
                struck += 1
                if struck == 10:
                    flow._take = take
        assert struck == 10
        assert engine.greedy(PROMPT, COUNT) == expected
        check(engine.experts, counted=False)


def test_a_disk_that_fails_meanwhile_fails_the_request_and_no_other(store, tmp_path):
    """Every read is an error once the descriptors are closed."""
    readers = []

    def make(*given, **how):
        readers.append(RecordReader(*given, **how))
        return readers[-1]

    with Engine(store, "native") as engine:
        expected = engine.greedy(PROMPT, COUNT)
    with Engine(store, "native", slots=20, make_reader=make, lookahead="on") as engine:
        assert engine.greedy(PROMPT, COUNT) == expected
        reader = readers[0]
        hole = os.open(tmp_path, os.O_RDONLY)  # a folder: reading is EISDIR
        files = [file for file in (reader._file, reader._direct) if file >= 0]
        kept = [os.dup(file) for file in files]
        for file in files:
            os.dup2(hole, file)
        with pytest.raises(DiskError, match="record"):
            engine.greedy(PROMPT[::-1], COUNT)
        for file, good in zip(files, kept, strict=True):
            os.dup2(good, file)
            os.close(good)
        os.close(hole)
        assert engine.greedy(PROMPT, COUNT) == expected
        assert engine.experts.stats.demand.failed > 0


def test_what_is_lent_must_make_sense(store):
    with Engine(store, "native", slots=20) as engine:
        engine.greedy(PROMPT, 2)
        flow, layers = engine.experts._slots.flow._native, engine.experts.layers
        for terms in (
            ([20], [], []),
            ([], [(-1, 0, True, False)], []),
            ([], [(0, 20, True, False)], []),
            ([], [], [(layers, [])]),
            ([], [], [(0, [engine.experts.experts])]),
        ):
            with pytest.raises(BackendError):
                flow.lend(*terms, False, 4, False)
