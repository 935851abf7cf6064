"""Sampling against its definition: everything in Python floats, with full sorts, one token after the other."""

from __future__ import annotations

import math
from itertools import accumulate

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cherenkov.sampling import Occurrences, Sampling, candidates, choose, penalised

common = settings(max_examples=300, deadline=None)


def oracle(row: np.ndarray, sampling: Sampling, tokens: list[int]) -> dict[int, float]:
    """Probabilities by id, most likely first."""
    values = [float(x) for x in row]
    for i in set(tokens):
        r = sampling.repetition_penalty
        values[i] = values[i] / r if values[i] > 0 else values[i] * r
        values[i] -= sampling.presence_penalty + sampling.frequency_penalty * tokens.count(i)
    for i, bias in sampling.logit_bias:
        values[i] += bias
    top = max(values)
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))
    if sampling.top_k:
        order = order[: sampling.top_k]
    weights = {i: math.exp((values[i] - top) / sampling.temperature) for i in order}
    if sampling.top_p < 1:
        target = sampling.top_p * math.fsum(weights.values())
        reached = list(accumulate(weights[i] for i in order))
        order = order[: 1 + sum(sofar < target for sofar in reached)]
    order = [i for i in order if weights[i] >= sampling.min_p]
    total = math.fsum(weights[i] for i in order)
    return {i: weights[i] / total for i in order}


def unlikely_to_tie(row: np.ndarray, sampling: Sampling, tokens: list[int]) -> bool:
    """No cut falls within rounding of a token's edge, where the last bit of a sum would decide."""
    nudged = [
        oracle(
            row, Sampling(sampling.temperature, sampling.top_k, p, None, m, *rest), tokens
        ).keys()
        for p in (sampling.top_p * (1 - 1e-9), min(1.0, sampling.top_p * (1 + 1e-9)))
        for m in (sampling.min_p * (1 - 1e-9), min(1.0, sampling.min_p * (1 + 1e-9)))
        for rest in [
            (
                sampling.presence_penalty,
                sampling.frequency_penalty,
                sampling.repetition_penalty,
                sampling.logit_bias,
            )
        ]
    ]
    return all(keys == nudged[0] for keys in nudged)


sizes = st.integers(1, 60) | st.sampled_from([1100])
samplings = st.builds(
    Sampling,
    temperature=st.floats(0.05, 5),
    top_k=st.just(0) | st.integers(1, 50),
    top_p=st.just(1.0) | st.floats(0.01, 1),
    seed=st.integers(0, 2**32),
    min_p=st.just(0.0) | st.floats(0, 1),
    presence_penalty=st.just(0.0) | st.floats(-2, 2),
    frequency_penalty=st.just(0.0) | st.floats(-2, 2),
    repetition_penalty=st.just(1.0) | st.floats(0.5, 2),
    logit_bias=st.dictionaries(st.just(0), st.floats(-100, 100)),
)


@common
@given(data=st.data(), size=sizes, seed=st.integers(0, 2**32), sampling=samplings)
def test_candidates_are_those_of_the_definition(data, size, seed, sampling):
    random = np.random.default_rng(seed)
    row = (random.standard_normal(size) * data.draw(st.floats(0.1, 8))).astype(np.float32)
    tokens = random.integers(0, size, data.draw(st.integers(0, 40))).tolist()
    kept = candidates(penalised(row, sampling, Occurrences(tokens)), sampling)
    expected = oracle(row, sampling, tokens)
    if unlikely_to_tie(row, sampling, tokens):
        assert set(kept.ids.tolist()) == set(expected)
        np.testing.assert_allclose(
            kept.probabilities, [expected[i] for i in kept.ids.tolist()], rtol=1e-9, atol=1e-300
        )
    if 0 < sampling.top_k < size or sampling.top_p < 1:
        assert (np.diff(kept.probabilities) <= 0).all()


@common
@given(size=sizes, seed=st.integers(0, 2**32), sampling=samplings)
def test_a_choice_is_a_candidate_and_depends_on_the_seed_alone(size, seed, sampling):
    random = np.random.default_rng(seed)
    row = (random.standard_normal(size) * 3).astype(np.float32)
    tokens = random.integers(0, size, 10).tolist()

    def run() -> list[int]:
        draws, seen, answer = sampling.generator(), Occurrences(tokens), []
        for _ in range(5):
            kept = candidates(penalised(row, sampling, seen), sampling)
            token = choose(row, sampling, draws, seen=seen)
            assert token in kept.ids
            seen.add(token)
            answer.append(token)
        return answer

    assert run() == run()


@common
@given(
    size=st.integers(1, 200), seed=st.integers(0, 2**32), number=st.floats(0, 1, exclude_max=True)
)
def test_a_draw_from_a_list_inverts_the_distribution(size, seed, number):
    """One number decides: the token where the running sum of probabilities, most likely first, passes it."""
    row = (np.random.default_rng(seed).standard_normal(size) * 3).astype(np.float32)

    class One:
        def random(self) -> float:
            return number

    sampling = Sampling(1.0, top_p=0.9)
    expected, reached = oracle(row, sampling, []), 0.0
    token = choose(row, sampling, One())
    before = math.fsum(p for i, p in list(expected.items())[: list(expected).index(token)])
    reached = before + expected[token]
    assert before - 1e-12 <= number <= reached + 1e-12
