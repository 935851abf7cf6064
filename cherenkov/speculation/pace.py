"""How many drafts to try: as many as bring the most tokens a second, by what was measured.

A step with k drafts brings 1 + a1 + a1 a2 + ... tokens, where a_i is the share of the i-th drafts that were accepted when
those before were. It takes a time that depends on everything: on products that grow with the rows, on the experts that more
rows ask for and that may have to be read, on the head that drafts. So the time is measured, for each k and each number
of sequences that share a step; and the k with the best ratio is taken.

What is not tried is not known. Every k is tried a few times first, in turn; later a neighbour of the best for a few steps
now and then, after pauses that double while the verdict stays the same: what the trials cost vanishes.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from cherenkov.speculation.figures import MOST_DRAFTS

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Acceptance", "Pace"]

_MOST = 16
_WEIGHT = 1 / _MOST
_FIRST = 4
"""Steps without drafts before the first with some, of a model and of a text that others make look hard to guess."""
_KNOWN = 6
"""Drafts of a text that weigh as much as those of all texts before."""
_WINDOW = 24
_MOST_TIMES = 2.5
_TRIAL = 4
"""Steps of a trial."""
_PAUSE, _LONGEST = 32, 512
_THOUGHT = 4
"""Steps that share a thought."""
_STALE = 64
"""Steps after which a time is measured anew before anything follows from it."""
_MARGIN = (1.0, 1.04, 1.08, 1.08)
"""So many drafts, if more than now, must promise at least so much more: the further ones are less certain."""
_MOST_VAIN = 4
_TEXTS = 16
"""Of so many texts, one is tried where drafts cannot pay."""
_HOPE = 0.9
"""Of the rate that a number of drafts would have if they were free, if nothing is known."""
_WORTH = 0.8
"""What promises less of the best rate is tried after the longest pauses only."""


class Mean:
    """A running mean that begins as an ordinary one."""

    __slots__ = ("count", "value")

    def __init__(self, value: float = 0.0, count: int = 0) -> None:
        self.value = value
        self.count = count

    def add(self, sample: float) -> None:
        """One more."""
        self.count = count = self.count + 1
        self.value += (sample - self.value) * (_WEIGHT if count > _MOST else 1 / count)


class Times:
    """The latest times of something. To wait for the disk is part of it; what is far above that was something else."""

    __slots__ = ("_mean", "_samples", "at")

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=_WINDOW)
        self._mean = -1.0
        self.at = 0  # of the latest, in steps

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._samples)

    @property
    def mean(self) -> float:
        """Of all, none counting as more than so many times the median; 0 if there are none."""
        if self._mean < 0:
            ordered = sorted(self._samples)
            most = _MOST_TIMES * ordered[(len(ordered) - 1) // 2] if ordered else 0.0
            self._mean = sum(min(each, most) for each in ordered) / max(1, len(ordered))
        return self._mean

    def add(self, seconds: float, at: int = 0) -> None:
        """One more; the oldest goes."""
        self._samples.append(seconds)
        self._mean, self.at = -1.0, at

    def renew(self) -> None:
        """What comes next is to count: old times may belong to another state of the machine."""
        while len(self._samples) > 2:
            self._samples.popleft()
        self._mean = -1.0


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
        sample = 1.0 if accepted else 0.0
        self._of(kind)[depth].add(sample)
        if self._general is not None:
            self._general._of(kind)[depth].add(sample)

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
        means = self._means.get(kind)
        if means is None:
            if self._general is None:  # what nobody has tried yet is hoped for
                means = [Mean(0.8, 1) for _ in range(MOST_DRAFTS)]
            else:
                known = self._general._of(kind)
                means = [Mean(mean.value, min(mean.count, _KNOWN)) for mean in known]
            self._means[kind] = means
        return means


class Pace:
    """What steps take, and from that how many drafts to try. One for a model.

    Args:
        most: drafts, at most.

    Attributes:
        fixed: if set, so many are tried always: for tests and measurements.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._company: dict[int, _Company] = {}  # by sequences in the step
        self._draft: dict[int, list[Times]] = {}  # by sequences that the head drafts for; [drafts]
        self._texts = 0
        self.fixed: int | None = None

    def took(self, lanes: int, drafts: int, verify_s: float) -> None:
        """A step of so many sequences, with so many drafts for each, has taken so long, drafting not counted."""
        company = self._company.get(lanes) or self._of(lanes)
        step = company.step
        # Of those without drafts that follow each other, some will do.
        if drafts or step % _THOUGHT == 0 or company.verify[0].count < _FIRST:
            company.verify[drafts].add(verify_s, step)

    def drafted(self, heads: int, drafts: int, draft_s: float) -> None:
        """The head has drafted so many tokens for each of some sequences in so long."""
        self._drafting(heads)[drafts].add(draft_s)

    def text_begins(self) -> bool:
        """An answer begins, which may be easier to guess than those before. Is it worth while to be prepared?

        It is not if drafts would take more time than they bring even if all were right; but now and then it is tried.
        """
        self._texts += 1
        anew, could = self._texts % _TEXTS == 0, []
        for lanes, company in self._company.items():
            if self._most and company.verify[1].count:
                could.append(company.could_pay(1, self._drafting(lanes)[1].mean))
                company.text_begins(could=could[-1] or anew, anew=anew)
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

    def settled(self, lanes: int, most: int) -> int:
        """What `drafts` would say of so many sequences, if that needs no thought; else -1."""
        if self.fixed is not None:
            return min(self.fixed, most)
        return self._of(lanes).settled(most)

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
        return self._of(len(gains)).drafts(promised, self._drafting(heads) if heads else None)

    def seconds(self, drafts: int, *, head: bool) -> float:
        """What a step of one sequence with so many drafts takes, as far as is known; else 0."""
        verify, draft = self._of(1).verify, self._drafting(1)
        return verify[drafts].mean + (draft[drafts].mean if head else 0.0)

    def _of(self, lanes: int) -> _Company:
        if lanes not in self._company:
            self._company[lanes] = _Company(self._most)
        return self._company[lanes]

    def _drafting(self, heads: int) -> list[Times]:
        if heads not in self._draft:
            self._draft[heads] = [Times() for _ in range(self._most + 1)]
        return self._draft[heads]


