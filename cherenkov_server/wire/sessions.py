"""Sessions, requests under way, and tokens: what may be asked, and what is said about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from cherenkov_server.wire.generation import FIRST, Generation, Whole, Wire

if TYPE_CHECKING:
    from cherenkov.engine import RequestStatus, SessionInfo

__all__ = [
    "Detokenize",
    "NewSession",
    "Tokenize",
    "request_object",
    "session_object",
]


class NewSession(Generation):
    """A session to open; its settings hold until a turn changes them."""

    n: Annotated[int, Field(ge=1, le=1)] | None = None
    system: str | None = None
    tools: Annotated[list[dict[str, Any]], FIRST] | None = None
    overflow: Literal["error", "trim"] | None = None
    max_completion_tokens: Whole | None = None


class Tokenize(Wire):
    """A text to take apart; `content` is another name for `prompt`."""

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    parse_special: bool = True


class Detokenize(Wire):
    """Tokens to put together."""

    model: str | None = None
    tokens: Annotated[list[Whole], Field(max_length=1 << 20, fail_fast=True)]


def session_object(info: SessionInfo) -> dict[str, Any]:
    """What is said about a session."""
    usage, sampling = info.usage, info.settings.sampling
    return {
        "id": info.id,
        "object": "session",
        "created": int(info.created_s),
        "busy": info.busy,
        "idle_seconds": round(info.idle_s, 3),
        "turns": info.turns,
        "messages": info.messages,
        "history_bytes": info.history_bytes,
        "settings": {
            "max_tokens": info.settings.max_tokens,
            "stop": list(info.settings.stop),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "seed": sampling.seed,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "repetition_penalty": sampling.repetition_penalty,
        },
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "generated_tokens": usage.output_tokens,
            "prefill_seconds": round(usage.prefill_s, 6),
            "decode_seconds": round(usage.decode_s, 6),
        },
    }


def request_object(status: RequestStatus) -> dict[str, Any]:
    """What is said about a request under way; nothing of what it says."""
    return {
        "id": status.id,
        "object": "request",
        "kind": status.kind,
        "phase": status.phase,
        "session_id": status.session_id,
        "age_seconds": round(status.age_s, 3),
        "prompt_tokens": status.prompt_tokens,
        "cached_tokens": status.cached_tokens,
        "read_tokens": status.read_tokens,
        "output_tokens": status.output_tokens,
        "state_bytes": status.state_bytes,
    }
