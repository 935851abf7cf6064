from __future__ import annotations

import math

import numpy as np
import pytest

from cherenkov.errors import BackendError, RequestError
from cherenkov.logprobs import checked_top_logprobs, logprobs
from cherenkov.sampling import Occurrences, Sampling, candidates, choose, penalised


def logits(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


# --- occurrences


def test_occurrences_count_what_is_added():
    random = np.random.default_rng(0)
    prompt, answer = random.integers(0, 50, 100).tolist(), random.integers(0, 5000, 2000).tolist()
    seen = Occurrences(prompt)
    for token in answer:
        seen.add(token)
    tokens = prompt + answer
    assert dict(zip(seen.ids.tolist(), seen.counts.tolist(), strict=True)) == {
        t: tokens.count(t) for t in set(tokens)
    }


def test_occurrences_start_empty_and_copies_are_apart():
    seen = Occurrences()
    assert seen.ids.size == seen.counts.size == 0
    seen.add(5)
    other = seen.copy()
    other.add(5)
    other.add(6)
    assert (seen.ids.tolist(), seen.counts.tolist()) == ([5], [1])
    assert (other.ids.tolist(), other.counts.tolist()) == ([5, 6], [2, 1])


# --- penalties and biases

SEEN = Occurrences([0, 1, 1, 1])


def test_each_penalty():
    row = logits(2, -2, 2, -2)
    assert penalised(row, Sampling(repetition_penalty=2), SEEN).tolist() == [1, -4, 2, -2]
    assert penalised(row, Sampling(presence_penalty=0.5), SEEN).tolist() == [1.5, -2.5, 2, -2]
    assert penalised(row, Sampling(frequency_penalty=0.5), SEEN).tolist() == [1.5, -3.5, 2, -2]
    assert penalised(row, Sampling(logit_bias={3: 7, 0: -1})).tolist() == [1, -2, 2, 5]


def test_the_order_is_repetition_then_the_others_then_bias():
    sampling = Sampling(
        presence_penalty=0.5, frequency_penalty=1, repetition_penalty=4, logit_bias={0: 10, 1: -10}
    )
    assert penalised(logits(2, -2, 0), sampling, SEEN).tolist() == [
        2 / 4 - 0.5 - 1 + 10,
        -2 * 4 - 0.5 - 3 - 10,
        0,
    ]


def test_negative_penalties_encourage():
    row = penalised(logits(2, 2), Sampling(presence_penalty=-1, frequency_penalty=-1), SEEN)
    assert row.tolist() == [4, 6]
    assert penalised(logits(2, -2), Sampling(repetition_penalty=0.5), SEEN).tolist() == [4, -1]


def test_without_penalties_nothing_is_copied_and_the_logits_stay_as_they_were():
    row = logits(1, 2)
    assert penalised(row, Sampling(1.0), SEEN) is row
    assert penalised(row, Sampling(repetition_penalty=2)) is row
    penalised(row, Sampling(repetition_penalty=2), SEEN)
    assert row.tolist() == [1, 2]


def test_penalties_and_biases_change_the_greedy_choice():
    row = logits(3, 2.5, 1)
    random, same = Sampling(seed=1).generator(), Sampling(seed=1).generator()
    assert choose(row, Sampling(), random, seen=SEEN) == 0
    assert choose(row, Sampling(presence_penalty=2), random, seen=SEEN) == 0
    assert choose(row, Sampling(presence_penalty=2, frequency_penalty=1), random, seen=SEEN) == 2
    assert choose(row, Sampling(logit_bias={0: -100, 1: -100}), random) == 2
    assert random.random() == same.random()  # nothing was drawn


def test_a_bias_can_force_and_forbid():
    row = np.random.default_rng(0).standard_normal(5000).astype(np.float32)
    random = Sampling(seed=1).generator()
    forced = Sampling(1.0, logit_bias={77: 100})
    assert {choose(row, forced, random) for _ in range(20)} == {77}
    forbidden = Sampling(1.0, top_k=2, logit_bias={int(row.argmax()): -100})
    assert int(row.argmax()) not in {choose(row, forbidden, random) for _ in range(50)}


def test_a_bias_beyond_the_vocabulary_is_refused():
    with pytest.raises(RequestError, match="there is no token 3, the last one is 2") as caught:
        choose(logits(1, 2, 3), Sampling(logit_bias={3: 1}), Sampling().generator())
    assert caught.value.param == "logit_bias"


def test_impossible_tokens_stay_impossible_and_broken_ones_are_found():
    row = penalised(logits(-math.inf, 1), Sampling(repetition_penalty=2), SEEN)
    assert row.tolist() == [-math.inf, 0.5]
    with pytest.raises(BackendError, match="token 0 is nan"):
        choose(
            logits(math.nan, 1), Sampling(repetition_penalty=2), Sampling().generator(), seen=SEEN
        )


# --- min-p


@pytest.mark.parametrize(("min_p", "kept"), [(0.0, 4), (0.04, 4), (0.06, 3), (0.5, 2), (1.0, 1)])
@pytest.mark.parametrize("others", [{}, {"top_k": 4}, {"top_k": 10}, {"top_p": 0.9999}])
def test_min_p_keeps_what_is_likely_enough(min_p, kept, others):
    row = np.log(np.float32([0.5, 0.3, 0.1, 0.025]))
    found = candidates(row, Sampling(1.0, min_p=min_p, **others))
    assert found.ids.tolist() == list(range(kept))
    assert found.probabilities.sum() == pytest.approx(1)


def test_min_p_comes_after_temperature_and_counts_from_the_most_likely():
    row = logits(0, -1, -2)
    assert candidates(row, Sampling(1.0, min_p=math.exp(-1.5))).ids.tolist() == [0, 1]
    assert candidates(row, Sampling(2.0, min_p=math.exp(-1.5))).ids.tolist() == [0, 1, 2]


def test_min_p_includes_the_edge_and_all_of_a_tie():
    assert candidates(logits(5, 5, 5), Sampling(1.0, min_p=1.0)).ids.tolist() == [0, 1, 2]
    large = np.full(5000, -3.0, np.float32)
    large[[9, 4999]] = 2
    assert candidates(large, Sampling(1.0, min_p=1.0)).ids.tolist() == [9, 4999]
    assert candidates(large, Sampling(1e300, min_p=1.0)).ids.size == 5000
    assert candidates(large, Sampling(1e-300, min_p=1e-300)).ids.tolist() == [9, 4999]


# --- logprobs


def test_logprobs_are_the_models_own():
    row = (np.random.default_rng(1).standard_normal(5000) * 4).astype(np.float32)
    wide = row.astype(np.float64)
    expected = wide - wide.max() - math.log(np.exp(wide - wide.max()).sum())
    found = logprobs(row, 17, 20)
    order = np.argsort(-row, kind="stable")[:20]
    assert found.token == 17
    assert found.logprob == pytest.approx(expected[17], abs=1e-5)
    assert [i for i, _ in found.top] == order.tolist()
    np.testing.assert_allclose([p for _, p in found.top], expected[order], atol=1e-5)
    assert logprobs(row, 17).top == ()


def test_logprobs_of_few_or_impossible_tokens():
    found = logprobs(logits(0, -math.inf), 1, 20)
    assert found.logprob == -math.inf
    assert [i for i, _ in found.top] == [0, 1]
    assert found.top[0][1] == pytest.approx(0, abs=1e-5)
    with pytest.raises(BackendError, match="backend native: logits"):
        logprobs(logits(math.nan), 0, backend="native")


def test_top_logprobs_are_checked():
    assert [checked_top_logprobs(n) for n in (0, 20, np.int64(3))] == [0, 20, 3]
    for bad in (-1, 21, 1.0, "3", None, True):
        with pytest.raises(RequestError, match=r"top_logprobs = .*from 0 to 20") as caught:
            checked_top_logprobs(bad)
        assert caught.value.param == "top_logprobs"


# --- values out of range


@pytest.mark.parametrize(
    ("param", "value"),
    [
        *[("min_p", v) for v in (-0.1, 1.1, math.nan, "0", None, True)],
        *[("presence_penalty", v) for v in (-2.1, 2.1, math.nan, "0", None)],
        *[("frequency_penalty", v) for v in (-2.1, 2.1, math.inf, "0", None)],
        *[("repetition_penalty", v) for v in (0, -1, 5e-324, 10.1, math.nan, "1", None)],
        *[("logit_bias", v) for v in (5, "5", None, [5], {"x": 1}, {-1: 1}, {1.5: 1}, {True: 1})],
        *[("logit_bias", {v: 1}) for v in (1 << 32, 1 << 64, 10**30)],  # ids that no array holds
        *[("logit_bias", {3: v}) for v in (101, -101, math.nan, "1", None)],
        ("logit_bias", dict.fromkeys(range(1025), 1.0)),
        ("logit_bias", {"9" * 5000: 1}),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_values_out_of_range_are_named(param, value):
    with pytest.raises(RequestError, match=param) as caught:
        Sampling(**{param: value})
    assert caught.value.param == param
    assert len(str(caught.value)) < 250


def test_biases_are_kept_as_sorted_pairs():
    sampling = Sampling(logit_bias={7: 1, "3": -2})
    assert sampling.logit_bias == ((3, -2.0), (7, 1.0))
    assert Sampling(logit_bias=[[3, -2], (7, 1)]) == sampling
    assert hash(sampling) == hash(Sampling(logit_bias=sampling.logit_bias))
