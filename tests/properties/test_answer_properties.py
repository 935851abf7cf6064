"""Stop strings, reasoning and tool calls: the same for every split of the stream, and nothing lost."""

from __future__ import annotations

import json
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from cherenkov.text.markers import BLANKS
from cherenkov.text.reasoning import CLOSE, OPEN, ReasoningSplitter
from cherenkov.text.stops import StopStrings
from cherenkov.text.tool_calls import Dropped, Text, ToolCall, ToolCallParser
from cherenkov.text.tool_schema import ToolSet

common = settings(max_examples=300, deadline=None)


def pieces_of(data, text: str) -> list[str]:
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=12)) if text else []
    return [text[a:b] for a, b in pairwise([0, *sorted(cuts), len(text)])]


# --- stop strings


def first_stop(stops: tuple[str, ...], text: str) -> tuple[str, str | None]:
    """The definition: the stop that completes first, the longest of several there."""
    for end in range(1, len(text) + 1):
        ending = [s for s in stops if text[:end].endswith(s)]
        if ending:
            found = max(ending, key=len)
            return text[: end - len(found)], found
    return text, None


few = st.text(alphabet="ab\n", min_size=1, max_size=5)


@common
@given(data=st.data(), stops=st.lists(few, max_size=5), text=st.text(alphabet="ab\nc", max_size=30))
def test_stops_are_cut_exactly_for_any_split(data, stops, text):
    matcher = StopStrings(stops).matcher()
    given_out = ""
    for piece in pieces_of(data, text):
        given_out += matcher.feed(piece)
        if matcher.found is None:
            assert text.startswith(given_out)
    given_out += matcher.flush()
    assert (given_out, matcher.found) == first_stop(tuple(stops), text)


@common
@given(stops=st.lists(few, min_size=1, max_size=5), text=st.text(alphabet="ab\nc", max_size=30))
def test_no_more_is_held_back_than_may_begin_a_stop(stops, text):
    matcher = StopStrings(stops).matcher()
    given_out = matcher.feed(text)
    if matcher.found is None:
        held = text[len(given_out) :]
        longest = max((n for s in stops for n in range(len(s)) if text.endswith(s[:n])), default=0)
        assert len(held) == longest


# --- reasoning

thoughts = st.lists(
    st.one_of(
        st.sampled_from([OPEN, CLOSE, "<", "</", "think>", "\n", " ", "\u3000", "<tool_call>"]),
        st.text(alphabet="ab<>/ \n", max_size=4),
    ),
    max_size=10,
).map("".join)


def parts_of(opened: bool, text: str) -> tuple[str, str, bool]:
    """The definition, on the whole text."""
    if not opened:
        if not text.lstrip(BLANKS).startswith(OPEN):
            return "", text, False
        text = text.lstrip(BLANKS)[len(OPEN) :]
    thought, closed, content = text.lstrip(BLANKS).partition(CLOSE)
    if not closed:
        return thought, "", True
    return thought.rstrip(BLANKS), content.lstrip(BLANKS), False


@common
@given(data=st.data(), opened=st.booleans(), text=thoughts)
def test_reasoning_is_split_the_same_for_any_split(data, opened, text):
    splitter = ReasoningSplitter(opened=opened)
    parts = [*map(splitter.feed, pieces_of(data, text)), splitter.flush()]
    found = "".join(p.reasoning for p in parts), "".join(p.content for p in parts)
    assert (*found, splitter.is_inside) == parts_of(opened, text)


# --- tool calls

TOOLS = ToolSet(
    [
        {
            "name": "f",
            "parameters": {
                "properties": {
                    "text": {"type": "string"},
                    "n": {"type": "number"},
                    "any": {"type": ["object", "array", "boolean", "null"]},
                },
                "required": ["text"],
            },
        },
        {"name": "g"},
    ]
)
WHOLE = "<tool_call>\n<function=f>\n<parameter=text>\nv\n</parameter>\n</function>\n</tool_call>"
fragments = st.one_of(
    st.sampled_from(
        [
            *("<tool_call>", "</tool_call>", "<function=", "f>", "g>", "h>", "</function>"),
            *("<parameter=text>", "<parameter=", "n>", "</parameter>", "<", "</", "<tool", "\n"),
            *(" ", "</para", "x", "<tool_call>\n<function=f>\n", WHOLE, WHOLE[:-30], WHOLE[12:]),
        ]
    ),
    st.text(max_size=5),
)
streams = st.lists(fragments, max_size=14).map("".join)


