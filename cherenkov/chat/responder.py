"""What answers a conversation: a model that is loaded, its tokenizer and its template.

Several threads may use one; their steps take turns.
"""

from __future__ import annotations

import threading
import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from cherenkov.chat.answer import Answer
from cherenkov.chat.replies import Finished, Run
from cherenkov.errors import RequestError
from cherenkov.generate import generate
from cherenkov.lane import Wanted
from cherenkov.text.messages import checked_messages
from cherenkov.text.reasoning import opens_reasoning
from cherenkov.text.template import ChatTemplate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy as np
    from typing_extensions import Generator

    from cherenkov.chat.options import Settings
    from cherenkov.chat.replies import Event
    from cherenkov.experts.stats import ExpertStats
    from cherenkov.experts.store import ExpertStore
    from cherenkov.lane import Loaded, Step
    from cherenkov.state import State
    from cherenkov.text.tokenizer import Tokenizer
    from cherenkov.text.tool_schema import ToolSet

__all__ = ["Prompt", "Responder", "Stopwatch"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation, rendered.

    Attributes:
        ids: its tokens.
        opened: it ends inside a block of reasoning, which the model goes on with.
    """

    ids: tuple[int, ...]
    opened: bool


class Responder:
    """Answers.

    Attributes:
        loaded: the model.
        tokenizer: its tokenizer.
        stop_ids: tokens that end an answer.
        experts: the expert store, for the figures.
        fingerprint: of the store.
        lock: held while a step is made.
        last_run: figures of the last answer, or None.
    """

    def __init__(
        self,
        loaded: Loaded,
        tokenizer: Tokenizer,
        folder: Path,
        *,
        stop_ids: frozenset[int],
        experts: ExpertStore,
        fingerprint: str,
    ) -> None:
        """Take the parts of a model; `folder` holds its template."""
        self.loaded = loaded
        self.tokenizer = tokenizer
        self.stop_ids = stop_ids
        self.experts = experts
        self.fingerprint = fingerprint
        self.lock = threading.RLock()  # a forgotten stream may be collected while a step is made
        self.last_run: Run | None = None
        self._folder = folder
        self._template: ChatTemplate | None = None
        self._closed = False

    def close(self) -> bool:
        """Refuse whatever comes, and end the template process. Hold the lock. False if that was done before."""
        if self._closed:
            return False
        self._closed = True
        if self._template is not None:
            self._template.close()
        return True

    def check_open(self) -> None:
        """Refuse to go on once the model is closed.

        Raises:
            RequestError: if it is.
        """
        if self._closed:
            raise RequestError("the model is closed", code="closed")

    def template(self) -> ChatTemplate:
        """The chat template, read when first needed.

        Raises:
            TemplateError: if the model has none.
        """
        if self._template is None:
            with self.lock:
                self.check_open()
                if self._template is None:
                    self._template = ChatTemplate.open(self._folder, self.tokenizer.controls)
        self.check_open()  # without the lock: a step that is being made need not be waited for
        return self._template

    def prompt(
        self, messages: Sequence[Mapping[str, Any]], tools: ToolSet, settings: Settings
    ) -> Prompt:
        """Render a conversation.

        Args:
            messages: as `cherenkov.text.messages` wants them.
            tools: those to offer.
            settings: for the template's variables.

        Raises:
            RequestError: if the messages are none, or malformed.
            TemplateError: if the template fails, or refuses them.
        """
        rendered = self.template().render(
            checked_messages(messages),
            thinking=settings.thinking,
            tools=tools.definitions,
            **settings.variables,
        )
        ids = self.tokenizer.encode_pieces(rendered.pieces)
        return Prompt(tuple(ids), opens_reasoning(rendered.text))

    def steps(
        self,
        prompt: Prompt,
        settings: Settings,
        *,
        check: Callable[[], None] | None = None,
        state: State[Any] | None = None,
        random: np.random.Generator | None = None,
    ) -> Iterator[Step]:
        """Sample an answer.

        Args:
            prompt: from `prompt`.
            settings: how.
            check: called between steps; raises to stop.
            state: a sequence that the prompt continues, and that goes on with it.
            random: where random numbers come from.

        Raises:
            ContextTooLong, DiskError, CorruptModel, BackendError: as `generate`.
        """
        return generate(
            self.loaded,
            prompt.ids,
            self.wanted(settings),
            check=check or self.check_open,
            state=state,
            random=random,
        )

    def wanted(self, settings: Settings) -> Wanted:
        """What settings ask of an answer's tokens."""
        return Wanted(settings.sampling, self.stop_ids, settings.max_tokens, settings.top_logprobs)

    def events(
        self,
        steps: Iterator[Step],
        prompt: Prompt,
        tools: ToolSet,
        settings: Settings,
        cached_tokens: int = 0,
    ) -> Generator[Event]:
        """What steps say, the reply last. Arguments as for `steps`; raises what they raise."""
        answer = Answer(self.tokenizer, settings, tools, opened=prompt.opened)
        watch = Stopwatch(self.experts.stats, len(prompt.ids), cached_tokens)
        with closing(self.taking_turns(steps)) as turns:
            try:
                for step in turns:
                    watch.tick(step)
                    yield from answer.feed(step)
                    if answer.is_over:
                        watch.stop()
                        break
            finally:
                self.last_run = watch.run()
        yield from answer.flush()
        yield Finished(answer.reply(watch.run().usage))

    def taking_turns(self, steps: Iterator[T]) -> Generator[T]:
        """The same steps, each made while no other thread's is."""
        while True:
            with self.lock:
                step = next(steps, None)
            if step is None:
                return
            yield step


class Stopwatch:
    """Measures one answer, from when it is made."""

    def __init__(self, experts: ExpertStats, prompt_tokens: int, cached_tokens: int = 0) -> None:
        self._experts = experts
        self._before = experts.copy()
        self._prompt = prompt_tokens
        self._cached = cached_tokens
        self._begun = self._first = self._last = time.perf_counter()
        self._count = 0
        self._reason: str | None = None

    def tick(self, step: Step) -> None:
        """A step has come."""
        self._last = time.perf_counter()
        self._count += 1
        self._first = self._last if self._count == 1 else self._first
        self._reason = step.finish_reason

    def stop(self) -> None:
        """No step will come: a stop string was found, or calls are over."""
        self._reason = "stop"

    def run(self) -> Run:
        """The figures so far."""
        return Run(
            prompt_tokens=self._prompt,
            output_tokens=self._count,
            prefill_s=self._first - self._begun,
            decode_s=self._last - self._first,
            finish_reason=self._reason,
            experts=self._experts.since(self._before),
            cached_tokens=self._cached,
        )
