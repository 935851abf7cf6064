"""Reading ahead: what the predictor says, and whether it pays."""

import numpy as np
import pytest

from cherenkov import prepare
from cherenkov.experts.lookahead import Trial
from tests.golden.engine import Engine
from tests.tiny import TINY, weights, write_hf


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def run(trial, clock, steps, with_s, without_s):
    """Steps that take so long with reading ahead and without; how many were done with."""
    count = 0
    for i in range(steps):
        on = trial.begin()
        count += on
        noise = 1 + 0.3 * np.sin(i * 1.7)
        clock.now += (with_s if on else without_s) * noise
        trial.end()
    return count


@pytest.mark.parametrize(("with_s", "without_s"), [(1.0, 1.2), (1.2, 1.0), (1.0, 3.0), (3.0, 1.0)])
def test_the_faster_way_is_found_and_the_slower_one_is_rare(with_s, without_s):
    clock = Clock()
    trial = Trial("auto", clock)
    run(trial, clock, 1000, with_s, without_s)
    count = run(trial, clock, 8 * 33 * 4, with_s, without_s)
    rare = count if with_s > without_s else 8 * 33 * 4 - count
    assert 0 < rare <= 8 * 6


def test_a_change_of_circumstances_is_noticed():
    clock = Clock()
    trial = Trial("auto", clock)
    run(trial, clock, 1000, 1.0, 2.0)
    assert trial.on
    count = run(trial, clock, 2000, 2.0, 1.0)
    assert count < 1000
    assert run(trial, clock, 400, 2.0, 1.0) < 60


@pytest.mark.parametrize(("mode", "on"), [("on", True), ("off", False)])
def test_without_a_trial(mode, on):
    clock = Clock()
    assert run(Trial(mode, clock), clock, 100, 5.0, 1.0) == 100 * on


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    tiny, folder = TINY["many-experts"], tmp_path_factory.mktemp("tiny")
    return prepare(
        write_hf(folder / "source", tiny.config, weights(tiny.text, 5)), folder / "store"
    )


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_what_is_likely_is_what_would_be_chosen(store, backend):
    with Engine(store, backend) as engine:
        ops, block = engine.ops, engine.network.weights.layers[1]
        wide = ops.embed(engine.network.weights.embedding, np.arange(3, dtype=np.int32))
        before = ops.host(wide).copy()
        ids = engine.network.predict(block, wide)
        np.testing.assert_array_equal(ops.host(wide), before)
        chosen = ops.choose(block.moe_read, block.router, wide).ids  # the best three of five
        np.testing.assert_array_equal(ids, chosen[:, :3].T)


@pytest.mark.parametrize(
    ("slots", "lookahead", "looks"), [(6, "on", True), (6, "off", False), (None, "on", False)]
)
def test_nothing_is_predicted_when_all_is_here_or_nobody_wants_it(store, slots, lookahead, looks):
    with Engine(store, "native", slots=slots, lookahead=lookahead) as engine:
        engine.run([1, 2, 3, 4], [1] * 4)
        assert (engine.experts.stats.predictions > 0) == looks
        assert (engine.experts.stats.recall > 0) == looks


def test_prompts_are_not_predicted(store):
    with Engine(store, "native", slots=6, lookahead="on") as engine:
        engine.run(list(range(30)))
        assert engine.experts.stats.predictions == 0
