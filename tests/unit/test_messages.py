from __future__ import annotations

import math
from pathlib import Path

import pytest

from cherenkov.errors import RequestError, UnsupportedParam
from cherenkov.text.controls import Controls
from cherenkov.text.messages import checked_messages, decoded_arguments
from cherenkov.text.nesting import is_within
from cherenkov.text.template import ChatTemplate

DEMO = Path(__file__).parents[2] / "cherenkov" / "demo"
USER = {"role": "user", "content": "Hi"}


def test_plain_form():
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "f", "arguments": '{"a": [1, null]}'},
    }
    given = [
        {"role": "developer", "content": "Be brief.", "name": "x"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "2 "}, {"type": "text", "text": "< 3?"}],
        },
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "content": "yes", "tool_call_id": "c1"},
        {"role": "assistant", "content": "Yes.", "tool_calls": []},
    ]
    assert checked_messages(given) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2 < 3?"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "hm",
            "tool_calls": [
                {
                    "type": "function",
                    "function": {"name": "f", "arguments": {"a": [1, None]}},
                    "id": "c1",
                }
            ],
        },
        {"role": "tool", "content": "yes", "tool_call_id": "c1"},
        {"role": "assistant", "content": "Yes."},
    ]


def test_the_callers_objects_are_left_alone():
    arguments = {"a": [1]}
    given = [
        USER,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"name": "f", "arguments": arguments}],
        },
    ]
    plain = checked_messages(given)
    arguments["a"].append(2)
    assert plain[1]["tool_calls"][0]["function"]["arguments"] == {"a": [1]}
    assert checked_messages(plain) == plain


def test_the_template_takes_what_comes_out():
    messages = checked_messages(
        [
            USER,
            {"role": "assistant", "tool_calls": [{"name": "f", "arguments": '{"n": 5}'}]},
            {"role": "tool", "content": "ok"},
        ]
    )
    with ChatTemplate.open(DEMO, Controls()) as template:
        text = template.render(messages).text
    assert "<function=f>\n<parameter=n>\n5\n</parameter>" in text
    assert "<tool_response>\nok\n</tool_response>" in text


@pytest.mark.parametrize("nothing", [None, "", " \n", {}, "{}"])
def test_no_arguments(nothing):
    assert decoded_arguments("a", nothing) == {}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("{", "not JSON"),
        ("{'a': 1}", "not JSON"),
        ('{"a": NaN}', "not JSON: NaN is no JSON number"),
        ('{"a": 1e999}', "not JSON"),
        ('{"a": ' + "9" * 5000 + "}", "not JSON"),
        ("[1]", "must be an object"),
        ("5", "must be an object"),
        (5, "must be an object"),
        ({"a": math.inf}, "not JSON"),
        ({"a": {1, 2}}, "not JSON"),
        ('{"a": ' * 70 + "1" + "}" * 70, "nested more than 64 deep"),
        ('{"a": ' * 100_000, "not JSON"),
        ({"a": list(range(1 << 17))}, "too large"),
    ],
)
def test_arguments_that_are_none(value, reason):
    with pytest.raises(RequestError, match=reason) as caught:
        decoded_arguments("messages[0].tool_calls[0].arguments", value)
    assert str(caught.value).startswith("messages[0].tool_calls[0].arguments: ")
    assert caught.value.param == "messages"
    assert len(str(caught.value)) < 300


def assistant(**others) -> list:
    return [USER, {"role": "assistant", "content": "x", **others}]


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        (None, "at least one message"),
        ([], "at least one message"),
        ("hi", "at least one message"),
        (USER, "at least one message"),
        ([USER] * 8193, "8193, but at most 8192"),
        ([{"role": "system", "content": "x"}], "at least one must be the user's"),
        ([1], r"messages\[0\]: must be a mapping"),
        ([USER, {}], r"messages\[1\].role: None is none of system, developer, user"),
        ([{"role": "critic", "content": "x"}], "'critic' is none of"),
        ([{"role": ["user"], "content": "x"}], "is none of"),
        ([{"role": "user"}], r"messages\[0\].content: must be a string or a list"),
        ([{"role": "user", "content": None}], "content: must be a string"),
        ([{"role": "user", "content": 5}], "content: must be a string"),
        ([{"role": "user", "content": {"text": "x"}}], "content: must be a string"),
        ([{"role": "tool", "content": None}], "content: must be a string"),
        ([{"role": "user", "content": ["x"]}], r"content\[0\]: must be a mapping with a type"),
        ([{"role": "user", "content": [{"text": "x"}]}], r"content\[0\]: must be a mapping"),
        ([{"role": "user", "content": [{"type": "text"}]}], "text: must be a string"),
        (
            [{"role": "user", "content": "x", "tool_calls": [1]}],
            "only the assistant thinks and calls",
        ),
        ([{"role": "user", "content": "x", "reasoning_content": "y"}], "only the assistant"),
        (
            [USER, {"role": "tool", "content": "x", "tool_call_id": 5}],
            "tool_call_id: must be a string",
        ),
        (assistant(reasoning_content=5), "reasoning_content: must be a string"),
        (assistant(tool_calls="f"), r"messages\[1\].tool_calls: must be a list"),
        (assistant(tool_calls=[{"name": "f"}] * 129), "129 calls, but at most 128"),
        (assistant(tool_calls=["f"]), r"tool_calls\[0\]: must be a mapping"),
        (assistant(tool_calls=[{"type": "custom"}]), "type: must be 'function', not 'custom'"),
        (assistant(tool_calls=[{"function": "f"}]), "function: must be a mapping"),
        (assistant(tool_calls=[{"function": {}}]), "name: must be 1 to 64"),
        (assistant(tool_calls=[{"name": "a b"}]), "name: must be 1 to 64"),
        (assistant(tool_calls=[{"name": "f", "id": 5}]), "id: must be a string"),
        (assistant(tool_calls=[{"name": "f", "arguments": "{"}]), "arguments: not JSON"),
    ],
)
def test_malformed_conversations(messages, reason):
    with pytest.raises(RequestError, match=reason) as caught:
        checked_messages(messages)
    assert caught.value.param == "messages"
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("kind", ["image_url", "image", "video", "input_audio", "file"])
def test_only_text_is_supported(kind):
    parts = [{"type": "text", "text": "look"}, {"type": kind, kind: "x.png"}]
    with pytest.raises(UnsupportedParam, match=rf"content\[1\] is of type '{kind}': only text"):
        checked_messages([{"role": "user", "content": parts}])


@pytest.mark.parametrize(
    ("value", "within"),
    [
        (5, True),
        ([], True),
        ([[]], True),
        ([[[]]], True),
        ([[[[]]]], True),
        ([[[[5]]]], False),
        ({"a": [[5]]}, True),
    ],
)
def test_depth(value, within):
    assert is_within(value, 3, 10) is within


def test_breadth_and_cycles():
    assert is_within([1] * 10, 3, 10)
    assert not is_within([1] * 11, 3, 10)
    cycle: list = []
    cycle.append(cycle)
    assert not is_within(cycle, 1000, 10)
