from __future__ import annotations

import pytest

from cherenkov.text.tool_calls import Dropped, Text, ToolCall, ToolCallParser
from cherenkov.text.tool_schema import ToolSet

TOOLS = ToolSet(
    [
        {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
        {"name": "now"},
    ]
)
PARIS = "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>"
NOW = "<tool_call>\n<function=now>\n</function>\n</tool_call>"


def parse(text: str, tools: ToolSet = TOOLS) -> list:
    """The events, adjacent ones of a kind joined; the same for the whole text and for its characters."""
    whole, single = ToolCallParser(tools), ToolCallParser(tools)
    events = joined(whole.feed(text) + whole.flush())
    assert events == joined([e for c in text for e in single.feed(c)] + single.flush())
    assert "".join(e.raw for e in events) == text
    assert whole.calls == single.calls == sum(isinstance(e, ToolCall) for e in events)
    return events


def joined(events: list) -> list:
    out: list = []
    for event in events:
        last = out[-1] if out else None
        if isinstance(event, Text) and isinstance(last, Text) and last.problem == event.problem:
            out[-1] = Text(last.raw + event.raw, last.problem)
        elif (
            isinstance(event, Dropped) and isinstance(last, Dropped) and last.reason == event.reason
        ):
            out[-1] = Dropped(last.raw + event.raw, last.reason)
        else:
            out.append(event)
    return out


def shown(events: list) -> str:
    return "".join(e.raw for e in events if isinstance(e, Text))


def called(events: list) -> list[tuple[str, dict]]:
    return [(e.name, e.arguments) for e in events if isinstance(e, ToolCall)]


def test_a_call_after_text():
    events = parse(f"Let me look. \n\n{PARIS}")
    assert events == [
        Text("Let me look."),
        Dropped(" \n\n", "blanks"),
        ToolCall("weather", {"city": "Paris"}, PARIS),
    ]


def test_several_calls():
    events = parse(f"{PARIS}\n{NOW} \n{PARIS}\n")
    assert called(events) == [
        ("weather", {"city": "Paris"}),
        ("now", {}),
        ("weather", {"city": "Paris"}),
    ]
    assert shown(events) == ""


def test_a_call_comes_out_as_soon_as_it_is_closed():
    parser = ToolCallParser(TOOLS)
    assert parser.feed("Well. <tool") == [Text("Well.")]
    assert parser.feed(PARIS[5:-1]) == []
    assert [type(e) for e in parser.feed(">")] == [Dropped, ToolCall]
    assert not parser.is_done


def test_what_may_begin_a_marker_is_held_back():
    parser = ToolCallParser(TOOLS)
    assert parser.feed("a \n<too") == [Text("a")]
    assert parser.feed("l> b") == [Text(" \n<tool> b")]
    assert parser.feed("\n") == []
    assert parser.flush() == [Text("\n")]


def test_without_tools_everything_is_text():
    parser = ToolCallParser(ToolSet())
    assert parser.feed("a \n<too") == [Text("a \n<too")]
    assert parse(f"a \n{PARIS}", ToolSet()) == [Text(f"a \n{PARIS}")]


@pytest.mark.parametrize(
    "call",
    [
        "<tool_call><function=weather><parameter=city>Paris</parameter></function></tool_call>",
        "<tool_call>\r\n <function=weather> \n\n<parameter=city>\nParis\n</parameter>\t</function>  </tool_call>",
    ],
)
def test_blanks_between_tags_are_free(call):
    assert called(parse(call)) == [("weather", {"city": "Paris"})]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("\nParis\n", "Paris"),
        ("\n  two\n\nlines \n", "  two\n\nlines "),
        ("\n\nx\n\n", "\nx\n"),
        ("\n", ""),
        ("\n\n", ""),
        ("", ""),
        ("\nuse </parameter> here\n", "use </parameter> here"),
        ("\n</parameter>\n</parameter>\n", "</parameter>\n</parameter>"),
        ("\na </param b\n", "a </param b"),
        ("\n<tool_call> and </tool_call>\n", "<tool_call> and </tool_call>"),
        ("\n</function>\n", "</function>"),
        ("\n</function> </tool_call\n", "</function> </tool_call"),
        ('\n"quoted"\n', '"quoted"'),
        ("\n12\n", "12"),
    ],
)
def test_values_are_exact(written, value):
    call = f"<tool_call>\n<function=weather>\n<parameter=city>{written}</parameter>\n</function>\n</tool_call>"
    assert called(parse(call)) == [("weather", {"city": value})]


