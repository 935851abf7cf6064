"""The reference backend against transformers, on seeded models that vary every key of the configuration."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from cherenkov.preparation import prepare
from tests import tiny
from tests.golden.engine import Engine, Run
from tests.golden.recorded import FOUR_BIT, QUANTISED, TOLERANCE, Recorded, notes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROMPTS = ("crossing", "stops", "single")
NAMES = [*tiny.TINY, *QUANTISED]


def make_store(folder: Path, config: dict[str, Any], tensors: tiny.Tensors, bits: int = 16) -> Path:
    """A store of a checkpoint written on the way; by default one that keeps every weight as it is."""
    source = tiny.write_hf(folder / "source", config, tensors)
    return prepare(source, folder / "store", bits=bits, threads=1)


def model(name: str) -> tiny.Tiny:
    """What was recorded under a name."""
    return tiny.TINY[name.removesuffix(FOUR_BIT)]


DRAFTING = [n for n in NAMES if model(n).text.get("mtp_num_hidden_layers")]


class Subject:
    """One tiny model: recorded, prepared, opened."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.tiny = name, model(name)
        self.tensors = tiny.weights(self.tiny.text, self.tiny.seed)
        self.recorded = Recorded(name)
        bits = 4 if name in QUANTISED else 16
        self.store = make_store(folder, self.tiny.config, self.tensors, bits)
        self.engine = Engine(self.store)
        self._whole: dict[str, Run] = {}

    def whole(self, prompt: str) -> Run:
        """The prompt in one piece, run once."""
        if prompt not in self._whole:
            self._whole[prompt] = self.engine.run(self.recorded.ids(prompt))
        return self._whole[prompt]


@pytest.fixture(scope="module", params=NAMES)
def subject(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Subject]:
    made = Subject(request.param, tmp_path_factory.mktemp(request.param))
    yield made
    made.engine.close()


def test_the_weights_are_those_recorded(subject: Subject) -> None:
    tensors = subject.tensors
    if subject.name in QUANTISED:
        tensors = tiny.four_bit(subject.tiny.text, tensors)
    assert tiny.fingerprint(tensors) == notes(subject.name)["fingerprint"]
    for prompt, ids in tiny.prompts(subject.tiny).items():
        assert subject.recorded.ids(prompt) == ids


@pytest.mark.parametrize("prompt", PROMPTS)
def test_logits(subject: Subject, prompt: str) -> None:
    subject.recorded.check(subject.whole(prompt).logits, prompt)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_final_states(subject: Subject, prompt: str) -> None:
    subject.recorded.check_states(subject.whole(prompt).states, prompt)


@pytest.mark.parametrize("cut", ["uneven", "tokens"])
@pytest.mark.parametrize("prompt", PROMPTS[:2])
def test_chunks_leave_the_same_logits_and_state(subject: Subject, prompt: str, cut: str) -> None:
    ids = subject.recorded.ids(prompt)
    whole, cut_up = subject.whole(prompt), subject.engine.run(ids, chunks(len(ids), cut))
    subject.recorded.check(cut_up.logits, prompt)
    assert whole.states.keys() == cut_up.states.keys()
    for key, expected in whole.states.items():
        scale = max(1.0, float(np.abs(expected).max()))
        assert np.abs(cut_up.states[key] - expected).max() <= TOLERANCE * scale, key


def chunks(length: int, cut: str) -> list[int]:
    """Ways to cut a prompt; the uneven one has chunks shorter than a convolution and longer than an index block."""
    if cut == "tokens":
        return [1] * length
    return [2, 1, 9, 5, 1, length - 18]


@pytest.mark.parametrize("subject", DRAFTING, indirect=True)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_drafts(subject: Subject, prompt: str) -> None:
    ids, whole = subject.recorded.ids(prompt), subject.whole(prompt)
    for length in subject.recorded.draft_lengths(prompt):
        drafts = subject.engine.drafts(ids[:length], 2, after=whole)
        subject.recorded.check(drafts, f"{prompt}/draft/{length}")
    one_by_one = subject.engine.drafts(ids, 2, after=whole, chunks=[1] * len(ids))
    subject.recorded.check(one_by_one, f"{prompt}/draft/{len(ids)}")


def test_only_models_with_a_head_draft(subject: Subject) -> None:
    assert subject.engine.network.drafts == (subject.name in DRAFTING)


@pytest.mark.parametrize("subject", ["many-experts"], indirect=True)
def test_a_small_pool_changes_nothing(subject: Subject) -> None:
    with Engine(subject.store, slots=subject.tiny.text["num_experts_per_tok"] - 1) as small:
        run = small.run(subject.recorded.ids("stops"))
    assert np.array_equal(run.logits, subject.whole("stops").logits)


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("plain", {"output_gate_type": "silu"}),
    ("null-gate", {"output_gate_type": "sigmoid"}),
    ("defaults", {"output_gate_type": "sigmoid"}),
    ("two-streams", {"norm_topk_prob": True}),
    ("many-experts", {"norm_topk_prob": True}),
    ("many-experts", {"num_experts_per_tok": 4}),
    ("two-ple", {"eos_token_id": [tiny.EOS, tiny.IM_END]}),
    ("null-gate", {"eos_token_id": [tiny.IM_END, tiny.EOS]}),
    ("plain", {"indexer_budget": 512}),
    ("plain", {"indexer_budget": 12}),
    ("block-of-one", {"indexer_budget": 11}),
    ("flat-text", {"partial_rotary_factor": 0.5}),
    ("defaults", {"rope_theta": 10000.0}),
    ("tied", {"rms_norm_eps": 1e-6}),
]


@pytest.mark.parametrize(
    ("name", "change"), WRONG, ids=lambda v: v if isinstance(v, str) else next(iter(v))
)
def test_the_vectors_notice_a_key_read_wrongly(
    name: str, change: dict[str, Any], tmp_path: Path
) -> None:
    one, recorded = tiny.TINY[name], Recorded(name)
    config = copy.deepcopy(one.config)
    config.get("text_config", config).update(change)
    with Engine(make_store(tmp_path, config, tiny.weights(one.text, one.seed))) as engine:
        prompt = "stops" if "eos_token_id" in change else "crossing"
        logits = engine.run(recorded.ids(prompt)).logits
    with pytest.raises(AssertionError, match="allowed"):
        recorded.check(logits, prompt)
