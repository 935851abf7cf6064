"""`POST /v1/chat/completions`: what may be asked."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from cherenkov.errors import UnsupportedParam
from cherenkov_server.wire.generation import FIRST, Generation, Whole, Wire, without_unsupported
from cherenkov_server.wire.reading import validated

__all__ = ["ChatCompletion", "TemplateArguments", "read_chat"]

_ALONE = "is not supported: leave it out"
_UNSUPPORTED: dict[str, tuple[tuple[Any, ...], str]] = {
    "function_call": (("none", "auto"), "is not supported: use tools and tool_choice"),
    "functions": (([],), "is not supported: use tools"),
    "modalities": ((["text"], []), "may only be text"),
    "moderation": ((), _ALONE),
    "response_format": (
        ({"type": "text"},),
        "may only be text: say in the prompt what the answer should look like",
    ),
    "web_search_options": ((), "is not supported: the model has no web to search"),
}
_FORCED = 'may only be "auto" or "none": the model cannot be made to call'


class TemplateArguments(Wire):
    """What the model's chat template may be told: these, and nothing else."""

    enable_thinking: bool | None = None
    preserve_thinking: bool | None = None
    reasoning_effort: Annotated[str, Field(max_length=64)] | None = None


class ChatCompletion(Generation):
    """A conversation to answer. What is listed last has no effect here, and is accepted for those who send it."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Whole | None = None
    ignore_eos: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: Annotated[list[dict[str, Any]], FIRST] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Annotated[str, Field(max_length=64)] | None = None
    chat_template_kwargs: TemplateArguments | None = None
    session_id: Annotated[str, Field(max_length=128)] | None = None

    audio: Any = None
    metadata: Any = None
    prediction: Any = None
    prompt_cache_key: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    safety_identifier: Any = None
    service_tier: Any = None
    store: Any = None
    verbosity: Any = None

    @property
    def most_tokens(self) -> tuple[str, int | None]:
        """How many tokens to answer with at most, and what that is called."""
        if self.max_completion_tokens is not None:
            return "max_completion_tokens", self.max_completion_tokens
        return "max_tokens", self.max_tokens

    def options(self) -> dict[str, Any]:
        """The `ChatOptions` that were given, all but `max_tokens`."""
        options = self.sampled()
        if self.logprobs is not None:
            options["logprobs"] = self.logprobs
        if self.top_logprobs:  # 0 asks for nothing that logprobs does not
            options["top_logprobs"] = self.top_logprobs
            options.setdefault("logprobs", False)  # refused: it needs the other
        return options | self._thinking()

    def _thinking(self) -> dict[str, Any]:
        given = self.chat_template_kwargs or TemplateArguments()
        effort = self.reasoning_effort or given.reasoning_effort
        options: dict[str, Any] = {}
        if effort is not None:
            options["thinking"] = effort != "none"
            options["reasoning_effort"] = None if effort == "none" else effort
        if given.enable_thinking is not None:
            options["thinking"] = given.enable_thinking
        if given.preserve_thinking is not None:
            options["preserve_thinking"] = given.preserve_thinking
        return options

    def offered(self) -> list[dict[str, Any]] | None:
        """The tools that may be called now; None if nothing is said about tools."""
        return [] if self.tool_choice == "none" else self.tools

    def conversation(self) -> list[dict[str, Any]]:
        """The messages, as the library takes them.

        Who sends system messages alone means the last of them to be answered; templates ask for a user.
        """
        messages = [_with_tool_calls(message) for message in self.messages]
        roles = [message.get("role") for message in messages]
        if self.session_id is None and all(role in ("system", "developer") for role in roles):
            messages[-1] = messages[-1] | {"role": "user"}
        return messages


def read_chat(body: dict[str, Any], *, is_lenient: bool = False) -> ChatCompletion:
    """A checked request.

    Args:
        body: as it came.
        is_lenient: leave away what cannot be honoured, rather than refuse it.

    Raises:
        Refusal, UnsupportedParam: naming what is wrong, or cannot be honoured.
    """
    if body.get("function_call") == "none":  # then no function is called, old style
        body = {name: value for name, value in body.items() if name != "functions"}
    body = without_unsupported(body, _UNSUPPORTED, is_lenient=is_lenient)
    choice = body.get("tool_choice")
    if choice == "required" or isinstance(choice, dict):
        if not is_lenient:
            raise UnsupportedParam("tool_choice", _FORCED)
        body["tool_choice"] = "auto"
    asked = validated(ChatCompletion, body)
    if asked.parallel_tool_calls is False and asked.offered() and not is_lenient:
        raise UnsupportedParam("parallel_tool_calls", "cannot be switched off")
    return asked


def _with_tool_calls(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose call in the old style is one of the new."""
    called = message.get("function_call")
    if message.get("role") != "assistant" or not isinstance(called, dict):
        return message
    rest = {name: value for name, value in message.items() if name != "function_call"}
    calls = message.get("tool_calls") or []
    first = {"type": "function", "function": called}
    return rest | {"tool_calls": [first, *calls] if isinstance(calls, list) else calls}
