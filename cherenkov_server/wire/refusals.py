"""Errors, as OpenAI writes them. Classes and codes decide, never the words of a message."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from cherenkov.errors import (
    Cancelled,
    CapacityError,
    CherenkovError,
    ContextTooLong,
    CorruptModel,
    DiskError,
    RequestError,
    TemplateError,
    UnsupportedParam,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Refusal", "refusal_of"]

_STATUS = {
    "busy": 409,
    "duplicate_request_id": 409,
    "session_not_found": 404,
    "request_not_found": 404,
    "model_not_found": 404,
    "closed": 503,
}
"""Codes of `RequestError` that are not 400."""
_PARAMS = {"message": "messages", "text": "prompt", "ids": "prompt"}
"""What the library calls some parameters, and clients call otherwise."""
_MOST_WORDS = 2000


class Refusal(Exception):  # noqa: N818 - it is an answer, and says no
    """An answer that says no.

    Attributes:
        status: of HTTP.
        message: for people.
        kind: OpenAI's `type`.
        param: what of the request is meant, or None.
        code: for programs, or None.
        headers: to send with it.
    """

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = "invalid_request_error",
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """The error object."""
        return {
            "error": {
                "message": self.message[:_MOST_WORDS],
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }


def refusal_of(error: BaseException, *, is_unavailable: bool = False) -> Refusal:
    """The answer to an error.

    Args:
        error: of ours, or any other: that one is our fault, and its words stay with us.
        is_unavailable: the engine takes nobody now, for it is loading or draining.
    """
    if isinstance(error, Refusal):
        return error
    if isinstance(error, RequestError):
        return _of_request(error)
    if isinstance(error, TemplateError):
        return Refusal(400, str(error), param="messages", code="template_error")
    if isinstance(error, CapacityError):
        return _of_capacity(error, is_unavailable=is_unavailable)
    if isinstance(error, Cancelled):
        return Refusal(499, "the request was cancelled", "cancelled", code="cancelled")
    return Refusal(500, _words_of_failure(error), "server_error", code="internal_error")


def _words_of_failure(error: BaseException) -> str:
    """What a caller may know of a failure that is our fault: not where our files are, nor what others' code says."""
    if isinstance(error, DiskError | CorruptModel):
        name = PurePath(error.path).name
        why = "cannot be read" if isinstance(error, DiskError) else "is damaged"
        return f"{name} {why}: the server's log says more"
    is_ours = isinstance(error, CherenkovError) and error.__cause__ is None
    return str(error) if is_ours else "something went wrong inside"


def _of_request(error: RequestError) -> Refusal:
    status = _STATUS.get(error.code, 400)
    if status == 503:
        return Refusal(503, str(error), "server_error", code="unavailable", headers=_later(1))
    param = _PARAMS.get(error.param or "", error.param)
    if isinstance(error, ContextTooLong):
        param = "messages" if param == "messages" else None
    elif isinstance(error, UnsupportedParam):
        param = error.param
    return Refusal(status, str(error), param=param, code=error.code)


def _of_capacity(error: CapacityError, *, is_unavailable: bool) -> Refusal:
    if error.retry_after_s is None:  # it will never fit
        return Refusal(400, str(error), code="request_too_large")
    headers = _later(error.retry_after_s)
    if is_unavailable:
        return Refusal(503, str(error), "server_error", code="unavailable", headers=headers)
    return Refusal(429, str(error), "rate_limit_error", code="queue_full", headers=headers)


def _later(seconds: float) -> dict[str, str]:
    return {"retry-after": str(max(1, round(seconds)))}
