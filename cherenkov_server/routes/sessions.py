"""`/v1/sessions`: conversations that the server remembers."""

from __future__ import annotations

from typing import Any

from litestar import Request, delete, get, post
from litestar.types import ASGIApp

from cherenkov_server.routes.asking import body_of, id_of, owner_of, service_of
from cherenkov_server.stream import Json
from cherenkov_server.wire.generation import checked_count
from cherenkov_server.wire.reading import validated
from cherenkov_server.wire.sessions import NewSession, session_object

__all__ = ["close_session", "open_session", "retrieve_session"]


@post("/v1/sessions", status_code=200)
async def open_session(request: Request[Any, Any, Any]) -> ASGIApp:
    """Begin a conversation."""
    service = service_of(request)
    body = await body_of(request)
    _ = service.loaded
    asked = validated(NewSession, body)
    service.check_model(asked.model)
    given = asked.max_completion_tokens or asked.max_tokens
    most = checked_count("max_tokens", given, service.config.limits.max_output_tokens)
    most = most or service.config.defaults.max_tokens or None
    options = service.default_options() | asked.sampled() | {"max_tokens": most}
    info = service.engine.open_session(
        owner=owner_of(request),
        system=asked.system,
        tools=asked.tools,
        overflow=asked.overflow or "error",
        **options,
    )
    return Json(session_object(info))


@get("/v1/sessions/{id:str}")
async def retrieve_session(request: Request[Any, Any, Any]) -> ASGIApp:
    """Where a conversation stands."""
    info = service_of(request).engine.session(id_of(request), owner_of(request))
    return Json(session_object(info))


@delete("/v1/sessions/{id:str}", status_code=200)
async def close_session(request: Request[Any, Any, Any]) -> ASGIApp:
    """Forget a conversation; a turn under way is cancelled."""
    session_id = id_of(request)
    service_of(request).engine.close_session(session_id, owner_of(request))
    return Json({"id": session_id, "object": "session.deleted", "deleted": True})
