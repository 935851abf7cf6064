"""What the draft head has still to read."""

import numpy as np

from cherenkov.backends.reference import Reference
from cherenkov.trail import Trail

OPS = Reference()


def rows(first, count):
    """A residual that says its positions."""
    return np.arange(first, first + count, dtype=np.float32)[:, None]


def read(trail, first, last):
    found = list(trail.between(first, last, OPS))
    assert [count for count, _ in found] == [len(piece) for _, piece in found]
    return np.concatenate([piece for _, piece in found])[:, 0].tolist() if found else []


def test_rows_that_were_taken_back_are_those_of_the_later_piece():
    trail = Trail()
    trail.add(0, 5, rows(0, 5), 0)
    trail.add(5, 4, rows(5, 4), 0)
    trail.add(7, 2, rows(107, 2), 0)  # 7 and 8 again
    assert trail.covers(0, 9)
    assert not trail.covers(0, 10)
    assert read(trail, 3, 9) == [3, 4, 5, 6, 107, 108]
    trail.add(0, 1, rows(200, 1), 0)
    assert read(trail, 0, 1) == [200]


def test_what_is_kept_is_a_copy():
    trail, wide = Trail(), rows(0, 6)
    trail.add(0, 6, wide, 0)
    trail.keep(4, 6, OPS)
    wide[:] = -1
    assert trail.start == 4
    assert read(trail, 4, 6) == [4, 5]


def test_a_gap_ends_what_was_before():
    trail = Trail()
    trail.add(0, 2, rows(0, 2), 0)
    trail.add(4, 2, rows(4, 2), 0)
    assert trail.start == 4
    assert not trail.covers(0, 6)


def test_forgetting_and_copying():
    trail = Trail()
    for at in range(4):
        trail.add(at, 1, rows(at, 1), 0)
    other = trail.copy()
    trail.forget(2)
    assert (trail.start, other.start) == (2, 0)
    assert read(other, 0, 4) == [0, 1, 2, 3]
    assert not Trail().covers(0, 0)


def test_who_comes_too_late_stays_out():
    trail = Trail()
    trail.add(4, 2, rows(4, 2), 3)  # 3 is lacking
    assert trail.start == -1
    trail.add(3, 3, rows(3, 3), 3)
    assert trail.covers(3, 6)


def test_a_closed_one_keeps_nothing():
    trail = Trail()
    trail.add(0, 2, rows(0, 2), 0)
    trail.close()
    trail.add(0, 2, rows(0, 2), 0)
    trail.copy().add(0, 2, rows(0, 2), 0)
    assert trail.start == trail.copy().start == -1
    assert not trail.size_bytes
