"""Values of tool arguments: from the text between `<parameter=KEY>` and `</parameter>` to what the JSON schema declares.

The markup carries text only, so the declared type decides what the text means. The text is trimmed of blanks first,
except for strings.

| declared | accepted text | value |
|---|---|---|
| `string` | any | the text as it is, quotes included |
| `integer` | a JSON number that is whole: `3`, `-2`, `3.0`, `1e3`; also `+3`, `007` | an int |
| `number` | a finite JSON number; also `+3`, `007` | an int if written as one, else a float |
| `boolean` | `true`, `false`, in any case | a bool |
| `null` | `null`, `none`, in any case | None |
| `object`, `array` | JSON of that kind | a dict, a list |
| several, by a list, `anyOf`, `oneOf` | what any of them accepts | tried in the order null, boolean, integer, number, array, object, string |
| `enum` or `const` without a type | the JSON or the text of a member | that member |
| nothing at all, or an undeclared key | any | a dict or list if the text is JSON of one, else the text |

Text that does not fit stays a string, and the caller is told. Empty text for anything but a string is left to the
caller too: it mostly means that the model had nothing to say.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cherenkov.text.nesting import is_within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["Declared", "declared", "value_of"]

MAX_DEPTH = 60
"""Of objects and arrays in one value: more is no argument, and messages must hold it (`cherenkov.text.messages`)."""

MAX_VALUES = 1 << 20
_WHOLE = re.compile(r"[+-]?[0-9]{1,4000}")
_NUMBER = re.compile(r"[+-]?[0-9]{1,400}(\.[0-9]{1,400})?([eE][+-]?[0-9]{1,4})?")
_EXACT = 2**53
_NOTHING = object()
_FOLLOWED = 16
"""References and alternatives followed below one another; a schema may refer to itself."""
_ALTERNATIVES = 64
"""Schemas looked at for one argument."""


@dataclass(frozen=True, slots=True)
class Declared:
    """What a schema says about one argument.

    Attributes:
        types: names of JSON types; empty if it says none.
        members: the values that it lists, if it says no type.
    """

    types: frozenset[str] = frozenset()
    members: tuple[Any, ...] = ()

    @property
    def takes_text(self) -> bool:
        """Any text fits as it is, the empty one too."""
        return not (self.types or self.members) or "string" in self.types or "" in self.members


def declared(schema: object, root: Mapping[str, Any]) -> Declared:
    """Read a schema.

    Args:
        schema: of one argument; a mapping, or a bool, which says nothing.
        root: the schema that holds it, for references such as `#/$defs/name`.
    """
    types: set[str] = set()
    members: list[Any] = []
    for part in itertools.islice(_parts(schema, root, _FOLLOWED), _ALTERNATIVES):
        said = part.get("type")
        names = said if isinstance(said, list) else [said]
        known = {n for n in names if isinstance(n, str) and n in _TYPES}
        types |= known
        if not known:
            listed = part.get("enum")
            members += listed if isinstance(listed, list) else []
            members += [part["const"]] if "const" in part else []
    return Declared(frozenset(types), () if types else tuple(members))


def value_of(text: str, what: Declared) -> tuple[Any, bool]:
    """The value that a text stands for, and whether it is what was declared. If not, it is the text itself."""
    bare = text.strip()
    if what.members:
        found = _json(bare)  # once: there may be thousands of members, and the text may be long
        for member in what.members:
            if member in (bare, text) or _is(found, member):
                return member, True
        return text, False
    wanted = what.types or {"array", "object", "string"}
    for name in _TYPES:
        if name in wanted:
            found = _READERS[name](bare) if name != "string" else text
            if found is not _NOTHING:
                return found, True
    return text, False


def _parts(schema: object, root: Mapping[str, Any], follow: int) -> Iterator[Mapping[str, Any]]:
    """The schema, those that it refers to, and its alternatives."""
    if not isinstance(schema, dict) or follow == 0:
        return
    yield schema
    if isinstance(schema.get("$ref"), str):
        yield from _parts(_referred(schema["$ref"], root), root, follow - 1)
    for key in ("anyOf", "oneOf", "allOf"):
        parts = schema.get(key)
        for part in parts if isinstance(parts, list) else ():
            yield from _parts(part, root, follow - 1)


def _referred(reference: str, root: Mapping[str, Any]) -> object:
    """What a reference inside the schema, `#/…`, points at; None if nothing."""
    if not reference.startswith("#/"):
        return None
    found: object = root
    for step in reference[2:].split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _is(found: Any, member: Any) -> bool:
    """Whether what a text is the JSON of is a member. `1` is neither `true` nor `1.0`."""
    return type(found) is type(member) and bool(found == member)


def _null(text: str) -> Any:
    return None if text.lower() in {"null", "none"} else _NOTHING


def _boolean(text: str) -> Any:
    return {"true": True, "false": False}.get(text.lower(), _NOTHING)


def _integer(text: str) -> Any:
    number = _number(text)
    if isinstance(number, float):
        return int(number) if number.is_integer() and abs(number) <= _EXACT else _NOTHING
    return number


def _number(text: str) -> Any:
    if _WHOLE.fullmatch(text):
        return int(text)
    number = float(text) if _NUMBER.fullmatch(text) else math.nan
    return number if math.isfinite(number) else _NOTHING


def _array(text: str) -> Any:
    found = _json(text) if text.startswith("[") else _NOTHING
    return found if isinstance(found, list) else _NOTHING


def _object(text: str) -> Any:
    found = _json(text) if text.startswith("{") else _NOTHING
    return found if isinstance(found, dict) else _NOTHING


def _json(text: str) -> Any:
    """The value of strict JSON: finite numbers, no overlong ones, no abyss."""
    try:
        found = json.loads(text, parse_constant=_finite, parse_float=_finite)
        if (
            "\\u" in text
        ):  # half a surrogate pair is no character, and could never be written to a prompt
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return _NOTHING
    return found if is_within(found, MAX_DEPTH, MAX_VALUES) else _NOTHING


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not finite")
    return number


_READERS: dict[str, Callable[[str], Any]] = {
    "null": _null,
    "boolean": _boolean,
    "integer": _integer,
    "number": _number,
    "array": _array,
    "object": _object,
}
_TYPES = (*_READERS, "string")
"""In the order in which several are tried."""
