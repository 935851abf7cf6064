"""What stands in front of the application: who may call, and how much they may send.

    Host and Origin -> method and size of headers -> key -> type and size of the body -> how many at once

Pages in a browser can send requests to servers on the same machine: by a name that they make point there (then `Host` is
that name), or across sites without asking first (then `Origin` is theirs, or the type is no JSON). All of these are refused
before anything is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import ipaddress
import logging
import re
import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from litestar.enums import ScopeType

from cherenkov_server.stream import Json, Refused
from cherenkov_server.wire.refusals import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from litestar.types import ASGIApp, Message, Receive, Scope, Send

    from cherenkov_server.config import ServerConfig

__all__ = ["Guard", "Keys", "Rules", "is_loopback", "printable"]

_log = logging.getLogger("cherenkov.server")

MAX_HEADERS = 100
MAX_TARGET_BYTES = 4096
_OPEN_PATHS = {"/health"}
_LOOPBACK_NAMES = {"localhost", "ip6-localhost"}
_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+)(:\d{1,5})?")


class Keys:
    """Who may call.

    Args:
        keys: as clients send them; none lets everybody in.
    """

    def __init__(self, keys: list[str]) -> None:
        self._keys = [key.encode() for key in keys]

    def owner(self, headers: Mapping[bytes, bytes]) -> str:
        """A name for whoever sends these headers: not the key, but made of it.

        Raises:
            Refusal: 401, if there is no key, or it is none of ours.
        """
        if not self._keys:
            return ""
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        given = given.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")
        # Every key is compared, so that the time says nothing about which one it was.
        if not given or True not in [hmac.compare_digest(given, key) for key in self._keys]:
            words = "a key is needed: send it as Authorization: Bearer KEY"
            raise Refusal(
                401,
                words if not given else "the key is not right",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
        return hashlib.sha256(given).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Rules:
    """What the guard lets by.

    Attributes:
        hosts: names, in lower case, that requests may call this server, beside loopback ones.
        is_local: it listens on a loopback address only, so other addresses are lies.
        origins: web pages that may call.
    """

    hosts: frozenset[str] = frozenset()
    is_local: bool = True
    origins: frozenset[str] = frozenset()
    request_bytes: int = 4 << 20
    header_bytes: int = 32 << 10
    body_s: float = 30.0
    at_once: int = 256

    @classmethod
    def of(cls, config: ServerConfig) -> Rules:
        """The rules that settings ask for."""
        server, limits = config.server, config.limits
        return cls(
            hosts=frozenset(name.lower() for name in (*server.allowed_hosts, server.host)),
            is_local=is_loopback(server.host),
            origins=frozenset(server.cors_origins),
            request_bytes=limits.request_bytes,
            header_bytes=limits.header_bytes,
            body_s=limits.body_seconds,
            at_once=limits.http_readers,
        )

    def check_host(self, headers: Mapping[bytes, bytes]) -> None:
        """Refuse requests for a name that is not ours.

        Raises:
            Refusal: 403.
        """
        match = _HOST.fullmatch(headers.get(b"host", b"").decode("latin-1"))
        name = match["name"].lower().strip("[]").removesuffix(".") if match else ""
        allowed = name in self.hosts or is_loopback(name)
        if name and not allowed and not self.is_local:
            # A page that makes its own name point here still sends that name, never a bare address.
            allowed = _address(name) is not None
        if not name or not allowed:
            words = "Host: not a name of this server; add it to allowed_hosts if it is one"
            raise Refusal(403, words, code="host_not_allowed")

    def check_origin(self, scheme: str, headers: Mapping[bytes, bytes]) -> str | None:
        """The page that may call, or None if no page does.

        Raises:
            Refusal: 403, for any other page.
        """
        if b"origin" not in headers:
            return None
        origin = headers[b"origin"].decode("latin-1")
        ours = f"{scheme}://{headers.get(b'host', b'').decode('latin-1')}"
        if origin in self.origins:
            return origin
        if origin != ours:
            raise Refusal(
                403,
                "Origin: web pages may not call this server; --cors-origin lets one in",
                code="origin_not_allowed",
            )
        return None


@dataclass(slots=True)
class Traffic:
    """What passed the guard."""

    active: int = 0
    answered: dict[int, int] = field(default_factory=dict)


class Guard:
    """An ASGI application around another.

    Args:
        app: what to guard.
        rules: what to let by.
        keys: who may call.
    """

    def __init__(self, app: ASGIApp, rules: Rules, keys: Keys) -> None:
        self._app = app
        self._rules = rules
        self._keys = keys
        self.traffic = Traffic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, and hand it on."""
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        call = _Call(scope, send, secrets.token_hex(12))
        began = time.monotonic()
        self.traffic.active += 1
        try:
            answer = self._refused(scope, call)
            if answer is not None:
                await _heard_out(receive)
                await answer(scope, receive, call.send)
            else:
                await self._app(scope, self._limited(receive), call.send)
        finally:
            self.traffic.active -= 1
            self._count(scope, call, time.monotonic() - began)

    def _refused(self, scope: Any, call: _Call) -> ASGIApp | None:
        """What to answer instead of the application, or None."""
        headers = dict(scope["headers"])
        try:
            self._rules.check_host(headers)
            call.origin = self._rules.check_origin(scope["scheme"], headers)
            self._check_shape(scope)
            if scope["method"] == "OPTIONS":
                return _preflight(call.origin, headers)
            if scope["path"] not in _OPEN_PATHS:
                scope.setdefault("state", {})["owner"] = self._keys.owner(headers)
            self._check_body(scope, headers)
        except Refusal as refusal:
            call.closes = True  # what is still coming is not read
            return Refused(refusal)
        return None

    def _check_shape(self, scope: Any) -> None:
        size = sum(len(name) + len(value) for name, value in scope["headers"])
        if len(scope["headers"]) > MAX_HEADERS or size > self._rules.header_bytes:
            raise Refusal(431, "the headers are too many, or too long", code="headers_too_large")
        target = len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
        if target > MAX_TARGET_BYTES:
            raise Refusal(414, "the address is too long", code="uri_too_long")
        if self.traffic.active > self._rules.at_once and scope["path"] not in _OPEN_PATHS:
            words = "too many requests at once: try again"
            raise Refusal(
                503, words, "server_error", code="unavailable", headers={"retry-after": "1"}
            )

    def _check_body(self, scope: Any, headers: Mapping[bytes, bytes]) -> None:
        length = headers.get(b"content-length", b"0")
        has_body = length.strip() != b"0" or b"transfer-encoding" in headers
        if {b"content-length", b"transfer-encoding"} <= headers.keys():
            # Somebody in between may have believed the other one, and take what follows for a request of its own.
            raise Refusal(400, "Content-Length: not with Transfer-Encoding", code="invalid_http")
        if not length.isdigit() or int(length[:20]) > self._rules.request_bytes:
            raise _too_large(self._rules.request_bytes)
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise Refusal(415, "Content-Encoding: must be left out", code="unsupported_media_type")
        if scope["method"] == "POST" and has_body and not _is_json(headers):
            raise Refusal(
                415, "Content-Type: must be application/json", code="unsupported_media_type"
            )

    def _limited(self, receive: Receive) -> Receive:
        """The same messages, while the body is neither too long nor too slow."""
        left, is_whole = self._rules.request_bytes, False
        end = time.monotonic() + self._rules.body_s

        async def limited() -> Any:
            nonlocal left, is_whole
            if is_whole:
                return await receive()
            try:
                async with asyncio.timeout(max(0.0, end - time.monotonic())):
                    message = await receive()
            except TimeoutError:
                raise Refusal(
                    408, "the body did not come in time", code="request_timeout", headers=_CLOSE
                ) from None
            if message["type"] == "http.request":
                left -= len(message.get("body", b""))
                is_whole = not message.get("more_body", False)
            if left < 0:
                raise _too_large(self._rules.request_bytes)
            return message

        return limited

    def _count(self, scope: Any, call: _Call, took_s: float) -> None:
        answered = self.traffic.answered
        answered[call.status] = answered.get(call.status, 0) + 1
        _log.info(
            "%s %s %s %.3fs",
            printable(scope["method"]),
            printable(scope["path"]),
            call.status or "gone",
            took_s,
            extra={"request_id": call.id},
        )


