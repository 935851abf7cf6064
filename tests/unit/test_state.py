"""Sequences, and the rows of a step."""

import numpy as np
import pytest

from cherenkov.backends.base import AttentionState, DeltaState, PleState
from cherenkov.backends.reference import Reference
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


def test_spans_carry_their_sequence():
    one, two = make([1, 2]), make()
    spans = Rows([(one, [7]), (two, [8, 9])]).spans()
    assert [(s.start, s.stop, s.position) for s in spans] == [(0, 1, 2), (1, 3, 0)]
    assert spans[0].state is one
    assert spans[1].state is two


def test_going_back_and_copying_forget_how_arrays_were_bound():
    state, backend = make([1, 2]), Reference()
    snapshot = state.snapshot(backend)
    state.bound = object()
    assert state.copy(backend).bound is None
    state.restore(snapshot, backend)
    assert state.bound is None


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
    assert (span.position, span.state.layers) == (4, (draft,))
    assert Rows([(state, [5])]).draft()[0].state is span.state
    assert state.draft_position == 4
    assert make().draft_position == 0


def arrays(tokens=(), *, draft=True):
    """A state of arrays, each full of its own number."""

    def full(value):
        return np.full((2, 3), float(value))

    attention = AttentionState(full(1), full(2), full(3), full(4), length=5)
    head = AttentionState(full(5), full(6), full(7), full(8), length=1) if draft else None
    return State(
        (DeltaState(full(9), full(10)), attention), {0: PleState(full(11))}, head, 99, list(tokens)
    )


class Copies:
    """The part of a backend that copying takes."""

    def rewind(self, memory, position):
        pass

    def copy(self, array):
        return array.copy()


def everything(state):
    """All that a state holds, by value."""
    parts = [*state.layers, *state.ple.values(), state.draft]
    return [state.tokens, [str(part) for part in parts]]


@pytest.mark.parametrize("draft", [True, False])
def test_a_copy_goes_its_own_way(draft):
    state = arrays([1, 2], draft=draft)
    before = everything(state)
    other = state.copy(Copies())
    assert everything(other) == before
    other.tokens.append(3)
    other.delta(0).matrix[:] = 0
    other.attention(1).keys[:] = 0
    other.attention(1).length += 1
    other.ple[0].history[:] = 0
    assert everything(state) == before


@pytest.mark.parametrize("draft", [True, False])
def test_going_back_more_than_once(draft):
    state = arrays([1, 2], draft=draft)
    before = everything(state)
    point = state.snapshot(Copies())
    assert point.position == 2
    for _ in range(2):
        state.tokens.extend([3, 4])
        state.delta(0).history[:] = 0
        state.delta(0).matrix = np.zeros(1)
        state.attention(1).length = 7
        state.ple[0].history[:] = 0
        if state.draft is not None:
            state.draft.length = 3
        state.restore(point, Copies())
        assert everything(state) == before


def test_states_may_hold_more_than_arrays():
    """Whatever the operations keep beside their arrays is carried along; lists and tuples are copied inside."""
    state = arrays([1])
    inner = np.ones(2)
    state.delta(0).history = [inner, None, (3, "x", inner)]
    point = state.snapshot(Copies())
    inner[:] = 5
    state.restore(point, Copies())
    first, nothing, (number, word, last) = state.delta(0).history
    assert (first.tolist(), nothing, number, word, last.tolist()) == ([1, 1], None, 3, "x", [1, 1])
