"""Who drafts for which of several sequences, and no more than each has room for."""

from types import SimpleNamespace

import pytest

from cherenkov.speculation import Speculation


class Head:
    """Guesses sevens for sequences whose tokens do not repeat."""

    rows = 0

    def __init__(self):
        self.depths = []

    def can_draft(self, state):
        return len(set(state.tokens)) == len(state.tokens)

    def catch_up(self, state):
        raise AssertionError("it is in step")

    def draft(self, parts, depth):
        self.depths.append(depth)
        return [[7] * depth for _ in parts]


def lane(speculation, tokens, following, room):
    position = len(tokens)
    state = SimpleNamespace(tokens=tokens, position=position, draft_position=position - 1)
    state.trail = SimpleNamespace(close=lambda: setattr(state, "closed", True))
    drafter = speculation.drafter()
    return SimpleNamespace(state=state, pending=[following], drafter=drafter, room=room)


@pytest.fixture
def speculation():
    made = Speculation(SimpleNamespace(drafts=False), SimpleNamespace(rows_alike=True), "auto", 3)
    made._head = Head()
    made.most_lanes, made.pace.fixed = 3, 3
    return made


@pytest.mark.parametrize("rooms", [(0, 9), (1, 9), (2, 0), (9, 1), (0, 0)])
def test_each_has_its_own_room(speculation, rooms):
    """One by the head and one from its text: neither is given the other's room."""
    fresh = lane(speculation, list(range(20)), 100, rooms[0])
    again = lane(speculation, [1, 2, 3, 4, 5] * 3, 1, rooms[1])
    speculation.propose([fresh, again])
    assert fresh.drafter.tokens == [7] * min(3, rooms[0])
    assert again.drafter.tokens == [2, 3, 4][: rooms[1]]


def test_nobody_drafts_for_more_than_may_share_a_step(speculation):
    lanes = [lane(speculation, list(range(20)), 100, 9) for _ in range(4)]
    speculation.propose(lanes)
    assert all(each.drafter.tokens == [] and each.state.closed for each in lanes)
    assert speculation._head.depths == []


def test_auto_drafts_for_one_alone():
    made = Speculation(SimpleNamespace(drafts=False), SimpleNamespace(rows_alike=True), "auto", 2)
    asked = Speculation(SimpleNamespace(drafts=False), SimpleNamespace(rows_alike=True), "ngram", 2)
    assert made.most_lanes == 1
    assert asked.most_lanes > 100
