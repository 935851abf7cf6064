"""Drafts change nothing in what is said: not a token, not a bit of a logit, not a sampled word."""

import numpy as np
import pytest

from cherenkov import Model, Sampling
from cherenkov.errors import BackendError
from cherenkov.lane import Lane, Wanted
from cherenkov.state import Rows
from cherenkov.stepping import Stepper
from tests.backends.test_taking_back import attention, memory, same

PROMPTS = {
    "chat": "Tell me a story about a little fox.",
    "prose": "The old man looked at the sea, and then",
    "echo": "one two three four one two three four one two three four one two",
}
SAMPLINGS = {
    "greedy": Sampling(),
    "penalised": Sampling(repetition_penalty=1.3, frequency_penalty=0.4, logit_bias={300: 2.0}),
    "sampled": Sampling(temperature=0.9, top_p=0.95, top_k=50, min_p=0.01, seed=5),
    "hot": Sampling(temperature=1.2, presence_penalty=0.7, seed=6),
}
ANSWERS = (
    ("chat", "greedy"),
    ("chat", "hot"),
    ("prose", "sampled"),
    ("echo", "penalised"),
    ("echo", "greedy"),
)
LENGTH = 40


def load(store, **options):
    try:
        return Model.load(store, backend="native", context_tokens=256, **options)
    except BackendError as error:
        pytest.skip(str(error))


class Answer:
    """An answer, with every row of logits that a token was chosen from."""

    def __init__(self, model, prompt, sampling, stop_ids=frozenset(), length=LENGTH):
        loaded = model.responder.loaded
        self.lane = Lane(loaded, prompt, Wanted(sampling, stop_ids, length))
        self.rows, self.tokens, self.sizes = [], [], []
        decide = self.lane._decide

        def decided(logits):
            self.rows.append(logits.copy())
            return decide(logits)

        self.lane._decide = decided
        stepper = Stepper(loaded)
        while not self.lane.is_over:
            (steps,) = stepper.step([self.lane])
            found = [step.token for step in steps]
            self.sizes.append(len(found))
            self.tokens += found


@pytest.fixture(scope="module")
def expected(glow_store):
    with load(glow_store, speculate="off") as model:
        return {
            (text, how): Answer(model, model.encode_prompt(PROMPTS[text], raw=True), SAMPLINGS[how])
            for text, how in ANSWERS
        }


class Eager:
    """Always as many drafts as there may be: what pays is another matter."""

    def __init__(self, model):
        speculation = model.responder.loaded.speculation
        speculation.pace.fixed = 3
        self.counts = speculation.counts


@pytest.mark.parametrize(
    ("mode", "drafts", "pool"),
    [
        ("mtp", 1, None),
        ("mtp", 3, None),
        ("mtp", 3, 0.002),
        ("ngram", 3, None),
        ("auto", 2, 0.004),
    ],
)
def test_the_answer_is_the_same(glow_store, expected, mode, drafts, pool):
    with load(glow_store, speculate=mode, drafts=drafts, pool=pool) as model:
        counts = Eager(model).counts
        for (text, how), answer in expected.items():
            found = Answer(model, model.encode_prompt(PROMPTS[text], raw=True), SAMPLINGS[how])
            assert found.tokens == answer.tokens
            for one, other in zip(found.rows, answer.rows, strict=True):
                np.testing.assert_array_equal(one, other)
            same_memory(model, found.lane.state, answer.lane.state)
        assert counts.tokens == sum(len(answer.tokens) - 1 for answer in expected.values())
        # Something was tried, and something of it was right and wrong.
        drafted, accepted = (sum(map(sum, of.values())) for of in (counts.drafted, counts.accepted))
        assert 0 < accepted < drafted


def same_memory(model, found, answer):
    """The sequences themselves; the draft head belongs to the one that used it."""
    loaded = model.responder.loaded
    one, other = (memory(loaded, state) for state in (found, answer))
    for name in [name for name in one if name.startswith("draft")]:
        del one[name], other[name]
    same(one, other)


def test_the_head_is_in_step(glow_store):
    """Whatever was drafted and taken back, the head's cache is that of a head that read the text once."""
    with load(glow_store, speculate="mtp", drafts=3) as model:
        Eager(model)
        loaded = model.responder.loaded
        for name, prompt in PROMPTS.items():
            found = Answer(model, model.encode_prompt(prompt, raw=True), SAMPLINGS["hot"]).lane
            network, block = loaded.network, loaded.network.config.block
            state = network.new_state(loaded.context_tokens)
            wide = network.forward(Rows([(state, found.state.tokens)]))
            network.draft(Rows([(state, [*state.tokens[1:], found.pending[0]])]), wide)
            loaded.speculation._head.catch_up(found.state)
            state.set_draft_position(found.state.draft_position)
            assert found.state.draft_position >= found.state.position - 1, name
            same(
                attention("draft", found.state.draft, block),
                attention("draft", state.draft, block),
            )


