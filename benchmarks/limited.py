"""Running a command under a memory limit that counts the page cache, as a small machine would.

Needs Linux, control groups for memory, and the right to make one: root, as a rule.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["forget", "limit", "within"]

_V1 = Path("/sys/fs/cgroup/memory")
_V2 = Path("/sys/fs/cgroup")


@contextmanager
def limit(megabytes: int) -> Iterator[Path]:
    """A control group with so much memory, removed afterwards.

    Raises:
        SystemExit: there are no control groups for memory here, or none may be made.
    """
    version_1 = (_V1 / "memory.limit_in_bytes").exists()
    group = (_V1 if version_1 else _V2) / f"benchmark-{os.getpid()}"
    try:
        group.mkdir()
        name = "memory.limit_in_bytes" if version_1 else "memory.max"
        (group / name).write_text(str(megabytes * 10**6), encoding="ascii")
    except OSError as error:
        raise SystemExit(f"cannot make a control group for memory: {error}") from None
    try:
        yield group
    finally:
        group.rmdir()


def within(group: Path, command: list[str]) -> list[str]:
    """The command, run inside a group from its first page on."""
    enter = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
    return ["/bin/sh", "-c", enter, str(group), *command]


def forget(path: Path) -> None:
    """Drop the files of a folder, or one file, from the page cache."""
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
