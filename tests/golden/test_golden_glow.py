"""The reference backend against transformers, on Glow from its BF16 and from its 4-bit weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from cherenkov.preparation import prepare
from tests.golden import glow
from tests.golden.engine import Engine, Run
from tests.golden.recorded import TOLERANCE, Recorded, notes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
from tests.tiny import fingerprint

PROMPTS = ("chat", "prose", "segments", "single")


class Subject:
    """Glow: recorded, prepared, opened."""

    def __init__(self, name: str, store: Path) -> None:
        self.name = name
        self.recorded = Recorded(name)
        self.engine = Engine(store)
        self._whole: dict[str, Run] = {}

    def whole(self, prompt: str) -> Run:
        """The prompt in one piece, run once."""
        if prompt not in self._whole:
            self._whole[prompt] = self.engine.run(self.recorded.ids(prompt))
        return self._whole[prompt]


@pytest.fixture(scope="module", params=["glow-4bit", "glow-bf16"])
def subject(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Subject]:
    if request.param == "glow-4bit":
        store = request.getfixturevalue("glow_store")
    else:
        source = request.getfixturevalue("glow_bf16")
        store = prepare(source, tmp_path_factory.mktemp("glow") / "store", bits=16)
    made = Subject(request.param, store)
    yield made
    made.engine.close()


def test_the_weights_are_those_recorded(subject: Subject, request: pytest.FixtureRequest) -> None:
    if subject.name == "glow-4bit":
        tensors = glow.dequantised()
    else:
        tensors = glow.half_precision(request.getfixturevalue("glow_bf16"))
    assert fingerprint(tensors) == notes(subject.name)["fingerprint"]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_logits(subject: Subject, prompt: str) -> None:
    subject.recorded.check(subject.whole(prompt).logits, prompt)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_final_states(subject: Subject, prompt: str) -> None:
    subject.recorded.check_states(subject.whole(prompt).states, prompt)


@pytest.mark.parametrize(
    ("prompt", "chunks"),
    [("chat", [1] * 22), ("segments", [1] * 43), ("prose", [270, 9, 1, 1, 119])],
    ids=["chat", "segments", "prose"],
)
def test_chunks_leave_the_same_logits_and_state(
    subject: Subject, prompt: str, chunks: list[int]
) -> None:
    whole = subject.whole(prompt)
    cut_up = subject.engine.run(subject.recorded.ids(prompt), chunks)
    subject.recorded.check(cut_up.logits, prompt)
    for key, expected in whole.states.items():
        scale = max(1.0, float(np.abs(expected).max()))
        assert np.abs(cut_up.states[key] - expected).max() <= TOLERANCE * scale, key


@pytest.mark.parametrize("prompt", PROMPTS)
def test_drafts(subject: Subject, prompt: str) -> None:
    ids, whole = subject.recorded.ids(prompt), subject.whole(prompt)
    for length in subject.recorded.draft_lengths(prompt):
        drafts = subject.engine.drafts(ids[:length], 2, after=whole)
        subject.recorded.check(drafts, f"{prompt}/draft/{length}")


def test_the_greedy_answer(subject: Subject) -> None:
    expected = subject.recorded.greedy("chat")
    assert subject.engine.greedy(subject.recorded.ids("chat"), len(expected)) == expected
    answer = notes(subject.name)["greedy"]
    assert answer.startswith("The capital of France is Paris.<|im_end|>")