class _Company:
    """So many sequences in a step: how long that takes, what is best, and what is to be tried.

    Attributes:
        verify: times of steps, by drafts.
        step: how many there were.
    """

    def __init__(self, most: int) -> None:
        self.verify = [Times() for _ in range(most + 1)]
        self.step = 0
        self._best = 0
        self._trying, self._until = -1, 0
        self._due = _FIRST  # when another number is tried
        self._pause = _PAUSE
        self._turn = 0
        self._anew = False  # to be tried though it cannot pay, as far as is known
        self._texts = self._vain = 0  # since one was tried; such as changed nothing

    def text_begins(self, *, could: bool, anew: bool) -> None:
        """Drafts are soon tried again, if not drafting now is only because of what other texts said.

        The more texts have shown nothing new, the more of them pass without.
        """
        self._texts += 1
        if self._best or self._trying >= 0 or self._texts < 1 << self._vain:
            return
        if could:
            self._anew = anew
            self._texts, self._vain = 0, min(self._vain + 1, _MOST_VAIN)
            self._due = min(self._due, self.step + _FIRST)

    def could_pay(self, k: int, draft_s: float) -> bool:
        """So many drafts would be worth their time if all were right, or nobody knows what they take."""
        without, seconds = self.verify[0].mean, self.verify[k].mean + draft_s
        return not (without and seconds) or (k + 1) * without > _MARGIN[k] * seconds

    @property
    def number(self) -> int:
        """Of drafts, that is tried now or is best."""
        return self._trying if self._trying >= 0 else self._best

    def rests(self) -> bool:
        if self._best or self._trying >= 0 or self.step >= self._due:
            return False
        self.step += 1
        return True

    def settled(self, most: int) -> int:
        if self._trying < 0 and self.step % _THOUGHT:
            self.step += 1
            return min(self._best, most)
        return -1

    def drafts(self, promised: list[float], draft: list[Times] | None) -> int:
        self.step += 1
        most = len(promised) - 1
        if self._trying >= 0:
            if self.step <= self._until:
                return min(self._trying, most)
            self._trying = -1
        rates = self._rates(promised, draft)
        best = max(
            range(len(rates)), key=lambda k: rates[k] / (_MARGIN[k] if k > self._best else 1.0)
        )
        if best != min(self._best, most):
            if self.step - self.verify[best].at > _STALE:  # that was another time: what is it now?
                return self._try(best)
            self._best, self._pause, self._vain = best, _PAUSE, 0
            self._due = self.step + self._pause
        if self.step >= self._due:
            self._pause = min(2 * self._pause, _LONGEST)
            self._due = self.step + self._pause
            other = 1 if self._anew and most else self._other(promised, rates)
            self._anew = False
            if other >= 0:
                return self._try(other)
        return min(self._best, most)

    def _try(self, k: int) -> int:
        self._trying, self._until = k, self.step + _TRIAL - 1
        self.verify[k].renew()
        return k

    def _rates(self, promised: list[float], draft: list[Times] | None) -> list[float]:
        """Tokens a second, 0 for what was never tried."""
        rates = []
        for k, tokens in enumerate(promised):
            known = self.verify[k].count and (not k or draft is None or draft[k].count)
            seconds = self.verify[k].mean + (draft[k].mean if k and draft is not None else 0.0)
            rates.append(tokens / seconds if known else 0.0)
        return rates

    def _other(self, promised: list[float], rates: list[float]) -> int:
        """A number beside the best that may be better, or -1."""
        best = min(self._best, len(promised) - 1)
        found = []
        for k in (best - 1, best + 1):
            if not 0 <= k < len(promised):
                continue
            # What was never tried takes as much more as the one before did, it is assumed.
            hoped = rates[k] or rates[best] * promised[k] / promised[best] * _HOPE
            if hoped > _WORTH * rates[best] or self._pause == _LONGEST:
                found.append(k)
        self._turn += 1
        return found[self._turn % len(found)] if found else -1
