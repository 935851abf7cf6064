"""What an answer is, whole and while it comes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cherenkov.experts.stats import ExpertStats
    from cherenkov.logprobs import TokenLogprobs
    from cherenkov.text.tool_calls import ToolCall

__all__ = [
    "Event",
    "Finished",
    "ReasoningDelta",
    "Reply",
    "Run",
    "TextDelta",
    "ToolCallEvent",
    "Usage",
    "reply_of",
]


@dataclass(frozen=True, slots=True)
class Usage:
    """What an answer took, or several together.

    Attributes:
        prompt_tokens: tokens of the prompt.
        cached_tokens: those of them that the model had read before, and did not read again.
        output_tokens: tokens sampled, the stop token included.
        prefill_s: seconds from the start to the first token. Times do not count when two usages are compared.
        decode_s: seconds of the other tokens.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    prefill_s: float = field(default=0.0, compare=False)
    decode_s: float = field(default=0.0, compare=False)

    @property
    def total_tokens(self) -> int:
        """Prompt and output."""
        return self.prompt_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
            self.output_tokens + other.output_tokens,
            self.prefill_s + other.prefill_s,
            self.decode_s + other.decode_s,
        )


@dataclass(frozen=True, slots=True)
class Run:
    """What one answer took, and what the experts did meanwhile.

    Attributes:
        prompt_tokens: tokens of the prompt.
        output_tokens: tokens sampled, the stop token included.
        prefill_s: seconds from the start to the first token.
        decode_s: seconds of the other tokens.
        finish_reason: why sampling ended: `stop` or `length`; None if the caller went away.
        experts: what the expert store did meanwhile.
        cached_tokens: tokens of the prompt that the model had read before.
    """

    prompt_tokens: int
    output_tokens: int
    prefill_s: float
    decode_s: float
    finish_reason: str | None
    experts: ExpertStats
    cached_tokens: int = 0

    @property
    def usage(self) -> Usage:
        """The same without the experts."""
        return Usage(
            self.prompt_tokens,
            self.cached_tokens,
            self.output_tokens,
            self.prefill_s,
            self.decode_s,
        )


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer.

    Attributes:
        text: what is said, without reasoning and calls.
        reasoning: what was thought before; empty if nothing.
        tool_calls: the calls of tools, in order.
        finish_reason: `stop`, `length` (`max_tokens`, or the context is full) or `tool_calls`.
        usage: what it took.
        logprobs: of every token sampled, thought and stop token included; empty unless asked for.
    """

    text: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str
    usage: Usage
    logprobs: tuple[TokenLogprobs, ...] = ()

    @property
    def message(self) -> dict[str, Any]:
        """The answer as the assistant's message, to go on with."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [
                {"type": "function", "function": {"name": c.name, "arguments": dict(c.arguments)}}
                for c in self.tool_calls
            ]
        return message


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the text. The pieces join to `Reply.text`."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A piece of the reasoning. The pieces join to `Reply.reasoning`."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEvent:
    """A complete call, the `index`-th of the answer, counted from 0."""

    index: int
    call: ToolCall


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event: the answer as a whole."""

    reply: Reply


Event = TextDelta | ReasoningDelta | ToolCallEvent | Finished


def reply_of(events: Iterable[Event]) -> Reply:
    """The answer that a stream of events ends with."""
    for event in events:
        if isinstance(event, Finished):
            return event.reply
    raise AssertionError("a stream ends with its reply")
