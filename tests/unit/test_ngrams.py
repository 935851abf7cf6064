"""Hashed n-grams against arithmetic in Python integers."""

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cherenkov.architectures.qwen4_exp import ngrams
from cherenkov.architectures.qwen4_exp.ngrams import NgramHash

EOS = 3


def wrapped(value):
    """The signed 64-bit number that an overflowing product leaves."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def by_hand(multipliers, sizes, offsets, tokens):
    """Row t, distance k: the token k before, or eos where that is before the start or beyond an eos."""
    orders = len(multipliers) - 1
    heads = len(sizes) // orders
    table = []
    for t in range(len(tokens)):
        seen = []
        for k in range(len(multipliers)):
            crossed = k > t or any(tokens[t - j] == EOS for j in range(1, k + 1))
            seen.append(EOS if crossed else tokens[t - k])
        row = []
        for order in range(2, orders + 2):
            mixed = 0
            for k in range(order):
                mixed ^= wrapped(seen[k] * multipliers[k])
            own = range((order - 2) * heads, (order - 1) * heads)
            row += [mixed % sizes[head] + offsets[head] for head in own]
        table.append(row)
    return np.array(table, dtype=np.int64).reshape(len(tokens), len(sizes))


def make(multipliers, sizes, offsets):
    return NgramHash(*(np.array(v, dtype=np.int64) for v in (multipliers, sizes, offsets)), eos=EOS)


@pytest.fixture(params=[True, False], ids=["kernels", "numpy"], autouse=True)
def kernels(request, monkeypatch):
    """Both ways to the same rows."""
    if not request.param:
        monkeypatch.setattr(ngrams, "_native", None)
    elif ngrams._native is None:
        pytest.skip("the kernels are not built")


@st.composite
def hashes(draw):
    order, heads = draw(st.integers(2, 5)), draw(st.integers(1, 3))
    multipliers = draw(st.lists(st.integers(1, (1 << 63) - 1), min_size=order, max_size=order))
    count = (order - 1) * heads
    sizes = draw(st.lists(st.integers(1, 1 << 40), min_size=count, max_size=count))
    offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]]).tolist()
    return multipliers, sizes, offsets


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(hashes(), st.lists(st.integers(0, 6) | st.integers(0, 300_000), max_size=12), st.data())
def test_any_chunking_equals_arithmetic_by_hand(parameters, tokens, data):
    cuts = data.draw(st.sets(st.integers(0, len(tokens)))) | {0, len(tokens)}
    edges = sorted(cuts)
    hashed = make(*parameters)
    parts = [
        hashed.rows(tokens[:start], np.array(tokens[start:stop], dtype=np.int32))
        for start, stop in itertools.pairwise(edges)
    ]
    whole = by_hand(*parameters, tokens)
    joined = np.concatenate(parts) if parts else whole[:0]
    np.testing.assert_array_equal(joined, whole)


def test_products_wrap_and_rows_stay_in_their_head():
    parameters = (
        [(1 << 63) - 25, (1 << 62) + 9, 0x7F3A_5501_8812_3457],
        [101, 103, 107, 109],
        [0, 101, 204, 311],
    )
    tokens = [0, 5, 248_319, 248_000, 7, 7, 7]
    rows = make(*parameters).rows([], np.array(tokens, dtype=np.int32))
    np.testing.assert_array_equal(rows, by_hand(*parameters, tokens))
    for head, (size, offset) in enumerate(zip(*parameters[1:], strict=True)):
        assert (rows[:, head] >= offset).all()
        assert (rows[:, head] < offset + size).all()


def test_eos_ends_a_segment():
    hashed = make([1_000_003, 77_777, 5_551], [97, 101], [0, 97])
    after = hashed.rows([9, 8, EOS], np.array([5, 6, 7], dtype=np.int32))
    fresh = hashed.rows([], np.array([5, 6, 7], dtype=np.int32))
    np.testing.assert_array_equal(after, fresh)
    other = hashed.rows([9, 8, 4], np.array([5, 6, 7], dtype=np.int32))
    assert (other[:2] != fresh[:2]).any()
    np.testing.assert_array_equal(other[2], fresh[2])


@pytest.mark.parametrize("order", [2, 3, 5])
def test_only_the_tail_of_the_history_matters(order):
    rng = np.random.default_rng(order)
    sizes = [1009 + i for i in range(order - 1)]
    hashed = make(rng.integers(1, 1 << 50, order), sizes, [0] * (order - 1))
    history = rng.integers(4, 90, 40).tolist()
    token = np.array([12], dtype=np.int32)
    tail = history[-hashed.context_tokens :]
    np.testing.assert_array_equal(hashed.rows(history, token), hashed.rows(tail, token))
