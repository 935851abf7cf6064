"""Tools that a conversation offers: checked once, here, so that nothing behind has to doubt them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from cherenkov.errors import RequestError, UnsupportedParam
from cherenkov.text.nesting import is_within

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Tool", "ToolSet"]

MAX_TOOLS = 128
MAX_DEPTH = 32
MAX_TOOL_BYTES = 64 << 10
MAX_PARAMETERS = 256

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_KEY = re.compile(r"[^<>\r\n]{1,256}")
"""What fits between `<parameter=` and `>`."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call.

    Attributes:
        name: 1 to 64 of letters, digits, `_` and `-`.
        parameters: JSON schema of the arguments, an object's; empty if there was none.
        definition: what the chat template is given: `{"type": "function", "function": …}`.
    """

    name: str
    parameters: Mapping[str, Any]
    definition: Mapping[str, Any]

    @property
    def properties(self) -> Mapping[str, Any]:
        """Schema of each argument by its name."""
        properties: Mapping[str, Any] = self.parameters.get("properties") or {}
        return properties

    @property
    def required(self) -> frozenset[str]:
        """Arguments that must not be left out."""
        return frozenset(self.parameters.get("required") or ())


class ToolSet(Mapping[str, Tool]):
    """Tools by name, in the order given."""

    def __init__(self, tools: Sequence[Mapping[str, Any]] | None = ()) -> None:
        """Check tools.

        Args:
            tools: `{"type": "function", "function": {"name", "description", "parameters"}}`, or the inner part alone.
                None is none.

        Raises:
            RequestError: if something is no tool; says which and why. `param` is `tools`.
            UnsupportedParam: if a tool asks for `strict`.
        """
        given: object = () if tools is None else tools
        if not isinstance(given, list | tuple):
            raise _refused("tools", "must be a list")
        if len(given) > MAX_TOOLS:
            raise _refused("tools", f"{len(given)} tools, but at most {MAX_TOOLS} are allowed")
        self._tools: dict[str, Tool] = {}
        for i, value in enumerate(given):
            tool = _tool(f"tools[{i}]", value)
            if tool.name in self._tools:
                raise _refused(f"tools[{i}]", f"a second tool named {tool.name!r}")
            self._tools[tool.name] = tool

    @property
    def definitions(self) -> list[Mapping[str, Any]]:
        """What the chat template is given."""
        return [tool.definition for tool in self._tools.values()]

    @override
    def __getitem__(self, name: str) -> Tool:
        return self._tools[name]

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    @override
    def __len__(self) -> int:
        return len(self._tools)


def _refused(where: str, reason: str) -> RequestError:
    return RequestError(f"{where}: {reason}", param="tools")


def _tool(where: str, value: object) -> Tool:
    if not isinstance(value, Mapping):
        raise _refused(where, "must be a mapping")
    definition = _as_json(where, value)
    if "function" not in definition and "type" not in definition:
        definition = {"type": "function", "function": definition}
    elif definition.get("type", "function") != "function":
        raise _refused(f"{where}.type", f"must be 'function', not {definition['type']!r:.60}")
    where, function = f"{where}.function", definition.get("function")
    if not isinstance(function, dict):
        raise _refused(where, "must be a mapping with a name")
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _refused(f"{where}.name", "must be 1 to 64 letters, digits, '_' or '-'")
    if not isinstance(function.get("description") or "", str):
        raise _refused(f"{where}.description", "must be a string")
    if function.get("strict"):
        raise UnsupportedParam(
            f"{where}.strict", "cannot be promised: leave it out, and check the arguments you get"
        )
    return Tool(name, _parameters(f"{where}.parameters", function.get("parameters")), definition)


def _parameters(where: str, schema: object) -> dict[str, Any]:
    """The schema of the arguments: an object's."""
    if schema is None:
        return {}
    if not isinstance(schema, dict):
        raise _refused(where, "must be a JSON schema, a mapping")
    if schema.get("type", "object") != "object":
        raise _refused(f"{where}.type", f"must be 'object', not {schema['type']!r:.60}")
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict):
        raise _refused(f"{where}.properties", "must be a mapping")
    if len(properties) > MAX_PARAMETERS:
        raise _refused(
            f"{where}.properties", f"{len(properties)}, but at most {MAX_PARAMETERS} are allowed"
        )
    for key, value in properties.items():
        if not _KEY.fullmatch(key):
            raise _refused(
                f"{where}.properties",
                f"the name {key!r:.60} cannot be written in a call: "
                "1 to 256 characters, no '<', '>' or line break",
            )
        if not isinstance(value, dict | bool):
            raise _refused(f"{where}.properties.{key:.60}", "must be a JSON schema, a mapping")
    if not isinstance(required, list) or not all(isinstance(r, str) for r in required):
        raise _refused(f"{where}.required", "must be a list of strings")
    return schema


def _as_json(where: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """A copy in plain JSON, neither deep nor large."""
    if not is_within(value, MAX_DEPTH, MAX_TOOL_BYTES):
        raise _refused(where, f"nested more than {MAX_DEPTH} deep, or too large")
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise _refused(where, f"cannot be written as JSON: {error}") from error
    if len(text) > MAX_TOOL_BYTES:
        raise _refused(where, f"more than {MAX_TOOL_BYTES} bytes of JSON")
    plain: dict[str, Any] = json.loads(text)
    return plain
