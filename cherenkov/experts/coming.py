"""Records on their way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cherenkov.experts.reads import LANDED

if TYPE_CHECKING:
    from cherenkov.experts.stats import ReadStats

__all__ = ["NOTHING", "Coming"]

NOTHING = -1
"""No slot, or no record."""


@dataclass(slots=True)
class Coming:
    """A record on its way into a slot.

    Attributes:
        kind: the counters of its kind of reads.
        required: a layer has asked for it.
        lower: it is read in fewer bits.
        status: what became of the read; see `cherenkov.experts.reads`.
    """

    record: int
    slot: int
    kind: ReadStats
    required: bool
    lower: bool = False
    status: int = LANDED
