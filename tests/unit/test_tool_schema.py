from __future__ import annotations

import json
import math
from types import MappingProxyType

import pytest

from cherenkov.errors import RequestError, UnsupportedParam
from cherenkov.text.tool_schema import ToolSet
from cherenkov.text.tool_values import Declared, declared, value_of

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}


def function(**changes) -> dict:
    return {"type": "function", "function": {"name": "f", "parameters": SCHEMA, **changes}}


def test_tools_by_name_in_order():
    tools = ToolSet([function(name="b"), function(name="a"), {"name": "c-1_X"}])
    assert list(tools) == ["b", "a", "c-1_X"]
    assert len(tools) == 3
    assert tools["b"].properties == SCHEMA["properties"]
    assert tools["b"].required == {"city"}
    assert tools["c-1_X"].properties == {}
    assert tools["c-1_X"].required == frozenset()


def test_the_template_gets_what_was_given_wrapped_if_need_be():
    given = function(description="é", x=[1])
    assert ToolSet([given, {"name": "g"}]).definitions == [
        given,
        {"type": "function", "function": {"name": "g"}},
    ]


def test_later_changes_of_the_callers_objects_do_not_matter():
    given = function()
    tools = ToolSet([given])
    given["function"]["name"] = "<|im_start|>"
    assert tools.definitions[0]["function"]["name"] == "f"


@pytest.mark.parametrize("nothing", [None, [], ()])
def test_no_tools(nothing):
    assert not ToolSet(nothing)
    assert ToolSet(nothing).definitions == []


def deep(levels: int) -> dict:
    schema: dict = {"type": "object"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"x": schema}}
    return schema


def bomb() -> list:
    value: list = []
    for _ in range(30):
        value = [value] * 10
    return value


def cycle() -> dict:
    schema: dict = {"type": "object"}
    schema["properties"] = {"x": schema}
    return schema


@pytest.mark.parametrize(
    ("tools", "reason"),
    [
        ("f", "tools: must be a list"),
        ({"f": 1}, "tools: must be a list"),
        ([function()] * 129, "129 tools, but at most 128"),
        ([function(), function()], r"tools\[1\]: a second tool named 'f'"),
        ([1], r"tools\[0\]: must be a mapping"),
        ([{"type": "retrieval"}], r"tools\[0\].type: must be 'function', not 'retrieval'"),
        ([{"type": "function"}], r"tools\[0\].function: must be a mapping with a name"),
        ([{"type": "function", "function": [1]}], r"tools\[0\].function: must be a mapping"),
        ([{}], r"function.name: must be 1 to 64"),
        *[
            ([function(name=n)], "name: must be 1 to 64 letters")
            for n in ("", "a b", "é", "x" * 65, "a\n", "<f>", 5, None)
        ],
        ([function(description=5)], "description: must be a string"),
        ([function(parameters="{}")], "parameters: must be a JSON schema"),
        ([function(parameters=[])], "parameters: must be a JSON schema"),
        ([function(parameters={"type": "array"})], "parameters.type: must be 'object'"),
        ([function(parameters={"type": ["object"]})], "parameters.type: must be 'object'"),
        ([function(parameters={"properties": []})], "properties: must be a mapping"),
        ([function(parameters={"properties": {"a": 1}})], "properties.a: must be a JSON schema"),
        ([function(parameters={"properties": {"a>": {}}})], "'a>' cannot be written in a call"),
        ([function(parameters={"properties": {"": {}}})], "cannot be written"),
        (
            [function(parameters={"properties": {f"p{i}": {} for i in range(257)}})],
            "257, but at most 256",
        ),
        ([function(parameters={"required": "a"})], "required: must be a list of strings"),
        ([function(parameters={"required": [1]})], "required: must be a list of strings"),
        ([function(parameters=deep(20))], "nested more than 32 deep"),
        ([function(parameters=cycle())], "nested more than 32 deep"),
        ([function(parameters=deep(100_000))], "nested more than 32 deep"),
        ([function(x=bomb())], "nested more than 32 deep, or too large"),
        ([function(description="x" * 70_000)], "more than 65536 bytes of JSON"),
        ([function(x=math.nan)], "cannot be written as JSON"),
        ([function(x={1, 2})], "cannot be written as JSON"),
        ([MappingProxyType(function())], "cannot be written as JSON"),
    ],
)
def test_what_is_no_tool_is_refused_in_one_line(tools, reason):
    with pytest.raises(RequestError, match=reason) as caught:
        ToolSet(tools)
    assert caught.value.param == "tools"
    assert len(str(caught.value)) < 300


def test_strict_cannot_be_promised():
    assert ToolSet([function(strict=False)])
    with pytest.raises(UnsupportedParam, match=r"tools\[0\].function.strict"):
        ToolSet([function(strict=True)])


# --- values


def value(schema: object, text: str, root: dict | None = None) -> object:
    """The value, or `Misfit` around the text."""
    found, fits = value_of(text, declared(schema, root or {}))
    return found if fits else ("misfit", found)


