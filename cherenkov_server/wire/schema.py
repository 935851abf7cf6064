"""The OpenAPI description of all that is served."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from pydantic.json_schema import models_json_schema

from cherenkov.version import __version__
from cherenkov_server.wire.chat import ChatCompletion
from cherenkov_server.wire.completions import Completion
from cherenkov_server.wire.sessions import Detokenize, NewSession, Tokenize

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = ["schema"]

_PREFIX = "#/components/schemas/"
_BODIES: dict[str, type[BaseModel]] = {
    "/v1/chat/completions": ChatCompletion,
    "/v1/completions": Completion,
    "/v1/sessions": NewSession,
    "/tokenize": Tokenize,
    "/detokenize": Detokenize,
}
_PATHS: tuple[tuple[str, str, str], ...] = (
    ("post", "/v1/chat/completions", "Answer a conversation"),
    ("post", "/v1/completions", "Continue a text, or several"),
    ("get", "/v1/models", "The model"),
    ("get", "/v1/models/{id}", "A model by its name"),
    ("post", "/v1/sessions", "Begin a conversation"),
    ("get", "/v1/sessions/{id}", "Where a conversation stands"),
    ("delete", "/v1/sessions/{id}", "Forget a conversation"),
    ("get", "/v1/requests", "The caller's requests under way"),
    ("post", "/v1/requests/{id}/cancel", "End a request"),
    ("post", "/tokenize", "Take a text apart"),
    ("post", "/detokenize", "Put tokens together"),
    ("get", "/health", "Whether requests are taken now"),
    ("get", "/metrics", "Figures, for Prometheus"),
    ("get", "/schema", "All of this, as OpenAPI"),
)
_STREAMS = {"/v1/chat/completions", "/v1/completions"}
_REFUSALS = {
    "400": "Something makes no sense; `param` says what",
    "401": "A key is needed",
    "403": "Not for this host or this web page",
    "404": "There is no such thing",
    "405": "Not a method that is served here",
    "408": "The body did not come in time",
    "409": "Busy, or the id is taken",
    "413": "The body is too long",
    "414": "The address is too long",
    "415": "The body must be JSON",
    "429": "The queue is full: try again after `Retry-After`",
    "431": "The headers are too many, or too long",
    "499": "Cancelled before its turn came",
    "500": "Our fault",
    "503": "Loading, draining, or too many at once: try again",
}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


@functools.cache
def schema() -> dict[str, Any]:
    """An OpenAPI 3.1 document."""
    kinds = [(kind, "validation") for kind in _BODIES.values()]
    _, found = models_json_schema(kinds, ref_template=_PREFIX + "{model}")  # type: ignore[arg-type]
    paths: dict[str, Any] = {}
    for method, path, summary in _PATHS:
        paths.setdefault(path, {})[method] = _operation(path, method, summary)
    return {
        "openapi": "3.1.0",
        "info": {"title": "cherenkov", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": found["$defs"] | {"Error": _ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(path: str, method: str, summary: str) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": summary,
        "responses": {"200": _answer(path)}
        | {s: _refusal(words) for s, words in _REFUSALS.items()},
    }
    if path != "/health":
        operation["security"] = [{}, {"key": []}]
    if "{id}" in path:
        operation["parameters"] = [
            {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
        ]
    if method == "post" and path in _BODIES:
        reference = {"$ref": _PREFIX + _BODIES[path].__name__}
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": reference}},
        }
    return operation


def _answer(path: str) -> dict[str, Any]:
    if path == "/metrics":
        return {"description": "Done", "content": {"text/plain": {"schema": {"type": "string"}}}}
    content: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
    if path in _STREAMS:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return {"description": "Done", "content": content}


def _refusal(words: str) -> dict[str, Any]:
    reference = {"$ref": _PREFIX + "Error"}
    return {"description": words, "content": {"application/json": {"schema": reference}}}
