"""A client for OpenAI-style servers, small enough to be no part of what is measured: sockets, JSON, server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["Answer", "Refusal", "ask", "get", "stream"]


class Refusal(Exception):
    """The server answered, but not with 200."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"{status}: {body[:300]}")
        self.status = status


@dataclass(slots=True)
class Answer:
    """What came of a stream.

    Attributes:
        text: all of it.
        usage: as the server said.
        reason: why it ended.
        sent: when the request was sent; `time.perf_counter`.
        times: when each piece came.
    """

    text: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    reason: str | None = None
    sent: float = 0.0
    times: list[float] = field(default_factory=list)

    @property
    def first_s(self) -> float:
        return self.times[0] - self.sent

    @property
    def cached(self) -> int:
        return int((self.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)


async def _open(
    url: str, path: str, body: dict[str, Any] | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, int, dict[str, str]]:
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    data = b"" if body is None else json.dumps(body).encode()
    head = [
        f"{'GET' if body is None else 'POST'} {path} HTTP/1.1",
        f"Host: {host}:{port}",
        "Connection: close",
    ]
    if body is not None:
        head += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
    writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + data)
    await writer.drain()
    status = int((await reader.readline()).split()[1])
    headers: dict[str, str] = {}
    while (line := (await reader.readline()).strip()) != b"":
        name, _, value = line.decode().partition(":")
        headers[name.lower()] = value.strip()
    return reader, writer, status, headers


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[bytes]:
    if headers.get("transfer-encoding") == "chunked":
        while size := int((await reader.readline()).split(b";")[0], 16):
            yield await reader.readexactly(size)
            await reader.readexactly(2)
    elif "content-length" in headers:
        yield await reader.readexactly(int(headers["content-length"]))
    else:
        while piece := await reader.read(65536):
            yield piece


async def get(url: str, path: str) -> str:
    """The body of a page."""
    reader, writer, status, headers = await _open(url, path, None)
    try:
        body = b"".join([piece async for piece in _body(reader, headers)]).decode()
    finally:
        writer.close()
    if status != 200:
        raise Refusal(status, body)
    return body


async def ask(url: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """A JSON answer."""
    reader, writer, status, headers = await _open(url, path, body)
    try:
        text = b"".join([piece async for piece in _body(reader, headers)]).decode()
    finally:
        writer.close()
    if status != 200:
        raise Refusal(status, text)
    found: dict[str, Any] = json.loads(text)
    return found


async def stream(
    url: str, path: str, body: dict[str, Any], *, hang_up_after: float | None = None
) -> Answer:
    """An answer piece by piece; whoever hangs up does so after so many seconds, wherever it is then."""
    answer = Answer(sent=time.perf_counter())
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    if hang_up_after is None:
        await _read(url, path, asked, answer)
    else:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(hang_up_after):
                await _read(url, path, asked, answer)
    return answer


async def _read(url: str, path: str, body: dict[str, Any], answer: Answer) -> None:
    reader, writer, status, headers = await _open(url, path, body)
    try:
        left = b""
        async for piece in _body(reader, headers):
            if status != 200:
                raise Refusal(status, piece.decode())
            *events, left = (left + piece).split(b"\n\n")
            for event in events:
                if event.startswith(b"data: {"):
                    _take(json.loads(event[6:]), answer)
    finally:
        writer.close()


def _take(event: dict[str, Any], answer: Answer) -> None:
    if "error" in event:
        raise Refusal(500, json.dumps(event["error"]))
    answer.usage = event.get("usage") or answer.usage
    for choice in event.get("choices", ()):
        delta = choice.get("delta", {})
        said = choice.get("text") or delta.get("content") or delta.get("reasoning_content") or ""
        if said or delta.get("tool_calls"):
            answer.times.append(time.perf_counter())
        answer.text += said
        answer.reason = choice.get("finish_reason") or answer.reason
