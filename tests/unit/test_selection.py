from __future__ import annotations

import math

import numpy as np
import pytest

from cherenkov.nucleus import Nucleus
from cherenkov.occurrences import Occurrences
from cherenkov.passes import largest
from cherenkov.sampling import Sampling, choose
from cherenkov.selection import DRAW_AT_LEAST, Row, draws

V = 248_320


def draw(logits: np.ndarray, temperature: float, number: float) -> int:
    return next(draws(Row(logits, float(logits.max()), temperature), number))


def rows() -> dict[str, np.ndarray]:
    random = np.random.default_rng(4)
    normal = random.standard_normal(V)
    peaked = normal * 2
    peaked[[7, 70_000, V - 1]] = [22, 21, 20]
    spikes = np.full(5000, -math.inf)
    spikes[::131] = 0
    return {
        "normal": normal,
        "wide": normal * 5,
        "peaked": peaked,
        "flat": np.zeros(5000),
        "spikes": spikes,
        "one": np.where(np.arange(3000) == 2999, 0.0, -math.inf),
        "short rows": random.standard_normal(DRAW_AT_LEAST + 700) * 3,
        "odd size": random.standard_normal(DRAW_AT_LEAST + 63) * 3,
        "deep": normal * 40,
    }


@pytest.fixture(scope="module", params=rows())
def row(request):
    return rows()[request.param].astype(np.float32)


@pytest.mark.parametrize("temperature", [0.2, 1.0, 7.0, 1e-300, 1e300])
def test_the_sum_lies_between_its_bounds(row, temperature):
    largest = float(row.max())
    with np.errstate(over="ignore"):
        exact = math.fsum(np.exp((row.astype(np.float64) - largest) / temperature))
    for logits in (row, row.astype(np.float64)):
        found = Row(logits, largest, temperature).mass_bounds()
        assert found.low * (1 - 1e-12) <= exact <= found.high * (1 + 1e-12)
        assert found.high <= found.low * (1 + 1.1e-5)
        assert Row(logits, largest, temperature).mass() == pytest.approx(exact, rel=1e-13)


def test_drawing_follows_the_weights(row):
    """Frequencies of the likeliest tokens, and of the others by the range of their id, against the definition."""
    temperature = 0.8
    weights = np.exp((row.astype(np.float64) - row.max()) / temperature)
    exact = weights / weights.sum()
    top = np.argsort(-exact, kind="stable")[:8]
    group = 8 + np.arange(row.size) * 8 // row.size
    group[top] = np.arange(top.size)
    expected = np.bincount(group, weights=exact, minlength=16)
    random, trials = np.random.default_rng(11), 1500
    drawn = [draw(row, temperature, random.random()) for _ in range(trials)]
    found = np.bincount(group[drawn], minlength=16) / trials
    spread = np.sqrt(expected * (1 - expected) / trials)
    assert (np.abs(found - expected) <= 4.5 * spread + 3 / trials).all()


def test_drawing_is_decided_by_the_number(row):
    numbers = np.random.default_rng(1).random(50)
    once = [draw(row, 1.0, x) for x in numbers]
    assert once == [draw(row, 1.0, x) for x in numbers]
    assert once == [draw(row.astype(np.float64), 1.0, x) for x in numbers]


@pytest.mark.parametrize("number", [0.0, 2.0**-53, 0.5, math.nextafter(1, 0)])
def test_the_edges_of_the_draw_give_possible_tokens(row, number):
    token = draw(row, 1.0, number)
    assert np.isfinite(row[token])


@pytest.mark.parametrize("temperature", [1e-300, 5e-324])
def test_a_tiny_temperature_draws_the_largest(temperature):
    row = np.random.default_rng(2).standard_normal(V).astype(np.float32)
    assert draw(row, temperature, 0.7) == row.argmax()


