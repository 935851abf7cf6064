"""Small JSON files that came with a model: read with a size limit, and no key twice."""

from __future__ import annotations

import errno
import json
import os
import stat
from typing import TYPE_CHECKING, Any

from cherenkov.errors import CorruptModel, DiskError, RequestError
from cherenkov.units import MIB

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "CONFIG_LIMIT_BYTES",
    "LIMIT_BYTES",
    "checked_path",
    "is_file",
    "is_there",
    "parse_object",
    "read_bytes",
    "read_object",
    "unique_keys",
]

LIMIT_BYTES = 64 * MIB
"""Longest JSON document that is read unless the caller says otherwise."""
CONFIG_LIMIT_BYTES = 4 * MIB
"""Longest config.json. Real ones are a few kilobytes; parsed, JSON may take thirty times its length."""
_DEEPEST = 64
"""Objects and lists inside one another. Whoever walks through a document may recurse that far."""
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EBADF, errno.ELOOP)


def is_there(path: Path) -> bool:
    """Whether anything has this name. A name that no file can have is not there.

    Raises:
        DiskError: if the system does not let us look.
    """
    return _mode(path) is not None


def checked_path(name: str, path: object) -> str:
    """A path as text.

    Args:
        name: what to call it in an error.
        path: text, or a path object.

    Raises:
        RequestError: if it is anything else.
    """
    text = path if isinstance(path, str) or not isinstance(path, os.PathLike) else os.fspath(path)
    if not isinstance(text, str):
        raise RequestError(f"{name} = {path!r:.80}: must be a path", param=name)
    return text


def is_file(path: Path) -> bool:
    """Whether there is a regular file of this name. Raises as `is_there`."""
    mode = _mode(path)
    return mode is not None and stat.S_ISREG(mode)


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except ValueError:  # a NUL, or half a surrogate pair
        return None
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise DiskError.wrap(error, path, "read") from error


def read_bytes(path: Path, limit_bytes: int = LIMIT_BYTES) -> bytes:
    """The content of a regular file of at most `limit_bytes`.

    Raises:
        CorruptModel: if the file is missing, longer, or no regular file.
        DiskError: if the system refuses to read it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise CorruptModel(path, "the file is missing") from None
    except ValueError:
        raise CorruptModel(path, "no file can have this name") from None
    except OSError as error:
        raise DiskError.wrap(error, path, "read") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(
        status.st_mode
    ):  # before there is a file object, which refuses folders in its own words
        os.close(descriptor)
        raise CorruptModel(path, "not a regular file")
    with os.fdopen(descriptor, "rb") as file:
        if status.st_size > limit_bytes:
            raise CorruptModel(
                path, "too long", expected=f"at most {limit_bytes} bytes", found=status.st_size
            )
        try:
            return file.read(limit_bytes)
        except OSError as error:
            raise DiskError.wrap(error, path, "read") from error


def read_object(path: Path, limit_bytes: int = LIMIT_BYTES) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        CorruptModel: if there is no such file, or it holds anything else.
        DiskError: if the system refuses to read it.
    """
    return parse_object(path, read_bytes(path, limit_bytes))


def parse_object(
    path: str | os.PathLike[str], text: bytes, deepest: int = _DEEPEST
) -> dict[str, Any]:
    """The JSON object in `text`, at most `deepest` objects and lists inside one another; `path` is for the message.

    Raises:
        CorruptModel: if it is not UTF-8, not JSON, nested too deeply, no object, or repeats a key.
    """
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=unique_keys)
    except RecursionError:
        raise CorruptModel(path, "JSON nested too deeply") from None
    except UnicodeDecodeError as error:
        raise CorruptModel(path, "not UTF-8", offset=error.start) from None
    except json.JSONDecodeError as error:
        raise CorruptModel(path, f"not JSON: {error.msg}", offset=error.pos) from None
    except ValueError as error:  # a repeated key, or a number of thousands of digits
        raise CorruptModel(path, f"bad JSON: {error}") from None
    if not isinstance(value, dict):
        raise CorruptModel(path, "not a JSON object", expected="{…}", found=type(value).__name__)
    if not _is_shallow(value, deepest):
        raise CorruptModel(path, "JSON nested too deeply")
    return value


def _is_shallow(value: object, deepest: int) -> bool:
    """Whether nothing lies more than `deepest` deep; found without recursion."""
    level = [value]
    for _ in range(deepest):
        level = [inner for outer in level for inner in _parts(outer)]
        if not level:
            return True
    return False


def _parts(value: object) -> list[Any]:
    """The objects and lists directly inside another."""
    inside: list[Any] = []
    if isinstance(value, dict):
        inside = list(value.values())
    elif isinstance(value, list):
        inside = value
    return [part for part in inside if isinstance(part, dict | list)]


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose keys are all different; for `object_pairs_hook`."""
    table = dict(pairs)
    if len(table) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"key {key[:80]!r} appears twice")
            seen.add(key)
    return table
