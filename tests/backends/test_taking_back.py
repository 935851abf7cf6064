"""Rows that are taken back: whatever stays, the sequence is what it would be if the others had never been run, bit for bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cherenkov import Model
from cherenkov.backends.base import AttentionState, DeltaState
from cherenkov.errors import BackendError
from cherenkov.state import Rows

CONTEXT = 96
ATTENTION = ("keys", "values", "index_keys")


@pytest.fixture(scope="module")
def loaded(glow_store):
    try:
        model = Model.load(glow_store, backend="native", context_tokens=CONTEXT)
    except BackendError as error:
        pytest.skip(str(error))
    with model:
        yield model.responder.loaded


def memory(loaded, state):
    """Everything that a sequence is, by name."""
    network, ops = loaded.network, loaded.backend
    at, found = state.position, {"tokens": np.array(state.tokens)}
    ops.rewind(state, at)
    for index, layer in enumerate(state.layers):
        if isinstance(layer, DeltaState):
            mixer = network.weights.layers[index].mixer
            found[f"{index} matrix"] = ops.settled(mixer, layer, at)
            found[f"{index} history"] = ops.behind(layer, at)
        else:
            assert layer.length == at
            found |= attention(index, layer, network.config.block)
    found |= {f"{index} ple": ops.behind(ple, at) for index, ple in state.ple.items()}
    return found | attention("draft", state.draft, network.config.block)


def attention(name, layer: AttentionState, block):
    found = {f"{name} {part}": getattr(layer, part)[: layer.length] for part in ATTENTION}
    return found | {f"{name} blocks": layer.block_keys[: layer.length // block]}


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in found.items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


def fresh(loaded, tokens, cut=None):
    state = loaded.network.new_state(CONTEXT)
    for part in [tokens] if cut is None else np.split(tokens, cut):
        wide = loaded.network.forward(Rows([(state, part)]))
    return state, loaded.backend.host(loaded.network.logits(wide, [len(part) - 1])).copy()


Moves = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=22)


@settings(max_examples=15)
@given(st.integers(1, 20), Moves, st.integers(0, 2**32))
def test_what_stays_is_all_there_is(loaded, prompt, moves, seed):
    """Steps of up to four rows, of which only the first few stay."""
    random = np.random.default_rng(seed)
    network = loaded.network
    state = network.new_state(CONTEXT)
    network.forward(Rows([(state, random.integers(0, 8192, prompt))]))
    for rows, stay in moves:
        tokens = random.integers(0, 8192, rows).tolist()
        if state.position + rows > CONTEXT:
            break
        wide = network.forward(Rows([(state, tokens)]))
        kept = min(stay, rows)
        logits = loaded.backend.host(network.logits(wide, [kept - 1])).copy()
        start = state.position - rows
        state.go_back(
            start + 1
        )  # as a lane does: first all the drafts go, then those stay that were right
        for token in tokens[1:kept]:
            state.stay(token)
    expected, expected_logits = fresh(loaded, state.tokens)
    same(memory(loaded, state), memory(loaded, expected))
    np.testing.assert_array_equal(logits, expected_logits)


def test_every_place_in_a_chunk(loaded):
    """Drafts before, across and behind the border of a chunk, all lengths, all that can stay."""
    tokens = np.random.default_rng(5).integers(0, 8192, 40).tolist()
    for start in (13, 14, 15, 16, 17):
        for rows in (2, 4):
            for kept in range(1, rows + 1):
                state, _ = fresh(loaded, tokens[:start])
                drafts = [*tokens[start : start + kept], *(7, 8, 9)][:rows]
                loaded.network.forward(Rows([(state, drafts)]))
                state.go_back(start + kept)
                same(memory(loaded, state), memory(loaded, fresh(loaded, state.tokens)[0]))
                loaded.network.forward(Rows([(state, tokens[start + kept :])]))
                same(memory(loaded, state), memory(loaded, fresh(loaded, tokens)[0]))


def test_sequences_side_by_side_go_back_apart(loaded):
    random = np.random.default_rng(3)
    prompts = [random.integers(0, 8192, n).tolist() for n in (14, 15, 30)]
    states = [fresh(loaded, prompt)[0] for prompt in prompts]
    for kept in ((1, 3, 2), (2, 2, 2), (4, 1, 4), (1, 1, 1)):
        drafts = [random.integers(0, 8192, n).tolist() for n in (4, 3, 4)]
        loaded.network.forward(Rows(list(zip(states, drafts, strict=True))))
        for state, run, n in zip(states, drafts, kept, strict=True):
            state.go_back(state.position - len(run) + n)
    for state in states:
        same(memory(loaded, state), memory(loaded, fresh(loaded, state.tokens)[0]))


def test_copies_and_snapshots_know_what_was_taken_back(loaded):
    tokens = np.random.default_rng(8).integers(0, 8192, 30).tolist()
    for kept in (1, 2, 3, 4):
        state, _ = fresh(loaded, tokens[:15])
        loaded.network.forward(Rows([(state, tokens[15:19])]))
        state.go_back(15 + kept)
        copy, point = state.copy(loaded.backend), state.snapshot(loaded.backend)
        loaded.network.forward(Rows([(state, [1, 2, 3])]))
        state.restore(point, loaded.backend)
        for each in (state, copy):
            loaded.network.forward(Rows([(each, tokens[15 + kept :])]))
            same(memory(loaded, each), memory(loaded, fresh(loaded, tokens)[0]))


def test_what_was_certain_stays(loaded):
    state, _ = fresh(loaded, list(range(40)))
    with pytest.raises(AssertionError):
        state.go_back(39)  # a prompt's rows
    loaded.network.forward(Rows([(state, [1, 2])]))
    with pytest.raises(AssertionError):
        state.go_back(40)  # the token that was sampled
    state.go_back(41)


def test_the_same_on_mlx(glow_store):
    """States stay where they were; what a step's rows left behind is taken up by the next one."""
    pytest.importorskip("mlx.core")
    random = np.random.default_rng(11)
    with Model.load(glow_store, backend="mlx", context_tokens=CONTEXT) as model:
        loaded = model.responder.loaded
        state, _ = fresh(loaded, random.integers(0, 8192, 13).tolist())
        for rows, kept in ((4, 2), (3, 3), (4, 1), (1, 1), (2, 1)):
            loaded.network.forward(Rows([(state, random.integers(0, 8192, rows).tolist())]))
            state.go_back(state.position - rows + kept)
        copy, point = state.copy(loaded.backend), state.snapshot(loaded.backend)
        tokens, more = list(state.tokens), [3, 1, 4]
        loaded.network.forward(Rows([(state, more)]))
        expected = shown(loaded, fresh(loaded, [*tokens, *more])[0])
        state.restore(point, loaded.backend)
        for each in (state, copy):
            loaded.network.forward(Rows([(each, more)]))
            for name, value in shown(loaded, each).items():
                np.testing.assert_allclose(value, expected[name], atol=1e-4, err_msg=name)


def shown(loaded, state):
    """`memory`, looked at by the thread that may."""
    from cherenkov.backends.mlx_owner import OWNER

    return OWNER.call(lambda: {k: np.array(v) for k, v in memory(loaded, state).items()})