class _Call:
    """One request: adds to the headers of its answer."""

    def __init__(self, scope: Any, send: Send, request_id: str) -> None:
        self.id = request_id
        self.status = 0
        self.origin: str | None = None
        self.closes = False
        self._send = send
        scope.setdefault("state", {})["request_id"] = request_id

    async def send(self, message: Message) -> None:
        """Hand a message on."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = list(message.get("headers", []))
            names = {name for name, _ in headers}
            headers.append((b"x-content-type-options", b"nosniff"))
            if b"x-request-id" not in names:
                headers.append((b"x-request-id", self.id.encode()))
            if self.closes and b"connection" not in names:
                headers.append((b"connection", b"close"))
            if self.origin is not None:
                headers.append((b"access-control-allow-origin", self.origin.encode("latin-1")))
                headers.append((b"access-control-expose-headers", b"x-request-id"))
            headers.append((b"vary", b"origin"))
            message["headers"] = headers
        await self._send(message)


_CLOSE = {"connection": "close"}
_POLITE_S = 1.0
_POLITE_BYTES = 32 << 20


async def _heard_out(receive: Receive) -> None:
    """Read what is still coming and forget it, within reason: whoever is cut off while sending misses the answer."""
    left, more = _POLITE_BYTES, True
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_POLITE_S):
            while more and left > 0:
                message: Any = await receive()
                left -= len(message.get("body", b""))
                more = message.get("more_body", False)


def _preflight(origin: str | None, headers: Mapping[bytes, bytes]) -> ASGIApp:
    """The answer to a browser that asks before it calls."""
    if origin is None or b"access-control-request-method" not in headers:
        raise Refusal(405, "OPTIONS: not served here", code="method_not_allowed")
    allowed = {
        "access-control-allow-methods": "GET, POST, DELETE",
        "access-control-allow-headers": "authorization, content-type, x-api-key, x-request-id",
        "access-control-max-age": "600",
    }
    return Json({}, headers=allowed)


def _is_json(headers: Mapping[bytes, bytes]) -> bool:
    kind, _, rest = headers.get(b"content-type", b"").lower().partition(b";")
    charset = rest.replace(b'"', b"").replace(b" ", b"")
    return kind.strip() == b"application/json" and charset in {b"", b"charset=utf-8"}


def _too_large(most: int) -> Refusal:
    words = f"the body may have at most {most} bytes"
    return Refusal(413, words, code="request_too_large", headers=_CLOSE)


def is_loopback(name: str) -> bool:
    """Whether a host name or address means this machine, for itself alone."""
    address = _address(name)
    return name.lower() in _LOOPBACK_NAMES if address is None else address.is_loopback


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(name)
    return None


def printable(text: str) -> str:
    """A text for the log: on one line, and not without end."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)[
        :200
    ]
