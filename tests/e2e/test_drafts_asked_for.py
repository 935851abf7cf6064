"""Drafts asked of models and in numbers that there are not."""

import json

import numpy as np
import pytest

from cherenkov import Model, prepare
from cherenkov.errors import BackendError, ConfigError, CorruptModel
from cherenkov.packing.store import PackedStore
from cherenkov_cli.main import run
from tests.tiny import TINY, weights, write_hf

PLAIN = TINY["plain"]


@pytest.fixture(scope="module")
def headless(tmp_path_factory):
    """A store whose checkpoint had a draft head, which nobody wanted."""
    folder = tmp_path_factory.mktemp("headless")
    source = write_hf(folder / "source", PLAIN.config, weights(PLAIN.text, PLAIN.seed))
    return prepare(source, folder / "store", draft_head=False)


def load(store, **options):
    try:
        return Model.load(store, backend="native", context_tokens=64, **options)
    except BackendError as error:
        pytest.skip(str(error))


def test_a_model_without_a_head(headless):
    assert PackedStore.open(headless).config["text_config"]["mtp_num_hidden_layers"] == 0
    with pytest.raises(ConfigError, match="no draft head") as caught:
        load(headless, speculate="mtp")
    assert caught.value.key == "speculate"
    said = {}
    for mode in ("auto", "ngram", "off"):
        with load(headless, speculate=mode) as model:
            said[mode] = model.generate("la la la la", raw=True, max_tokens=30, ignore_eos=True)
            assert (model.stats().drafts is None) == (mode == "off")
    assert len(set(said.values())) == 1
    load(headless, speculate="mtp", drafts=0).close()  # none are asked of it


def test_a_head_that_lacks_something(tmp_path, capsys):
    tensors = weights(PLAIN.text, PLAIN.seed)
    del tensors["mtp.fc_hidden.weight"]
    source = write_hf(tmp_path / "source", PLAIN.config, tensors)
    with pytest.raises(CorruptModel, match=r"mtp\.fc_hidden"):
        prepare(source, tmp_path / "with")
    store = tmp_path / "without"
    assert run(["prepare", str(source), "-o", str(store), "--no-draft-head", "-q"]) == 0
    assert capsys.readouterr().out == f"{store}\n"
    with load(store) as model:
        assert model.generate("la la", raw=True, max_tokens=4, ignore_eos=True)


@pytest.mark.parametrize("option", [["--drafts", "4"], ["--drafts", "-1"], ["--speculate", "yes"]])
def test_what_makes_no_sense_is_refused(glow_store, capsys, option):
    assert run(["run", str(glow_store), "Hello", *option]) == 1
    out, err = capsys.readouterr()
    assert not out
    assert option[0].strip("-") in err
    assert err.count("\n") == 1


def test_a_backend_whose_rows_depend_on_each_other_must_be_asked(glow_store):
    """There, drafts could change what is said; under `auto` there are none."""
    options = {"backend": "reference", "context_tokens": 64}
    with Model.load(glow_store, **options) as model:
        assert model.stats().drafts is None
        alone = model.generate("Once upon a time", raw=True, max_tokens=8, ignore_eos=True)
    with Model.load(glow_store, speculate="mtp", drafts=2, **options) as model:
        model.responder.loaded.speculation.pace.fixed = 3
        assert model.generate("Once upon a time", raw=True, max_tokens=8, ignore_eos=True) == alone
        drafts = model.stats().drafts
        assert 0 < sum(drafts.accepted["mtp"]) < sum(drafts.drafted["mtp"])
        json.dumps(model.stats().as_dict())


def test_rows_that_stay_are_run_again_where_they_cannot_be_taken_back(glow_store):
    """A state that was copied before is what a sequence is that read the same tokens in the same steps."""
    from cherenkov.lane import Lane, Wanted
    from cherenkov.sampling import Sampling
    from cherenkov.state import Rows
    from cherenkov.stepping import Stepper

    options = {"backend": "reference", "context_tokens": 64, "speculate": "mtp", "drafts": 3}
    with Model.load(glow_store, **options) as model:
        loaded = model.responder.loaded
        loaded.speculation.pace.fixed = 3
        prompt = model.encode_prompt("Once upon a time", raw=True)
        lane = Lane(loaded, prompt, Wanted(Sampling(temperature=1.0, seed=1), frozenset(), 10))
        other, stepper = loaded.network.new_state(64), Stepper(loaded)
        while not lane.is_over:
            before, running = lane.state.position, list(lane.pending)
            found = [step.token for step in stepper.step([lane])[0]]
            stayed = lane.state.position - before
            loaded.network.forward(Rows([(other, [*running, *found][:stayed])]))
            assert other.tokens == lane.state.tokens
            for one, two in zip(lane.state.layers, other.layers, strict=True):
                for name in ("matrix", "history", "keys", "values", "index_keys"):
                    if hasattr(one, name):
                        pair = getattr(one, name), getattr(two, name)
                        rows = (
                            len(other.tokens) if name in ("keys", "values", "index_keys") else None
                        )
                        np.testing.assert_allclose(*(part[:rows] for part in pair), atol=2e-5)
