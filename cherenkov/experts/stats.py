"""What the expert store has done so far."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ExpertStats"]


@dataclass(slots=True)
class ExpertStats:
    """Counters that only grow.

    Attributes:
        hits: experts found in memory.
        misses: experts read from disk.
        read_bytes: bytes of those reads.
        read_s: seconds spent reading and checking them.
    """

    hits: int = 0
    misses: int = 0
    read_bytes: int = 0
    read_s: float = 0.0

    def since(self, earlier: ExpertStats) -> ExpertStats:
        """What happened after `earlier` was copied."""
        return ExpertStats(
            self.hits - earlier.hits,
            self.misses - earlier.misses,
            self.read_bytes - earlier.read_bytes,
            self.read_s - earlier.read_s,
        )

    def copy(self) -> ExpertStats:
        """The counters as they stand now."""
        return ExpertStats(self.hits, self.misses, self.read_bytes, self.read_s)