def test_several_lanes_share_a_step(glow_store, expected):
    """Each with its own drafts, and its own of them taken back."""
    with load(glow_store, speculate="auto", drafts=3) as model:
        counts = Eager(model).counts
        loaded = model.responder.loaded
        loaded.speculation.most_lanes = 5
        lanes, found = {}, {}
        for text, how in expected:
            prompt = model.encode_prompt(PROMPTS[text], raw=True)
            wanted = Wanted(SAMPLINGS[how], frozenset(), LENGTH)
            lanes[text, how] = Lane(loaded, prompt, wanted)
            found[text, how] = []
        stepper, turn = Stepper(loaded), 0
        while lanes:
            names = sorted(lanes)[turn % 3 : turn % 3 + 5] or sorted(lanes)
            rows = [min(len(lanes[name].pending), 3 + turn % 4) for name in names]
            for name, steps in zip(
                names, stepper.step([lanes[name] for name in names], rows), strict=True
            ):
                found[name] += [step.token for step in steps]
                if lanes[name].is_over:
                    del lanes[name]
            turn += 1
        assert found == {name: answer.tokens for name, answer in expected.items()}
        assert all(sum(drafted) for drafted in counts.drafted.values())


def test_who_shares_a_step_does_without(glow_store, expected):
    """Unless drafts were asked for; and who is alone again has those of the text."""
    with load(glow_store, speculate="auto", drafts=3) as model:
        counts = Eager(model).counts
        loaded, answer = model.responder.loaded, expected["chat", "greedy"]
        prompt = model.encode_prompt(PROMPTS["chat"], raw=True)
        one, other = (Lane(loaded, prompt, Wanted(Sampling(), frozenset(), LENGTH)) for _ in "ab")
        stepper, said = Stepper(loaded), []
        for _ in range(9):
            for lane, steps in zip((one, other), stepper.step([one, other]), strict=True):
                said += [step.token for step in steps if lane is one]
        assert (sum(counts.rows[1:]), len(said)) == (0, 9)
        while not one.is_over:
            said += [step.token for step in stepper.step([one])[0]]
        assert said == answer.tokens
        assert sum(counts.drafted["mtp"]) == 0


def test_no_more_than_was_asked_for(glow_store, expected):
    answer = expected["chat", "greedy"]
    with load(glow_store, speculate="mtp", drafts=3) as model:
        Eager(model)
        prompt = model.encode_prompt(PROMPTS["chat"], raw=True)
        for length in range(1, 9):
            found = Answer(model, prompt, Sampling(), length=length)
            assert found.tokens == answer.tokens[:length]
            assert found.lane.state.position == len(prompt) + length - 1
        for at in range(0, 12, 3):
            stop = answer.tokens[at]
            found = Answer(model, prompt, Sampling(), frozenset({stop}))
            assert found.tokens == answer.tokens[: answer.tokens.index(stop) + 1]
            assert found.lane.state.tokens == [*prompt, *found.tokens[:-1]]


def test_a_context_without_room_for_drafts(glow_store, expected):
    """The last tokens of a context are said without drafts: nothing must be kept free for them."""
    answer = expected["chat", "greedy"]
    with load(glow_store, speculate="mtp", drafts=3) as model:
        prompt = model.encode_prompt(PROMPTS["chat"], raw=True)
    for room in (0, 1, 2, 5):
        try:
            model = Model.load(
                glow_store, backend="native", context_tokens=len(prompt) + room, speculate="mtp"
            )
        except BackendError as error:
            pytest.skip(str(error))
        with model:
            Eager(model)
            found = Answer(model, prompt, Sampling(), length=None)
            assert found.tokens == answer.tokens[: room + 1]


def test_whoever_stops_listening_leaves_no_trace(glow_store, expected):
    """Tokens that were guessed right and never asked for are as if they had not been tried; so is their random number."""
    for how in ("greedy", "hot"):
        answer = expected["chat", how]
        with load(glow_store, speculate="mtp", drafts=3) as model:
            Eager(model)
            loaded = model.responder.loaded
            prompt = model.encode_prompt(PROMPTS["chat"], raw=True)
            for count in range(1, 20, 3):
                random = SAMPLINGS[how].generator()
                lane = Lane(
                    loaded, prompt, Wanted(SAMPLINGS[how], frozenset(), LENGTH), None, random
                )
                stepper, tokens = Stepper(loaded), []
                while len(tokens) < count:
                    (steps,) = stepper.step([lane])
                    for step in steps:
                        tokens.append(step.token)
                        if len(tokens) == count:
                            break
                assert tokens == answer.tokens[:count]
                assert lane.state.tokens == [*prompt, *tokens[:-1]]
                if how == "hot":
                    drawn = SAMPLINGS[how].generator()
                    drawn.random(count)
                    assert random.bit_generator.state == drawn.bit_generator.state
