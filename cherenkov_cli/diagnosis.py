"""What `cherenkov doctor` looks at: the machine, the backends, the folders, the settings."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from dataclasses import asdict, dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, Any

import cherenkov
from cherenkov.errors import CherenkovError
from cherenkov.processors import processors

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cherenkov.backends.base import Backend

__all__ = ["Diagnosis", "Partial", "diagnose"]

_PACKAGES = ("numpy", "tokenizers", "jinja2", "pydantic", "mlx")


@dataclass(frozen=True, slots=True)
class Partial:
    """A preparation that has not ended.

    Attributes:
        path: its working folder.
        size_bytes: space that it takes.
        holder: process that is at work on it; None if nobody is, so that it only takes space until it is resumed.
    """

    path: str
    size_bytes: int
    holder: int | None


@dataclass(slots=True)
class Diagnosis:
    """Everything found, in plain values. `problems` are what stands in the way of running a model."""

    version: str
    python: str
    platform: str
    machine: str
    cores: int
    packages: dict[str, str | None]
    memory: dict[str, Any] = field(default_factory=dict)
    backends: list[dict[str, Any]] = field(default_factory=list)
    chosen_backend: str | None = None
    native: dict[str, Any] = field(default_factory=dict)
    kernels: dict[str, Any] = field(default_factory=dict)
    settings: list[dict[str, Any]] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    partials: list[Partial] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The same as dictionaries and lists."""
        return asdict(self)


def diagnose(given: Mapping[str, Any] | None = None) -> Diagnosis:
    """Look at everything. What fails becomes a problem of the diagnosis, and the rest is still looked at.

    Args:
        given: settings that override the others.
    """
    found = Diagnosis(
        version=cherenkov.__version__,
        python=f"{platform.python_implementation()} {platform.python_version()} ({sys.executable})",
        platform=platform.platform(),
        machine=platform.machine(),
        cores=processors(),
        packages={name: _version(name) for name in _PACKAGES},
    )
    for look in (
        _look_at_memory,
        _look_at_settings,
        _look_at_backends,
        _look_at_native,
        _look_at_kernels,
        _look_at_data,
    ):
        try:
            look(found, given or {})
        except CherenkovError as error:
            if str(error) not in found.problems:
                found.problems.append(str(error))
    return found


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _look_at_memory(found: Diagnosis, _given: Mapping[str, Any]) -> None:
    from cherenkov.budget import available_memory

    found.memory = asdict(available_memory())


def _look_at_settings(found: Diagnosis, given: Mapping[str, Any]) -> None:
    from cherenkov.config import explain

    found.settings = [asdict(origin) for origin in explain(**given)]


def _look_at_backends(found: Diagnosis, given: Mapping[str, Any]) -> None:
    from cherenkov.backends import available, create, doubt_of
    from cherenkov.backends.base import Options
    from cherenkov.config import load_settings

    for backend in available():
        # A backend says what it would use, such as an instruction set, only once it is made.
        made = create(backend.name) if backend.usable else None
        doubt = doubt_of(made) if made else ""
        detail, memory = _tried(made) if made else ("", None)
        entry = {**asdict(backend), "doubt": doubt, "detail": detail, "memory_bytes": memory}
        found.backends.append(entry)
    settings = load_settings(**given)
    options = Options(settings.threads, settings.precision, settings.isa)
    chosen = create(settings.backend, options)
    name, (detail, _) = chosen.name, _tried(chosen)
    found.chosen_backend = f"{name} ({detail})" if detail else name


def _look_at_native(found: Diagnosis, given: Mapping[str, Any]) -> None:
    """What the CPU kernels could use, and how fast memory feeds them: decoding is bounded by that."""
    from cherenkov.backends.native import instruction_sets, read_bandwidth, unavailable
    from cherenkov.config import load_settings

    found.native = {
        "instruction_sets": list(instruction_sets()),
        "threads": load_settings(**given).threads or processors(),
        "read_bandwidth_bytes_s": None,
        "not_measured": unavailable(),
    }
    if found.native["not_measured"]:
        return
    try:
        found.native["read_bandwidth_bytes_s"] = read_bandwidth(found.native["threads"])
    except CherenkovError as error:
        found.native["not_measured"] = str(error)


def _look_at_kernels(found: Diagnosis, _given: Mapping[str, Any]) -> None:
    """The GPU's kernels, and which compilers that need no GPU are here for them."""
    from cherenkov.backends.kernel_catalogue import KERNELS
    from cherenkov.backends.shader_builds import tool

    found.kernels = {
        "names": list(KERNELS),
        "emulator": tool("g++", "c++") is not None,
        "address_spaces": tool("clang++", "clang") is not None,
        "nvcc": tool("nvcc") is not None,
    }


def _tried(backend: Backend[Any, Any]) -> tuple[str, int | None]:
    """What a backend chose, and the memory of its device if it has one; it is not needed for more."""
    try:
        return backend.detail, backend.working_set_bytes
    finally:
        backend.close()


def _look_at_data(found: Diagnosis, given: Mapping[str, Any]) -> None:
    from cherenkov.config import load_settings

    folder = load_settings(**given).data_dir
    nearest = _nearest_existing(folder)
    writable = _is_folder(nearest) and os.access(nearest, os.W_OK | os.X_OK)
    found.data = {
        "path": str(folder),
        "exists": _is_folder(folder),
        "writable": writable,
        "free_bytes": shutil.disk_usage(nearest).free,
    }
    if not writable:
        found.problems.append(f"{folder}: cannot be written to; set data_dir (CHERENKOV_DATA_DIR)")
    found.partials = _partials(folder / "stores")


def _is_folder(path: Path) -> bool:
    """There is a folder, as far as we may see."""
    try:
        return path.is_dir()
    except OSError:
        return False


def _nearest_existing(folder: Path) -> Path:
    """The folder, or the first above it that there is: where it would be made."""
    while not os.path.lexists(folder):
        folder = folder.parent
    return folder


def _partials(stores: Path) -> list[Partial]:
    """Working folders of preparations; `packing.workspace` names them and their locks."""
    if not _is_folder(stores) or not os.access(stores, os.R_OK | os.X_OK):
        return []
    return [
        Partial(str(path), _size(path), _holder(path.with_suffix(".lock")))
        for path in sorted(stores.glob(".*.partial"))
    ]


def _size(folder: Path) -> int:
    return sum(f.lstat().st_blocks * 512 for f in folder.rglob("*") if f.is_file())


def _holder(lock: Path) -> int | None:
    """The living process whose number is in a lock file."""
    try:
        pid = int(lock.read_text(encoding="ascii"))
    except (OSError, ValueError):  # no lock, or no number in it
        return None
    try:
        os.kill(pid, 0)
    except PermissionError:
        return pid
    except (OSError, OverflowError):
        return None
    return pid
