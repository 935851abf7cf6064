"""The prompt of a turn: what is said, what of the conversation is shown, and how much of it will stay as it is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cherenkov.chat.kept import common_length
from cherenkov.errors import RequestError, TemplateError
from cherenkov.lane import admit
from cherenkov.text.messages import checked_message

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cherenkov.chat.options import Settings
    from cherenkov.chat.record import Record
    from cherenkov.chat.responder import Prompt, Responder
    from cherenkov.text.tool_schema import ToolSet

__all__ = ["certain_length", "checked_said", "fitting", "lasting_length", "opening_length"]

_ANSWER_ROOM = 512
"""Tokens that trimming keeps free for an answer of unknown length, within a quarter of the context."""
_PROBE = (
    {"role": "assistant", "content": "a", "reasoning_content": "a"},
    {"role": "user", "content": "a"},
)
_PLAIN_PROBE = ({"role": "assistant", "content": "a"}, _PROBE[1])


def checked_said(message: object) -> list[dict[str, Any]]:
    """What is said in a turn, as messages.

    Args:
        message: what the user says; or a message; or a list of them.

    Raises:
        RequestError, UnsupportedParam: if it is none of these, or nothing to answer.
    """
    if isinstance(message, str):
        if not message:
            raise RequestError("the message is empty", param="message")
        return [{"role": "user", "content": message}]
    several = message if isinstance(message, list | tuple) else [message]
    said = [checked_message(f"message[{i}]", one) for i, one in enumerate(several)]
    if not said or said[-1]["role"] not in {"user", "tool"}:
        raise RequestError(
            "message: the last must be the user's, or the result of a tool", param="message"
        )
    if any(one["role"] == "system" for one in said):
        raise RequestError("message: set session.system for a system message", param="message")
    return said


def fitting(
    responder: Responder, record: Record, said: list[dict[str, Any]]
) -> tuple[Record, Prompt]:
    """The prompt of a turn, trimmed if need be.

    Args:
        responder: the model.
        record: the conversation so far.
        said: what is said now.

    Returns:
        The record, with the turns left out that trimming takes; and the prompt.

    Raises:
        ContextTooLong: if prompt and answer do not fit the context.
        RequestError, TemplateError: as `Responder.prompt`.
    """
    loaded, settings = responder.loaded, record.settings
    context = loaded.context_tokens
    room = settings.max_tokens or min(_ANSWER_ROOM, context // 4)
    limit = context + 1 - room
    while True:
        messages = [*record.opening, *record.messages[record.first :], *said]
        prompt = responder.prompt(messages, record.tools, settings)
        if len(prompt.ids) > limit and record.overflow == "trim":
            later = _next_turn(record, said)
            if later is not None:
                record = replace(record, first=later)
                # Down to three quarters, so that the turns to come need no trimming: each one means that everything
                # is read again.
                limit = min(limit, context * 3 // 4)
                continue
        admit(loaded, prompt.ids, settings.max_tokens)
        return record, prompt


def certain_length(
    responder: Responder, record: Record, said: list[dict[str, Any]], prompt: Prompt
) -> int:
    """How much of the prompt the next turn's will begin with, whatever is answered."""
    messages = [*record.opening, *record.messages[record.first :], *said]
    return _common_with(_PROBE, responder, messages, record.tools, record.settings, prompt)


def lasting_length(
    responder: Responder,
    messages: Sequence[Mapping[str, Any]],
    tools: ToolSet,
    settings: Settings,
    prompt: Prompt,
) -> int:
    """How much of a conversation's prompt will likely stay as it is once there is an answer.

    If all of it does, the answer's tokens will too. Only an answer that was asked to begin with reasoning likely has some.
    """
    probe = _PROBE if prompt.opened else _PLAIN_PROBE
    return _common_with(probe, responder, messages, tools, settings, prompt)


def _common_with(
    probe: Sequence[Mapping[str, Any]],
    responder: Responder,
    messages: Sequence[Mapping[str, Any]],
    tools: ToolSet,
    settings: Settings,
    prompt: Prompt,
) -> int:
    """How much of a prompt the one with such messages behind would begin with."""
    try:
        longer = responder.prompt([*messages, *probe], tools, settings)
    except (TemplateError, RequestError):  # a template that allows no such answer: no mark
        return 0
    return common_length(prompt.ids, longer.ids)


def opening_length(
    responder: Responder,
    messages: Sequence[Mapping[str, Any]],
    tools: ToolSet,
    settings: Settings,
    prompt: Prompt,
) -> int:
    """How much of it other conversations with the same system message and tools will begin with."""
    opening = [one for one in messages[:1] if one["role"] in {"system", "developer"}]
    if not opening and not tools.definitions:
        return 0
    return _common_with(_PROBE[1:], responder, opening, tools, settings, prompt)


def _next_turn(record: Record, said: list[dict[str, Any]]) -> int | None:
    """Where the second of the turns that the model is shown begins; None if there is but one."""
    begins = [i for i, one in enumerate(record.messages) if one["role"] == "user"]
    if any(one["role"] == "user" for one in said):
        begins.append(len(record.messages))
    return next((i for i in begins if i > record.first), None)
