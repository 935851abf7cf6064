"""`Engine`: one thread that owns a model, for many callers.

Requests go in, events come out. Answers under way share each step of the model as its rows, and each says what it would
say alone, bit for bit. See `docs/engine.md` for how a request travels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from cherenkov.serving.figures import Metrics, PrefixFigures, RequestStatus, SessionInfo
from cherenkov.serving.requests import (
    Accepted,
    ChatRequest,
    CompletionRequest,
    Echoed,
    Limits,
    Logprobs,
    Request,
    Started,
    TurnRequest,
)
from cherenkov.serving.ticket import Ticket

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from typing_extensions import Unpack

    from cherenkov.chat.options import ChatOptions
    from cherenkov.model import Model

__all__ = [
    "Accepted",
    "ChatRequest",
    "CompletionRequest",
    "Echoed",
    "Engine",
    "Limits",
    "Logprobs",
    "Metrics",
    "PrefixFigures",
    "Request",
    "RequestStatus",
    "SessionInfo",
    "Started",
    "Ticket",
    "TurnRequest",
]


class Engine:
    """Answers many callers with one model. Threads start with the first request, or with `start`; `close` joins them.

    All methods may be called from any thread, and but for `wait_ready`, `drain` and `close` none of them waits for the
    model.
    """

    def __init__(self, model: Model | Callable[[], Model], limits: Limits | None = None) -> None:
        """Take a model, or what makes one: that is called in the engine's thread, and its model closed with the engine."""

    def start(self) -> None:
        """Start the threads, and load the model if it is to be. Safe to call twice."""

    def wait_ready(self, timeout_s: float | None = None) -> Model:
        """Wait for the model. Raises what loading raised; TimeoutError."""

    @property
    def state(self) -> str:
        """`idle`, `loading`, `ready`, `draining`, `closed` or `failed`."""

    def submit(self, request: Request) -> Ticket:
        """Ask for an answer.

        What can be refused at a glance is refused here, all else with the ticket's first events.

        Raises:
            RequestError: with `code`: `duplicate_request_id` (409), `session_not_found` (404), `busy` (409: a turn of the
                session is under way), others 400.
            CapacityError: the queue is full, or the engine is loading or draining: `retry_after_s` says when to try again,
                `engine.state` which of these it is.
        """

    def cancel(self, request_id: str, owner: str | None = None) -> bool:
        """End a request as soon as the step is done. False if there is none, or none of this owner's."""

    def requests(self, owner: str | None = None) -> list[RequestStatus]:
        """Requests under way, the oldest first; of one owner, or of all."""

    def metrics(self) -> Metrics:
        """Figures."""

    def open_session(
        self,
        *,
        owner: str = "",
        system: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        overflow: str = "error",
        **options: Unpack[ChatOptions],
    ) -> SessionInfo:
        """Begin a session. Arguments as for `Model.session`."""

    def session(self, session_id: str, owner: str = "") -> SessionInfo:
        """A session. Raises RequestError with code `session_not_found`."""

    def close_session(self, session_id: str, owner: str = "") -> None:
        """Forget a session; a turn under way is cancelled. Raises RequestError with code `session_not_found`."""

    def drain(self, timeout_s: float | None = None) -> bool:
        """Let nobody in any more, and wait for what is under way; what is not over in time is cancelled.

        Returns:
            Whether all ended by themselves.
        """

    def close(self) -> None:
        """Cancel everything, join the threads. Safe to call twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
