"""Writes that survive a crash: everything that is renamed into place goes through here.

The order is always the same: write under a working name, flush the file, rename it, flush the folder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import sys
import time
from typing import TYPE_CHECKING, Self

from cherenkov.errors import CapacityError, DiskError
from cherenkov.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from types import TracebackType

__all__ = [
    "FolderLock",
    "flush",
    "flush_folder",
    "free_bytes",
    "publish_folder",
    "remove_abandoned",
    "require_space",
    "write_file",
]

_POLL_S = 0.1
_NEW = os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW  # a link in the way is not ours to write through


def flush(descriptor: int) -> None:
    """Force a file's content onto the disk, not just into the drive's cache where that differs."""
    if sys.platform == "darwin":
        with contextlib.suppress(OSError):  # not every file system knows it; fsync is the next best
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
    os.fsync(descriptor)


def flush_folder(folder: Path) -> None:
    """Force a folder's entries onto the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        flush(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, data: bytes | Iterable[bytes | memoryview]) -> None:
    """Create or replace a file so that it is seen either as it was or complete.

    Args:
        path: of the file.
        data: its content, or pieces of it.

    Raises:
        DiskError: if it cannot be written.
    """
    if not path.name:
        raise DiskError(path, "write", errno.EISDIR)
    if not _can_be(path):
        raise DiskError(path, "write", errno.EINVAL, "no file can have this name")
    working = path.with_name(f".{path.name}.tmp")
    try:
        before = path.stat().st_mode if path.exists() else None
        if before is not None and not stat.S_ISREG(before):  # a device would be gone
            raise DiskError(path, "write", errno.EEXIST, "what is there is no regular file")
        descriptor = _claim(working)
        try:
            if before is not None:  # who may read it is not ours to change
                os.fchmod(descriptor, stat.S_IMODE(before))
            with os.fdopen(descriptor, "wb", closefd=False) as file:
                file.writelines([data] if isinstance(data, bytes) else data)
            flush(descriptor)
            working.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                working.unlink()
            raise
        finally:
            os.close(descriptor)
        flush_folder(path.parent)
    except OSError as error:
        raise DiskError.wrap(error, path, "write") from error


def _can_be(path: Path) -> bool:
    """A file can have this name: it holds no NUL, and no half of a surrogate pair."""
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


def remove_abandoned(path: Path) -> None:
    """Remove the unfinished files of writers that have died, of `path` or of all that it is a pattern for."""
    for working in path.parent.glob(f".{path.name}.tmp"):
        with contextlib.suppress(OSError):  # its writer lives, or has just removed it
            descriptor = os.open(working, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_named(descriptor, working):
                    working.unlink()
            finally:
                os.close(descriptor)


def _claim(working: Path) -> int:
    """An empty file of that name, for this writer alone: whoever else writes the same waits."""
    while True:
        descriptor = os.open(working, _NEW | os.O_WRONLY, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_named(descriptor, working):
                os.ftruncate(descriptor, 0)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # whoever held it renamed it meanwhile


def _is_named(descriptor: int, path: Path) -> bool:
    """Whether a file that was opened under a name still has it."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def publish_folder(working: Path, target: Path) -> None:
    """Give a finished folder its name, in one step. `target` must not exist, or be empty.

    Raises:
        DiskError: if it cannot be renamed.
    """
    try:
        working.rename(target)
        flush_folder(target.parent)
    except OSError as error:
        raise DiskError.wrap(error, target, "publish") from error


def free_bytes(folder: Path) -> int:
    """Bytes that this user may still write to the file system of `folder`.

    Raises:
        DiskError: if the system does not say.
    """
    try:
        return shutil.disk_usage(folder).free
    except OSError as error:
        raise DiskError.wrap(error, folder, "measure free space") from error


def require_space(folder: Path, needed_bytes: int, reserve_bytes: int) -> None:
    """Refuse before writing what could not be finished.

    Raises:
        DiskError: ENOSPC, with the sum.
    """
    free = free_bytes(folder)
    if free < needed_bytes + reserve_bytes:
        raise DiskError(
            folder,
            "write there",
            errno.ENOSPC,
            f"no space: {format_bytes(needed_bytes)} to write + {format_bytes(reserve_bytes)} reserve "
            f"> {format_bytes(free)} free",
        )


class FolderLock:
    """Exclusive right to prepare one target, across processes. A holder that dies frees it.

    Args:
        path: the lock file; removed on release.
        target: what is locked, for messages.
        wait: block until it is free, instead of refusing.
    """

    def __init__(self, path: Path, target: Path, *, wait: bool = False) -> None:
        self.path = path
        self.target = target
        self.wait = wait
        self._descriptor = -1

    def __enter__(self) -> Self:
        while self._descriptor < 0:
            try:
                self._descriptor = self._attempt()
            except OSError as error:
                raise DiskError.wrap(error, self.path, "lock") from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Removed while still held: whoever opened it meanwhile sees that the name is gone, and starts over.
        with contextlib.suppress(OSError):
            self.path.unlink()
        os.close(self._descriptor)
        self._descriptor = -1

    def _attempt(self) -> int:
        """One try: a descriptor that holds the lock, or -1 to try again."""
        descriptor = os.open(self.path, _NEW | os.O_RDWR, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            if not self.wait:
                raise CapacityError(
                    f"{self.target}: process {holder} is preparing it; wait for it, or choose another folder"
                ) from None
            time.sleep(_POLL_S)
            return -1
        except OSError:
            os.close(descriptor)
            raise
        try:
            if not _is_named(descriptor, self.path):  # whoever held it removed it meanwhile
                os.close(descriptor)
                return -1
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
        except OSError:
            self.path.unlink()
            os.close(descriptor)
            raise
        return descriptor