def test_a_huge_temperature_draws_from_everywhere():
    row = np.random.default_rng(2).standard_normal(V).astype(np.float32)
    random = np.random.default_rng(3)
    drawn = [draw(row, 1e300, random.random()) for _ in range(2000)]
    assert np.bincount(np.array(drawn) * 4 // V, minlength=4) == pytest.approx([500] * 4, abs=90)
    assert len(set(drawn)) > 1900


@pytest.mark.parametrize("count", [1, 64, 300, 5000])
def test_the_largest_of_float64_logits(count):
    row = np.random.default_rng(5).standard_normal(V)
    assert largest(row, count)[0].tolist() == np.argsort(-row, kind="stable")[:count].tolist()


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("spread", [0.01, 1.0, 4.0])
def test_members_of_a_nucleus_are_known_one_by_one(spread, top_p):
    """Without sorting it, however wide, ties included."""
    random = np.random.default_rng(7)
    row = (random.standard_normal(20_000) * spread).round(1 if spread > 1 else 3)
    nucleus = Nucleus(Row(row, float(row.max()), 1.0), top_p=top_p)
    weights = np.exp(row - row.max())
    order = np.argsort(-weights, kind="stable")
    size = 1 + int((np.cumsum(weights[order]) < top_p * weights.sum()).sum())
    assert nucleus.members()[0].tolist() == order[:size].tolist()
    edge = range(max(0, size - 40), min(size + 40, row.size))
    assert [nucleus.holds(int(order[i])) for i in edge] == [i < size for i in edge]
    drawn = [nucleus.draw(random.random()) for _ in range(30)]
    assert set(drawn) <= set(order[:size].tolist())


def test_drawing_from_a_wide_nucleus_follows_the_weights():
    random, trials = np.random.default_rng(9), 1500
    row = random.standard_normal(8000).astype(np.float32) * 2
    ids, weights = Nucleus(Row(row, float(row.max()), 1.0), top_p=0.9).members()
    assert ids.size > 1024
    quarters = [0.25, 0.5, 0.75, 1.0]
    shares = np.searchsorted(np.cumsum(weights) / weights.sum(), quarters)
    place = {int(i): n for n, i in enumerate(ids)}
    sampling = Sampling(1.0, top_p=0.9)
    drawn = [place[choose(row, sampling, random)] for _ in range(trials)]
    found = np.searchsorted(np.sort(drawn), shares, side="right") / trials
    np.testing.assert_allclose(found, quarters, atol=4.5 * math.sqrt(0.25 / trials))


def weighed(monkeypatch, sampling: Sampling, seen: Occurrences | None = None) -> int:
    """Float64 exponentials taken for a few tokens, on average."""
    row = np.random.default_rng(6).standard_normal(V).astype(np.float32) * 2
    row[:40] += 14
    taken = []
    exp = np.exp

    def counting(values, *args, **kwargs):
        taken.append(values.size if values.dtype == np.float64 else 0)
        return exp(values, *args, **kwargs)

    monkeypatch.setattr(np, "exp", counting)
    random = sampling.generator()
    for _ in range(10):
        choose(row, sampling, random, seen=seen)
    return sum(taken) // 10


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(1.0, seed=1),
        Sampling(0.7, top_k=20, top_p=0.95, seed=1),
        Sampling(0.7, top_p=0.95, seed=1),
        Sampling(0.7, min_p=0.05, seed=1),
        Sampling(0.7, presence_penalty=1.5, repetition_penalty=1.1, seed=1),
        Sampling(0.7, top_p=0.9, frequency_penalty=0.5, logit_bias={5: 1.0}, seed=1),
        Sampling(repetition_penalty=1.1),
    ],
    ids=repr,
)
def test_a_large_vocabulary_is_hardly_weighed(monkeypatch, sampling):
    """What costs is the float64 exponential; typical settings need it for a few tokens in a hundred."""
    seen = Occurrences(range(0, 20_000, 7))
    assert weighed(monkeypatch, sampling, seen) < V // 10


def test_what_was_found_serves_again():
    logits = np.random.default_rng(8).normal(0, 3, 5000).astype(np.float32)
    row = Row(logits, float(logits.max()), 1.0)
    order = np.argsort(-logits, kind="stable")
    for count in (20, 5, 300, 10_000):
        assert np.array_equal(row.first(count)[0], order[:count])
        assert np.array_equal(row.at(0.3).first(3)[0], order[:3])
    other = row.at(0.3)
    assert other.mass_bounds() == Row(logits, row.largest, 0.3).mass_bounds()
    assert row.mass_bounds() == Row(logits, row.largest, 1.0).mass_bounds()
    assert row.at(0.3).mass_bounds() == other.mass_bounds() != row.mass_bounds()


@pytest.mark.parametrize("largest", [3.0, 3e4, 3e6])
@pytest.mark.parametrize("temperature", [1e-3, 0.5, 30.0])
def test_far_tokens_are_bounded_whatever_the_rounding(largest, temperature):
    """Most tokens are far below; among huge logits float32 cannot even say where far begins."""
    rng = np.random.default_rng(9)
    below = rng.uniform(0, 60, 100_000) * temperature
    logits = (largest - below).astype(np.float32)
    logits[7] = largest
    exact = math.fsum(np.exp((logits.astype(np.float64) - largest) / temperature))
    found = Row(logits, largest, temperature).mass_bounds()
    low, high = found.low, found.high
    assert low * (1 - 1e-12) <= exact <= high * (1 + 1e-12)
    assert high <= low * (1 + 1.1e-5)
