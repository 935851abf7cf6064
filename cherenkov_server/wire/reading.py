"""From bytes to a checked request: strict JSON, neither deep nor large, then one of the wire's types."""

from __future__ import annotations

import difflib
import json
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from cherenkov.config import reason_of
from cherenkov.text.nesting import is_within
from cherenkov_server.wire.refusals import Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic_core import ErrorDetails

__all__ = ["parsed", "validated"]

MAX_DEPTH = 64
MAX_NAMES = 256
"""Of parameters: many times what there are."""
MAX_VALUES = 1 << 18
"""At any one depth: a prompt of so many token ids is the largest that makes sense."""
T = TypeVar("T", bound=BaseModel)


def parsed(data: bytes) -> dict[str, Any]:
    """The object that a body holds.

    Raises:
        Refusal: 400, if it is no JSON, no object, nested too deeply or too large.
    """
    try:
        value = json.loads(data.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except RecursionError:
        raise _invalid(f"the body is nested more than {MAX_DEPTH} deep") from None
    except UnicodeDecodeError as error:
        raise _invalid(f"the body is not UTF-8, from byte {error.start}") from None
    except ValueError as error:
        raise _invalid(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise _invalid("the body must be a JSON object")
    if len(value) > MAX_NAMES:
        raise _invalid(f"the body has {len(value)} parameters, but {MAX_NAMES} at most are known")
    if not is_within(value, MAX_DEPTH, MAX_VALUES):
        raise _invalid(f"the body is nested more than {MAX_DEPTH} deep, or holds too much")
    return value


def validated(kind: type[T], value: dict[str, Any]) -> T:
    """A request of one of the wire's types.

    Raises:
        Refusal: 400, naming the first parameter that is wrong, and what is wrong with it.
    """
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        raise _refusal(kind, found) from None


def _refusal(kind: type[BaseModel], found: Sequence[ErrorDetails]) -> Refusal:
    # What nobody knows first: it may be a slip for what is then said to be missing.
    unknown = [one for one in found if one["type"] == "extra_forbidden"]
    first = (unknown or found)[0]
    if not unknown:  # of the alternatives that one parameter may be, the one that came furthest
        same = [one for one in found if one["loc"][:1] == first["loc"][:1]]
        first = max(same, key=lambda one: (len(_place(one["loc"])), not _is_of_type(one)))
    if not first["loc"]:  # it is the object itself that is wrong
        return _invalid("the body holds a name that is not valid Unicode")
    place = _place(first["loc"])
    if unknown:
        near = difflib.get_close_matches(str(first["loc"][-1]), sorted(kind.model_fields), n=1)
        hint = f"; did you mean {near[0]}?" if near and len(first["loc"]) == 1 else ""
        return Refusal(
            400, f"unknown parameter: {place}{hint}", param=place, code="unknown_parameter"
        )
    if first["type"] == "missing":
        words = f"missing parameter: {place}"
        return Refusal(400, words, param=place, code="missing_required_parameter")
    reason = reason_of(first["msg"])
    code = "invalid_type" if _is_of_type(first) else "invalid_value"
    return Refusal(400, f"{place}: {reason}", param=place, code=code)


def _is_of_type(error: ErrorDetails) -> bool:
    return error["type"].endswith("_type")


def _place(steps: Sequence[int | str]) -> str:
    """A place in a request: `messages[0].content`. Names of alternatives that Pydantic tried are left out."""
    place = ""
    for step in steps:
        if isinstance(step, int):
            place += f"[{step}]"
        elif step.isidentifier() or step.isdigit() or not place:
            known = step in {"str", "int", "float", "bool", "list", "dict", "function-plain"}
            place += "" if known and place else f".{step:.60}" if place else f"{step:.60}"
    return place


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _invalid(message: str) -> Refusal:
    return Refusal(400, message, code="invalid_json")
