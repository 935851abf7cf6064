"""The two ways to pass over logits, against each other and the definition: what is chosen depends on neither."""

from __future__ import annotations

import math
from itertools import islice

import numpy as np
import pytest

from cherenkov import passes
from cherenkov.amended import Logits, value_at, values_at, whole
from cherenkov.nucleus import Nucleus
from cherenkov.passes import Bounds, amended, column_maxima, largest_ids, mass, nth_id, standing
from cherenkov.sampling import Occurrences, Sampling, choose
from cherenkov.selection import Row, _draws, draws, largest_logit, likeliest
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
    changed = amended(row, seen.ids, seen.counts, 2.0, 0.0, 0.5, biased, 1.0 * (biased % 3))
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
        for count in {1, 2, size // 3, size - 1, size} & set(range(1, size + 1)):
            assert largest_ids(logits, count).tolist() == order[:count].tolist()
            assert nth_id(logits, count) == order[count - 1]
        largest = float(values.max())
        for temperature in (1.0, 0.3, 1e-4, 1e-300, 1e9):
            with np.errstate(over="ignore"):
                exact = np.exp((values.astype(np.float64) - largest) / temperature)
            holds(mass(logits, largest, temperature), math.fsum(exact))
            for token in {0, size - 1, int(order[0]), *random.integers(0, size, 5).tolist()}:
                place = order.tolist().index(token)
                for end in {place, (place + size) // 2, size - 1}:
                    last = None if end == size - 1 else int(order[end])
                    stands = standing(logits, largest, temperature, token, last)
                    assert stands.rank == place or values[token] == -math.inf
                    holds(stands.ahead, math.fsum(exact[order[:place]]))
                    holds(stands.total, math.fsum(exact[order[: end + 1]]))


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
        assert nth_id(logits, count) == order[count - 1]


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
        changed = amended(row, seen.ids, seen.counts, 1.1, 0.3, 0.7, biased, biases)
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


@needs_kernels
def test_kernels_refuse_what_would_lie_out_of_bounds():
    from cherenkov import _native
    from cherenkov.errors import BackendError

    row, none = np.zeros(9, np.float32), np.zeros(0, np.float32)
    ids, values = np.zeros(0, np.int64), np.zeros(0)
    plain, many = (row, ids, values), np.zeros(10, np.int64)
    for wrong in [
        (none, ids, values),
        (row, np.array([9]), np.zeros(1)),
        (row, np.array([-1]), np.zeros(1)),
        (row, np.array([3, 3]), np.zeros(2)),
        (row, np.array([3]), values),
        (row, np.array([3]), np.array([math.nan])),
    ]:
        for call, arguments in [
            (_native.mass, (0.0, 1.0, "")),
            (_native.before, (0.0, 1.0, 0, 0.0, 0, 0.0, "")),
            (_native.largest_ids, (np.zeros(1, np.int64), "")),
            (_native.nth_id, (1, "")),
            (_native.Draws, (0.0, 1.0, 0.5, "")),
        ]:
            with pytest.raises(BackendError):
                call(*wrong, *arguments)
    at, one, room = np.array([3]), np.ones(1), (row.copy(), np.zeros(2, np.int64), np.zeros(2))
    for call, arguments in [
        (_native.mass, (*plain, 0.0, 0.0, "")),
        (_native.mass, (*plain, 0.0, 1.0, "none such")),
        (_native.before, (*plain, 0.0, 1.0, 10, 0.0, 0, 0.0, "")),
        (_native.before, (*plain, 0.0, 1.0, -1, 0.0, 0, 0.0, "")),
        (_native.before, (*plain, 0.0, 1.0, 0, 0.0, 9, 0.0, "")),
        (_native.before, (*plain, 0.0, 1.0, 0, 0.0, -1, 0.0, "")),
        (_native.before, (*plain, 0.0, 1.0, 0, 0.0, 0, -1.0, "")),
        (_native.largest_ids, (*plain, many, "")),
        (_native.largest_ids, (*plain, many[:0], "")),
        (_native.nth_id, (*plain, 10, "")),
        (_native.nth_id, (*plain, 0, "")),
        (_native.Draws, (*plain, 0.0, 0.0, 0.5, "")),
        (_native.Draws, (*plain, 0.0, 1.0, 1.0, "")),
        (_native.Draws, (*plain, math.nan, 1.0, 0.5, "")),
        (_native.Draws, (*plain, math.inf, 1.0, 0.5, "")),
        (_native.amend, (row, at + 6, at, 1.0, 0.0, 0.0, at, one, *room)),
        (_native.amend, (row, at, at[:0], 1.0, 0.0, 0.0, at, one, *room)),
        (_native.amend, (row, at, at, 1.0, 0.0, 0.0, -at, one, *room)),
        (_native.amend, (row, at, at, 1.0, 0.0, 0.0, at, one[:0], *room)),
        (_native.amend, (row, at, at, 1.0, 0.0, 0.0, at, one, row[:8], *room[1:])),
        (_native.amend, (row, at, at, 1.0, 0.0, 0.0, at, one, row, at, one)),
    ]:
        with pytest.raises(BackendError):
            call(*arguments)


@needs_kernels
@pytest.mark.parametrize("place", [0, 5, 4000, 4999])
def test_kernels_refuse_what_is_no_number(place):
    from cherenkov import _native
    from cherenkov.errors import BackendError

    row = np.random.default_rng(0).standard_normal(5000).astype(np.float32)
    row[place] = math.nan
    plain = row, np.zeros(0, np.int64), np.zeros(0)
    for call, arguments in [
        (_native.largest_ids, (np.zeros(1200, np.int64), "")),
        (_native.nth_id, (2000, "")),
        (_native.Draws, (4.0, 1.0, 0.5, "")),
    ]:
        with pytest.raises(BackendError, match="NaN"):
            call(*plain, *arguments)
