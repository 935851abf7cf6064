"""Whether MLX is here, and what it can compute on. Imports it only where the answer depends on it."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
import sys
from typing import TYPE_CHECKING, NamedTuple

from cherenkov.config import prepare_mlx

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["OLDEST", "Probe", "probe"]

OLDEST = (0, 30)
"""The oldest MLX whose operations are all that we use."""
_CUDA = ("mlx-cuda-13", "mlx-cuda-12", "mlx-cuda")


class Probe(NamedTuple):
    """Whether a backend can run; why not, or on what."""

    usable: bool
    reason: str


def probe(name: str) -> Probe:
    """Can `mlx`, `metal` or `cuda` run here?"""
    version = _version("mlx")
    if reason := _absent(name, version):
        return Probe(False, reason)
    core = _core()
    if isinstance(core, str):
        return Probe(False, core)
    if name == "mlx":
        return Probe(True, f"MLX {version}, stock operations")
    if name == "cuda":
        found, device = core.cuda.is_available(), "CUDA"
        missing = "MLX finds no NVIDIA GPU"
    else:
        found = core.metal.is_available()
        device = str(core.device_info()["device_name"]) if found else ""
        missing = "MLX finds no Metal device: it needs Apple Silicon and macOS 14 or later"
    return Probe(found, f"MLX {version} and our kernels, {device}" if found else missing)


def _absent(name: str, version: str | None) -> str:
    """What can be told without starting MLX; empty if that must be tried."""
    if name == "metal" and sys.platform != "darwin":
        return f"Metal is Apple's; this is {platform.system()}"
    if version is None:
        extra = "cuda" if name == "cuda" else "mlx"
        return f"MLX is not installed: pip install 'cherenkov[{extra}]'"
    if _numbers(version) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return f"MLX {version} is too old: pip install -U 'mlx>={oldest}'"
    if name == "cuda" and all(_version(package) is None for package in _CUDA):
        return "MLX is here without CUDA: pip install 'cherenkov[cuda]'"
    return ""


def _core() -> ModuleType | str:
    """MLX, or why it does not start."""
    prepare_mlx()
    try:
        return importlib.import_module("mlx.core")
    except (ImportError, OSError, RuntimeError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return f"MLX is installed but does not start: {first}"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split(".")[:2]
    return tuple(int(part) if part.isdigit() else 0 for part in parts)
