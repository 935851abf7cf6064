"""Drafts from the text so far."""

from hypothesis import given
from hypothesis import strategies as st

from cherenkov.speculation.lookup import LENGTHS, Lookup

Texts = st.lists(st.integers(0, 2), min_size=1, max_size=40)


def plain(text, count):
    """The same, by looking."""
    for length in LENGTHS:
        end = text[-length:]
        for at in range(len(text) - 1, length - 1, -1):
            if len(text) > length and text[at - length : at] == end:
                found = list(text)
                for i in range(count):
                    found.append(found[at + i])
                return found[len(text) :], length
    return [], 0


@given(Texts, st.integers(1, 3), st.lists(st.integers(1, 5), max_size=8))
def test_what_followed_the_last_time(text, count, cuts):
    lookup, at = Lookup(), 0
    for cut in cuts:  # read in pieces, as steps bring them
        at = min(at + cut, len(text) - 1)
        lookup.read(text[:at], text[at])
    lookup.read(text[:-1], text[-1])
    assert lookup.guess(count) == plain(text, count)


def test_a_text_that_repeats_itself_goes_on():
    lookup = Lookup()
    lookup.read([1, 2, 1, 2, 1], 2)
    assert lookup.guess(3) == ([1, 2, 1], 4)
