"""Answers to completions: whole, and as chunks of a stream."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Any

from cherenkov.chat.replies import Finished, TextDelta
from cherenkov.engine import Echoed, Logprobs

if TYPE_CHECKING:
    from cherenkov.chat.replies import Reply
    from cherenkov.logprobs import TokenLogprobs
    from cherenkov.serving.requests import Answered
    from cherenkov_server.answering import Spelling

__all__ = ["TextChoice"]


class TextChoice:
    """One choice of a completion, whole or as chunks of a stream.

    Args:
        spelling: the tokenizer, for log-probabilities.
        index: of the choice.
        wants_logprobs: whether they were asked for.
    """

    def __init__(self, spelling: Spelling, index: int, *, wants_logprobs: bool) -> None:
        self._index = index
        self._likely = _Likely(spelling) if wants_logprobs else None
        self._texts: list[str] = []

    def take(self, event: Answered) -> list[dict[str, Any]]:
        """What an event adds to `choices`, one for each chunk to send."""
        if isinstance(event, Echoed):
            if self._likely is not None:
                self._likely.prompt(event)
            return self._chunks(event.text)
        if isinstance(event, Logprobs) and self._likely is not None:
            self._likely.add(event.token.token, event.token)
        if isinstance(event, TextDelta):
            return self._chunks(event.text)
        if isinstance(event, Finished):
            return [self._last(event.reply)]
        return []

    def whole(self, reply: Reply) -> dict[str, Any]:
        """The choice, once every event was taken."""
        likely = None if self._likely is None else self._likely.all()
        return self._object("".join(self._texts), likely, reply.finish_reason)

    def _chunks(self, text: str) -> list[dict[str, Any]]:
        self._texts.append(text)
        return [self._object(text, self._taken(), None)] if text else []

    def _last(self, reply: Reply) -> dict[str, Any]:
        if self._likely is not None and reply.finish_reason == "stop":
            self._likely.drop_stop()
        return self._object("", self._taken(), reply.finish_reason)

    def _taken(self) -> dict[str, Any] | None:
        return None if self._likely is None else self._likely.take()

    def _object(
        self, text: str, likely: dict[str, Any] | None, reason: str | None
    ) -> dict[str, Any]:
        return {"index": self._index, "text": text, "logprobs": likely, "finish_reason": reason}


class _Likely:
    """Log-probabilities in the form of completions: columns, and where in the text each token begins, in characters."""

    def __init__(self, spelling: Spelling) -> None:
        self._spelling = spelling
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0
        self._rows: list[tuple[int, str, float | None, dict[str, float] | None, int]] = []
        self._sent = 0

    def prompt(self, echoed: Echoed) -> None:
        """The tokens of the prompt; nothing comes before the first, so it has no probability."""
        likely = echoed.logprobs or (None,) * len(echoed.ids)
        for token, one in zip(echoed.ids, likely, strict=True):
            self.add(token, one, special=True)

    def add(self, token: int, likely: TokenLogprobs | None, *, special: bool = False) -> None:
        """A token."""
        top = None
        if likely is not None and likely.top:
            top = {self._spelt(i): value for i, value in likely.top}
            top.setdefault(self._spelt(token), likely.logprob)
        value = None if likely is None else likely.logprob
        self._rows.append((token, self._spelt(token), value, top, self._offset))
        spelt = self._spelling.token_bytes(token, special=special)
        self._offset += len(self._utf8.decode(spelt))

    def drop_stop(self) -> None:
        """The token that ended the answer is not part of it."""
        if self._rows[self._sent :] and self._rows[-1][0] in self._spelling.stop_ids:
            self._rows.pop()

    def all(self) -> dict[str, Any]:
        """Every token."""
        return _columns(self._rows)

    def take(self) -> dict[str, Any]:
        """The tokens since the last time."""
        rows, self._sent = self._rows[self._sent :], len(self._rows)
        return _columns(rows)

    def _spelt(self, token: int) -> str:
        spelt = self._spelling.token_bytes(token, special=True)
        try:
            return spelt.decode()
        except UnicodeDecodeError:  # part of a character
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelt)


def _columns(
    rows: list[tuple[int, str, float | None, dict[str, float] | None, int]],
) -> dict[str, Any]:
    return {
        "tokens": [row[1] for row in rows],
        "token_logprobs": [row[2] for row in rows],
        "top_logprobs": [row[3] for row in rows] if any(row[3] for row in rows) else None,
        "text_offset": [row[4] for row in rows],
    }
