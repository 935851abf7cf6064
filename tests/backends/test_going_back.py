"""States that go back to a point, or are copied: bit for bit what a fresh sequence gives, on every backend."""

import numpy as np
import pytest

from cherenkov import Model
from cherenkov.errors import BackendError
from cherenkov.prefill import prefill
from cherenkov.state import Rows

PROMPT = list(range(100, 145))
BRANCHES = ([7, 8, 9], list(range(300, 321)), [11])


@pytest.fixture(scope="module", params=["reference", "native"])
def engine(request, glow_store):
    try:
        model = Model.load(glow_store, backend=request.param, context_tokens=128)
    except BackendError as error:
        pytest.skip(str(error))
    with model:
        yield model.responder.loaded


def run(engine, state, tokens):
    logits = prefill(engine.network, state, tokens, engine.chunk_rows, lambda: None)
    return engine.backend.host(logits).copy()


def fresh(engine, *parts):
    """The last logits of a sequence that reads these parts, one after the other."""
    state = engine.network.new_state(engine.context_tokens)
    return [run(engine, state, part) for part in parts][-1]


def test_going_back_again_and_again(engine):
    state = engine.network.new_state(engine.context_tokens)
    run(engine, state, PROMPT)
    point = state.snapshot(engine.backend)
    for branch in (*BRANCHES, BRANCHES[0]):
        found = run(engine, state, branch)
        assert np.array_equal(found, fresh(engine, PROMPT, branch))
        state.restore(point, engine.backend)
        assert state.tokens == PROMPT


def test_copies(engine):
    state = engine.network.new_state(engine.context_tokens)
    run(engine, state, PROMPT)
    copies = [state.copy(engine.backend) for _ in BRANCHES]
    run(engine, state, [1, 2, 3, 4, 5])
    for copy, branch in zip(copies, BRANCHES, strict=True):
        assert np.array_equal(run(engine, copy, branch), fresh(engine, PROMPT, branch))


def test_going_back_from_the_middle_of_a_step(engine):
    """A step that fails in a layer has advanced the layers before it, and not those behind."""
    state = engine.network.new_state(engine.context_tokens)
    run(engine, state, PROMPT)
    point = state.snapshot(engine.backend)
    layers = []

    def fail():
        if len(layers) == 5:
            raise ZeroDivisionError

    rows = Rows([(state, [5, 6, 7])])
    with pytest.raises(ZeroDivisionError):
        engine.network.forward(rows, lambda *layer: layers.append(layer), fail)
    state.restore(point, engine.backend)
    assert np.array_equal(run(engine, state, [9]), fresh(engine, PROMPT, [9]))
