"""The native backend against transformers and against the reference, per instruction set and precision.

In float32 it must be within 1e-4 of the reference on Glow; with whatever activation precision it chooses by itself,
within 1e-2. A most likely token may differ only where the reference's margin is smaller than that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from cherenkov.backends import available
from cherenkov.backends.base import Options
from cherenkov.errors import BackendError
from tests import tiny
from tests.forced import FORCED
from tests.golden.engine import Engine, Run
from tests.golden.recorded import TOLERANCE, Recorded
from tests.golden.test_golden_tiny import NAMES, Subject, chunks, model

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NATIVE = next(a for a in available() if a.name == "native")
pytestmark = pytest.mark.skipif(not NATIVE.usable, reason=f"no native backend: {NATIVE.reason}")

ISAS = ("avx512_bf16", "avx512_vnni", "avx2", "portable")
EXACT, CHOSEN, COARSE = 1e-4, 1e-2, 1e-1
CASES = [
    *((isa, "float32", EXACT) for isa in ISAS),
    *((isa, "", CHOSEN) for isa in ISAS),
    ("avx512_bf16", "int16", CHOSEN),
    ("avx2", "int8", COARSE),
]


def open_native(store: Path, isa: str, precision: str, threads: int = 2) -> Engine:
    if FORCED and isa not in {"", FORCED}:
        pytest.skip(f"held to {FORCED}")
    options = Options(threads=threads, precision=precision, isa=isa or FORCED)
    try:
        return Engine(store, "native", options)
    except BackendError as error:
        pytest.skip(f"not on this CPU: {error}")


@pytest.fixture(scope="module")
def reference(glow_store: Path) -> Iterator[dict[str, Run]]:
    recorded = Recorded("glow-4bit")
    with Engine(glow_store) as engine:
        yield {p: engine.run(recorded.ids(p)) for p in ("chat", "segments", "single")}


@pytest.mark.parametrize(("isa", "precision", "tolerance"), CASES)
def test_glow_is_as_near_as_promised(
    glow_store: Path, reference: dict[str, Run], isa: str, precision: str, tolerance: float
) -> None:
    recorded = Recorded("glow-4bit")
    with open_native(glow_store, isa, precision) as engine:
        for prompt, theirs in reference.items():
            ours = engine.run(recorded.ids(prompt)).logits
            scale = max(1.0, float(np.abs(theirs.logits).max()))
            assert np.abs(ours - theirs.logits).max() <= tolerance * scale, prompt
            recorded.check(ours, prompt, tolerance + TOLERANCE)
        drafts = engine.drafts(recorded.ids("chat"), 2)
        recorded.check(drafts, f"chat/draft/{len(recorded.ids('chat'))}", tolerance + TOLERANCE)


@pytest.mark.parametrize("isa", ISAS)
def test_the_greedy_answer(glow_store: Path, isa: str) -> None:
    recorded = Recorded("glow-4bit")
    expected = recorded.greedy("chat")
    with open_native(glow_store, isa, "") as engine:
        assert engine.greedy(recorded.ids("chat"), len(expected)) == expected


def test_a_prompt_beyond_the_attention_budget(glow_store: Path) -> None:
    recorded = Recorded("glow-4bit")
    with open_native(glow_store, "", "float32") as engine:
        run = engine.run(recorded.ids("prose"), [270, 9, 1, 1, 119])
    recorded.check(run.logits, "prose", EXACT + TOLERANCE)
    recorded.check_states(run.states, "prose", EXACT + TOLERANCE)


@pytest.fixture(scope="module", params=NAMES)
def subject(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Subject]:
    made = Subject(request.param, tmp_path_factory.mktemp(request.param))
    yield made
    made.engine.close()


@pytest.mark.parametrize("isa", ["", "avx2", "portable"])
def test_every_key_of_the_configuration(subject: Subject, isa: str) -> None:
    recorded = subject.recorded
    with open_native(subject.store, isa, "float32") as engine:
        for prompt in ("crossing", "stops", "single"):
            ids = recorded.ids(prompt)
            run = engine.run(ids)
            recorded.check(run.logits, prompt)
            recorded.check_states(run.states, prompt)
            if engine.network.drafts:
                drafts = engine.drafts(ids, 2, after=run, chunks=[1] * len(ids))
                recorded.check(drafts, f"{prompt}/draft/{len(ids)}")


@pytest.mark.parametrize("precision", ["float32", ""])
def test_chunks_do_not_show(subject: Subject, precision: str) -> None:
    """Any cut of a prompt gives the same bits."""
    ids = subject.recorded.ids("crossing")
    with open_native(subject.store, "", precision) as engine:
        whole = engine.run(ids)
        for cut in ("uneven", "tokens"):
            pieces = engine.run(ids, chunks(len(ids), cut))
            assert np.array_equal(pieces.logits, whole.logits), cut
            for key, value in whole.states.items():
                assert np.array_equal(pieces.states[key], value), (cut, key)


@pytest.mark.parametrize("subject", ["many-experts"], indirect=True)
def test_pool_and_threads_do_not_show(subject: Subject) -> None:
    ids = subject.recorded.ids("stops")
    slots = model("many-experts").text["num_experts_per_tok"] - 1
    with open_native(subject.store, "", "", threads=1) as engine:
        whole = engine.run(ids).logits
    for threads, pool in ((1, slots), (2, None), (3, slots)):
        options = Options(threads=threads, isa=FORCED)
        with Engine(subject.store, "native", options, slots=pool) as engine:
            assert np.array_equal(engine.run(ids).logits, whole), (threads, pool)


def test_every_tiny_model_is_covered() -> None:
    assert {n.removesuffix("-4bit") for n in NAMES} == set(tiny.TINY)
