"""The MLX backend against transformers' recorded vectors, and any pool against the whole one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from cherenkov.backends import available
from tests import tiny
from tests.golden.engine import Engine
from tests.golden.recorded import TOLERANCE, Recorded
from tests.golden.test_golden_tiny import Subject, chunks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MLX = next(a for a in available() if a.name == "mlx")
pytestmark = pytest.mark.skipif(not MLX.usable, reason=MLX.reason)
NAMES = [*tiny.TINY]


def test_glow(glow_store: Path) -> None:
    recorded = Recorded("glow-4bit")
    with Engine(glow_store, "mlx") as engine:
        for prompt in ("chat", "single"):
            recorded.check(engine.run(recorded.ids(prompt)).logits, prompt, 1e-4 + TOLERANCE)
        expected = recorded.greedy("chat")
        assert engine.greedy(recorded.ids("chat"), len(expected)) == expected


def test_glow_beyond_the_attention_budget(glow_store: Path) -> None:
    recorded = Recorded("glow-4bit")
    with Engine(glow_store, "mlx") as engine:
        run = engine.run(recorded.ids("prose"), [270, 9, 1, 1, 119])
    recorded.check(run.logits, "prose", 1e-4 + TOLERANCE)
    recorded.check_states(run.states, "prose", 1e-4 + TOLERANCE)


@pytest.fixture(scope="module", params=NAMES)
def subject(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Subject]:
    made = Subject(request.param, tmp_path_factory.mktemp(request.param))
    yield made
    made.engine.close()


def test_every_key_of_the_configuration(subject: Subject) -> None:
    recorded = subject.recorded
    with Engine(subject.store, "mlx") as engine:
        for prompt in ("crossing", "stops", "single"):
            ids = recorded.ids(prompt)
            run = engine.run(ids, chunks(len(ids), "uneven") if prompt == "crossing" else ())
            recorded.check(run.logits, prompt)
            recorded.check_states(run.states, prompt)
            if engine.network.drafts and prompt == "stops":
                drafts = engine.drafts(ids, 2, after=run)
                recorded.check(drafts, f"{prompt}/draft/{len(ids)}")


@pytest.mark.parametrize("subject", ["many-experts"], indirect=True)
def test_the_pool_does_not_show(subject: Subject) -> None:
    ids = subject.recorded.ids("stops")
    with Engine(subject.store, "mlx") as engine:
        whole, records = engine.run(ids), engine.experts.slots
        tokens = engine.greedy(ids, 4)
    for slots in (1, 3, records // 2):
        with Engine(subject.store, "mlx", slots=slots) as engine:
            for _ in range(2):
                run = engine.run(ids)
                assert np.array_equal(run.logits, whole.logits), slots
                assert engine.greedy(ids, 4) == tokens
