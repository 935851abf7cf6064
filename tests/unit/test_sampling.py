from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from cherenkov.errors import BackendError, RequestError
from cherenkov.sampling import Sampling, candidates, choose, greedy

V = 248_320


def logits(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def oracle(row: np.ndarray, sampling: Sampling) -> dict[int, float]:
    """The definition, in Python floats, with a full sort."""
    scaled = [float(x) / sampling.temperature for x in row]
    top = max(scaled)
    order = sorted(range(len(row)), key=lambda i: (-float(row[i]), i))
    if sampling.top_k:
        order = order[: sampling.top_k]
    weights = {i: math.exp(scaled[i] - top) for i in order}
    total = math.fsum(weights.values())
    kept: dict[int, float] = {}
    for i in order:
        kept[i] = weights[i] / total
        if sampling.top_p < 1 and math.fsum(kept.values()) >= sampling.top_p:
            break
    total = math.fsum(kept.values())
    return {i: p / total for i, p in kept.items()}


@pytest.mark.parametrize("size", [1, 2, 7, 255, 256, 257, 3000])
@pytest.mark.parametrize("top_k", [0, 1, 5, 40, 1000])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.3, 1e-9])
@pytest.mark.parametrize("temperature", [1.0, 0.2, 3.0])
def test_candidates_match_the_oracle(size, top_k, top_p, temperature):
    random = np.random.default_rng(size * 1000 + top_k)
    row = (random.standard_normal(size) * 4).astype(np.float32)
    sampling = Sampling(temperature, top_k, top_p)
    kept = candidates(row, sampling)
    expected = oracle(row, sampling)
    assert set(kept.ids.tolist()) == set(expected)
    np.testing.assert_allclose(
        kept.probabilities, [expected[i] for i in kept.ids.tolist()], rtol=1e-12
    )
    if 0 < top_k < size or top_p < 1:
        assert kept.ids.tolist() == list(expected)


@pytest.mark.parametrize("top_k", [1, 3, 300])
def test_ties_go_to_the_lowest_ids(top_k):
    row = np.zeros(2000, np.float32)
    row[1500] = 1
    kept = candidates(row, Sampling(1.0, top_k))
    assert kept.ids.tolist() == [1500, *range(top_k - 1)]


def test_ties_across_blocks_at_the_cut():
    row = np.repeat(np.float32([1, 0]), 1000)
    assert candidates(row, Sampling(1.0, 4)).ids.tolist() == [0, 1, 2, 3]
    assert candidates(row, Sampling(1.0, 0, 1e-6)).ids.tolist() == [0]


def test_a_wide_nucleus_is_found_whole():
    row = np.zeros(5000, np.float32)
    kept = candidates(row, Sampling(1.0, 0, 0.5))
    assert kept.ids.tolist() == list(range(2500))
    assert kept.probabilities.sum() == pytest.approx(1)


def test_greedy_takes_the_first_of_the_largest():
    assert greedy(logits(1, 3, 3, 2)) == 1
    assert choose(logits(1, 3, 3, 2), Sampling(), Sampling().generator()) == 1


def test_greedy_draws_nothing_and_sampling_draws_once():
    random, same = Sampling(seed=1).generator(), Sampling(seed=1).generator()
    choose(logits(1, 2), Sampling(), random)
    assert random.random() == same.random()
    choose(logits(1, 2), Sampling(1.0), random)
    same.random()
    assert random.random() == same.random()


def test_same_seed_same_tokens():
    row = np.random.default_rng(0).standard_normal(500).astype(np.float32)
    sampling = Sampling(1.0, 50, 0.95, seed=7)

    def run() -> list[int]:
        random = sampling.generator()
        return [choose(row, sampling, random) for _ in range(50)]

    assert run() == run()
    assert len(set(run())) > 5
    assert run() != [choose(row, sampling, Sampling(seed=8).generator()) for _ in range(50)]


@pytest.mark.parametrize("sampling", [Sampling(1.5), Sampling(1.5, 3), Sampling(1.5, 0, 0.8)])
def test_frequencies_follow_the_probabilities(sampling):
    row = logits(2, 1, 0, -1, 0.5, -math.inf)
    random = Sampling(seed=3).generator()
    drawn = np.bincount([choose(row, sampling, random) for _ in range(20_000)], minlength=6)
    expected = np.zeros(6)
    for i, p in oracle(row, sampling).items():
        expected[i] = p
    np.testing.assert_allclose(drawn / 20_000, expected, atol=0.02)
    assert drawn[5] == 0


class _Last:
    """A generator whose draw is as near to 1 as floats go."""

    def random(self) -> float:
        return math.nextafter(1, 0)


def test_the_last_draw_never_takes_an_impossible_token():
    row = logits(0, 0, 0, -math.inf, -math.inf)
    assert choose(row, Sampling(1.0), _Last()) == 2


