"""How many drafts to try: as many as bring the most tokens a second, by what was measured.

A step with k drafts brings 1 + a1 + a1 a2 + ... tokens, where a_i is the share of the i-th drafts that were accepted when
those before were. It takes a time that depends on everything: on products that grow with the rows, on the experts that more
rows ask for and that may have to be read, on the head that drafts. So the time is measured, for each k and each number
of sequences that share a step; and the k with the best ratio is taken.

What is not tried is not known. Every k is tried a few times first, in turn; later a neighbour of the best for a few steps
now and then, after pauses that double while the verdict stays the same: what the trials cost vanishes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cherenkov.speculation.figures import MOST_DRAFTS

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Acceptance", "Pace"]

_WEIGHT = 1 / 16
_FIRST = 4
"""Steps of every k before anything is decided."""
_WINDOW = 16
_TRIAL = 4
"""Steps of a trial."""
_PAUSE, _LONGEST = 16, 512
_MARGIN = 1.02
"""To draft must promise at least so much more than not to."""


class Mean:
    """A running mean that begins as an ordinary one."""

    __slots__ = ("count", "value")

    def __init__(self, value: float = 0.0, count: int = 0) -> None:
        self.value = value
        self.count = count

    def add(self, sample: float) -> None:
        """One more."""
        self.count += 1
        self.value += (sample - self.value) * max(1 / self.count, _WEIGHT)


class Times:
    """The latest times of something. What is far above the others was something else."""

    __slots__ = ("_mean", "_samples", "_steady")

    def __init__(self) -> None:
        self._samples: list[float] = []
        self._mean = 0.0
        self._steady = True

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._samples)

    @property
    def mean(self) -> float:
        """Of all but the largest quarter; 0 if there are none."""
        if not self._steady:
            kept = sorted(self._samples)[: -(-len(self._samples) * 3 // 4)]
            self._mean = sum(kept) / len(kept) if kept else 0.0
            self._steady = True
        return self._mean

    def add(self, seconds: float) -> None:
        """One more; the oldest goes."""
        self._samples.append(seconds)
        del self._samples[:-_WINDOW]
        self._steady = False

    def renew(self) -> None:
        """What comes next is to count: old times may belong to another state of the machine."""
        del self._samples[:-2]


class Acceptance:
    """The share of drafts that is accepted, by kind and depth: of one text, beginning with that of all texts.

    Args:
        general: of all texts, which learns too.
    """

    def __init__(self, general: Acceptance | None = None) -> None:
        self._general = general
        self._means: dict[str, list[Mean]] = {}

    def judged(self, kind: str, depth: int, *, accepted: bool) -> None:
        """A draft, the `depth`-th of its step counted from 0, was verified."""
        self._of(kind)[depth].add(float(accepted))
        if self._general is not None:
            self._general.judged(kind, depth, accepted=accepted)

    def tokens(self, kind: str, most: int) -> list[float]:
        """Tokens that a step with 0, 1, ... `most` drafts will likely bring."""
        total, chance = 1.0, 1.0
        found = [total]
        for mean in self._of(kind)[:most]:
            chance *= mean.value
            total += chance
            found.append(total)
        return found

    def _of(self, kind: str) -> list[Mean]:
        if kind not in self._means:
            if self._general is None:  # what nobody has tried yet is hoped for
                self._means[kind] = [Mean(0.8, 1) for _ in range(MOST_DRAFTS)]
            else:
                known = self._general._of(kind)
                self._means[kind] = [Mean(mean.value, min(mean.count, 8)) for mean in known]
        return self._means[kind]


class Pace:
    """What steps take, and from that how many drafts to try. One for a model.

    Args:
        most: drafts, at most.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._verify: dict[int, list[Times]] = {}  # by sequences in the step; [drafts]
        self._draft: dict[int, list[Times]] = {}
        self._since = 0  # steps since another k was tried
        self._pause = _PAUSE
        self._best = -1
        self._trials = 0
        self._trying = -1

    def took(self, lanes: int, drafts: int, verify_s: float) -> None:
        """A step of so many sequences, with so many drafts for each, has taken so long, drafting not counted."""
        self._table(self._verify, lanes)[drafts].add(verify_s)

    def drafted(self, heads: int, drafts: int, draft_s: float) -> None:
        """The head has drafted so many tokens for each of some sequences in so long."""
        self._table(self._draft, heads)[drafts].add(draft_s)

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
        verify, draft = self._table(self._verify, len(gains)), self._table(self._draft, heads)
        counts = [
            min(verify[k].count, draft[k].count if k and heads else _FIRST) for k in range(most + 1)
        ]
        if min(counts) < _FIRST:
            return counts.index(min(counts))
        best, best_rate = 0, 0.0
        for k in range(most + 1):
            seconds = verify[k].mean + (draft[k].mean if k and heads else 0.0)
            rate = sum(gain[k] for gain in gains) / seconds
            if rate > best_rate:
                best, best_rate = k, rate * (1.0 if k else _MARGIN)
        return self._tried(best, most, (verify, draft))

    def seconds(self, drafts: int, *, head: bool) -> float:
        """What a step of one sequence with so many drafts takes, as far as is known; else 0."""
        verify, draft = self._table(self._verify, 1), self._table(self._draft, 1)
        return verify[drafts].mean + (draft[drafts].mean if head else 0.0)

    def _tried(self, best: int, most: int, tables: Sequence[list[Times]]) -> int:
        """The best, or in its turn a neighbour of it."""
        self._since += 1
        if self._trying >= 0:
            if self._since <= _TRIAL:
                return min(self._trying, most)
            self._trying, self._since = -1, 0
        if best != self._best:
            self._best, self._since, self._pause = best, 0, _PAUSE
        others = [k for k in (best - 1, best + 1) if 0 <= k <= most]
        if self._since <= self._pause or not others:
            return best
        self._since, self._pause = 0, min(2 * self._pause, _LONGEST)
        self._trials += 1
        self._trying = others[self._trials % len(others)]
        for table in tables:
            table[self._trying].renew()
        return self._trying

    def _table(self, tables: dict[int, list[Times]], lanes: int) -> list[Times]:
        if lanes not in tables:
            tables[lanes] = [Times() for _ in range(self._most + 1)]
        return tables[lanes]
