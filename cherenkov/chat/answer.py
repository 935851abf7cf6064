"""One answer in the making: sampled tokens in, events out.

    tokens -> characters -> reasoning apart -> stop strings (of the text alone) -> tool calls

Each part holds back what it is not certain of, so that the events do not depend on how the text was cut into tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cherenkov.chat.replies import ReasoningDelta, Reply, TextDelta, ToolCallEvent
from cherenkov.text.reasoning import Part, ReasoningSplitter
from cherenkov.text.stops import StopStrings
from cherenkov.text.tool_calls import Text, ToolCall, ToolCallParser

if TYPE_CHECKING:
    from cherenkov.chat.options import Settings
    from cherenkov.chat.replies import Event, Usage
    from cherenkov.lane import Step
    from cherenkov.logprobs import TokenLogprobs
    from cherenkov.text.tokenizer import Tokenizer
    from cherenkov.text.tool_calls import ToolEvent
    from cherenkov.text.tool_schema import ToolSet

__all__ = ["Answer"]


class Answer:
    """Takes the steps of one answer.

    Args:
        tokenizer: of the model.
        settings: for the stop strings.
        tools: those offered.
        opened: the prompt ended inside a block of reasoning.
    """

    def __init__(
        self, tokenizer: Tokenizer, settings: Settings, tools: ToolSet, *, opened: bool
    ) -> None:
        self._decoder = tokenizer.decoder()
        self._splitter = ReasoningSplitter(opened=opened)
        self._stops = StopStrings(settings.stop).matcher()
        self._parser = ToolCallParser(tools)
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCall] = []
        self._logprobs: list[TokenLogprobs] = []
        self._reason = "length"

    @property
    def is_over(self) -> bool:
        """What may still come would not count: a stop string was found, or the calls are over."""
        return self._stops.found is not None or self._parser.is_done

    def feed(self, step: Step) -> list[Event]:
        """Take a step; give what it makes certain."""
        if step.logprobs is not None:
            self._logprobs.append(step.logprobs)
        if step.finish_reason == "stop":
            self._reason = "stop"
            return []
        return self._split(self._splitter.feed(self._decoder.feed(step.token)))

    def flush(self) -> list[Event]:
        """There are no more steps: what was held back."""
        events: list[Event] = []
        if not self.is_over:
            events += self._split(self._splitter.feed(self._decoder.flush()))
            events += self._split(self._splitter.flush())
            events += self._parse(self._parser.feed(self._stops.flush()))
        return events + self._parse(self._parser.flush())

    def reply(self, usage: Usage) -> Reply:
        """The answer as a whole, once it is flushed."""
        reason = "stop" if self.is_over else self._reason
        return Reply(
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            tool_calls=tuple(self._calls),
            finish_reason="tool_calls" if reason == "stop" and self._calls else reason,
            usage=usage,
            logprobs=tuple(self._logprobs),
        )

    def _split(self, part: Part) -> list[Event]:
        events: list[Event] = []
        if part.reasoning:
            self._reasoning.append(part.reasoning)
            events.append(ReasoningDelta(part.reasoning))
        return events + self._parse(self._parser.feed(self._stops.feed(part.content)))

    def _parse(self, found: list[ToolEvent]) -> list[Event]:
        events: list[Event] = []
        for one in found:
            if isinstance(one, ToolCall):
                events.append(ToolCallEvent(len(self._calls), one))
                self._calls.append(one)
            elif isinstance(one, Text):
                self._text.append(one.raw)
                events.append(TextDelta(one.raw))
        return events
