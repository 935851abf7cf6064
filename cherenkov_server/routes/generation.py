"""`/v1/chat/completions` and `/v1/completions`."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

from litestar import Request, post
from litestar.types import ASGIApp

from cherenkov.chat.options import Settings
from cherenkov.chat.replies import Finished
from cherenkov.engine import ChatRequest, CompletionRequest, TurnRequest
from cherenkov.errors import UnsupportedParam
from cherenkov_server.routes.asking import body_of, owner_of, request_id_of, service_of
from cherenkov_server.stream import Json, Stream, around_choices, data, encoded_json
from cherenkov_server.wire.answers import ChatChoice, Head, chat_object, usage_object
from cherenkov_server.wire.chat import read_chat
from cherenkov_server.wire.completions import read_completion
from cherenkov_server.wire.generation import checked_count
from cherenkov_server.wire.texts import TextChoice
from cherenkov_server.work import HangUp, Work

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cherenkov.chat.replies import Reply, Usage
    from cherenkov.engine import Request as Asked
    from cherenkov.serving.requests import Answered
    from cherenkov_server.control import Service
    from cherenkov_server.wire.chat import ChatCompletion
    from cherenkov_server.wire.completions import Completion
    from cherenkov_server.wire.generation import Generation

__all__ = ["create_chat", "create_completion"]

_QUIET_S = 15.0


@post("/v1/chat/completions", status_code=200)
async def create_chat(request: Request[Any, Any, Any]) -> ASGIApp:
    """Answer a conversation."""
    service = service_of(request)
    body = await body_of(request)
    loaded = service.loaded
    asked = read_chat(body, is_lenient=service.config.server.lenient)
    service.check_model(asked.model)
    request_id = asked.request_id or request_id_of(request)
    head = _head(service, asked, f"chatcmpl-{request_id}")
    spelling = loaded.tokenizer
    wanted = _chat_requests(service, asked, owner_of(request), request_id)
    answering = _Answering(service, request, asked, head, wanted, request_id)
    choices = [ChatChoice(spelling, i) for i in range(len(wanted))]
    if answering.streams:
        return await answering.stream("chat.completion.chunk", choices)
    replies = await answering.whole(choices)
    return answering.json(chat_object(head, spelling, replies))


@post("/v1/completions", status_code=200)
async def create_completion(request: Request[Any, Any, Any]) -> ASGIApp:
    """Continue a text, or several."""
    service = service_of(request)
    body = await body_of(request)
    loaded = service.loaded
    asked = read_completion(body, is_lenient=service.config.server.lenient)
    service.check_model(asked.model)
    request_id = asked.request_id or request_id_of(request)
    head = _head(service, asked, f"cmpl-{request_id}")
    wanted = _text_requests(service, asked, owner_of(request), request_id)
    answering = _Answering(service, request, asked, head, wanted, request_id)
    choices = [
        TextChoice(loaded.tokenizer, i, wants_logprobs=asked.logprobs is not None)
        for i in range(len(wanted))
    ]
    if answering.streams:
        return await answering.stream("text_completion", choices)
    replies = await answering.whole(choices)
    objects = [choice.whole(reply) for choice, reply in zip(choices, replies, strict=True)]
    usage = _summed([reply.usage for reply in replies], asked.n or 1)
    return answering.json(head.object("text_completion", objects, usage=usage))


class _Answering:
    """One HTTP request being answered."""

    def __init__(
        self,
        service: Service,
        request: Request[Any, Any, Any],
        asked: Generation,
        head: Head,
        wanted: Sequence[Asked],
        request_id: str,
    ) -> None:
        defaults = service.config.defaults
        self.streams = defaults.stream if asked.stream is None else asked.stream
        usage = asked.includes_usage
        self._includes_usage = defaults.include_usage if usage is None else usage
        self._head = head
        self._choices = asked.n or 1
        self._headers = {"x-request-id": request_id}
        self._work = service.work(wanted, Work, owner=owner_of(request), request_id=request_id)
        self._hang_up = HangUp(request.receive, self._work.cancel)

    async def whole(self, choices: Sequence[ChatChoice | TextChoice]) -> list[Reply]:
        """The answers, once all are there."""
        try:
            await self._work.begin()
            return await self._work.replies(choices)
        finally:
            self._end()

    def json(self, value: dict[str, Any]) -> Json:
        """An answer of JSON."""
        return Json(value, headers=self._headers)

    async def stream(self, kind: str, choices: Sequence[ChatChoice | TextChoice]) -> Stream:
        """The answers as they come, once the first is under way."""
        try:
            await self._work.begin()
        except BaseException:
            self._end()
            raise
        usages: dict[int, Usage] = {}
        more = {"usage": None} if self._includes_usage else {}
        # All chunks say the same around their choices.
        before, after = around_choices(self._head.object(kind, [], **more))

        def pieces(index: int, event: Answered) -> bytes:
            if isinstance(event, Finished):
                usages[index] = event.reply.usage
            chosen = choices[index].take(event)
            return b"".join([before + encoded_json(one) + after for one in chosen])

        def last() -> bytes:
            if not self._includes_usage:
                return b""
            usage = _summed([usages[i] for i in sorted(usages)], self._choices)
            return data(self._head.object(kind, [], usage=usage))

        return Stream(
            self._work,
            self._hang_up,
            pieces,
            last=last,
            headers=self._headers,
            quiet_s=_QUIET_S,
        )

    def _end(self) -> None:
        self._hang_up.stop()
        self._work.end()


def _head(service: Service, asked: Generation, answer_id: str) -> Head:
    return Head(answer_id, int(time.time()), asked.model or service.name, service.fingerprint)


def _summed(usages: Sequence[Usage], choices: int) -> dict[str, Any]:
    """What answers took, `choices` to each prompt; every prompt is counted once."""
    objects = [usage_object(usages[i : i + choices]) for i in range(0, len(usages), choices)]
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    total: dict[str, Any] = {name: sum(one[name] for one in objects) for name in names}
    cached = sum(one["prompt_tokens_details"]["cached_tokens"] for one in objects)
    return total | {"prompt_tokens_details": {"cached_tokens": cached}}


def _chat_requests(
    service: Service, asked: ChatCompletion, owner: str, request_id: str
) -> list[Asked]:
    limits, options = service.config.limits, asked.options()
    most = checked_count(*asked.most_tokens, limits.max_output_tokens)
    if asked.session_id is not None:
        return [_turn(service, asked, options, most, owner, request_id)]
    settings = _settings(service, options, most)
    make = functools.partial(
        ChatRequest,
        asked.conversation(),
        tools=asked.offered() or None,
        no_answer=most == 0,
        ignore_eos=_goes_on(service, asked),
        owner=owner,
    )
    return [
        make(settings=_nth(settings, i), request_id=request_id if i == 0 else "")
        for i in range(asked.n or 1)
    ]


def _goes_on(service: Service, asked: ChatCompletion | Completion) -> bool:
    """Whether an answer goes on to its most tokens, whatever the model says."""
    return service.config.defaults.no_eos if asked.ignore_eos is None else asked.ignore_eos


def _turn(
    service: Service,
    asked: ChatCompletion,
    options: dict[str, Any],
    most: int | None,
    owner: str,
    request_id: str,
) -> TurnRequest:
    """A turn of a session: what is not given stays as it is there."""
    if (asked.n or 1) > 1:
        raise UnsupportedParam("n", "must be 1 in a session")
    if most == 0:
        raise UnsupportedParam("max_tokens", "must be 1 or more in a session")
    assert asked.session_id is not None
    return TurnRequest(
        asked.session_id,
        asked.conversation(),
        options=options if most is None else options | {"max_tokens": most},
        tools=asked.offered(),
        ignore_eos=_goes_on(service, asked),
        owner=owner,
        request_id=request_id,
    )


def _text_requests(service: Service, asked: Completion, owner: str, request_id: str) -> list[Asked]:
    most = checked_count("max_tokens", asked.max_tokens, service.config.limits.max_output_tokens)
    settings = _settings(service, asked.options(), most)
    make: Callable[..., CompletionRequest] = functools.partial(
        CompletionRequest,
        echo=bool(asked.echo),
        no_answer=most == 0,
        ignore_eos=_goes_on(service, asked),
        owner=owner,
    )
    count = asked.n or 1
    return [
        make(
            prompt,
            settings=_nth(settings, i),
            request_id=request_id if i == at == 0 else "",
        )
        for at, prompt in enumerate(asked.prompts)
        for i in range(count)
    ]


def _settings(service: Service, options: dict[str, Any], most: int | None) -> Settings:
    """Checked settings of a request that stands alone.

    Raises:
        RequestError: if one makes no sense.
    """
    if most is None:
        most = service.config.defaults.max_tokens or None
    given = service.default_options() | options | {"max_tokens": most or None}
    return Settings().updated(given)


def _nth(settings: Settings, index: int) -> Settings:
    """The settings of the n-th answer to the same prompt: with the same seed all would be the same."""
    seed = settings.sampling.seed
    if index == 0 or seed is None:
        return settings
    return settings.updated({"seed": seed + index})
