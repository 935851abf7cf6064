"""A request is made ready for the model: rendered, tokenised, checked, and its memory added up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cherenkov.chat.answer import Answer
from cherenkov.chat.prompting import checked_said, fitting, lasting_length, opening_length
from cherenkov.errors import Cancelled, CapacityError, ContextTooLong, RequestError
from cherenkov.lane import admit
from cherenkov.serving.job import Prepared
from cherenkov.serving.plain import PlainAnswer
from cherenkov.serving.requests import ChatRequest, CompletionRequest
from cherenkov.text.messages import checked_messages
from cherenkov.text.tool_schema import ToolSet
from cherenkov.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cherenkov.chat.options import Settings
    from cherenkov.chat.responder import Prompt, Responder
    from cherenkov.model import Model
    from cherenkov.serving.job import Job
    from cherenkov.serving.requests import TurnRequest

__all__ = ["Preparer"]

_LEAST_APART = 16
"""Points of a prompt that are nearer to one another are not worth a chunk of their own."""


class Preparer:
    """Makes requests ready. For one thread, which need not be the one that owns the model.

    Args:
        model: whose they are.
        limit_bytes: memory for all answers under way.
        keeps: points of prompts are kept for others to go on from.
    """

    def __init__(self, model: Model, limit_bytes: int, *, keeps: bool) -> None:
        self._model = model
        self._responder: Responder = model.responder
        self._limit_bytes = limit_bytes
        self._keeps = keeps

    def prepare(self, job: Job) -> Prepared:
        """Make one ready.

        Raises:
            RequestError, ContextTooLong, TemplateError: it makes no sense.
            CapacityError: it can never fit; says the sum.
            Cancelled: nobody wants it any more.
        """
        request = job.request
        if job.ticket.is_cancelled:
            raise Cancelled(f"request {job.ticket.id} was cancelled")
        if isinstance(request, ChatRequest):
            return self._chat(request)
        if isinstance(request, CompletionRequest):
            return self._completion(request)
        return self._turn(job, request)

    def _chat(self, request: ChatRequest) -> Prepared:
        tools, settings = ToolSet(request.tools), request.settings
        messages = checked_messages(request.messages)
        prompt = self._responder.prompt(messages, tools, settings)
        self._admit(prompt.ids, settings, samples=not request.no_answer)
        return self._prepared(
            prompt,
            settings,
            tools,
            points=self._points(messages, tools, settings, prompt),
            random=settings.sampling.generator(),
            samples=not request.no_answer,
        )

    def _turn(self, job: Job, request: TurnRequest) -> Prepared:
        assert job.turn is not None
        before = job.turn.record
        settings = before.settings.updated(request.options)
        tools = before.tools if request.tools is None else ToolSet(request.tools)
        said = checked_said(request.message)
        record, prompt = fitting(
            self._responder, replace(before, settings=settings, tools=tools), said
        )
        messages = [*record.opening, *record.messages[record.first :], *said]
        made = self._prepared(
            prompt,
            settings,
            tools,
            points=self._points(messages, tools, settings, prompt),
            random=record.numbers(request.options),
        )
        return replace(made, record=record, said=tuple(said))

    def _completion(self, request: CompletionRequest) -> Prepared:
        settings, tokenizer = request.settings, self._responder.tokenizer
        ids = self._ids(request.prompt)
        samples = not request.no_answer
        self._admit(ids, settings, samples=samples)
        text = None
        if request.echo:
            given = request.prompt if isinstance(request.prompt, str) else None
            text = tokenizer.decode(list(ids), special=True) if given is None else given
        capacity = self._capacity(len(ids), settings, samples=samples)
        return Prepared(
            ids=ids,
            settings=settings,
            answer=PlainAnswer(tokenizer, settings),
            random=settings.sampling.generator(),
            points=(len(ids),),
            keeps_answer=False,
            capacity=capacity,
            size_bytes=self._reserved(capacity),
            echo=text,
            samples=samples,
        )

    def _prepared(
        self,
        prompt: Prompt,
        settings: Settings,
        tools: ToolSet,
        *,
        points: tuple[int, ...],
        random: np.random.Generator,
        samples: bool = True,
    ) -> Prepared:
        count = len(prompt.ids)
        capacity = self._capacity(count, settings, samples=samples)
        return Prepared(
            ids=prompt.ids,
            settings=settings,
            answer=Answer(self._responder.tokenizer, settings, tools, opened=prompt.opened),
            random=random,
            points=(*tuple(p for p in points if p < count - 1), count),
            # Where the next prompt goes on from the answer's very tokens, the answer's end is worth keeping.
            keeps_answer=self._keeps and count in points,
            capacity=capacity,
            size_bytes=self._reserved(capacity),
            samples=samples,
        )

    def _points(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: ToolSet,
        settings: Settings,
        prompt: Prompt,
    ) -> tuple[int, ...]:
        """Where the opening ends, which other conversations share; and where what will last of this one does."""
        if not self._keeps:
            return ()
        lasting = lasting_length(self._responder, messages, tools, settings, prompt)
        opening = opening_length(self._responder, messages, tools, settings, prompt)
        return (opening, lasting) if opening + _LEAST_APART <= lasting else (lasting,)

    def _ids(self, prompt: str | Sequence[int]) -> tuple[int, ...]:
        if isinstance(prompt, str):
            return tuple(self._model.encode_prompt(prompt, raw=True))
        if not isinstance(prompt, Sequence | np.ndarray) or isinstance(prompt, bytes):
            raise RequestError("the prompt must be text or token ids", param="prompt")
        vocab = self._model.vocab
        if any(
            isinstance(i, bool) or not isinstance(i, int | np.integer) or not 0 <= i < vocab
            for i in prompt
        ):
            raise RequestError(
                f"token ids must be whole numbers from 0 to {vocab - 1}", param="prompt"
            )
        return tuple(int(i) for i in prompt)

    def _admit(self, ids: Sequence[int], settings: Settings, *, samples: bool) -> None:
        if samples:
            admit(self._responder.loaded, ids, settings.max_tokens)
        elif not ids:
            raise RequestError("the prompt is empty", param="prompt")
        elif len(ids) > self._responder.loaded.context_tokens:
            raise ContextTooLong(len(ids), 0, self._responder.loaded.context_tokens)

    def _capacity(self, count: int, settings: Settings, *, samples: bool) -> int:
        """Tokens that the sequence may grow to."""
        context = self._responder.loaded.context_tokens
        if not samples:
            return count
        return context if settings.max_tokens is None else min(context, count + settings.max_tokens)

    def _reserved(self, capacity: int) -> int:
        """Memory of an answer of so many tokens, its prompt included."""
        size = self._model.sequence_bytes(capacity)
        if size > self._limit_bytes:
            raise CapacityError(
                f"a sequence of {capacity} tokens takes {format_bytes(size)}, but all answers together may take "
                f"{format_bytes(self._limit_bytes)}: shorten the prompt or ask for fewer tokens (max_tokens)",
                asked_bytes=size,
                available_bytes=self._limit_bytes,
            )
        return size
