"""The two ways to pass over logits, against each other and the definition: what is chosen depends on neither."""

from __future__ import annotations

import math
from itertools import islice

import numpy as np
import pytest

from cherenkov import passes
from cherenkov.amended import Amended, Logits, value_at, values_at, whole
from cherenkov.errors import BackendError
from cherenkov.logprobs import logprobs
from cherenkov.nucleus import Nucleus
from cherenkov.passes import (
    Bounds,
    Foremost,
    amended,
    before_amending,
    column_maxima,
    held,
    how_many_above,
    largest,
    looks_wide,
    mass,
    standing,
)
from cherenkov.sampling import Occurrences, Sampling, choose
from cherenkov.selection import Kept, Row, _draws, draws, largest_logit, likeliest
from tests.backends.choices import ISAS, needs_kernels

PATHS = [pytest.param(isa, marks=needs_kernels) for isa in ISAS] + ["numpy"]
SIZES = [1, 2, 7, 8, 127, 128, 129, 1023, 1025, 5000]


@pytest.fixture(params=PATHS)
def path(request, monkeypatch):
    if request.param == "numpy":
        monkeypatch.setattr(passes, "_native", None)
    else:
        monkeypatch.setattr(passes, "BEST", request.param)
    return request.param


def rows(size: int, dtype) -> list[np.ndarray]:
    random = np.random.default_rng(size)
    normal = random.standard_normal(size) * 4
    some = np.where(random.random(size) < 0.7, -math.inf, normal)
    some[size // 2] = 9
    one = np.full(size, -math.inf)
    one[-1] = 0
    return [
        row.astype(dtype)
        for row in (normal, normal.round(), np.zeros(size), some, one, normal * 40)
    ]


def some_changed(row: np.ndarray, how_many: int) -> tuple[Logits, np.ndarray]:
    """Logits of which that many were changed, ties with others among them, and all of them in one array."""
    random = np.random.default_rng(row.size)
    seen = Occurrences(random.integers(0, row.size, how_many).tolist())
    biased = np.unique(random.integers(0, row.size, how_many // 4 + 1))
    changed = amended(row, seen.ids, seen.counts, (2.0, 0.0, 0.5), biased, 1.0 * (biased % 3))
    expected = row.astype(np.float64)
    for token, count in zip(seen.ids.tolist(), seen.counts.tolist(), strict=True):
        x = float(row[token])
        expected[token] = (x / 2 if x > 0 else x * 2) - 0.5 * count
    expected[biased] += biased % 3
    return changed, expected


@pytest.mark.parametrize("how_many", [None, 1, 300, 20_000], ids="changed={}".format)
@pytest.mark.parametrize("size", SIZES)
def test_passes_are_as_defined(path, size, how_many):
    random = np.random.default_rng(size + 1)
    for row in rows(size, np.float32):
        logits, values = (row, row) if how_many is None else some_changed(row, how_many)
        assert whole(logits).tobytes() == values.tobytes()
        order = np.argsort(-values, kind="stable")
        counts = {1, 2, size // 3, size - 1, size} & set(range(1, size + 1))
        for count in counts:
            ids, found = largest(logits, count)
            assert ids.tolist() == order[:count].tolist()
            assert found.tolist() == values[ids].tolist()
        top = float(values.max())
        if top > -math.inf:
            assert likeliest(held(logits), "any") == order[0]
        for value in (top, float(values.min()), float(values[size // 2]), 0.25):
            assert how_many_above(logits, value) == int((values > value).sum())
        for temperature in (1.0, 0.3, 1e-4, 1e-300, 1e9):
            with np.errstate(over="ignore"):
                exact = np.exp((values.astype(np.float64) - top) / temperature)
            holds(mass(logits, top, temperature), math.fsum(exact))
            for token in {0, size - 1, int(order[0]), *random.integers(0, size, 5).tolist()}:
                place = order.tolist().index(token)
                stands = standing(logits, top, temperature, token)
                holds(stands.ahead, math.fsum(exact[order[:place]]))
                holds(stands.total, math.fsum(exact))
            for count in counts:
                some = Foremost(logits, count)
                are_the_foremost(some, count, values, order, exact, top, temperature)


def are_the_foremost(some, count, values, order, exact, top, temperature) -> None:
    members = order[:count]
    assert some.value == values[members[-1]]
    assert some.ties == (values[members] == some.value).sum()
    assert some.how_many_above(some.value) == count - some.ties
    middle = float(values[members[count // 2]])
    assert some.how_many_above(middle) == (values[members] > middle).sum()
    assert some.how_many_above(-math.inf) == (values[members] > -math.inf).sum()
    holds(some.mass(top, temperature), math.fsum(exact[members]))
    edge = {0, count // 2, count - 1, count, order.size - 1} & set(range(order.size))
    for place in edge:
        token = int(order[place])
        assert some.holds(token) == (place < count)
        if place < count:
            stands = some.standing(top, temperature, token)
            holds(stands.ahead, math.fsum(exact[order[:place]]))
            holds(stands.total, math.fsum(exact[members]))


def holds(found: Bounds, exact: float) -> None:
    assert found.low - 1e-30 <= exact <= found.high + 1e-30
    assert found.high <= found.low * (1 + 1.1e-5) + 1e-30


@pytest.mark.parametrize("kind", ["normal", "sorted", "rounded", "every 121st", "equal"])
@pytest.mark.parametrize("how_many", [0, 9000])
def test_places_among_many_are_found_however_they_lie(path, kind, how_many):
    """Also where a sample of every so many logits misleads."""
    row = np.random.default_rng(3).standard_normal(120_000)
    row = {
        "normal": row,
        "sorted": np.sort(row),
        "rounded": row.round(1),
        "every 121st": np.where(np.arange(row.size) % 58 == 29, row + 50, row),
        "equal": row * 0,
    }[kind].astype(np.float32)
    logits, values = some_changed(row, how_many) if how_many else (row, row)
    order = np.argsort(-values, kind="stable")
    for count in (1, 1025, 2069, 5000, 30_000, 119_000, row.size):
        some = Foremost(logits, count)
        assert some.value == values[order[count - 1]]
        assert some.ties == (values[order[:count]] == some.value).sum()
        assert [some.holds(int(i)) for i in order[count - 1 : count + 1]] == [True, False][
            : row.size - count + 1
        ]


@pytest.mark.parametrize("columns", [1, 3, 9, 10])
def test_maxima_of_columns(columns):
    row = np.random.default_rng(1).standard_normal(10).astype(np.float32)
    padded = np.full(-(-10 // columns) * columns, -math.inf)
    padded[:10] = row
    expected = padded.reshape(-1, columns).max(axis=0).tolist()
    assert column_maxima(row, columns).tolist() == expected


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", SIZES)
def test_changes_are_the_same_to_the_bit(path, size, dtype):
    random = np.random.default_rng(size)
    seen = Occurrences(random.integers(0, size, 2 * size).tolist())
    biased = np.unique(random.integers(0, size, size))
    biases = random.standard_normal(biased.size)
    for row in rows(size, dtype):
        changed = amended(row, seen.ids, seen.counts, (1.1, 0.3, 0.7), biased, biases, keep=True)
        expected = row.astype(np.float64)
        for token, count in zip(seen.ids.tolist(), seen.counts.tolist(), strict=True):
            x = float(row[token])
            expected[token] = (x / 1.1 if x > 0 else x * 1.1) - (0.3 + 0.7 * count)
        expected[biased] += biases
        assert whole(changed).tobytes() == expected.tobytes()
        assert [value_at(changed, i) for i in range(size)] == expected.tolist()
        some = random.integers(0, size, 20)
        assert values_at(changed, some).tolist() == expected[some].tolist()
        assert largest_logit(changed, "native") == expected.max()
        assert likeliest(changed, "native") == expected.argmax()
        if isinstance(changed, Amended):
            before = before_amending(changed, row)
            assert whole(before).tolist() == row.tolist()
            for temperature in (0.5, 1.0):
                for logits, values in ((changed, expected), (before, row), (changed, expected)):
                    top = float(values.max())
                    exact = math.fsum(np.exp((values.astype(np.float64) - top) / temperature))
                    holds(mass(logits, top, temperature), exact)
            assert likeliest(before, "native") == row.argmax()
            assert np.array_equal(largest(before, size)[0], np.argsort(-row, kind="stable"))
            some = max(1, size // 60)
            assert np.array_equal(largest(before, some)[0], np.argsort(-row, kind="stable")[:some])


@pytest.mark.parametrize("number", [0.0, 0.3, math.nextafter(1, 0)])
@pytest.mark.parametrize("how_many", [0, 5000])
def test_the_same_number_draws_the_same_tokens(path, number, how_many):
    """As the definition, in NumPy, from all of the logits in one array."""
    for row in rows(9001, np.float32):
        logits, values = some_changed(row, how_many) if how_many else (row, row)
        for temperature in (0.3, 1.0, 8.0):
            drawn = draws(Row(logits, float(values.max()), temperature), number)
            wanted = _draws(Row(values, float(values.max()), temperature), number)
            assert list(islice(drawn, 300)) == list(islice(wanted, 300))


SAMPLINGS = [
    Sampling(1.0),
    *[Sampling(1.0, top_p=p) for p in (0.05, 0.5, 0.9, 0.999)],
    Sampling(0.7, top_k=40, top_p=0.9),
    Sampling(1.0, top_k=3000),
    Sampling(1.3, top_k=3000, top_p=0.9),
    Sampling(0.9, min_p=0.01),
    Sampling(1.0, min_p=1e-6, top_p=0.97),
    Sampling(1e-4, top_p=0.9),
    Sampling(0.8, top_p=0.95, presence_penalty=0.5, frequency_penalty=0.1, repetition_penalty=1.1),
    Sampling(0.8, top_k=2000, top_p=0.95, min_p=1e-5, repetition_penalty=1.2, logit_bias={3: 4}),
    Sampling(repetition_penalty=1.3),
]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=repr)
def test_the_same_numbers_choose_the_same_tokens(monkeypatch, sampling):
    """With kernels of any instruction set, and without."""
    seen = Occurrences(range(0, 9001, 5))
    normal = np.random.default_rng(3).standard_normal(9001)
    flat, tied = np.zeros(9001), normal.round(1)

    def tokens() -> list[int]:
        random = np.random.default_rng(8)
        return [
            choose(row.astype(np.float32), sampling, random, seen=seen)
            for row in (normal, normal * 0.1, normal * 3, flat, tied)
            for _ in range(25)
        ]

    found = [tokens()]
    if passes._native is not None:
        for isa in ISAS:
            monkeypatch.setattr(passes, "BEST", isa)
            found.append(tokens())
    monkeypatch.setattr(passes, "_native", None)
    assert all(one == tokens() for one in found)


@pytest.mark.parametrize("error", [0.0, 1e-3])
def test_bounds_however_wide_change_no_choice(monkeypatch, error):
    """They only say where the exact sums must be asked."""
    normal = np.random.default_rng(5).standard_normal(6000)
    numbers = np.random.default_rng(6).random(15)
    for settings in ((0, 0.9, 0.0), (2500, 0.95, 0.0), (0, 0.99, 1e-3)):
        for row in (normal, normal * 3, normal.round(1), np.zeros(6000)):
            found = []
            for relative in (passes._RELATIVE_ERROR, passes._RELATIVE_ERROR + error):
                monkeypatch.setattr(passes, "_RELATIVE_ERROR", relative)
                nucleus = Nucleus(Row(row, float(row.max()), 1.0), *settings)
                found.append([nucleus.draw(number) for number in numbers])
                monkeypatch.undo()
            assert found[0] == found[1]


@pytest.mark.parametrize(("top_k", "min_p"), [(0, 0.3), (3000, 0.0), (1500, 0.2), (3000, 0.4)])
@pytest.mark.parametrize("top_p", [1.0, 0.6, 0.95])
def test_members_of_many_are_known_one_by_one(path, top_k, top_p, min_p):
    for row in [some / 5 for some in rows(8000, np.float32)[:3]]:
        weights = np.exp(row.astype(np.float64) - float(row.max()))
        order = np.argsort(-row, kind="stable")[: top_k or row.size]
        target = top_p * math.fsum(weights[order]) if top_p < 1 else math.inf
        size = 1 + int((np.cumsum(weights[order])[:-1] < target).sum())
        size = min(size, int((weights[order] >= min_p).sum()))
        made = Nucleus(Row(row, float(row.max()), 1.0), top_k, top_p, min_p)
        assert made.members()[0].tolist() == order[:size].tolist()
        edge = list(range(max(0, size - 20), min(size + 20, order.size)))
        np.random.default_rng(2).shuffle(edge)
        fresh = Nucleus(Row(row, float(row.max()), 1.0), top_k, top_p, min_p)
        assert [fresh.holds(int(order[i])) for i in edge] == [i < size for i in edge]


def test_a_guess_is_the_same_on_every_path(monkeypatch):
    """It decides whether a token is drawn or listed."""
    random = np.random.default_rng(2)
    for size in (1024, 9001, 17_000, 60_000):
        for row in rows(size, np.float32):
            logits, values = some_changed(row, size // 3)
            top = float(values.max())
            for temperature in (1e-300, 0.3, 1.0, 8.0):
                for least in (0.0, 1e-6, 0.5):
                    count, share = int(random.integers(1, 300)), float(random.choice([0.5, 0.95]))
                    settings = (top, temperature, count, share, least)
                    found = [looks_wide(logits, *settings), looks_wide(values, *settings)]
                    for isa in ISAS if isinstance(logits, Amended) else []:
                        monkeypatch.setattr(passes, "BEST", isa)
                        found.append(looks_wide(some_changed(row, size // 3)[0], *settings))
                    assert len(set(found)) == 1


@needs_kernels
def test_kernels_refuse_what_would_lie_out_of_bounds():
    from cherenkov import _native

    row, none = np.zeros(9, np.float32), np.zeros(0, np.float32)
    ids, values = np.zeros(0, np.int64), np.zeros(0)
    for wrong in [
        (none, ids, values, ""),
        (row, np.array([9]), np.zeros(1), ""),
        (row, np.array([-1]), np.zeros(1), ""),
        (row, np.array([3, 3]), np.zeros(2), ""),
        (row, np.array([3]), values, ""),
        (row, np.array([3]), np.array([math.nan]), ""),
        (row, ids, values, "none such"),
    ]:
        with pytest.raises(BackendError):
            _native.Logits(*wrong)
    plain = _native.Logits(row, ids, values, "")
    some = _native.Foremost(plain, 3)
    changed = _native.Logits(row, np.array([3]), np.ones(1), "")
    at, one, room = (
        np.array([3]),
        np.ones(1),
        (row.copy(), np.zeros(2, np.int64), np.zeros(2), np.zeros(2)),
    )
    for call, arguments in [
        (plain.mass, (0.0, 0.0)),
        (plain.looks_wide, (0.0, 0.0, 1, 0.5, 0.0)),
        (plain.looks_wide, (0.0, 1.0, 0, 0.5, 0.0)),
        (plain.before, (0.0, 1.0, 9, 0.0)),
        (plain.before, (0.0, 1.0, -1, 0.0)),
        (plain.before, (0.0, math.nan, 1, 0.0)),
        (plain.largest, (np.zeros(10, np.int64), np.zeros(10))),
        (plain.largest, (ids, values)),
        (plain.largest, (np.zeros(2, np.int64), np.zeros(1))),
        (changed.before_amending, (values,)),
        (_native.Foremost, (plain, 10)),
        (_native.Foremost, (plain, 0)),
        (some.mass, (0.0, 0.0)),
        (some.before, (0.0, 1.0, 9, 0.0)),
        (some.before, (0.0, 1.0, 0, -1.0)),
        (some.before, (0.0, -1.0, 0, 0.0)),
        (some.holds, (-1, 0.0)),
        (_native.Draws, (plain, 0.0, 0.0, 0.5)),
        (_native.Draws, (plain, 0.0, 1.0, 1.0)),
        (_native.Draws, (plain, math.nan, 1.0, 0.5)),
        (_native.Draws, (plain, math.inf, 1.0, 0.5)),
        (
            _native.amend,
            (none, ids, ids, 1.0, 0.0, 0.0, ids, values, none, ids, values, values, ""),
        ),
        (_native.amend, (row, at, at, 1.0, 0.0, 0.0, at, one, *room, "none such")),
        (_native.amend, (row, at + 6, at, 1.0, 0.0, 0.0, at, one, *room, "")),
        (_native.amend, (row, at, at[:0], 1.0, 0.0, 0.0, at, one, *room, "")),
        (_native.amend, (row, at, at, 1.0, 0.0, 0.0, -at, one, *room, "")),
        (_native.amend, (row, at, at, 1.0, 0.0, 0.0, at, one[:0], *room, "")),
        (_native.amend, (row, at, at, 1.0, 0.0, 0.0, at, one, row[:8], *room[1:], "")),
        (_native.amend, (row, at, at, 1.0, 0.0, 0.0, at, one, row, at, one, one, "")),
        (_native.amend, (row, at, at, 1.0, 0.0, 0.0, at, one, *room[:3], one, "")),
    ]:
        with pytest.raises(BackendError):
            call(*arguments)


@needs_kernels
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("place", [0, 5, 4000, 4999])
def test_kernels_refuse_what_is_no_number(place, isa):
    from cherenkov import _native

    row = np.random.default_rng(0).standard_normal(5000).astype(np.float32)
    row[place] = math.nan
    plain = _native.Logits(row, np.zeros(0, np.int64), np.zeros(0), isa)
    assert plain.likeliest() == -1
    for call, arguments in [
        (plain.largest, (np.zeros(1200, np.int64), np.zeros(1200))),
        (_native.Foremost, (plain, 2000)),
        (_native.Draws, (plain, 4.0, 1.0, 0.5)),
    ]:
        with pytest.raises(BackendError, match="NaN"):
            call(*arguments)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 7, 2900, 4999])
def test_what_penalties_and_biases_change_is_looked_at_too(path, place, value):
    """A logit that is no number is found, whether it was changed or not, and so is +inf."""
    row = np.random.default_rng(0).standard_normal(5000).astype(np.float32)
    row[place] = value
    for seen in (Occurrences([place]), Occurrences(range(5000)), Occurrences([1])):
        for bias in ({}, {place: 1.0}, dict.fromkeys(range(0, 5000, 7), -100.0)):
            for kept in (None, Kept()):
                sampling = Sampling(1.0, presence_penalty=1.0, logit_bias=bias)
                with pytest.raises(BackendError, match=f"token {place} is"):
                    choose(row, sampling, sampling.generator(), seen=seen, kept=kept)


@pytest.mark.parametrize("size", [1, 5, 1023, 1024, 5000, 20_011])
def test_what_is_kept_of_a_choice_serves_log_probabilities(path, size):
    """Penalties and biases change the choice, not how likely the model found its tokens."""
    random = np.random.default_rng(size)
    for row in rows(size, np.float32):
        seen = Occurrences(random.integers(0, size, size).tolist())
        bias = {int(i): 3.0 for i in random.integers(0, size, 20)}
        for sampling in (
            Sampling(),
            Sampling(0.7, top_k=2000, top_p=0.9),
            Sampling(repetition_penalty=1.3, logit_bias=bias),
            Sampling(1.0, top_p=0.95, frequency_penalty=0.5, logit_bias=bias),
            Sampling(0.7, top_k=300, presence_penalty=0.5),
        ):
            kept = Kept()
            token = choose(row, sampling, np.random.default_rng(3), seen=seen, kept=kept)
            assert token == choose(row, sampling, np.random.default_rng(3), seen=seen)
            found, alone = logprobs(row, token, 20, row=kept.row), logprobs(row, token, 20)
            assert [i for i, _ in found.top] == [i for i, _ in alone.top]
            assert found.logprob == pytest.approx(alone.logprob, abs=1e-5)


@pytest.mark.parametrize("seed", range(6))
def test_random_rows_and_settings_choose_alike_on_every_path(monkeypatch, seed):
    """The kernels of every instruction set, and NumPy, over rows with ties, holes and extremes."""
    random = np.random.default_rng(seed)
    cases = []
    for _ in range(25):
        size = int(random.integers(1, 9000))
        row = random.standard_normal(size) * random.choice([0.0, 0.1, 1, 5, 1e4])
        if random.random() < 0.3:
            row = row.round(1)
        if random.random() < 0.3:
            row = np.where(random.random(size) < 0.7, -math.inf, row)
            row[int(random.integers(size))] = 1
        everything = range(size) if random.random() < 0.3 else random.integers(0, size, size // 2)
        sampling = Sampling(
            float(random.choice([0.0, 1e-5, 0.1, 0.7, 1.0, 3.0])),
            top_k=int(random.choice([0, 0, 1, 300, 1000, 5000])),
            top_p=float(random.choice([1, 0.3, 0.9, 0.99])),
            min_p=float(random.choice([0, 0, 1e-4, 0.2])),
            presence_penalty=float(random.choice([0, 1])),
            repetition_penalty=float(random.choice([1, 1.3])),
            logit_bias={int(i): float(i % 7 - 3) for i in random.integers(0, size, 9)},
        )
        cases.append((row.astype(np.float32), sampling, Occurrences(map(int, everything))))

    def tokens() -> list[int]:
        numbers = np.random.default_rng(seed)
        return [
            choose(row, sampling, numbers, seen=seen)
            for row, sampling, seen in cases
            for _ in range(3)
        ]

    found = [tokens()]
    for isa in ISAS if passes._native is not None else []:
        monkeypatch.setattr(passes, "BEST", isa)
        found.append(tokens())
    monkeypatch.setattr(passes, "_native", None)
    assert all(one == tokens() for one in found)
