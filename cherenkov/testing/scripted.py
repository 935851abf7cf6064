"""`ScriptedModel`: answers like `cherenkov.Engine`, but says what a test tells it to. There is no model in it.

What it shares with the engine is what callers see: tickets, order of events, errors, the way from tokens to text, reasoning
and calls. Its tokens are characters.

    with ScriptedModel("Paris.") as engine:
        ticket = engine.submit(ChatRequest([{"role": "user", "content": "The capital of France?"}]))
        print(ticket.reply().text)
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

from cherenkov.chat.answer import Answer
from cherenkov.chat.options import Settings
from cherenkov.chat.replies import Finished, Usage
from cherenkov.engine import (
    Accepted,
    ChatRequest,
    CompletionRequest,
    Echoed,
    Limits,
    Logprobs,
    Metrics,
    RequestStatus,
    SessionInfo,
    Started,
    Ticket,
    TurnRequest,
)
from cherenkov.errors import Cancelled, CapacityError, ContextTooLong, RequestError
from cherenkov.lane import Step
from cherenkov.logprobs import TokenLogprobs
from cherenkov.serving.plain import PlainAnswer
from cherenkov.testing.characters import STOP, Characters
from cherenkov.text.messages import checked_message, checked_messages
from cherenkov.text.tool_schema import ToolSet

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from cherenkov.chat.options import ChatOptions
    from cherenkov.engine import Request

__all__ = ["Pause", "Script", "ScriptedModel"]


@dataclass(frozen=True, slots=True)
class Pause:
    """Say nothing for so long, or until `event` is set."""

    seconds: float = 60.0
    event: threading.Event | None = None

    def is_over(self, since: float) -> bool:
        """Whether it is, if it began then."""
        is_set = self.event is not None and self.event.is_set()
        return is_set or time.monotonic() - since >= self.seconds


Part = str | Pause | BaseException
Script = str | Iterable[Part] | Callable[["Request"], str | Iterable[Part]]
"""What to say: text, pauses, an error to end with; or a function that says so for each request."""


@dataclass(slots=True, eq=False)
class _Job:
    """A request under way."""

    request: Request
    ticket: Ticket
    settings: Settings
    tools: ToolSet
    prompt: str
    said: list[dict[str, Any]] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    count: int = 0
    parts: Iterator[str | Pause | BaseException] = field(default_factory=lambda: iter(()))
    pause: tuple[Pause, float] | None = None
    answer: Any = None
    is_active: bool = False


@dataclass(slots=True, eq=False)
class _Session:
    owner: str
    settings: Settings
    tools: ToolSet
    messages: list[dict[str, Any]]
    created: float
    turns: int = 0
    usage: Usage = field(default_factory=Usage)
    busy: bool = False


class ScriptedModel:
    """Answers by a script, from a thread of its own.

    Args:
        script: what to say to every request, or a function that says it for each.
        limits: `max_batch` and `queue_depth` hold.
        context_tokens: longest prompt and answer.
        load: called first; whatever it raises, `wait_ready` raises.
    """

    def __init__(
        self,
        script: Script = "ok",
        *,
        limits: Limits | None = None,
        context_tokens: int = 8192,
        load: Callable[[], None] = lambda: None,
    ) -> None:
        self.tokenizer = Characters()
        self.vocab = Characters.size
        self.plan = SimpleNamespace(context_tokens=context_tokens)
        self.seen: list[Request] = []
        self._script = script
        self._limits = limits or Limits()
        self._load = load
        self._state = "idle"
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._jobs: list[_Job] = []
        self._sessions: dict[str, _Session] = {}
        self._names = itertools.count(1)
        self._figures = Metrics("idle")
        self._thread = threading.Thread(target=self._run, name="scripted", daemon=True)

    # --- what an engine does

    @property
    def state(self) -> str:
        """As `Engine.state`."""
        return self._state

    def start(self) -> None:
        """Start the thread."""
        with self._changed:
            if self._state == "idle":
                self._state = "loading"
                self._thread.start()

    def wait_ready(self, timeout_s: float | None = None) -> Self:
        """Wait for `load`."""
        self.start()
        with self._changed:
            done = self._changed.wait_for(lambda: self._state != "loading", timeout_s)
        if self._error is not None:
            raise self._error
        if not done:
            raise TimeoutError("the model is still loading")
        return self

    def submit(self, request: Request) -> Ticket:
        """As `Engine.submit`."""
        self.start()
        with self._changed:
            if self._state in {"loading", "draining"}:
                raise CapacityError(f"the engine is {self._state}", retry_after_s=1.0)
            if self._state != "ready":
                raise RequestError("the engine is closed", code="closed")
            job = self._admitted(request)
            self.seen.append(request)
            self._jobs.append(job)
            self._changed.notify_all()
            return job.ticket

    def cancel(self, request_id: str, owner: str | None = None) -> bool:
        """As `Engine.cancel`."""
        with self._changed:
            found = [job for job in self._owned(owner) if job.ticket.id == request_id]
        return bool(found) and found[0].ticket.cancel()

    def requests(self, owner: str | None = None) -> list[RequestStatus]:
        """As `Engine.requests`."""
        with self._changed:
            return [_status(job) for job in self._owned(owner)]

    def metrics(self) -> Metrics:
        """As `Engine.metrics`."""
        with self._changed:
            active = sum(job.is_active for job in self._jobs)
            return replace(
                self._figures,
                state=self._state,
                active=active,
                queued=len(self._jobs) - active,
                sessions=len(self._sessions),
            )

    def open_session(
        self,
        *,
        owner: str = "",
        system: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        overflow: str = "error",  # noqa: ARG002 - nothing overflows
        **options: Unpack[ChatOptions],
    ) -> SessionInfo:
        """As `Engine.open_session`."""
        settings = Settings().updated(options)
        messages = [{"role": "system", "content": system}] if system else []
        with self._changed:
            name = f"session-{next(self._names)}"
            self._sessions[name] = _Session(
                owner, settings, ToolSet(tools), messages, created=time.time()
            )
            return self._info(name)

    def session(self, session_id: str, owner: str = "") -> SessionInfo:
        """As `Engine.session`."""
        with self._changed:
            self._session(session_id, owner)
            return self._info(session_id)

    def close_session(self, session_id: str, owner: str = "") -> None:
        """As `Engine.close_session`."""
        with self._changed:
            self._session(session_id, owner)
            for job in self._jobs:
                if job.ticket.session_id == session_id:
                    job.ticket.cancel()
            del self._sessions[session_id]

    def drain(self, timeout_s: float | None = None) -> bool:
        """As `Engine.drain`."""
        with self._changed:
            if self._state == "ready":
                self._state = "draining"
            ended = self._changed.wait_for(lambda: not self._jobs, timeout_s)
            for job in self._jobs:
                job.ticket.cancel()
            self._changed.wait_for(lambda: not self._jobs, 5.0)
        return ended

    def close(self) -> None:
        """As `Engine.close`."""
        with self._changed:
            is_running = self._thread.is_alive()
            self._state = "closed"
            self._changed.notify_all()
        if is_running:
            self._thread.join()

    def __enter__(self) -> Self:
        self.wait_ready()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- inside; hold `_changed`

    def _owned(self, owner: str | None) -> list[_Job]:
        return [job for job in self._jobs if owner is None or job.request.owner == owner]

    def _admitted(self, request: Request) -> _Job:
        name = request.request_id or f"request-{next(self._names)}"
        if any(job.ticket.id == name for job in self._jobs):
            raise RequestError(
                f"request {name!r} is under way", param="request_id", code="duplicate_request_id"
            )
        waiting = sum(not job.is_active for job in self._jobs)
        if waiting >= self._limits.queue_depth:
            raise CapacityError(f"the queue is full: {waiting} wait", retry_after_s=1.0)
        if isinstance(request, TurnRequest):
            return self._turn(request, name)
        ticket = self._ticket(name)
        if isinstance(request, CompletionRequest):
            prompt = request.prompt
            if not isinstance(prompt, str):
                prompt = self.tokenizer.decode(prompt)
            return _Job(request, ticket, request.settings, ToolSet(()), prompt)
        text = _rendered(checked_messages(request.messages))
        return _Job(request, ticket, request.settings, ToolSet(request.tools), text)

    def _turn(self, request: TurnRequest, name: str) -> _Job:
        session = self._session(request.session_id, request.owner)
        if session.busy:
            raise RequestError("the session is busy with an answer", code="busy")
        message = request.message
        several = message if isinstance(message, list | tuple) else [message]
        said = [checked_message(f"message[{i}]", one) for i, one in enumerate(several)]
        settings = session.settings.updated(request.options)
        tools = session.tools if request.tools is None else ToolSet(request.tools)
        session.busy = True
        ticket = self._ticket(name, request.session_id)
        prompt = _rendered([*session.messages, *said])
        return _Job(request, ticket, settings, tools, prompt, said)

    def _ticket(self, name: str, session_id: str | None = None) -> Ticket:
        return Ticket(
            name, session_id, most_unread=self._limits.unread_events, on_change=self._wake
        )

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _session(self, session_id: str, owner: str) -> _Session:
        session = self._sessions.get(session_id)
        if session is None or session.owner != owner:
            raise RequestError(
                f"there is no session {session_id!r:.80}",
                param="session_id",
                code="session_not_found",
            )
        return session

    def _info(self, name: str) -> SessionInfo:
        one = self._sessions[name]
        return SessionInfo(
            id=name,
            owner=one.owner,
            settings=one.settings,
            messages=len(one.messages),
            turns=one.turns,
            usage=one.usage,
            history_bytes=len(_rendered(one.messages)),
            busy=one.busy,
            idle_s=0.0,
            created_s=one.created,
        )

    # --- the thread

    def _run(self) -> None:
        try:
            self._load()
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            self._error = error
        with self._changed:
            if self._state == "loading":
                self._state = "ready" if self._error is None else "failed"
            self._changed.notify_all()
        while self._state != "closed":
            with self._changed:
                self._begin_some()
                moved = [job for job in self._jobs[:] if self._guarded(self._step, job)]
                if not moved and self._state != "closed":
                    self._changed.wait(0.002 if self._jobs else None)
            time.sleep(0)  # a lock is not fair: whoever waits for it gets a chance
        with self._changed:
            for job in self._jobs:
                job.ticket.fail(Cancelled("the engine is closed"))
            self._jobs.clear()

    def _begin_some(self) -> None:
        active = sum(job.is_active for job in self._jobs)
        for job in self._jobs[:]:
            if job.ticket.is_cancelled and not job.is_active:
                self._end(job, Cancelled("cancelled before its turn came"))
            elif not job.is_active and active < self._limits.max_batch:
                active += 1
                self._guarded(self._begin, job)

    def _guarded(self, act: Callable[[_Job], bool], job: _Job) -> bool:
        """Do something for a request; if that fails, the request does, and no other."""
        try:
            return act(job)
        except Exception as error:  # noqa: BLE001 - raised where the answer is read
            self._end(job, error)
            return True

    def _begin(self, job: _Job) -> bool:
        job.is_active = True
        ids = self.tokenizer.encode(job.prompt)
        wanted = job.settings.max_tokens or 1
        if len(ids) + wanted - 1 > self.plan.context_tokens:
            raise ContextTooLong(len(ids), wanted, self.plan.context_tokens)
        job.ticket.put(Accepted(len(ids)))
        job.ticket.put(Started(len(ids), 0))
        request = job.request
        if isinstance(request, CompletionRequest):
            job.answer = PlainAnswer(self.tokenizer, job.settings)  # type: ignore[arg-type]
            if request.echo:
                job.ticket.put(self._echoed(job, ids))
        else:
            job.answer = Answer(self.tokenizer, job.settings, job.tools, opened=False)  # type: ignore[arg-type]
        script = self._script(request) if callable(self._script) else self._script
        parts = [script] if isinstance(script, str) else script
        job.parts = itertools.chain.from_iterable(
            list(one) if isinstance(one, str) else [one] for one in parts
        )
        if not isinstance(request, TurnRequest) and request.no_answer:
            self._finish(job, "length")
        return True

    def _echoed(self, job: _Job, ids: list[int]) -> Echoed:
        top = job.settings.top_logprobs
        likely = () if top is None else (None, *(_likely(i, top) for i in ids[1:]))
        return Echoed(job.prompt, tuple(ids), likely[: len(ids)])

    def _step(self, job: _Job) -> bool:
        """Say one character more. False if there is nothing to do now."""
        if not job.is_active or job not in self._jobs:
            return False
        if job.ticket.is_cancelled:
            self._finish(job, "cancelled")
            return True
        if job.pause is not None and not job.pause[0].is_over(job.pause[1]):
            return False
        if job.ticket.full_s:
            if job.ticket.full_s > self._limits.stall_s:
                job.ticket.cancel()
            return False
        job.pause = None
        part = next(job.parts, None)
        if isinstance(part, Pause):
            job.pause = part, time.monotonic()
        elif isinstance(part, BaseException):
            self._end(job, part)
        else:
            self._say(job, STOP if part is None else ord(part))
        return True

    def _say(self, job: _Job, token: int) -> None:
        job.count += 1
        is_last = job.count == job.settings.max_tokens
        reason = "stop" if token == STOP else "length" if is_last else None
        top = job.settings.top_logprobs
        likely = None if top is None else _likely(token, top)
        if likely is not None:
            job.ticket.put(Logprobs(likely))
        for event in job.answer.feed(Step(token, reason, likely)):
            job.ticket.put(event)
        if reason is not None or job.answer.is_over:
            self._finish(job)

    def _finish(self, job: _Job, reason: str | None = None) -> None:
        for event in job.answer.flush():
            job.ticket.put(event)
        usage = Usage(len(job.prompt), 0, job.count)
        reply = job.answer.reply(usage)
        if reason is not None:
            reply = replace(reply, finish_reason=reason)
        session = self._sessions.get(job.ticket.session_id or "")
        if session is not None and reason != "cancelled":
            session.settings, session.tools = job.settings, job.tools
            session.messages = [*session.messages, *job.said, reply.message]
            session.turns, session.usage = session.turns + 1, session.usage + usage
        self._leave(job)
        job.ticket.put(Finished(reply))

    def _end(self, job: _Job, error: BaseException) -> None:
        self._leave(job)
        job.ticket.fail(error)

    def _leave(self, job: _Job) -> None:
        self._jobs.remove(job)
        session = self._sessions.get(job.ticket.session_id or "")
        if session is not None:
            session.busy = False
        one = self._figures
        self._figures = replace(
            one, completed=one.completed + 1, output_tokens=one.output_tokens + job.count
        )
        self._changed.notify_all()


def _rendered(messages: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(f"{one['role']}: {one['content']}" for one in messages)


def _likely(token: int, top: int) -> TokenLogprobs:
    return TokenLogprobs(token, -0.5, tuple((token + i, -0.5 - i) for i in range(top)))


def _status(job: _Job) -> RequestStatus:
    kinds = {ChatRequest: "chat", CompletionRequest: "completion", TurnRequest: "turn"}
    return RequestStatus(
        id=job.ticket.id,
        kind=kinds[type(job.request)],
        phase="decoding" if job.is_active else "queued",
        session_id=job.ticket.session_id,
        owner=job.request.owner,
        prompt_tokens=len(job.prompt),
        output_tokens=job.count,
        age_s=time.monotonic() - job.began,
    )
