"""What the server needs of whoever answers: `cherenkov.engine.Engine`, or a double of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from typing_extensions import Unpack

    from cherenkov.chat.options import ChatOptions
    from cherenkov.engine import Metrics, Request, RequestStatus, SessionInfo, Ticket

__all__ = ["Answering", "Loaded", "Spelling"]


class Spelling(Protocol):
    """A tokenizer, as far as the wire looks at it; see `cherenkov.text.tokenizer.Tokenizer`."""

    stop_ids: frozenset[int]
    size: int

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Token ids of a text."""

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """The text of token ids."""

    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        """The bytes that one token stands for."""


class Plan(Protocol):
    """How much a model holds."""

    @property
    def context_tokens(self) -> int:
        """Longest sequence."""


class Loaded(Protocol):
    """A model that is loaded, as far as the wire looks at it."""

    @property
    def tokenizer(self) -> Spelling:
        """Text to token ids and back."""

    @property
    def plan(self) -> Plan:
        """How much it holds."""

    @property
    def vocab(self) -> int:
        """Entries of a row of logits."""


class Answering(Protocol):
    """An engine. Nothing but `wait_ready`, `drain` and `close` waits."""

    @property
    def state(self) -> str:
        """`idle`, `loading`, `ready`, `draining`, `closed` or `failed`."""

    def start(self) -> None:
        """Load the model."""

    def wait_ready(self, timeout_s: float | None = None) -> Loaded:
        """Wait for the model."""

    def submit(self, request: Request) -> Ticket:
        """Ask for an answer."""

    def cancel(self, request_id: str, owner: str | None = None) -> bool:
        """End a request."""

    def requests(self, owner: str | None = None) -> list[RequestStatus]:
        """Requests under way."""

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
        """Begin a session."""

    def session(self, session_id: str, owner: str = "") -> SessionInfo:
        """A session."""

    def close_session(self, session_id: str, owner: str = "") -> None:
        """Forget a session."""

    def drain(self, timeout_s: float | None = None) -> bool:
        """Let nobody in any more, and wait for what is under way."""

    def close(self) -> None:
        """Cancel everything, join the threads."""
