"""What an engine can be asked for, and what it answers with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cherenkov.chat.options import Settings
from cherenkov.chat.replies import Event
from cherenkov.units import MIB

if TYPE_CHECKING:
    from cherenkov.logprobs import TokenLogprobs

__all__ = [
    "Accepted",
    "ChatRequest",
    "CompletionRequest",
    "Echoed",
    "Limits",
    "Logprobs",
    "Request",
    "Said",
    "Started",
    "TurnRequest",
]


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine may take on.

    Attributes:
        max_batch: answers under way at once, which share each step.
        queue_depth: requests that may wait for their turn.
        active_state_bytes: memory of all answers under way; 0 takes what the model's plan reserves.
        prefill_quantum: most tokens of a prompt in a step; 0 takes what the model's plan gives.
        prefill_chunk_s: how long a chunk of a prompt should hold up others; 0 always takes the quantum.
        patience_s: how long smaller requests may go before one that is too large for what is free.
        stall_s: how long an answer may wait for its reader, before it is cancelled.
        unread_events: events that may wait for their reader, before the answer does.
        max_sessions: sessions that are kept; the one that was idle longest goes first.
        session_history_bytes: messages of all sessions together.
        session_idle_s: a session that was idle for so long goes; 0 for never.
        prefix_cache_bytes: memory for what was read before; 0 for none.
        prefix_cache_entries: points that it may hold.
        prefix_cache_idle_s: a point that nobody went on from for so long goes; 0 for never.
        prefix_cache_dir: where points that must go are written to; None for nowhere.
        prefix_cache_disk_bytes: and how much of the disk they may take.
        response_bytes: text of an answer, reasoning included; one that is longer ends there, as `length`.
    """

    max_batch: int = 4
    queue_depth: int = 64
    active_state_bytes: int = 0
    prefill_quantum: int = 0
    prefill_chunk_s: float = 2.0
    patience_s: float = 5.0
    stall_s: float = 30.0
    unread_events: int = 64
    max_sessions: int = 16
    session_history_bytes: int = 16 * MIB
    session_idle_s: float = 900.0
    prefix_cache_bytes: int = 512 * MIB
    prefix_cache_entries: int = 64
    prefix_cache_idle_s: float = 900.0
    prefix_cache_dir: str | None = None
    prefix_cache_disk_bytes: int = 1024 * MIB
    response_bytes: int = 4 * MIB


# --- asked


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """Answer a conversation.

    Attributes:
        messages: as `Model.chat` takes them.
        settings: checked options: `Settings().updated(options)`.
        tools: functions that may be called, as JSON schemas.
        no_answer: read the prompt and sample nothing: `max_tokens` of 0.
        ignore_eos: go on to `max_tokens`, whatever the model says.
        owner: whose it is. What was read for one owner is never used for another.
        request_id: 1 to 80 of `A-Z a-z 0-9 _ -`; empty has one made.
    """

    messages: Sequence[Mapping[str, Any]]
    settings: Settings = field(default_factory=Settings)
    tools: Sequence[Mapping[str, Any]] | None = None
    no_answer: bool = False
    ignore_eos: bool = False
    owner: str = ""
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """Continue a text. No template, no reasoning, no calls: what the model says is the text.

    Attributes:
        prompt: text, in which spellings of control tokens are control tokens; or token ids.
        settings: checked options, of which `sampling`, `max_tokens`, `stop` and `top_logprobs` matter.
        echo: give the prompt first (`Echoed`), with log-probabilities if `settings.top_logprobs` is set.
        no_answer: read the prompt and sample nothing: `max_tokens` of 0.
        ignore_eos: as for `ChatRequest`.
        owner: as for `ChatRequest`.
        request_id: as for `ChatRequest`.
    """

    prompt: str | Sequence[int]
    settings: Settings = field(default_factory=Settings)
    echo: bool = False
    no_answer: bool = False
    ignore_eos: bool = False
    owner: str = ""
    request_id: str = ""


Said = str | Mapping[str, Any] | Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """Say something in a session.

    Attributes:
        session_id: from `Engine.open_session`.
        message: what is said: the new messages only.
        options: unchecked options (`ChatOptions`), which hold from now on once the turn counts; a `seed` begins the random
            numbers anew.
        tools: functions that may be called from now on; None leaves them as they are.
        ignore_eos: as for `ChatRequest`, for this turn.
        owner: must be the session's.
        request_id: as for `ChatRequest`.
    """

    session_id: str
    message: Said
    options: Mapping[str, Any] = field(default_factory=dict)
    tools: Sequence[Mapping[str, Any]] | None = None
    ignore_eos: bool = False
    owner: str = ""
    request_id: str = ""


Request = ChatRequest | CompletionRequest | TurnRequest


# --- answered: Accepted, Started, [Echoed], pieces, Finished


@dataclass(frozen=True, slots=True)
class Accepted:
    """First: the request makes sense and can fit. It waits for its turn. `prompt_tokens` is what it must read at most."""

    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Started:
    """Its turn has come; `cached_tokens` of the prompt need not be read."""

    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Echoed:
    """The prompt, as asked for.

    Attributes:
        text: of the prompt.
        ids: its tokens.
        logprobs: of each token, None for the first, which nothing comes before; empty unless asked for.
    """

    text: str
    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs | None, ...]


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Of a token that was sampled, just before what it makes certain of the text, if anything. Only if asked for.

    That of a stop token, which is no part of the text, is in `Reply.logprobs` alone.
    """

    token: TokenLogprobs


Answered = Accepted | Started | Echoed | Logprobs | Event
