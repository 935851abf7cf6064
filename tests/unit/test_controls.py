from __future__ import annotations

from cherenkov.text.controls import Controls

CONTROLS = Controls(special=("<|a|>", "<|ab|>"), markup=("<think>",))


def test_plain_text_is_one_piece():
    assert CONTROLS.pieces("x < y, <b> and <|") == ["x < y, <b> and <|"]
    assert CONTROLS.pieces("") == [""]


def test_every_spelling_is_cut_after_its_first_character():
    assert CONTROLS.pieces("1<|a|>2<think>") == ["1<", "|a|>2<", "think>"]


def test_overlapping_spellings_are_all_cut():
    controls = Controls(special=("<a>", "a>b", "><"))
    pieces = controls.pieces("<a>b><")
    assert "".join(pieces) == "<a>b><"
    assert not any(word in piece for piece in pieces for word in controls.special)


def test_spellings_are_literal_not_patterns():
    controls = Controls(special=("<.*>", "<a+>"))
    assert controls.pieces("<bb> <aa>") == ["<bb> <aa>"]


def test_no_spellings_no_cuts():
    assert Controls().pieces("<|im_start|>") == ["<|im_start|>"]
    assert Controls(special=("x",)).pieces("xx") == ["xx"]


def test_mark_writes_the_cut_and_leaves_the_rest():
    assert CONTROLS.mark("hello", "#") == "hello"
    assert CONTROLS.mark("a <|ab|> b", "#") == "a <#|ab|> b"


def test_mark_can_leave_the_models_own_markup_whole():
    assert CONTROLS.mark("<think>x<|a|>", "#", markup=False) == "<think>x<#|a|>"


def test_mark_cuts_an_open_end():
    assert CONTROLS.mark("see <|a", "#") == "see <#|a"
    assert CONTROLS.mark("see <  \n", "#") == "see <#  \n"
    assert CONTROLS.mark("<thin", "#") == "<#thin"
    assert CONTROLS.mark("<thin", "#", markup=False) == "<thin"
    assert CONTROLS.mark("a < b", "#") == "a < b"


def test_a_megabyte_without_and_with_spellings():
    assert len(CONTROLS.pieces("<" * 1_000_000)) == 1
    assert len(CONTROLS.pieces("<|a|>" * 200_000)) == 200_001
