"""Answers to chat completions: whole, and as chunks of a stream."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cherenkov.chat.replies import Finished, ReasoningDelta, TextDelta, ToolCallEvent
from cherenkov.engine import Logprobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cherenkov.chat.replies import Reply, Usage
    from cherenkov.logprobs import TokenLogprobs
    from cherenkov.serving.requests import Answered
    from cherenkov.text.tool_calls import ToolCall
    from cherenkov_server.answering import Spelling

__all__ = ["ChatChoice", "Head", "chat_object", "usage_object"]


@dataclass(frozen=True, slots=True)
class Head:
    """What every object of an answer begins with.

    Attributes:
        id: `chatcmpl-…` or `cmpl-…`.
        created: seconds since 1970.
        model: as the server calls it.
        fingerprint: of server and model.
    """

    id: str
    created: int
    model: str
    fingerprint: str

    def object(self, kind: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """An object of that kind."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
            **more,
        }


def usage_object(usages: Sequence[Usage]) -> dict[str, Any]:
    """What answers to one prompt took: it is counted once."""
    first = usages[0]
    made = sum(usage.output_tokens for usage in usages)
    return {
        "prompt_tokens": first.prompt_tokens,
        "completion_tokens": made,
        "total_tokens": first.prompt_tokens + made,
        "prompt_tokens_details": {"cached_tokens": first.cached_tokens},
    }


def chat_object(head: Head, spelling: Spelling, replies: Sequence[Reply]) -> dict[str, Any]:
    """A whole answer."""
    choices = [_choice(spelling, i, reply) for i, reply in enumerate(replies)]
    usage = usage_object([reply.usage for reply in replies])
    return head.object("chat.completion", choices, usage=usage)


class ChatChoice:
    """The chunks of one choice of a stream.

    Args:
        spelling: the tokenizer, for log-probabilities.
        index: of the choice.
    """

    def __init__(self, spelling: Spelling, index: int) -> None:
        self._spelling = spelling
        self._index = index
        self._waiting: list[TokenLogprobs] = []
        self._asked_logprobs = False
        self._has_begun = False

    def take(self, event: Answered) -> list[dict[str, Any]]:
        """What an event adds to `choices`, one for each chunk to send."""
        if isinstance(event, Logprobs):
            self._waiting.append(event.token)
            self._asked_logprobs = True
        if isinstance(event, TextDelta):
            return self._deltas({"content": event.text})
        if isinstance(event, ReasoningDelta):
            return self._deltas({"reasoning_content": event.text})
        if isinstance(event, ToolCallEvent):
            call = _call_object(event.call) | {"index": event.index}
            return self._deltas({"tool_calls": [call]})
        if isinstance(event, Finished):
            return self._last(event.reply)
        return []

    def _deltas(self, delta: dict[str, Any]) -> list[dict[str, Any]]:
        chunks = []
        if not self._has_begun:
            self._has_begun = True
            opening = {"role": "assistant", "content": "", "refusal": None}
            if "tool_calls" in delta:  # an answer that only calls has no content
                return [self._chunk(opening | {"content": None} | delta, self._likely())]
            chunks.append(self._chunk(opening, None))
        return [*chunks, self._chunk(delta, self._likely())]

    def _last(self, reply: Reply) -> list[dict[str, Any]]:
        chunks = []
        if not self._has_begun:
            opening = {"role": "assistant", "content": "", "refusal": None}
            chunks.append(self._chunk(opening, None))
        self._waiting = _without_stop(self._waiting, reply, self._spelling)
        likely = self._likely() if self._waiting else None
        return [*chunks, self._chunk({}, likely, reply.finish_reason)]

    def _likely(self) -> dict[str, Any] | None:
        if not self._asked_logprobs:
            return None
        taken, self._waiting = self._waiting, []
        return _likely_object(self._spelling, taken)

    def _chunk(
        self, delta: dict[str, Any], likely: dict[str, Any] | None, reason: str | None = None
    ) -> dict[str, Any]:
        return {"index": self._index, "delta": delta, "logprobs": likely, "finish_reason": reason}


def _choice(spelling: Spelling, index: int, reply: Reply) -> dict[str, Any]:
    only_calls = bool(reply.tool_calls) and not reply.text
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if only_calls else reply.text,
        "refusal": None,
    }
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        message["tool_calls"] = [_call_object(call) for call in reply.tool_calls]
    likely = None
    if reply.logprobs:
        likely = _likely_object(spelling, _without_stop(list(reply.logprobs), reply, spelling))
    return {
        "index": index,
        "message": message,
        "logprobs": likely,
        "finish_reason": reply.finish_reason,
    }


def _call_object(call: ToolCall) -> dict[str, Any]:
    return {
        "id": f"call_{secrets.token_hex(12)}",
        "type": "function",
        "function": {
            "name": call.name,
            "arguments": json.dumps(call.arguments, ensure_ascii=False),
        },
    }


def _without_stop(
    tokens: list[TokenLogprobs], reply: Reply, spelling: Spelling
) -> list[TokenLogprobs]:
    """Tokens of the answer; the one that ended it is none of them."""
    ended = reply.finish_reason in {"stop", "tool_calls"}
    if ended and tokens and tokens[-1].token in spelling.stop_ids:
        return tokens[:-1]
    return tokens


def _likely_object(spelling: Spelling, tokens: Sequence[TokenLogprobs]) -> dict[str, Any]:
    content = [
        _token_object(spelling, one.token, one.logprob)
        | {"top_logprobs": [_token_object(spelling, i, value) for i, value in one.top]}
        for one in tokens
    ]
    return {"content": content, "refusal": None}


def _token_object(spelling: Spelling, token: int, logprob: float) -> dict[str, Any]:
    spelt = spelling.token_bytes(token, special=True)
    return {
        "token": spelt.decode("utf-8", "replace"),
        "logprob": logprob,
        "bytes": list(spelt),
    }
