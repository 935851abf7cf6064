"""Memory for pools."""

from __future__ import annotations

import contextlib
import mmap
from typing import TYPE_CHECKING

import numpy as np

from cherenkov.errors import CapacityError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["huge_pages"]


def huge_pages(size_bytes: int) -> NDArray[np.uint8]:
    """Zeroed memory, page-aligned, in huge pages where the system has them to give."""
    try:
        # Private: of shared memory, huge pages are another setting of the system, and off as a rule.
        memory = mmap.mmap(-1, max(size_bytes, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError, OverflowError) as error:
        raise CapacityError(
            f"cannot reserve {size_bytes} bytes for experts: {error}; choose a smaller pool",
            asked_bytes=size_bytes,
        ) from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # only a hint, which some kernels do not know
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype=np.uint8, count=size_bytes)
