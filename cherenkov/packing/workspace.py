"""Where a store comes into being: a working folder beside the target, which takes the target's name when done."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cherenkov.errors import CherenkovError, ConfigError, DiskError
from cherenkov.packing.durable import flush_folder, publish_folder
from cherenkov.packing.journal import NAME as JOURNAL
from cherenkov.packing.journal import read_journal
from cherenkov.packing.store import MANIFEST, PackedStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = ["Workspace", "parents"]


@dataclass(frozen=True, slots=True)
class Workspace:
    """The places of one preparation.

    Attributes:
        target: the store's folder.
        key: what is being prepared; a store or a working folder with another key is not ours.
    """

    target: Path
    key: Mapping[str, Any]

    @property
    def working(self) -> Path:
        """The folder that is written into."""
        return self.target.with_name(f".{self.target.name}.partial")

    @property
    def lock(self) -> Path:
        """The lock file."""
        return self.target.with_name(f".{self.target.name}.lock")

    @property
    def journal(self) -> Path:
        """The list of finished parts."""
        return self.working / JOURNAL

    def finished(self) -> bool:
        """Whether the target is already the store that is asked for, as far as opening it tells.

        Raises:
            ConfigError: if it is anything else but absent or an empty folder.
        """
        if not os.path.lexists(self.target):
            return False
        if not self.target.is_dir():
            raise ConfigError("output", str(self.target), "exists and is no folder")
        if (self.target / MANIFEST).exists():
            try:
                store = PackedStore.open(self.target)
            except CherenkovError as error:
                reason = f"holds a store that cannot be used ({error}); remove it first"
                raise ConfigError("output", str(self.target), reason) from None
            if self._is_ours(store):
                return True
            raise ConfigError(
                "output", str(self.target), "already holds another store; remove it first"
            )
        if any(self.target.iterdir()):
            raise ConfigError("output", str(self.target), "exists and is not empty")
        # The store takes its name by a rename, which replaces an empty folder, but neither of these.
        if self.target.is_symlink():
            raise ConfigError("output", str(self.target), "is a link: give the folder it leads to")
        if self.target.is_mount():
            raise ConfigError("output", str(self.target), "is a mount point: give a folder in it")
        return False

    def resume(self) -> dict[int, list[int]]:
        """Open the working folder, cleared unless it is ours; returns the finished parts.

        Raises:
            DiskError: if it cannot be made or cleared.
        """
        try:
            ours = not self.working.is_symlink()
            done = read_journal(self.journal, self.key) if ours else None
            if done is None:
                self.discard()
                self.working.mkdir()
                flush_folder(self.target.parent)
        except OSError as error:
            raise DiskError.wrap(error, self.working, "create") from error
        return done or {}

    def complete(self) -> bool:
        """Whether the working folder holds the whole store, and only lacks its name."""
        if self.working.is_symlink():
            return False
        return (self.working / MANIFEST).exists() and self._holds_ours(self.working)

    def publish(self) -> None:
        """Give the finished folder its name.

        Raises:
            DiskError: if the system refuses.
        """
        try:
            self.journal.unlink(missing_ok=True)
            flush_folder(self.working)
        except OSError as error:
            raise DiskError.wrap(error, self.journal, "remove") from error
        publish_folder(self.working, self.target)

    def discard(self) -> None:
        """Remove the working folder, if there is one.

        Raises:
            OSError: if it cannot be removed.
        """
        if self.working.is_symlink():
            self.working.unlink()
        elif os.path.lexists(self.working):
            shutil.rmtree(self.working)

    def written_bytes(self) -> int:
        """Space that the working folder already takes."""
        if not self.working.exists():
            return 0
        return sum(entry.stat().st_blocks * 512 for entry in os.scandir(self.working))

    def _holds_ours(self, folder: Path) -> bool:
        try:
            return self._is_ours(PackedStore.open(folder))
        except CherenkovError:
            return False  # damaged or foreign: either way it is not the store that is asked for

    def _is_ours(self, store: PackedStore) -> bool:
        return store.integrity is not None and store.integrity.options == dict(self.key)


@contextlib.contextmanager
def parents(target: Path) -> Iterator[None]:
    """Make the folders above `target`; those that were missing go again if the work fails.

    Raises:
        DiskError: if they cannot be made.
    """
    made: list[Path] = []
    try:
        for folder in reversed(target.parents):
            if not folder.exists():
                folder.mkdir(exist_ok=True)
                made.append(folder)
        yield
    except BaseException as error:
        for folder in reversed(made):
            with contextlib.suppress(OSError):  # not empty: a resumable working folder lies there
                folder.rmdir()
        if isinstance(error, OSError):
            raise DiskError.wrap(error, target.parent, "create") from error
        raise
