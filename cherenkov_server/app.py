"""The application: routes behind the guard, and one way to say no."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from litestar import Litestar, Request, Response
from litestar.datastructures import State
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException

from cherenkov_server.guard import Guard, Keys, Rules
from cherenkov_server.routes.generation import create_chat, create_completion
from cherenkov_server.routes.looking import (
    cancel_request,
    detokenize,
    health,
    list_models,
    list_requests,
    metrics,
    openapi,
    retrieve_model,
    tokenize,
)
from cherenkov_server.routes.sessions import close_session, open_session, retrieve_session
from cherenkov_server.stream import log_failure
from cherenkov_server.wire.refusals import Refusal, refusal_of

if TYPE_CHECKING:
    from cherenkov_server.control import Service

__all__ = ["make_app"]


def make_app(service: Service, keys: Keys | None = None) -> Guard:
    """The application, an ASGI one.

    Args:
        service: what the routes share.
        keys: who may call; None lets everybody in.
    """
    app = Litestar(
        [
            create_chat,
            create_completion,
            list_models,
            retrieve_model,
            open_session,
            retrieve_session,
            close_session,
            list_requests,
            cancel_request,
            tokenize,
            detokenize,
            health,
            metrics,
            openapi,
        ],
        openapi_config=None,
        logging_config=None,
        state=State({"service": service}),
        exception_handlers={Exception: _refuse},
        debug=False,
    )
    guard = Guard(app, Rules.of(service.config), keys or Keys([]))
    service.traffic = guard.traffic
    return guard


def _refuse(_request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    refusal = _of_framework(error) if isinstance(error, HTTPException) else refusal_of(error)
    if refusal.status == 500:
        log_failure(error)
    return Response(refusal.body, status_code=refusal.status, headers=refusal.headers)


def _of_framework(error: HTTPException) -> Refusal:
    if isinstance(error, NotFoundException):
        return Refusal(404, "there is nothing at this address", code="not_found")
    if isinstance(error, MethodNotAllowedException):
        return Refusal(
            405, "not a method of this address", code="method_not_allowed", headers=error.headers
        )
    if error.status_code < 500:
        return Refusal(error.status_code, "the request makes no sense", code="invalid_request")
    return Refusal(500, "something went wrong inside", "server_error", code="internal_error")