def joined(events: list) -> list:
    """Adjacent events of a kind as one."""
    out: list = []
    for event in events:
        kind = (type(event), getattr(event, "problem", None) or getattr(event, "reason", None))
        if out and out[-1][0] == kind and not isinstance(event, ToolCall):
            out[-1] = (kind, out[-1][1] + event.raw)
        else:
            out.append((kind, event if isinstance(event, ToolCall) else event.raw))
    return out


def parsed(pieces: list[str]) -> list:
    parser = ToolCallParser(TOOLS)
    return [e for piece in pieces for e in parser.feed(piece)] + parser.flush()


@settings(common, max_examples=600)
@given(data=st.data(), text=streams)
def test_no_byte_is_lost_and_every_split_agrees(data, text):
    events = parsed([text])
    assert "".join(e.raw for e in events) == text
    for pieces in (pieces_of(data, text), list(text)):
        again = parsed(pieces)
        assert "".join(e.raw for e in again) == text
        assert joined(again) == joined(events)
    assert all(e.raw for e in events)


@common
@given(text=streams)
def test_what_comes_out_keeps_the_rules(text):
    events = parsed([text])
    calls = [e for e in events if isinstance(e, ToolCall)]
    for call in calls:
        assert call.name in TOOLS
        assert call.raw.startswith("<tool_call>")
        json.dumps(call.arguments, allow_nan=False)
        # What was written is a call by itself, and the same.
        if "</function>" in call.raw:
            assert [e for e in parsed([call.raw]) if isinstance(e, ToolCall)] == [call]
    if not calls:
        assert not any(isinstance(e, Dropped) for e in events)
        assert "".join(e.raw for e in events if isinstance(e, Text)) == text
    if "<tool_call>" not in text:
        assert joined(events) == ([((Text, None), text)] if text else [])


def test_every_cut_of_a_long_answer():
    text = f"Well,\n\n{WHOLE}\n<tool_call>\n<function=h>\n</function></tool_call>\n{WHOLE} So <tool"
    events = joined(parsed([text]))
    for a in range(len(text)):
        assert joined(parsed([text[:a], text[a:]])) == events
        cut = parsed([text[:a]])
        assert "".join(e.raw for e in cut) == text[:a]


json_values = st.recursive(
    st.none() | st.booleans(),
    lambda inner: (
        st.lists(inner | st.integers() | st.text(max_size=5), max_size=3)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


def spelt(name: str, arguments: dict) -> str:
    """As chat templates write calls."""
    lines = [f"<tool_call>\n<function={name}>"]
    for key, value in arguments.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        lines.append(f"<parameter={key}>\n{text}\n</parameter>")
    return "\n".join([*lines, "</function>\n</tool_call>"])


@common
@given(
    data=st.data(),
    calls=st.lists(
        st.fixed_dictionaries(
            {"text": st.text(max_size=20).filter(lambda t: "</parameter>" not in t)},
            optional={
                "n": st.integers(-(10**30), 10**30)
                | st.floats(allow_nan=False, allow_infinity=False),
                "any": json_values,
            },
        ),
        min_size=1,
        max_size=3,
    ),
    before=st.text(max_size=10).filter(lambda t: "<" not in t),
)
def test_what_templates_write_is_read_back(data, calls, before):
    stream = before + "\n\n" + "\n".join(spelt("f", c) for c in calls)
    events = parsed(pieces_of(data, stream))
    found = [e for e in events if isinstance(e, ToolCall)]
    assert [c.arguments for c in found] == calls
    assert [list(map(type, c.arguments.values())) for c in found] == [
        list(map(type, c.values())) for c in calls
    ]
    assert not any(c.mismatched or c.omitted for c in found)
    text = "".join(e.raw for e in events if isinstance(e, Text))
    assert text == before.rstrip(BLANKS)
