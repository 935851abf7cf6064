"""Sequences, and the rows of a step."""

import numpy as np
import pytest

from cherenkov.backends.base import AttentionState, DeltaState, PleState
from cherenkov.state import Rows, State


def make(tokens=(), draft=None):
    attention = AttentionState("k", "v", "i", "b")
    return State((DeltaState("h", "m"), attention), {0: PleState("p")}, draft, 99, list(tokens))


def test_segments_cover_the_rows_in_order():
    one, two = make([1, 2]), make()
    rows = Rows([(one, [7]), (two, [8, 9, 10]), (one, np.array([3], dtype=np.int32))])
    assert rows.tokens.tolist() == [7, 8, 9, 10, 3]
    assert rows.tokens.dtype == np.int32
    assert len(rows) == 5
    assert [(s.start, s.stop) for s in rows.segments] == [(0, 1), (1, 4), (4, 5)]


@pytest.mark.parametrize("kind", ["delta", "attention", "ple"])
def test_spans_carry_the_state_of_their_layer(kind):
    one, two = make([1, 2]), make()
    rows = Rows([(one, [7]), (two, [8, 9])])
    layer = {"delta": 0, "attention": 1, "ple": 0}[kind]
    spans = getattr(rows, kind)(layer)
    assert [(s.start, s.stop, s.position) for s in spans] == [(0, 1, 2), (1, 3, 0)]
    where = [s.ple[0] if kind == "ple" else s.layers[layer] for s in (one, two)]
    assert all(span.state is state for span, state in zip(spans, where, strict=True))


def test_commit_moves_the_position():
    one, two = make([1, 2]), make()
    rows = Rows([(one, [7]), (two, [8, 9])])
    assert (one.position, two.position) == (2, 0)
    rows.commit()
    assert one.tokens == [1, 2, 7]
    assert two.tokens == [8, 9]
    assert all(type(t) is int for t in one.tokens)
    assert (one.position, two.position) == (3, 2)


def test_the_draft_head_has_a_position_of_its_own():
    draft = AttentionState("k", "v", "i", "b", length=4)
    state = make(range(6), draft)
    (span,) = Rows([(state, [5, 6])]).draft()
    assert (span.position, span.state) == (4, draft)
    assert state.draft_position == 4
    assert make().draft_position == 0
