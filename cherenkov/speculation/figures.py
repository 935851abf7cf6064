"""What drafts were good for."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["MOST_DRAFTS", "SOURCES", "DraftCounts"]

MOST_DRAFTS = 3
SOURCES = ("mtp", "ngram")
"""Where drafts come from: the model's own head, or the text so far."""


def _table() -> dict[str, list[int]]:
    return {source: [0] * MOST_DRAFTS for source in SOURCES}


@dataclass(slots=True)
class DraftCounts:
    """Counters that only grow.

    Attributes:
        drafted: by source, drafts that a step verified, at depth 1, 2 and 3.
        accepted: by source, those of them that the model said as well.
        rows: steps of one row, of two, three and four: the token sampled last, and its drafts.
        tokens: tokens that these steps brought; the first of an answer, which its prompt's rows bring, is none of them.
        read_bytes: bytes of experts that were read meanwhile.
        head_rows: rows that the draft head ran, those of prompts not counted.
    """

    drafted: dict[str, list[int]] = field(default_factory=_table)
    accepted: dict[str, list[int]] = field(default_factory=_table)
    rows: list[int] = field(default_factory=lambda: [0] * (MOST_DRAFTS + 1))
    tokens: int = 0
    read_bytes: int = 0
    head_rows: int = 0

    @property
    def steps(self) -> int:
        """Steps of a sequence."""
        return sum(self.rows)
