from __future__ import annotations

import pytest

from cherenkov.errors import RequestError
from cherenkov.text.stops import StopStrings


def cut(stops, *pieces: str) -> tuple[str, str | None]:
    matcher = StopStrings(stops).matcher()
    text = "".join(map(matcher.feed, pieces)) + matcher.flush()
    return text, matcher.found


@pytest.mark.parametrize(
    ("stops", "text", "kept", "found"),
    [
        (["\n\n"], "a\nb\n\nc", "a\nb", "\n\n"),
        (["###"], "a ## b", "a ## b", None),
        (["###"], "a ##", "a ##", None),
        (["END"], "END", "", "END"),
        (["aab"], "aaab", "a", "aab"),  # the failed beginning holds the next one
        (["abab"], "ababab", "", "abab"),
        (["b", "abc"], "xabc", "xa", "b"),  # completes first
        (["c", "bc", "xyz"], "abcd", "a", "bc"),  # complete together: the longest
        (["ab", "abc"], "abc", "", "ab"),
        (["bc", "abcd"], "abx bc", "abx ", "bc"),
        (["🚀"], "go 🚀 now", "go ", "🚀"),
        ("stop", "one stop", "one ", "stop"),
        (None, "anything", "anything", None),
        ([], "anything", "anything", None),
    ],
)
def test_the_text_before_the_stop(stops, text, kept, found):
    assert cut(stops, text) == (kept, found)
    assert cut(stops, *text) == (kept, found)


def test_only_what_may_begin_a_stop_is_held_back():
    matcher = StopStrings(["</answer>", "\n\n"]).matcher()
    assert matcher.feed("yes <") == "yes "
    assert matcher.feed("b") == "<b"
    assert matcher.feed("</ans") == ""
    assert matcher.feed("wer\n") == "</answer"
    assert matcher.feed("x") == "\nx"
    assert matcher.flush() == ""


def test_text_after_the_stop_is_ignored():
    matcher = StopStrings("!").matcher()
    assert matcher.feed("a!b") == "a"
    assert matcher.feed("c!") == ""
    assert matcher.flush() == ""
    assert matcher.found == "!"


def test_one_set_serves_many_answers():
    stops = StopStrings(["ab"])
    first, second = stops.matcher(), stops.matcher()
    assert first.feed("a") == second.feed("a") == ""
    assert first.feed("b") == ""
    assert second.feed("c") == "ac"
    assert (first.found, second.found) == ("ab", None)


def test_duplicates_count_once_and_emptiness_shows():
    assert StopStrings(["a", "b", "a"]).strings == ("a", "b")
    assert not StopStrings()
    assert StopStrings("x")


@pytest.mark.parametrize(
    ("stops", "reason"),
    [
        (["x"] * 33, "33 strings, but at most 32"),
        (["a"] * 100_000, "100000 strings"),
        (["ok", ""], r"stop\[1\]: must be a string of 1 to 256"),
        (["x" * 257], r"stop\[0\]"),
        ("", r"stop\[0\]"),
        ([1], r"stop\[0\]"),
        ([None], r"stop\[0\]"),
        (5, "a string or a list"),
        ({"a": 1}, "a string or a list"),
    ],
)
def test_absurd_stops_are_refused(stops, reason):
    with pytest.raises(RequestError, match=reason) as caught:
        StopStrings(stops)
    assert caught.value.param == "stop"


def test_the_worst_stops_cost_one_pass():
    """Work that grew with the square of the length would run into the time limit."""
    matcher = StopStrings(["a" * 255 + chr(0x100 + i) for i in range(32)]).matcher()
    assert "".join(matcher.feed("a") for _ in range(200_000)) + matcher.flush() == "a" * 200_000
