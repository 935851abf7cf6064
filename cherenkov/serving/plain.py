"""The answer to a text that is to be continued: nothing but text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cherenkov.chat.replies import Reply, TextDelta
from cherenkov.text.stops import StopStrings

if TYPE_CHECKING:
    from cherenkov.chat.options import Settings
    from cherenkov.chat.replies import Event, Usage
    from cherenkov.lane import Step
    from cherenkov.logprobs import TokenLogprobs
    from cherenkov.text.tokenizer import Tokenizer

__all__ = ["PlainAnswer"]


class PlainAnswer:
    """Takes the steps of one continuation, as `cherenkov.chat.answer.Answer` those of a conversation's answer.

    Args:
        tokenizer: of the model.
        settings: for the stop strings.
    """

    def __init__(self, tokenizer: Tokenizer, settings: Settings) -> None:
        self._decoder = tokenizer.decoder()
        self._stops = StopStrings(settings.stop).matcher()
        self._text: list[str] = []
        self._logprobs: list[TokenLogprobs] = []
        self._reason = "length"

    @property
    def is_over(self) -> bool:
        """A stop string was found."""
        return self._stops.found is not None

    def feed(self, step: Step) -> list[Event]:
        """Take a step; give what it makes certain."""
        if step.logprobs is not None:
            self._logprobs.append(step.logprobs)
        if step.finish_reason == "stop":
            self._reason = "stop"
            return []
        return self._said(self._stops.feed(self._decoder.feed(step.token)))

    def flush(self) -> list[Event]:
        """There are no more steps: what was held back."""
        if self.is_over:
            return []
        return self._said(self._stops.feed(self._decoder.flush()) + self._stops.flush())

    def reply(self, usage: Usage) -> Reply:
        """The answer as a whole, once it is flushed."""
        return Reply(
            text="".join(self._text),
            reasoning="",
            tool_calls=(),
            finish_reason="stop" if self.is_over else self._reason,
            usage=usage,
            logprobs=tuple(self._logprobs),
        )

    def _said(self, text: str) -> list[Event]:
        if not text:
            return []
        self._text.append(text)
        return [TextDelta(text)]
