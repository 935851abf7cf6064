"""Small files of a model folder that somebody else wrote: read whole, within bounds, or refused."""

from __future__ import annotations

import json
import stat
from typing import TYPE_CHECKING, Any

from cherenkov.errors import CorruptModel, DiskError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["read_bounded", "read_json_object"]


def read_bounded(path: Path, limit_bytes: int) -> bytes:
    """Read a regular file of at most `limit_bytes`.

    Raises:
        CorruptModel: if the file is missing, no regular file, or larger.
        DiskError: if it cannot be read.
    """
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise CorruptModel(path, "is not a regular file")
        with path.open("rb") as file:
            data = file.read(limit_bytes + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise CorruptModel(path.parent, f"{path.name} is missing") from None
    except OSError as error:
        raise DiskError.wrap(error, path, "read") from error
    if len(data) > limit_bytes:
        raise CorruptModel(path, f"larger than the {limit_bytes} bytes allowed for it")
    return data


def read_json_object(path: Path, limit_bytes: int) -> dict[str, Any]:
    """Read a JSON file whose top level is an object.

    Raises:
        CorruptModel: if the file is missing, too large, no JSON, or no object.
        DiskError: if it cannot be read.
    """
    try:
        value = json.loads(read_bounded(path, limit_bytes))
    except (ValueError, RecursionError) as error:
        raise CorruptModel(path, f"is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CorruptModel(path, "must hold a JSON object", found=type(value).__name__)
    return value