def test_the_last_of_equal_keys_counts():
    call = PARIS.replace("</function>", "<parameter=city>\nRome\n</parameter>\n</function>")
    assert called(parse(call)) == [("weather", {"city": "Rome"})]


def test_misfits_and_empty_arguments_are_told():
    def call(days: str) -> ToolCall:
        text = PARIS.replace("</function>", f"<parameter=days>\n{days}\n</parameter>\n</function>")
        return parse(text)[-1]

    assert call("3").arguments == {"city": "Paris", "days": 3}
    assert call("soon").arguments == {"city": "Paris", "days": "soon"}
    assert call("soon").mismatched == ("days",)
    assert call("").arguments == {"city": "Paris"}
    assert (call("").omitted, call("").mismatched) == (("days",), ())


def test_an_empty_argument_that_is_required_stays_as_a_misfit():
    tools = ToolSet(
        [
            {
                "name": "f",
                "parameters": {"properties": {"n": {"type": "number"}}, "required": ["n"]},
            }
        ]
    )
    (call,) = parse(
        "<tool_call><function=f><parameter=n></parameter></function></tool_call>", tools
    )
    assert (call.arguments, call.mismatched, call.omitted) == ({"n": ""}, ("n",), ())


def test_undeclared_arguments_are_kept():
    extra = PARIS.replace(
        "</function>", "<parameter=x>\n[1]\n</parameter><parameter=y>\n5\n</parameter></function>"
    )
    assert called(parse(extra)) == [("weather", {"city": "Paris", "x": [1], "y": "5"})]
    tools = ToolSet(
        [{"name": "weather", "parameters": {"additionalProperties": {"type": "integer"}}}]
    )
    assert called(parse(PARIS.replace("Paris", "5"), tools)) == [("weather", {"city": 5})]


# --- recovery


@pytest.mark.parametrize(
    "suffix",
    [
        "\nHere it is.",
        "\n<tool_response>\n18C\n</tool_response>\n" + PARIS,
        "\n<tool_call>\n<function=weather>\n<parameter=city>\nRo",
        "\n<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>",
        "\n<tool_call>\n<function=wea",
        "\n<tool_call>\nhm" + PARIS,
        "\n<tool_",
        " <",
    ],
)
def test_what_follows_a_complete_call_is_dropped(suffix):
    events = parse(f"a {PARIS}{suffix}")
    assert called(events) == [("weather", {"city": "Paris"})]
    assert shown(events) == "a"
    assert isinstance(events[-1], Dropped)


@pytest.mark.parametrize(
    "end",
    [
        "</function>\n</tool_call>",
        "</function>\n</tool",
        "</function>",
        "</function>\n",
        "</func",
        "</tool_call>",
        "</tool_c",
        "<",
        "\n",
        "",
    ],
)
def test_closing_tags_may_be_missing_at_the_end(end):
    text = PARIS[: PARIS.index("</function>")] + end
    assert parse(text) == [ToolCall("weather", {"city": "Paris"}, text)]


@pytest.mark.parametrize("cut", ["</function>", "</tool_call>"])
def test_closing_tags_may_be_missing_before_another_call(cut):
    first = PARIS[: PARIS.index(cut)]
    assert called(parse(f"{first}\n{NOW}"))[0] == ("weather", {"city": "Paris"})
    assert called(parse(f"{first}\n{NOW}"))[1] == ("now", {})


def test_a_call_that_was_cut_off_needs_its_required_arguments():
    text = "<tool_call>\n<function=weather>\n<parameter=days>\n3\n</parameter>\n"
    assert parse(text) == [Text(text, "unfinished call")]
    assert called(parse(text + "</function>")) == [("weather", {"days": 3})]


@pytest.mark.parametrize(
    ("region", "problem"),
    [
        ("<tool_call>\n<function=weather>\n<parameter=city>\nPar", "unfinished call"),
        ("<tool_call>\n<function=weather>\n<parameter=city>\nPar</param", "unfinished call"),
        ("<tool_call>\n<function=weather>\n<parameter=ci", "unfinished call"),
        (
            "<tool_call>\n<function=weather>\n<parameter=city>\nP\n</parameter>\n<para",
            "unfinished call",
        ),
        (
            "<tool_call>\n<function=weather>\n<parameter=city>\nP\n</parameter>\nwell",
            "unfinished call",
        ),
        ("<tool_call>\n<function=weather>", "unfinished call"),
        ("<tool_call>\n<function=wea", "unfinished call"),
        ("<tool_call>\n", "unfinished call"),
        (PARIS.replace("weather", "whether"), "unknown function whether"),
        (PARIS.replace("</parameter>\n", ""), "unfinished value"),
    ],
)
def test_unusable_calls_are_text_verbatim(region, problem):
    assert parse(f"Well \n{region}") == [Text("Well"), Text(f" \n{region}", problem)]


