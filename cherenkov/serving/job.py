"""`Job`: a request inside the engine, from when it comes to its last event."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from cherenkov.chat.replies import Finished, ReasoningDelta, TextDelta, Usage
from cherenkov.errors import BackendError, CapacityError, CherenkovError
from cherenkov.serving.figures import RequestStatus
from cherenkov.serving.requests import ChatRequest, CompletionRequest, Logprobs

if TYPE_CHECKING:
    import numpy as np

    from cherenkov.chat.options import Settings
    from cherenkov.chat.record import Record
    from cherenkov.chat.replies import Event, Reply
    from cherenkov.lane import Lane, Step
    from cherenkov.logprobs import TokenLogprobs
    from cherenkov.serving.requests import Request
    from cherenkov.serving.sessions import Turn
    from cherenkov.serving.ticket import Ticket

__all__ = ["Job", "Prepared", "Saying", "in_our_words"]


class Saying(Protocol):
    """One answer in the making: sampled tokens in, events out. See `cherenkov.chat.answer.Answer`."""

    @property
    def is_over(self) -> bool:
        """What may still come would not count."""

    def feed(self, step: Step) -> list[Event]:
        """Take a step; give what it makes certain."""

    def flush(self) -> list[Event]:
        """There are no more steps: what was held back."""

    def reply(self, usage: Usage) -> Reply:
        """The answer as a whole, once it is flushed."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request, made ready for the model.

    Attributes:
        ids: the prompt.
        settings: how to answer.
        answer: takes the tokens.
        random: where random numbers come from.
        points: positions of the prompt that others may go on from, ascending; the last is its end.
        keeps_answer: the end of the answer is such a position too.
        capacity: tokens that the sequence may grow to.
        size_bytes: memory of the answer under way.
        echo: the prompt's text, if it is to be given.
        samples: tokens are sampled, and the prompt is not merely read.
        record: of the session, as this turn would have it but for the answer.
        said: the turn's new messages.
    """

    ids: tuple[int, ...]
    settings: Settings
    answer: Saying
    random: np.random.Generator
    points: tuple[int, ...]
    keeps_answer: bool
    capacity: int
    size_bytes: int
    echo: str | None = None
    samples: bool = True
    record: Record | None = None
    said: tuple[dict[str, Any], ...] = ()

    @property
    def reads_all(self) -> bool:
        """Every row of the prompt matters: their logits are asked for."""
        return self.echo is not None and self.settings.top_logprobs is not None


@dataclass(slots=True, eq=False)
class Job:
    """A request under way.

    Attributes:
        ticket: what the caller holds.
        request: what was asked.
        turn: of its session.
        phase: `preparing`, `queued`, `prefilling`, `decoding`.
        prepared: once it is.
        lane: once its turn has come.
        cached: tokens of the prompt that were not read.
        outputs: tokens sampled.
        said_bytes: of text and reasoning so far.
        alone: it takes no step together with others, until it has sampled again: a step that it shared failed.
        refused_since: since when it has not fitted, though a lane was free.
        prompt_logprobs: of the tokens of the prompt, if they are asked for.
    """

    ticket: Ticket
    request: Request
    turn: Turn | None = None
    phase: str = "preparing"
    prepared: Prepared | None = None
    lane: Lane | None = None
    cached: int = 0
    outputs: int = 0
    said_bytes: int = 0
    alone: bool = False
    refused_since: float | None = None
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    came: float = field(default_factory=time.monotonic)
    begun: float = 0.0
    first: float = 0.0
    last: float = 0.0

    @property
    def kind(self) -> str:
        """`chat`, `completion` or `turn`."""
        if isinstance(self.request, ChatRequest):
            return "chat"
        return "completion" if isinstance(self.request, CompletionRequest) else "turn"

    @property
    def ready(self) -> Prepared:
        """What was prepared."""
        assert self.prepared is not None
        return self.prepared

    @property
    def running(self) -> Lane:
        """The lane that it has."""
        assert self.lane is not None
        return self.lane

    @property
    def position(self) -> int:
        """Tokens that the model has read of it."""
        return self.running.state.position

    @property
    def usage(self) -> Usage:
        """What it has taken so far."""
        return Usage(
            prompt_tokens=len(self.ready.ids),
            cached_tokens=self.cached,
            output_tokens=self.outputs,
            prefill_s=max(0.0, (self.first or self.last) - self.begun),
            decode_s=max(0.0, self.last - self.first) if self.first else 0.0,
        )

    def until(self) -> int:
        """How many tokens may be read before it must be looked at: up to the next point, or the end."""
        here = self.position
        end = here + len(self.running.pending)
        return next((p for p in self.ready.points if here < p < end), end) - here

    def take(self, step: Step) -> None:
        """A token has been sampled: say what it makes certain."""
        self.last = time.monotonic()
        self.first = self.first or self.last
        self.outputs += 1
        if step.logprobs is not None and step.finish_reason != "stop":
            self.ticket.put(Logprobs(step.logprobs))
        for event in self.ready.answer.feed(step):
            if isinstance(event, TextDelta | ReasoningDelta):
                self.said_bytes += len(event.text.encode(errors="surrogatepass"))
            self.ticket.put(event)

    def ended(self, reason: str | None = None) -> tuple[list[Event], Reply]:
        """The last pieces and the answer as a whole; `reason` is why it ends, if not by itself."""
        answer = self.ready.answer
        events = answer.flush()
        reply = answer.reply(self.usage)
        return events, reply if reason is None else replace(reply, finish_reason=reason)

    def say(self, events: list[Event], reply: Reply) -> None:
        """End the ticket."""
        for event in events:
            self.ticket.put(event)
        self.ticket.put(Finished(reply))

    def status(self) -> RequestStatus:
        """What there is to say of it, from any thread."""
        prepared, lane = self.prepared, self.lane
        return RequestStatus(
            id=self.ticket.id,
            kind=self.kind,
            phase=self.phase,
            session_id=self.ticket.session_id,
            owner=self.request.owner,
            prompt_tokens=0 if prepared is None else len(prepared.ids),
            cached_tokens=self.cached,
            read_tokens=0
            if lane is None or prepared is None
            else min(lane.state.position, len(prepared.ids)),
            output_tokens=self.outputs,
            state_bytes=0 if prepared is None else prepared.size_bytes,
            age_s=time.monotonic() - self.came,
        )


def in_our_words(error: BaseException) -> BaseException:
    """An error as one of this library's: what nobody expected is a failure of the engine's."""
    if isinstance(error, CherenkovError):
        return error
    if isinstance(error, MemoryError):
        made: CherenkovError = CapacityError(f"no memory for this request: {error}")
    else:
        made = BackendError("engine", "answer", f"{type(error).__name__}: {error!s:.200}")
    made.__cause__ = error
    return made