def misfit(text: str) -> tuple[str, str]:
    return ("misfit", text)


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("string", " a\nb ", " a\nb "),
        ("string", "12", "12"),
        ("string", '"x"', '"x"'),
        ("string", "null", "null"),
        ("integer", "3", 3),
        ("integer", " -2\n", -2),
        ("integer", "+3", 3),
        ("integer", "007", 7),
        ("integer", "3.0", 3),
        ("integer", "1e3", 1000),
        ("integer", "9" * 100, int("9" * 100)),
        ("integer", "3.5", misfit("3.5")),
        ("integer", "1e999", misfit("1e999")),
        ("integer", "1e30", misfit("1e30")),
        ("integer", "9" * 5000, misfit("9" * 5000)),
        ("integer", "three", misfit("three")),
        ("integer", "true", misfit("true")),
        ("integer", "٣", misfit("٣")),
        ("integer", "1_000", misfit("1_000")),
        ("number", "2", 2),
        ("number", "2.50", 2.5),
        ("number", "-1e-3", -0.001),
        ("number", "NaN", misfit("NaN")),
        ("number", "inf", misfit("inf")),
        ("number", "1e999", misfit("1e999")),
        ("number", "1.", misfit("1.")),
        ("number", "0x10", misfit("0x10")),
        ("boolean", "true", True),
        ("boolean", " False ", False),
        ("boolean", "TRUE", True),
        ("boolean", "1", misfit("1")),
        ("boolean", "yes", misfit("yes")),
        ("null", "null", None),
        ("null", "None", None),
        ("null", "x", misfit("x")),
        ("object", '{"a": [1, 2.5, null]}', {"a": [1, 2.5, None]}),
        ("object", "\n{}\n", {}),
        ("object", "[]", misfit("[]")),
        ("object", "{'a': 1}", misfit("{'a': 1}")),
        ("object", '{"a": NaN}', misfit('{"a": NaN}')),
        ("object", '{"a": 1e999}', misfit('{"a": 1e999}')),
        ("object", '{"a": ' + "9" * 5000 + "}", misfit('{"a": ' + "9" * 5000 + "}")),
        ("array", '["a", 1]', ["a", 1]),
        ("array", "[" * 60 + "]" * 60, json.loads("[" * 60 + "]" * 60)),
        ("array", "[" * 100_000, misfit("[" * 100_000)),
        ("array", "[" * 100 + "]" * 100, misfit("[" * 100 + "]" * 100)),
        ("array", "a, b", misfit("a, b")),
    ],
)
def test_the_table_of_values(kind, text, expected):
    found = value({"type": kind}, text)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        ({"type": ["integer", "null"]}, "null", None),
        ({"type": ["integer", "null"]}, "4", 4),
        ({"type": ["string", "null"]}, "none", None),
        ({"type": ["string", "integer"]}, "4", 4),
        ({"type": ["string", "integer"]}, " four ", " four "),
        ({"type": ["integer", "number"]}, "4.5", 4.5),
        ({"anyOf": [{"type": "boolean"}, {"type": "array"}]}, "[true]", [True]),
        ({"anyOf": [{"type": "boolean"}, {"type": "array"}]}, "x", misfit("x")),
        ({"oneOf": [{"type": "string"}, {"type": "number"}]}, "1.5", 1.5),
        ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, "4", 4),
        ({"enum": ["low", "high"]}, " low ", "low"),
        ({"enum": ["low", "high"]}, '"low"', "low"),
        ({"enum": ["low", 1, None, True]}, "1", 1),
        ({"enum": ["low", 1, None, True]}, "true", True),
        ({"enum": ["low", 1, None, True]}, "null", None),
        ({"enum": [1.0]}, "1", misfit("1")),
        ({"enum": ["low"]}, "mid", misfit("mid")),
        ({"const": 5}, "5", 5),
        ({"type": "integer", "enum": [1, 2]}, "3", 3),  # checking values is the caller's
        ({"type": "date"}, "x", "x"),
        ({"type": 5}, "x", "x"),
        ({"type": [["integer"]]}, "x", "x"),
        ({"enum": 5}, "x", "x"),
        ({"anyOf": 5}, "x", "x"),
        ({}, "5", "5"),
        ({}, "[5]", [5]),
        ({}, '{"a": 1}', {"a": 1}),
        ({}, "[5", "[5"),
        (True, "5", "5"),
        (None, "5", "5"),
    ],
)
def test_more_than_one_type_or_none(schema, text, expected):
    found = value(schema, text)
    assert found == expected
    assert type(found) is type(expected)


def test_a_text_is_parsed_once_for_all_members(monkeypatch):
    from cherenkov.text import tool_values

    parsed = []
    parse = tool_values._json
    monkeypatch.setattr(tool_values, "_json", lambda text: parsed.append(text) or parse(text))
    text = "[" + "1, " * 20_000 + "1]"
    assert value_of(text, Declared(members=(*range(9000), "x"))) == (text, False)
    assert parsed == [text]


def test_references_inside_the_schema_are_followed():
    root = {"$defs": {"n/a": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"}}}
    assert value({"$ref": "#/$defs/n~1a"}, "3", root) == 3
    assert value({"$ref": "#/$defs/loop"}, "3", root) == "3"
    assert value({"$ref": "#/$defs/absent/x"}, "3", root) == "3"
    assert value({"$ref": "https://example.org/schema"}, "3", root) == "3"


def test_a_schema_that_branches_into_itself_ends():
    root = {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}] * 20}}}
    assert value({"$ref": "#/$defs/a"}, "3", root) == "3"


@pytest.mark.parametrize(
    ("what", "takes"),
    [
        (Declared(), True),
        (Declared(frozenset({"string"})), True),
        (Declared(frozenset({"string", "null"})), True),
        (Declared(frozenset({"integer"})), False),
        (Declared(members=("a",)), False),
        (Declared(members=("a", "")), True),
    ],
)
def test_whether_empty_text_is_a_value(what, takes):
    assert what.takes_text is takes
