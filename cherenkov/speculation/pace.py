"""How many drafts to try: as many as bring the most tokens a second, by what was measured.

A step with k drafts brings 1 + a1 + a1 a2 + ... tokens, where a_i is the share of the i-th drafts that were accepted when
those before were. It takes a time that depends on everything: on products that grow with the rows, on the experts that more
rows ask for and that may have to be read, on the head that drafts. So the time is measured, for each k and each number
of sequences that share a step; and the k with the best ratio is taken (`cherenkov.speculation.company`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cherenkov.speculation.company import Company
from cherenkov.speculation.times import Times

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Draft", "Pace"]

_TEXTS = 16
"""Of so many texts, one is tried where drafts cannot pay."""


class Draft(NamedTuple):
    """The head has drafted `drafts` tokens for each of `heads` sequences in so many seconds."""

    heads: int
    drafts: int
    seconds: float


class Pace:
    """What steps take, and from that how many drafts to try. One for a model.

    Args:
        most: drafts, at most.

    Attributes:
        fixed: if set, so many are tried always: for tests and measurements.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._company: dict[int, Company] = {}  # by sequences in the step
        self._draft: dict[int, list[Times]] = {}  # by sequences that the head drafts for; [drafts]
        self._texts = 0
        self.fixed: int | None = None

    def took(
        self,
        lanes: int,
        drafts: int,
        verify_s: float,
        took: Draft | None = None,
        *,
        reading: bool = False,
    ) -> None:
        """A step of so many sequences, with so many drafts for each, has taken so long.

        Args:
            lanes: how many sequences.
            drafts: for each.
            verify_s: seconds, drafting not counted.
            took: what the head did for it.
            reading: experts were read.
        """
        counts = (self._company.get(lanes) or self._of(lanes)).took(
            drafts, verify_s, reading=reading
        )
        if took is not None and counts:
            self._drafting(took.heads)[took.drafts].add(took.seconds)

    def text_begins(self) -> bool:
        """An answer begins, which may be easier to guess than those before. Is it worth while to be prepared?

        It is not if drafts would take more time than they bring even if all were right; but now and then it is tried.
        """
        self._texts += 1
        anew, could = self._texts % _TEXTS == 0, []
        for lanes, company in self._company.items():
            if self._most and company.step:
                could.append(company.text_begins(self._drafting(lanes)[1].mean, anew=anew))
        return anew or self.fixed is not None or not could or any(could)

    def rests(self, lanes: int) -> bool:
        """The next step of so many sequences is one without drafts, whatever they promise."""
        return self.fixed is None and (self._company.get(lanes) or self._of(lanes)).rests()

    @property
    def drafts_now(self) -> bool:
        """A step of one sequence has drafts, as things stand."""
        return self._of(1).number > 0 if self.fixed is None else self.fixed > 0

    def likely(self, most: int) -> int:
        """About how many drafts a step of one sequence has if it has any, at most so many."""
        return min(max(1, self._of(1).number if self.fixed is None else self.fixed), most)

    def settled(self, lanes: int, heads: int, most: int) -> int:
        """What `drafts` would say of so many sequences, if that needs no thought; else -1."""
        if self.fixed is not None:
            return min(self.fixed, most)
        return self._of(lanes).settled(heads, most)

    def drafts(self, gains: Sequence[Sequence[float]], heads: int, most: int) -> int:
        """How many drafts each of some sequences should try in the next step.

        Args:
            gains: for each sequence, the tokens that 0, 1, ... `most` drafts will likely bring.
            heads: for how many of them the head would draft.
            most: more are not to be had.
        """
        most = min(most, self._most)
        if not most:
            return 0
        promised = [sum(gain[k] for gain in gains) for k in range(most + 1)]
        return self._of(len(gains)).drafts(promised, heads, self._drafting(heads))

    def seconds(self, drafts: int, *, head: bool) -> float:
        """What a step of one sequence with so many drafts takes, as far as is known; else 0."""
        verify_s = self._of(1).seconds(drafts, head=head)
        return verify_s and verify_s + (self._drafting(1)[drafts].mean if head else 0.0)

    def _of(self, lanes: int) -> Company:
        if lanes not in self._company:
            self._company[lanes] = Company(self._most)
        return self._company[lanes]

    def _drafting(self, heads: int) -> list[Times]:
        if heads not in self._draft:
            self._draft[heads] = [Times() for _ in range(self._most + 1)]
        return self._draft[heads]