@pytest.mark.parametrize("temperature", [1e-300, 5e-324, 1e300])
def test_extreme_temperatures(temperature):
    kept = candidates(logits(1, 2, 3), Sampling(temperature))
    assert np.isfinite(kept.probabilities).all()
    expected = [1 / 3] * 3 if temperature > 1 else [0, 0, 1]
    np.testing.assert_allclose(kept.probabilities, expected)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(1.0), Sampling(1.0, 2), Sampling(1.0, 0, 0.5)]
)
def test_bad_logits_are_an_error_that_names_the_token(bad, sampling):
    with pytest.raises(
        BackendError, match=r"backend native: logits: the logit of token 2 is"
    ) as caught:
        choose(logits(1, 2, bad, 4), sampling, sampling.generator(), backend="native")
    assert caught.value.backend == "native"


def test_no_possible_token():
    with pytest.raises(BackendError, match="-inf"):
        greedy(logits(-math.inf, -math.inf))
    with pytest.raises(BackendError, match=r"shape \(0,\)"):
        greedy(logits())
    with pytest.raises(BackendError, match=r"shape \(1, 2\)"):
        greedy(np.zeros((1, 2), np.float32))


@pytest.mark.parametrize(
    ("param", "value"),
    [
        *[("temperature", v) for v in (-0.1, math.nan, math.inf, "1", None, True)],
        *[("top_k", v) for v in (-1, 1.5, "3", None, True)],
        *[("top_p", v) for v in (0, -0.5, 1.01, math.nan, "1", None)],
        *[("seed", v) for v in (-1, 1.5, "x", True)],
    ],
)
def test_values_out_of_range_are_named(param, value):
    with pytest.raises(RequestError, match=f"{param} = ") as caught:
        Sampling(**{param: value})
    assert caught.value.param == param


def test_numpy_numbers_are_numbers():
    assert Sampling(np.float32(0.5), np.int64(3), np.float64(0.9), np.uint64(2**63)).top_k == 3


def test_sampling_is_frozen_and_comparable():
    assert Sampling(1.0) == Sampling(1.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Sampling().top_k = 3


def test_large_vocabulary_sorts_only_a_little(monkeypatch):
    """The cost is a pass over the logits: what is sorted is a short list."""
    row = np.random.default_rng(1).standard_normal(V).astype(np.float32)
    sorted_sizes: list[int] = []
    argsort = np.argsort
    monkeypatch.setattr("cherenkov.passes._native", None)

    def counting(values, *args, **kwargs):
        sorted_sizes.append(len(values))
        return argsort(values, *args, **kwargs)

    monkeypatch.setattr(np, "argsort", counting)
    kept = candidates(row, Sampling(1.0, 40, 0.95))
    assert sorted_sizes
    assert max(sorted_sizes) < 2000
    assert set(kept.ids.tolist()) <= set(argsort(-row)[:40].tolist())


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(1.0, seed=1),
        Sampling(0.7, 20, 0.9, seed=1),
        Sampling(1.0, top_p=0.9, seed=1),
        Sampling(0.8, min_p=0.02, seed=1),
        Sampling(1.0, seed=1, presence_penalty=1.5),
        Sampling(1.0, top_p=0.9, seed=1, logit_bias={3: 4}),
    ],
)
def test_sharing_a_row_changes_nothing_that_is_told(sampling):
    from cherenkov.logprobs import logprobs
    from cherenkov.occurrences import Occurrences
    from cherenkov.selection import Kept

    rng = np.random.default_rng(4)
    seen = Occurrences(range(40))
    for size in (50, 3000):
        logits = rng.normal(0, 3, size).astype(np.float32)
        alone, shared = (sampling.generator() for _ in range(2))
        for _ in range(5):
            token = choose(logits, sampling, alone, seen=seen)
            kept = Kept()
            assert choose(logits, sampling, shared, seen=seen, kept=kept) == token
            found, apart = logprobs(logits, token, 5, row=kept.row), logprobs(logits, token, 5)
            assert [i for i, _ in found.top] == [i for i, _ in apart.top]
            assert found.logprob == pytest.approx(apart.logprob, abs=1e-6)


def test_numbers_of_any_make_are_kept_as_pythons_own():
    from fractions import Fraction

    sampling = Sampling(
        np.float32(0.5),
        np.int64(3),
        Fraction(1, 2),
        np.uint8(7),
        logit_bias={np.int32(2): np.float64(1)},
    )
    assert sampling == Sampling(0.5, 3, 0.5, 7, logit_bias={2: 1.0})
    values = [getattr(sampling, one.name) for one in dataclasses.fields(sampling)]
    assert {type(v) for v in values} == {float, int, tuple}


@pytest.mark.parametrize("name", ["temperature", "top_p", "presence_penalty", "repetition_penalty"])
def test_a_number_beyond_every_float_is_refused(name):
    with pytest.raises(RequestError) as refused:
        Sampling(**{name: 10**400})
    assert refused.value.param == name
