from __future__ import annotations

import pytest

from cherenkov.text.reasoning import Part, ReasoningSplitter, opens_reasoning


def split(pieces, *, opened: bool) -> tuple[str, str, bool]:
    splitter = ReasoningSplitter(opened=opened)
    parts = [*map(splitter.feed, pieces), splitter.flush()]
    return (
        "".join(p.reasoning for p in parts),
        "".join(p.content for p in parts),
        splitter.is_inside,
    )


@pytest.mark.parametrize(
    ("opened", "text", "reasoning", "content"),
    [
        (True, "let me see\n</think>\n\nParis.", "let me see", "Paris."),
        (True, "</think>Paris.", "", "Paris."),
        (True, "\n\n</think>\n\n", "", ""),
        (True, " a  b \n c \n</think> d \n", "a  b \n c", "d \n"),
        (True, "a </think>b</think>c<think>d", "a", "b</think>c<think>d"),
        (True, "a <think> b</think>c", "a <think> b", "c"),
        (True, "a <tool_call></think>b", "a <tool_call>", "b"),
        (False, "Paris.", "", "Paris."),
        (False, "<think>\nhm\n</think>\n\nParis.", "hm", "Paris."),
        (False, " \n<think>hm</think>x", "hm", "x"),
        (False, " \n Paris <think>x</think>", "", " \n Paris <think>x</think>"),
        (False, "<thin", "", "<thin"),
        (False, "<b>x</b>", "", "<b>x</b>"),
        (False, " \n", "", " \n"),
        (False, "", "", ""),
        (False, "</think>x", "", "</think>x"),
        (True, "a</think>\u3000\u3000b", "a", "\u3000\u3000b"),
    ],
)
def test_reasoning_and_content(opened, text, reasoning, content):
    assert split([text], opened=opened) == (reasoning, content, False)
    assert split(text, opened=opened) == (reasoning, content, False)


@pytest.mark.parametrize(
    ("opened", "text", "reasoning"),
    [
        (True, "", ""),
        (True, "still thinking\n", "still thinking\n"),
        (True, "almost </thin", "almost </thin"),
        (True, " \n", ""),
        (False, "<think>", ""),
        (False, "<think>\nwell", "well"),
    ],
)
def test_the_model_stops_while_thinking(opened, text, reasoning):
    assert split([text], opened=opened) == (reasoning, "", True)
    assert split(text, opened=opened) == (reasoning, "", True)


def test_nothing_is_held_that_is_certain():
    splitter = ReasoningSplitter(opened=True)
    assert splitter.feed("\nwell, 2 <") == Part("well, 2")
    assert splitter.feed(" 3") == Part(" < 3")
    assert splitter.feed(". \n</") == Part(".")
    assert splitter.feed("think>\n") == Part()
    assert splitter.feed("\nYes. ") == Part("", "Yes. ")
    assert splitter.feed("</") == Part("", "</")


@pytest.mark.parametrize(
    ("prompt", "opened"),
    [
        ("<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>assistant\n<think>", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("<|im_start|>assistant\n", False),
        ("", False),
    ],
)
def test_prompts_that_open_the_block(prompt, opened):
    assert opens_reasoning(prompt) is opened


@pytest.mark.parametrize(
    ("before", "behind", "reasoning", "content"),
    [
        ("hm", "</think>x", "hm", "x"),
        ("hm", "so", "hm{}so", ""),
        ("hm", "</thi", "hm{}</thi", ""),
        ("", "</think>x", "", "x"),
    ],
)
def test_blanks_without_end_are_held_apart(before, behind, reasoning, content):
    """Each piece is looked at once: else this would take minutes."""
    blanks = " \n\t" * 60_000
    pieces = [before, *(blanks[i : i + 3] for i in range(0, len(blanks), 3)), behind]
    found = split(pieces, opened=True)
    assert found[:2] == (reasoning.format(blanks), content)
    if not before:
        assert split(["", *pieces[1:-1], "so"], opened=False)[1] == blanks + "so"
