"""Models, requests under way, tokens, health, figures and the schema."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any

from litestar import Request, get, post
from litestar.types import ASGIApp

from cherenkov_server.figures import exposition
from cherenkov_server.routes.asking import body_of, id_of, owner_of, service_of
from cherenkov_server.stream import Json, Text
from cherenkov_server.wire.reading import validated
from cherenkov_server.wire.refusals import Refusal
from cherenkov_server.wire.schema import schema
from cherenkov_server.wire.sessions import Detokenize, Tokenize, request_object

if TYPE_CHECKING:
    from cherenkov_server.control import Service

__all__ = [
    "cancel_request",
    "detokenize",
    "health",
    "list_models",
    "list_requests",
    "metrics",
    "openapi",
    "retrieve_model",
    "tokenize",
]


@get("/v1/models")
async def list_models(request: Request[Any, Any, Any]) -> ASGIApp:
    """The model."""
    service = service_of(request)
    return Json({"object": "list", "data": [_model(service, service.name)]})


@get("/v1/models/{id:path}")
async def retrieve_model(request: Request[Any, Any, Any]) -> ASGIApp:
    """A model by its name, which may hold slashes."""
    service = service_of(request)
    name = id_of(request).removeprefix("/")
    service.check_model(name)
    return Json(_model(service, name))


@get("/v1/requests")
async def list_requests(request: Request[Any, Any, Any]) -> ASGIApp:
    """The caller's requests under way."""
    found = service_of(request).engine.requests(owner_of(request))
    return Json({"object": "list", "data": [request_object(one) for one in found]})


@post("/v1/requests/{id:str}/cancel", status_code=200)
async def cancel_request(request: Request[Any, Any, Any]) -> ASGIApp:
    """End a request as soon as the step is done."""
    request_id = id_of(request)
    service_of(request).cancel(request_id, owner_of(request))
    return Json({"id": request_id, "object": "request.cancelled", "cancelled": True})


@post("/tokenize", status_code=200)
async def tokenize(request: Request[Any, Any, Any]) -> ASGIApp:
    """Take a text apart."""
    service = service_of(request)
    body = await body_of(request)
    loaded = service.loaded
    asked = validated(Tokenize, body)
    service.check_model(asked.model)
    text = asked.content if asked.prompt is None else asked.prompt
    if text is None:
        words = "missing parameter: prompt"
        raise Refusal(400, words, param="prompt", code="missing_required_parameter")
    encode = functools.partial(loaded.tokenizer.encode, text, special=asked.parse_special)
    ids = await asyncio.to_thread(encode)  # a long text takes seconds
    most = loaded.plan.context_tokens
    return Json({"count": len(ids), "max_model_len": most, "tokens": ids})


@post("/detokenize", status_code=200)
async def detokenize(request: Request[Any, Any, Any]) -> ASGIApp:
    """Put tokens together."""
    service = service_of(request)
    body = await body_of(request)
    loaded = service.loaded
    asked = validated(Detokenize, body)
    service.check_model(asked.model)
    decode = functools.partial(loaded.tokenizer.decode, asked.tokens, special=True)
    text = await asyncio.to_thread(decode)
    return Json({"prompt": text, "content": text})


@get("/health")
async def health(request: Request[Any, Any, Any]) -> ASGIApp:
    """Whether requests are taken now. Asks nobody but the server."""
    state = service_of(request).state
    if state == "ready":
        return Json({"status": "ok"})
    return Json({"status": state}, status=503, headers={"retry-after": "1"})


@get("/metrics")
async def metrics(request: Request[Any, Any, Any]) -> ASGIApp:
    """Figures, for Prometheus."""
    service = service_of(request)
    text = exposition(service.engine.metrics(), service.traffic)
    return Text(text, "text/plain; version=0.0.4; charset=utf-8")


@get("/schema")
async def openapi() -> ASGIApp:
    """All of this, as OpenAPI."""
    return Json(schema())


def _model(service: Service, name: str) -> dict[str, Any]:
    found = {"id": name, "object": "model", "created": service.created, "owned_by": "cherenkov"}
    length = service.context_tokens
    return found | ({} if length is None else {"max_model_len": length})
