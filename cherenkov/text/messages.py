"""Conversations, checked before a template sees them.

What comes out is what templates of text models understand: a role, text in one string, and calls whose arguments are
objects. What a text model cannot do, such as look at a picture, is refused here, in words that name the message; a template
might write a placeholder instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from cherenkov.errors import RequestError, UnsupportedParam
from cherenkov.text.nesting import is_within

__all__ = ["checked_message", "checked_messages", "decoded_arguments"]

MAX_MESSAGES = 8192
MAX_CALLS = 128
MAX_DEPTH = 64
MAX_VALUES = 1 << 16

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def checked_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same conversation in plain form, apart from the caller's objects.

    Args:
        messages: each a mapping with a `role` (`system` or `developer`, `user`, `assistant`, `tool`) and a `content`: a
            string, or a list of `{"type": "text", "text": …}`. What the assistant said may have no content, and may have
            `reasoning_content` and `tool_calls`; a tool's result may have a `tool_call_id`. Whether somebody
            called that tool is not checked. Other keys are left away.

    Returns:
        Mappings with `role`, `content`, and those of the other keys that were there. Parts are joined, arguments of calls
        decoded, `developer` is `system`.

    Raises:
        RequestError: if there are no messages, no user ever speaks, or a message is malformed; says which and why.
        UnsupportedParam: if a message holds anything but text.
    """
    if not isinstance(messages, list | tuple) or not messages:
        raise _refused(
            "messages",
            'must be a list of at least one message, such as {"role": "user", "content": "hello"}',
        )
    if len(messages) > MAX_MESSAGES:
        raise _refused("messages", f"{len(messages)}, but at most {MAX_MESSAGES} are allowed")
    plain = [checked_message(f"messages[{i}]", message) for i, message in enumerate(messages)]
    if not any(message["role"] == "user" for message in plain):
        raise _refused("messages", "at least one must be the user's")
    return plain


def decoded_arguments(where: str, value: object) -> dict[str, Any]:
    """Arguments of a call as an object.

    Args:
        where: what to call them in an error.
        value: an object, or one written in JSON. Nothing, or blank text, is no arguments.

    Raises:
        RequestError: if it is neither.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return {}
    try:
        found = json.loads(value, parse_constant=_finite) if isinstance(value, str) else value
        if not isinstance(found, Mapping):
            raise _refused(where, "must be an object, or one written in JSON")
        if not is_within(found, MAX_DEPTH, MAX_VALUES):
            raise _refused(where, f"nested more than {MAX_DEPTH} deep, or too large")
        plain: dict[str, Any] = json.loads(json.dumps(found, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise _refused(where, f"not JSON: {error}") from error
    return plain


def checked_message(where: str, message: object) -> dict[str, Any]:
    """One message in plain form.

    Args:
        where: what to call it in an error.
        message: as for `checked_messages`.

    Raises:
        RequestError, UnsupportedParam: as `checked_messages`.
    """
    if not isinstance(message, Mapping):
        raise _refused(where, "must be a mapping with a role and a content")
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise _refused(f"{where}.role", f"{role!r:.60} is none of {', '.join(_ROLES)}")
    role = _ROLES[role]
    plain: dict[str, Any] = {"role": role, "content": _text(where, role, message.get("content"))}
    if role == "assistant":
        thought = message.get("reasoning_content")
        if thought is not None:
            plain["reasoning_content"] = _string(f"{where}.reasoning_content", thought)
        if message.get("tool_calls"):
            plain["tool_calls"] = _calls(f"{where}.tool_calls", message["tool_calls"])
    elif message.get("tool_calls") or message.get("reasoning_content"):
        raise _refused(where, f"only the assistant thinks and calls tools, not {role}")
    if role == "tool" and message.get("tool_call_id") is not None:
        plain["tool_call_id"] = _string(f"{where}.tool_call_id", message["tool_call_id"])
    return plain


def _text(where: str, role: str, content: object) -> str:
    """Content as one string."""
    if isinstance(content, str):
        return content
    if content is None and role == "assistant":
        return ""
    if not isinstance(content, list | tuple):
        raise _refused(f"{where}.content", "must be a string or a list of text parts")
    texts = []
    for i, part in enumerate(content):
        place = f"{where}.content[{i}]"
        if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
            raise _refused(place, "must be a mapping with a type")
        if part["type"] != "text":
            raise UnsupportedParam(
                place, f"is of type {part['type']!r:.60}: only text is supported"
            )
        texts.append(_string(f"{place}.text", part.get("text")))
    return "".join(texts)


def _calls(where: str, calls: object) -> list[dict[str, Any]]:
    if not isinstance(calls, list | tuple):
        raise _refused(where, "must be a list")
    if len(calls) > MAX_CALLS:
        raise _refused(where, f"{len(calls)} calls, but at most {MAX_CALLS} are allowed")
    return [_call(f"{where}[{i}]", call) for i, call in enumerate(calls)]


def _call(where: str, call: object) -> dict[str, Any]:
    """One call: `{"type": "function", "id", "function": {"name", "arguments"}}`, or the inner part alone."""
    if not isinstance(call, Mapping):
        raise _refused(where, "must be a mapping")
    if call.get("type", "function") != "function":
        raise _refused(f"{where}.type", f"must be 'function', not {call['type']!r:.60}")
    function = call.get("function", call)
    if not isinstance(function, Mapping):
        raise _refused(f"{where}.function", "must be a mapping")
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _refused(f"{where}.name", "must be 1 to 64 letters, digits, '_' or '-'")
    arguments = decoded_arguments(f"{where}.arguments", function.get("arguments"))
    plain: dict[str, Any] = {
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
    if call.get("id") is not None:
        plain["id"] = _string(f"{where}.id", call["id"])
    return plain


def _string(where: str, value: object) -> str:
    if not isinstance(value, str):
        raise _refused(where, "must be a string")
    return value


def _finite(text: str) -> float:
    raise ValueError(f"{text} is no JSON number")


def _refused(where: str, reason: str) -> RequestError:
    return RequestError(f"{where}: {reason}", param="messages")
