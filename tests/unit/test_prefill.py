"""Cutting a prompt into chunks, and what prefill asks of a model."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cherenkov.errors import Cancelled
from cherenkov.prefill import chunks, prefill


@given(st.integers(1, 5000), st.integers(1, 600))
def test_chunks_are_few_full_and_nearly_equal(count, rows):
    parts = list(chunks(count, rows))
    assert parts[0][0] == 0
    assert parts[-1][1] == count
    assert all(a[1] == b[0] for a, b in pairwise(parts))
    sizes = [stop - start for start, stop in parts]
    assert max(sizes) <= rows
    assert max(sizes) - min(sizes) <= 1
    assert len(parts) == -(-count // rows)


class Recorder:
    """A network that notes what it is asked."""

    def __init__(self):
        self.steps = []
        self.asked = []

    def forward(self, rows, check):
        (segment,) = rows.segments
        assert check is not None
        self.steps.append(rows.tokens.tolist())
        assert segment.stop == len(rows)
        return len(self.steps)

    def logits(self, wide, rows):
        self.asked.append((wide, rows))
        return "logits"


def test_logits_of_the_last_token_only():
    network, checks = Recorder(), []
    out = prefill(network, object(), [5, 6, 7, 8, 9], 2, lambda: checks.append(len(network.steps)))
    assert out == "logits"
    assert network.steps == [[5], [6, 7], [8, 9]]
    assert network.asked == [(3, [1])]
    assert checks == [0, 1, 2]


def test_stops_between_chunks():
    network = Recorder()

    def check():
        if network.steps:
            raise Cancelled

    with pytest.raises(Cancelled):
        prefill(network, object(), [1, 2, 3], 1, check)
    assert network.steps == [[1]]
