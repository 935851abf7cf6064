"""Every error that leaves the public API.

    CherenkovError
    ├─ ConfigError        a setting: key, value, where it came from
    ├─ ModelError
    │  ├─ ModelNotFound   selector, places looked at
    │  ├─ UnsupportedModel what it is, what is known
    │  └─ CorruptModel    path, tensor or record, offset, expected, found
    ├─ TemplateError      the model's chat template failed
    ├─ RequestError       param, code
    │  ├─ ContextTooLong  prompt, asked and allowed tokens
    │  └─ UnsupportedParam
    ├─ CapacityError      what was asked, what there is, when to retry
    ├─ DiskError          path, operation, errno
    ├─ BackendError       backend, operation
    └─ Cancelled

Messages are one line: what is wrong, where, and what to do. Callers that need to decide read the fields.
"""

from __future__ import annotations

import errno
import os

__all__ = [
    "BackendError",
    "Cancelled",
    "CapacityError",
    "CherenkovError",
    "ConfigError",
    "ContextTooLong",
    "CorruptModel",
    "DiskError",
    "ModelError",
    "ModelNotFound",
    "RequestError",
    "TemplateError",
    "UnsupportedModel",
    "UnsupportedParam",
]


class CherenkovError(Exception):
    """Root of every error this library raises on purpose.

    Whatever a file name or a hostile checkpoint put into the message, it stays one printable line.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__("".join(c if c.isprintable() else _escaped(c) for c in message))


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


class ConfigError(CherenkovError):
    """A setting cannot be used."""

    def __init__(self, key: str, value: object, reason: str, *, source: str = "argument") -> None:
        super().__init__(f"{key} = {value!r} ({source}): {reason}")
        self.key = key
        self.value = value
        self.source = source


class ModelError(CherenkovError):
    """Something is wrong with a model on disk."""


class ModelNotFound(ModelError):
    """A selector names no model."""

    def __init__(self, selector: str, looked: list[str], hint: str = "") -> None:
        places = ", ".join(looked) or "nowhere"
        super().__init__(
            f"no model {selector!r}: looked at {places}" + (f"; {hint}" if hint else "")
        )
        self.selector = selector
        self.looked = looked


class UnsupportedModel(ModelError):
    """A model that is intact but not one we can run."""

    def __init__(self, what: str, *, known: str = "", key: str | None = None) -> None:
        super().__init__(what + (f" (supported: {known})" if known else ""))
        self.what = what
        self.known = known
        self.key = key


class CorruptModel(ModelError):
    """Bytes on disk are not what they must be.

    Attributes:
        path: the file, or the folder when a file is missing.
        item: the tensor, record or header field, if one can be named.
        offset: byte offset inside the file, if known.
        expected: what should be there.
        found: what is there.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        reason: str,
        *,
        item: str | None = None,
        offset: int | None = None,
        expected: object = None,
        found: object = None,
        hint: str = "",
    ) -> None:
        text = f"{os.fspath(path)}: "
        text += f"{item}: " if item else ""
        text += reason
        if expected is not None or found is not None:
            text += f" (expected {expected}, found {found})"
        if offset is not None:
            text += f" at byte {offset}"
        text += f"; {hint}" if hint else ""
        super().__init__(text)
        self.path = os.fspath(path)
        self.item = item
        self.offset = offset
        self.expected = expected
        self.found = found


class TemplateError(CherenkovError):
    """The model's chat template is missing, broken, or refused the messages."""


class RequestError(CherenkovError):
    """A request cannot be served as asked."""

    def __init__(
        self, message: str, *, param: str | None = None, code: str = "invalid_value"
    ) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class ContextTooLong(RequestError):
    """Prompt and output do not fit the context."""

    def __init__(self, prompt_tokens: int, max_tokens: int, context_tokens: int) -> None:
        super().__init__(
            f"the prompt has {prompt_tokens} tokens and {max_tokens} more were asked for, "
            f"but the context holds {context_tokens}: shorten the prompt or raise context_tokens (--max-ctx)",
            param="prompt",
            code="context_length_exceeded",
        )
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.context_tokens = context_tokens


class UnsupportedParam(RequestError):
    """A parameter that this build does not implement."""

    def __init__(self, param: str, reason: str = "is not supported") -> None:
        super().__init__(f"{param} {reason}", param=param, code="unsupported_parameter")


class CapacityError(CherenkovError):
    """The machine, or what is left of it, is too small for the request."""

    def __init__(
        self,
        message: str,
        *,
        asked_bytes: int | None = None,
        available_bytes: int | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.asked_bytes = asked_bytes
        self.available_bytes = available_bytes
        self.retry_after_s = retry_after_s


class DiskError(CherenkovError):
    """The operating system refused to read or write."""

    def __init__(
        self, path: str | os.PathLike[str], operation: str, number: int | None, detail: str = ""
    ) -> None:
        reason = detail or (os.strerror(number) if number else "failed")
        hint = "; free some space or choose another folder" if number == errno.ENOSPC else ""
        super().__init__(f"{os.fspath(path)}: cannot {operation}: {reason}{hint}")
        self.path = os.fspath(path)
        self.operation = operation
        self.errno = number

    @classmethod
    def wrap(cls, error: OSError, path: str | os.PathLike[str], operation: str) -> DiskError:
        """The same failure as ours, with the path that mattered."""
        return cls(path, operation, error.errno, "" if error.errno else str(error))


class BackendError(CherenkovError):
    """A compute backend cannot run, or failed at an operation."""

    def __init__(self, backend: str, operation: str, reason: str) -> None:
        super().__init__(f"backend {backend}: {operation}: {reason}")
        self.backend = backend
        self.operation = operation


class Cancelled(CherenkovError):
    """The caller stopped the work. Not a failure."""
