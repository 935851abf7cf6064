"""The two ways to pass over logits, against each other and the definition: what is chosen depends on neither."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cherenkov import passes
from cherenkov.nucleus import Nucleus
from cherenkov.passes import before, column_maxima, largest_ids, nth_id, punished, weigh
from cherenkov.sampling import Occurrences, Sampling, choose
from cherenkov.selection import Row
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


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", SIZES)
def test_passes_are_as_defined(path, size, dtype):
    random = np.random.default_rng(size + 1)
    for row in rows(size, dtype):
        order = np.argsort(-row, kind="stable")
        for count in {1, 2, size // 3, size - 1, size} & set(range(1, size + 1)):
            assert largest_ids(row, count).tolist() == order[:count].tolist()
            assert nth_id(row, count) == order[count - 1]
            padded = np.full(-(-size // count) * count, -math.inf)
            padded[:size] = row
            maxima = column_maxima(row, count)
            assert maxima.dtype == dtype
            assert maxima.tolist() == padded.reshape(-1, count).max(axis=0).tolist()
        largest = float(row.max())
        for temperature in (1.0, 0.3, 1e-4, 1e-300, 1e9):
            with np.errstate(over="ignore"):
                exact = np.exp((row.astype(np.float64) - largest) / temperature)
            weighed = weigh(row, largest, temperature)
            assert weighed.low <= math.fsum(exact) <= weighed.high
            assert weighed.high <= weighed.low * (1 + 1.1e-5)
            for token in {0, size - 1, int(order[0]), *random.integers(0, size, 5).tolist()}:
                place = order.tolist().index(token)
                sofar = math.fsum(exact[order[:place]])
                found = before(row, weighed, token, float(exact[token]))
                assert found.low - 1e-30 <= sofar <= found.high + 1e-30
                assert found.high <= found.low * (1 + 1.1e-5) + 1e-30


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", SIZES)
def test_punishing_is_the_same_to_the_bit(path, size, dtype):
    random = np.random.default_rng(size)
    seen = Occurrences(random.integers(0, size, 2 * size).tolist())
    for row in rows(size, dtype):
        changed = punished(row, seen.ids, seen.counts, 1.1, 0.3, 0.7)
        expected = row.astype(np.float64)
        for token, count in zip(seen.ids.tolist(), seen.counts.tolist(), strict=True):
            x = float(row[token])
            expected[token] = (x / 1.1 if x > 0 else x * 1.1) - (0.3 + 0.7 * count)
        assert changed.tobytes() == expected.tobytes()


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

    row, out = np.zeros(9, np.float32), np.zeros(9, np.float32)
    none = np.zeros(0, np.float32)
    ids, far = np.array([3]), np.array([9])
    for call, arguments in [
        (_native.weigh, (row, 0.0, 1.0, out[:8], "")),
        (_native.weigh, (none, 0.0, 1.0, none, "")),
        (_native.weigh, (row, 0.0, 0.0, out, "")),
        (_native.weigh, (row, 0.0, 1.0, out, "none such")),
        (_native.before, (row, out[:8], 0, "")),
        (_native.before, (row, out, 9, "")),
        (_native.before, (row, out, -1, "")),
        (_native.column_maxima, (row, np.zeros(10, np.float32), "")),
        (_native.column_maxima, (row, none, "")),
        (_native.largest_ids, (row, np.zeros(10, np.int64), "")),
        (_native.largest_ids, (row, np.zeros(0, np.int64), "")),
        (_native.nth_id, (row, 10)),
        (_native.nth_id, (row, 0)),
        (_native.punish, (row, far, ids, 1.0, 0.0, 0.0, np.zeros(9))),
        (_native.punish, (row, -ids, ids, 1.0, 0.0, 0.0, np.zeros(9))),
        (_native.punish, (row, ids, np.zeros(0, np.int64), 1.0, 0.0, 0.0, np.zeros(9))),
        (_native.punish, (row, ids, ids, 1.0, 0.0, 0.0, np.zeros(8))),
    ]:
        with pytest.raises(BackendError):
            call(*arguments)
