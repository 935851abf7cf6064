"""What routes do with a request before they answer: read it, and see whose it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cherenkov_server.wire.reading import parsed
from cherenkov_server.wire.refusals import Refusal

if TYPE_CHECKING:
    from litestar import Request

    from cherenkov_server.control import Service

__all__ = ["body_of", "id_of", "owner_of", "request_id_of", "service_of"]


def service_of(request: Request[Any, Any, Any]) -> Service:
    """The server."""
    service: Service = request.app.state.service
    return service


def owner_of(request: Request[Any, Any, Any]) -> str:
    """Whose request it is, as the guard found out."""
    return str(request.scope["state"].get("owner", ""))


def request_id_of(request: Request[Any, Any, Any]) -> str:
    """The id that the guard made."""
    return str(request.scope["state"]["request_id"])


def id_of(request: Request[Any, Any, Any]) -> str:
    """The id in the address."""
    return str(request.path_params["id"])


async def body_of(request: Request[Any, Any, Any]) -> dict[str, Any]:
    """The object that a body holds.

    Raises:
        Refusal: 400, 408 or 413.
    """
    parts, more = [], True
    while more:
        message: Any = await request.receive()
        if message["type"] == "http.disconnect":
            raise Refusal(499, "the caller hung up", "cancelled", code="cancelled")
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return parsed(b"".join(parts))
