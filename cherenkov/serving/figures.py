"""What an engine says about itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cherenkov.chat.options import Settings
    from cherenkov.chat.replies import Usage

__all__ = ["Metrics", "PrefixFigures", "RequestStatus", "SessionInfo"]


@dataclass(frozen=True, slots=True)
class RequestStatus:
    """A request under way.

    Attributes:
        id: its id.
        kind: `chat`, `completion` or `turn`.
        phase: `preparing`, `queued`, `prefilling`, `decoding`.
        session_id: of its session, or None.
        owner: whose it is.
        prompt_tokens: 0 until they are known.
        cached_tokens: those that were not read.
        read_tokens: those of the prompt that are in the model's memory, cached ones included.
        output_tokens: tokens sampled so far.
        state_bytes: memory that it takes, or will.
        age_s: seconds since it came.
    """

    id: str
    kind: str
    phase: str
    session_id: str | None
    owner: str
    prompt_tokens: int = 0
    cached_tokens: int = 0
    read_tokens: int = 0
    output_tokens: int = 0
    state_bytes: int = 0
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PrefixFigures:
    """What the prefix cache holds and did. `entries` and `bytes` are of now, all else since the start."""

    entries: int = 0
    bytes: int = 0
    disk_entries: int = 0
    disk_bytes: int = 0
    hits: int = 0
    misses: int = 0
    hit_tokens: int = 0
    stored: int = 0
    evictions: int = 0
    spilled: int = 0
    loaded: int = 0
    damaged: int = 0
    unwritten: int = 0


@dataclass(frozen=True, slots=True)
class Metrics:
    """An engine's figures. Counts are since the start, unless they say what is now.

    Attributes:
        state: `idle` (not started), `loading`, `ready`, `draining`, `closed` or `failed`.
        preparing: requests being rendered, now.
        queued: requests that wait for their turn, now.
        active: answers under way, now.
        completed: answers that ended by themselves.
        cancelled: requests that their callers ended.
        failed: requests that ended with an error.
        refused: requests that were not let in: queue full, draining, never fits.
        prompt_tokens: of all that started.
        cached_tokens: those that were not read.
        output_tokens: tokens sampled.
        prefill_s: seconds of steps that read prompts.
        decode_s: seconds of the other steps.
        prefill_chunks: steps that read prompts.
        decode_steps: the other steps.
        decode_rows: rows of those, of all lanes together.
        rebuilt: lanes that were read again, after another one's failure.
        chunk_tokens: tokens that the next chunk of a prompt may have, now.
        state_bytes: memory taken by answers under way, now.
        state_limit_bytes: and how much they may take.
        sessions: kept, now.
        session_bytes: of their messages, now.
        prefix: the prefix cache.
    """

    state: str
    preparing: int = 0
    queued: int = 0
    active: int = 0
    completed: int = 0
    cancelled: int = 0
    failed: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    prefill_chunks: int = 0
    decode_steps: int = 0
    decode_rows: int = 0
    rebuilt: int = 0
    chunk_tokens: int = 0
    state_bytes: int = 0
    state_limit_bytes: int = 0
    sessions: int = 0
    session_bytes: int = 0
    prefix: PrefixFigures = field(default_factory=PrefixFigures)


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session.

    Attributes:
        id: its id.
        owner: whose it is.
        settings: how it answers.
        messages: how many, the system message included.
        turns: how many counted.
        usage: what they took together.
        history_bytes: what its messages take.
        busy: a turn is under way.
        idle_s: seconds since the last turn ended, or since it was opened; 0 while busy.
        created_s: when it was opened, seconds since 1970.
    """

    id: str
    owner: str
    settings: Settings
    messages: int
    turns: int
    usage: Usage
    history_bytes: int
    busy: bool
    idle_s: float
    created_s: float