@pytest.mark.parametrize(
    "region",
    [
        "<tool_call> is how calls begin",
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        "<tool_call>\n<function=>",
        "<tool_call>\n<function=not a name>",
        "<tool_call>\n<function=" + "x" * 65,
        "<tool_call>\n<function=now>hm",
        "<tool_call>\n<function=now><parameter=>",
        "<tool_call>\n<function=now><parameter=a\nb>",
        "<tool_call>\n<function=now><parameter=" + "x" * 300,
    ],
)
def test_what_is_no_call_is_text_and_a_later_call_counts(region):
    events = parse(f"{region}\n{NOW}")
    assert shown(events) == region
    assert called(events) == [("now", {})]


def test_a_marker_that_leads_nowhere_does_not_hold_the_text_up():
    parser = ToolCallParser(TOOLS)
    assert shown(parser.feed("see `<tool_call>`")) == "see `<tool_call>`"
    assert shown(parser.feed("<tool_call>\n<function=a b")) == "<tool_call>\n<function=a b"


def test_an_unknown_function_after_a_call_is_shown_and_the_next_call_counts():
    unknown = PARIS.replace("weather", "whether")
    events = parse(f"{PARIS}\n{unknown}\n{NOW}")
    assert [name for name, _ in called(events)] == ["weather", "now"]
    assert shown(events) == unknown


def test_a_call_quoted_in_the_value_of_an_unknown_function_is_no_call():
    quoted = f"<tool_call>\n<function=write>\n<parameter=text>\nsee {NOW}\n</parameter>\n</function>\n</tool_call>"
    # The quotation's own end closes the call inside the value.
    assert called(parse(quoted)) == []


def test_done_says_that_nothing_more_can_count():
    parser = ToolCallParser(TOOLS)
    parser.feed(PARIS + "\n")
    assert not parser.is_done
    parser.feed("So")
    assert parser.is_done


@pytest.mark.parametrize("filler", ["\n", "<", "</tool_call>", "</parameter>", "a" * 7])
def test_long_values_cost_one_pass(filler):
    """Work that grew with the square of the length would run into the time limit."""
    value = filler * (300_000 // len(filler))
    text = PARIS.replace("Paris", f"[{value}]")
    parser = ToolCallParser(TOOLS)
    pieces = [text[i : i + 5] for i in range(0, len(text), 5)]
    events = [e for piece in pieces for e in parser.feed(piece)] + parser.flush()
    assert called(events) == [("weather", {"city": f"[{value}]"})]
    assert ToolCallParser(TOOLS).feed(text)[-1] == events[-1]


def test_calls_without_end_are_as_many_as_a_message_holds():
    """A model that repeats itself: the turn ends, and the reply can be kept."""
    parser = ToolCallParser(TOOLS)
    events = parser.feed((NOW + "\n") * 128)
    assert parser.is_done
    events += parser.feed(NOW * 20) + parser.flush()
    assert called(events) == [("now", {})] * 128
    assert "".join(e.raw for e in events) == (NOW + "\n") * 128 + NOW * 20


def test_arguments_that_no_message_holds_are_text():
    lists = f"[{'1,' * 40000}1]"
    parts = "".join(f"<parameter={key}>\n{lists}\n</parameter>\n" for key in ("city", "a", "b"))
    text = f"<tool_call>\n<function=weather>\n{parts}</function>\n</tool_call>"
    parser = ToolCallParser(TOOLS)
    assert joined(parser.feed(text) + parser.flush()) == [Text(text, "too large arguments")]


def test_blanks_without_end_are_held_apart():
    """Each piece is looked at once: else this would take minutes."""
    blanks = " \n\t" * 60_000
    pieces = [blanks[i : i + 3] for i in range(0, len(blanks), 3)]
    for before, behind, events in (
        ("Well.", NOW, [Text("Well."), Dropped(blanks, "blanks"), ToolCall("now", {}, NOW)]),
        ("", "so", [Text(blanks + "so")]),
        ("Well.", "<tool_call", [Text("Well." + blanks + "<tool_call")]),
        ("Well.", "", [Text("Well." + blanks)]),
    ):
        parser = ToolCallParser(TOOLS)
        made = [e for piece in [before, *pieces, behind] for e in parser.feed(piece)]
        assert joined(made + parser.flush()) == events
