"""What of the C++ kernels was built, and what of it this machine can run."""

from __future__ import annotations

from pathlib import Path

from cherenkov.backends import native_weights as describe
from cherenkov.errors import BackendError, CapacityError
from cherenkov.processors import processors

if not describe.missing:
    import cherenkov._native as _native  # noqa: PLR0402 - the package itself is not what is meant

_MISSING = describe.missing

__all__ = ["instruction_sets", "read_bandwidth", "unavailable"]


def unavailable() -> str:
    """Why the kernels cannot be used here; empty if they can."""
    if not _MISSING:
        return ""
    root = Path(__file__).resolve().parents[2]
    if (root / "CMakeLists.txt").exists():
        return f"no C++ kernels in {root}, where this Python found the package: start elsewhere, or pip install -e {root}"
    return f"the C++ kernels are not built ({_MISSING}); reinstall with a C++20 compiler"


def instruction_sets() -> tuple[str, ...]:
    """What this machine and build can run, fastest first."""
    return () if _MISSING else tuple(_native.isas())


def read_bandwidth(threads: int = 0) -> float:
    """Bytes a second that `threads` (0: one a processor) read from memory together, measured in a quarter of a second.

    Raises:
        BackendError: if the kernels are not built.
        CapacityError: if there is no memory to read.
    """
    if _MISSING:
        raise BackendError("native", "measure", unavailable())
    try:
        return _native.read_bandwidth(threads or processors())
    except MemoryError:
        raise CapacityError("cannot reserve 256 MiB to measure the memory with") from None
