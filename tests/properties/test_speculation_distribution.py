"""Sampling with drafts draws from the model's own distribution: counted, against exact probabilities."""

from functools import cache

import numpy as np
import pytest

from cherenkov import Model, Sampling
from cherenkov.backends.reference import Reference
from cherenkov.errors import BackendError
from cherenkov.lane import Lane, Loaded, Wanted
from cherenkov.sampling import candidates, penalised
from cherenkov.speculation import Speculation
from cherenkov.state import State
from cherenkov.stepping import Stepper

DRAWS = 20_000
REACH = 16
"""Tokens that the models here can see, at least."""


class Rewindable(Reference):
    """A backend for models whose sequences are their tokens and nothing else."""

    most_back = 3
    rows_alike = True


class Table:
    """A model that looks its logits up: a function of the tokens so far."""

    drafts = False
    read_bytes = 0

    def __init__(self, logits_after):
        self.logits_after = logits_after

    def new_state(self, context_tokens):
        return State((), {}, None, context_tokens)

    def forward(self, rows, observe=None, check=None):
        found = []
        for s in rows.segments:
            for stop in range(s.start + 1, s.stop + 1):
                so_far = (*s.state.tokens[-REACH:], *rows.tokens[s.start : stop].tolist())
                found.append(self.logits_after(so_far))
        rows.commit(Rewindable.most_back)
        return np.stack(found)

    def logits(self, wide, rows):
        return wide[np.asarray(rows)]


def loaded_with(logits_after, guess, context=4 * DRAWS):
    """A model whose drafts are `guess(tokens so far)`, three of them in every step."""
    network, ops = Table(logits_after), Rewindable()
    speculation = Speculation(network, ops, "ngram", 3)

    def propose(lanes):
        for lane in lanes:
            lane.drafter.kind = "ngram2"
            lane.drafter.tokens = guess((*lane.state.tokens[-REACH:], *lane.pending))[
                : min(3, lane.room)
            ]

    speculation.propose = propose
    return Loaded(network, ops, context, 512, speculation)


def exact(logits, sampling):
    """Probabilities of every token, `[V]`."""
    found = candidates(penalised(logits, sampling), sampling)
    full = np.zeros(logits.size)
    full[found.ids] = found.probabilities
    return full


def compare(counts, expected):
    """Chi-square within four standard deviations, and a total variation that such a number of draws gives."""
    drawn, allowed = counts.sum(), expected > 0
    assert not counts[~allowed].any()
    counts, mean = counts[allowed], expected[allowed] * drawn
    rare = mean < 5
    if rare.any():
        counts = np.append(counts[~rare], counts[rare].sum())
        mean = np.append(mean[~rare], mean[rare].sum())
    chi, freedom = ((counts - mean) ** 2 / mean).sum(), max(1, len(mean) - 1)
    assert (chi - freedom) / np.sqrt(2 * freedom) < 4
    assert np.abs(counts - mean).sum() / 2 / drawn < 1.5 * np.sqrt(len(mean) / drawn)


SETTINGS = [
    Sampling(temperature=1.0, seed=1),
    Sampling(temperature=0.7, top_k=4, top_p=0.9, seed=2),
    Sampling(temperature=1.5, min_p=0.1, logit_bias={2: 1.0}, seed=3),
]


@pytest.mark.parametrize("sampling", SETTINGS, ids=["plain", "top", "min-p and a bias"])
def test_a_chain_of_tokens(sampling):
    """Six tokens, each drawn by the one before: every transition, and every pair of two, as often as it should be."""
    table = np.random.default_rng(11).normal(0, 1.2, (6, 6)).astype(np.float32)

    def guess(tokens):
        found = list(tokens)
        for _ in range(3):
            found.append(int(table[found[-1]].argmax()))
        return found[len(tokens) :]

    loaded = loaded_with(lambda tokens: table[tokens[-1]], guess)
    lane = Lane(loaded, [0], Wanted(sampling, frozenset(), DRAWS + 2))
    stepper, tokens = Stepper(loaded), []
    while not lane.is_over:
        tokens += [step.token for step in stepper.step([lane])[0]]
    counts = loaded.speculation.counts
    assert 0.1 * DRAWS < sum(counts.accepted["ngram"]) < sum(counts.drafted["ngram"]) - 0.1 * DRAWS
    said = np.array([0, *tokens])
    one = np.stack([exact(row, sampling) for row in table])
    for first in range(6):
        at = np.flatnonzero(said[:-2] == first)
        compare(np.bincount(said[at + 1], minlength=6), one[first])
        pairs = one[first][:, None] * one
        compare(np.bincount(said[at + 1] * 6 + said[at + 2], minlength=36), pairs.ravel())


def test_what_penalties_count(glow_store):
    """A draft that is accepted counts for the penalties of the next row, as any token does."""
    row = np.log(np.array([0.5, 0.3, 0.2], dtype=np.float32))
    loaded = loaded_with(lambda _tokens: row, lambda _tokens: [0, 0, 0])
    counts = np.zeros((3, 3))
    plain = Sampling(temperature=1.0, seed=4, presence_penalty=1.5)
    random, stepper = plain.generator(), Stepper(loaded)
    for _ in range(DRAWS // 2):
        lane = Lane(loaded, [2], Wanted(plain, frozenset(), 2), None, random)
        found = []
        while not lane.is_over:
            found += [step.token for step in stepper.step([lane])[0]]
        counts[tuple(found)] += 1

    def after(*seen):
        weights = np.array([0.5, 0.3, 0.2]) * np.exp(-1.5 * np.isin(np.arange(3), seen))
        return weights / weights.sum()

    expected = after(2)[:, None] * np.stack([after(2, first) for first in range(3)])
    compare(counts.ravel(), expected.ravel())


def test_glow(glow_store):
    """The first two tokens after a prompt of the demo model, drawn 20,000 times, drafts being what it finds likeliest."""
    try:
        model = Model.load(glow_store, backend="native", context_tokens=64)
    except BackendError as error:
        pytest.skip(str(error))
    with model:
        prompt = tuple(model.encode_prompt("The old man looked at the", raw=True))
        after = cache(lambda tokens: model.logits(list(tokens))[-1])
        likeliest = cache(lambda tokens: int(after(tokens).argmax()))

        def guess(tokens):
            first = likeliest(tokens)
            return [first, likeliest((*tokens, first))]

        loaded = loaded_with(after, guess, 64)
        sampling = Sampling(temperature=0.8, top_k=8, seed=9)
        random, stepper = sampling.generator(), Stepper(loaded)
        counts = {}
        for _ in range(DRAWS):
            lane = Lane(loaded, prompt, Wanted(sampling, frozenset(), 2), None, random)
            lane.pending = [prompt[-1]]  # the prompt was read: drafts go behind its last token
            lane.state.tokens.extend(prompt[:-1])
            found = []
            while not lane.is_over:
                found += [step.token for step in stepper.step([lane])[0]]
            counts[tuple(found)] = counts.get(tuple(found), 0) + 1
        first = candidates(after(prompt), sampling)
        pairs, expected = [], []
        for token, chance in zip(first.ids.tolist(), first.probabilities, strict=True):
            second = candidates(after((*prompt, token)), sampling)
            pairs += [(token, other) for other in second.ids.tolist()]
            expected += (chance * second.probabilities).tolist()
        assert counts.keys() <= set(pairs)
        compare(np.array([counts.get(pair, 0) for pair in pairs]), np.array(expected))
        assert sum(loaded.speculation.counts.accepted["ngram"]) > DRAWS / 10
