"""Sequences that share a step: what steps with so many drafts take, which number is best, and what is to be tried.

What is not tried is not known. Every number is tried a few times first, in turn; later a neighbour of the best for a few
steps now and then, after pauses that double while the verdict stays the same: what the trials cost vanishes.

What the text itself repeats and what the head guesses are right in different measure, and each has a best number of its own.
What steps take is measured for each by itself as well: where a text repeats itself its experts were used not long ago, and
a step with drafts would seem cheap, beside those without in what is new.
"""

from __future__ import annotations

import math

from cherenkov.speculation.acceptance import Mean
from cherenkov.speculation.times import Times

__all__ = ["Company"]

_FIRST = 4
"""Steps without drafts before the first with some, of a model and of a text that others make look hard to guess."""
_COLD = 2
"""Steps of a trial that are not counted: what they run is not in the processor's caches, and they take a tenth longer."""
_TRIAL = 4
"""Steps of a trial that are, and"""
_EXTENSIONS = 3
"""how often it is made longer by as many while what is tried does nearly as well as what is best: a text that is easy to
guess is known by that only after some drafts, and to go on costs next to nothing."""
_NEARLY = 0.93
_PAUSE, _LONGEST = 32, 512
_THOUGHT = 4
"""Steps that share a thought."""
_NOTHING, _UNREAD = 12, 48
"""Where steps are short, after so many in which the text repeated nothing, it is left alone for so many."""
_SHORT_S = 0.002
"""To look something up takes a two hundredth of it."""
_STALE = 64
"""Steps after which a time is measured anew before anything follows from it."""
_MARGIN = 1.04
"""More drafts than now must promise at least so many times what those of now bring."""
_DRIVEN_OUT = 0.15
"""So much more of it where every step reads experts: what rows read that were in vain has driven out what later steps want, and
that is in no step's time."""
_CAUTION = 0.5
"""Standard errors of what was measured, by which more drafts than now must be better: where steps wait for the disk, some take
thrice as long as others, and a few that went well prove nothing."""
_MOST_VAIN, _MOST_VAIN_READING = 2, 4
"""One text in four at least has a trial of its own, one in sixteen where trials read experts in vain."""
_HOPEFUL = 1.04
"""A text is worth a trial of its own if right drafts would be so many times as fast as none."""
_HOPE = 0.9
"""Of the rate that a number of drafts would have if they were free, if nothing is known."""
_WORTH = 0.85
"""What promises less of the best rate is tried after the longest pauses only."""


class Company:
    """So many sequences in a step.

    Args:
        most: drafts, at most.

    Attributes:
        step: how many there were.
    """

    def __init__(self, most: int) -> None:
        self.step = 0
        self._looked_up, self._by_head = _Number(most), _Number(most)
        self._decided = self._by_head  # of the step under way
        self._reading = Mean()  # share of steps that read experts
        self._quiet = 0  # until then there are no drafts
        # Steps in a row in which nothing was found, and until when none looks.
        self._nothing, self._unread = 0, 0

    @property
    def number(self) -> int:
        """Of drafts by the head, that is tried now or is best."""
        return self._by_head.now

    def seconds(self, drafts: int, *, head: bool) -> float:
        """What a step takes in which so many drafts are verified, of the head or looked up; 0 if nobody knows."""
        return (self._by_head if head else self._looked_up).verify[drafts].mean

    def took(self, drafts: int, verify_s: float, *, reading: bool) -> bool:
        """A step with so many drafts for each has taken so long, drafting not counted, and has read experts or not.

        Returns:
            It counts.
        """
        step, number = self.step, self._decided
        if step in number.cold:
            return False
        # Of those without drafts that follow each other, some will do.
        if (
            drafts
            or step % _THOUGHT == 0
            or number.verify[0].count < _FIRST
            or number is self._looked_up
        ):
            number.verify[drafts].add(verify_s, step)
            self._reading.add(float(reading))
            number.reads = self._reading.value > 0.5
        return True

    def text_begins(self, draft_s: float, *, anew: bool) -> bool:
        """One draft is soon tried again, if not drafting now is only because of what other texts said.

        Args:
            draft_s: what the head takes for one.
            anew: also if it cannot pay, as far as is known.

        Returns:
            It could pay, if all were right.
        """
        self._quiet = self._nothing = self._unread = 0
        self._looked_up.text_begins(self.step, 0.0, anew=anew)
        return self._by_head.text_begins(self.step, draft_s, anew=anew)

    def rests(self) -> bool:
        """The next step is one without drafts, whatever they promise."""
        step = self.step
        if step >= self._quiet:
            looks = self._unread if self._looked_up.is_active(step) else self._looked_up.due
            self._quiet = 0 if self._by_head.is_active(step) else min(looks, self._by_head.due)
            if step >= self._quiet:
                return False
        self.step, self._decided = step + 1, self._by_head
        return True

    def settled(self, heads: int, most: int) -> int:
        """What `drafts` would say, if that needs no thought; else -1."""
        if heads and self._by_head.is_settled and self.step % _THOUGHT:
            self.step, self._decided = self.step + 1, self._by_head
            return min(self._by_head.now, most)
        return -1

    def drafts(self, promised: list[float], heads: int, draft: list[Times]) -> int:
        """How many each sequence should try in the next step.

        Args:
            promised: tokens that 0, 1, ... drafts will likely bring, all sequences together.
            heads: for how many sequences the head drafts, and
            draft: what that takes, by drafts.
        """
        self.step += 1
        if promised[-1] <= promised[0]:  # there are none
            self._nothing += 1
            if self._nothing >= _NOTHING and self._by_head.verify[0].mean < _SHORT_S:
                self._nothing, self._unread = 0, self.step + _UNREAD
            self._decided = self._by_head
            return 0
        self._nothing = 0
        self._decided = self._by_head if heads else self._looked_up
        costs = [v.mean for v in self._decided.verify[: len(promised)]]
        margin = _MARGIN + _DRIVEN_OUT * self._reading.value
        if not heads:
            return self._looked_up.drafts(promised, costs, margin, self.step)
        for k in range(1, len(costs)):
            costs[k] = costs[k] + draft[k].mean if costs[k] and draft[k].count else 0.0
        number = self._by_head.drafts(promised, costs, margin, self.step)
        if self.step in self._by_head.cold:
            draft[number].renew()
        return number


class _Number:
    """The best number of drafts of one kind.

    Args:
        most: drafts, at most.

    Attributes:
        verify: times of steps in which there were such drafts or could have been, by drafts.
        cold: steps with which the latest trial began.
        due: when another number is tried.
        reads: most steps read experts.
    """

    def __init__(self, most: int) -> None:
        self.verify = [Times() for _ in range(most + 1)]
        self.cold = range(0)
        self.reads = False
        self._best = 0
        self._trying, self._until, self._extended = -1, 0, 0
        self.due = _FIRST
        self._pause = _PAUSE
        self._turn = 0
        self._anew = False  # to be tried though it cannot pay, as far as is known
        self._texts = self._vain = 0  # since one was tried; such as changed nothing

    @property
    def now(self) -> int:
        """That which is tried, or the best."""
        return self._trying if self._trying >= 0 else self._best

    @property
    def is_settled(self) -> bool:
        """Nothing is being tried."""
        return self._trying < 0

    def is_active(self, step: int) -> bool:
        """There may be drafts in this step."""
        return bool(self._best) or self._trying >= 0 or step >= self.due

    def text_begins(self, step: int, draft_s: float, *, anew: bool) -> bool:
        """One draft is soon tried, if it could pay: the more texts have shown nothing new, the more of them pass without.

        Args:
            step: of now.
            draft_s: what it takes to draft one.
            anew: try it also if it cannot pay, as far as is known.

        Returns:
            It could: it would be worth its time if it were right, or nobody knows what it takes.
        """
        without, seconds = self.verify[0].mean, self.verify[1].mean + draft_s
        could = not (without and self.verify[1].count) or 2 * without > _HOPEFUL * seconds
        self._texts += 1
        if self._best or self._trying >= 0 or self._texts < 1 << self._vain:
            return could
        if could or anew:
            most = _MOST_VAIN_READING if self.reads else _MOST_VAIN
            self._anew = anew
            self._texts, self._vain = 0, min(self._vain + 1, most)
            self.due = min(self.due, step + _FIRST)
        return could

    def drafts(self, promised: list[float], costs: list[float], margin: float, step: int) -> int:
        """How many to try in a step.

        Args:
            promised: tokens that 0, 1, ... of them will likely bring.
            costs: seconds that this takes, 0 where nobody knows.
            margin: so many times the rate of now must be promised by more than now, at least.
            step: which.
        """
        most, tried = len(promised) - 1, -1
        if self._trying >= 0:
            if step <= self._until:
                return min(self._trying, most)
            tried, self._trying = min(self._trying, most), -1
        rates = [p / cost if cost else 0.0 for p, cost in zip(promised, costs, strict=True)]
        best = max(range(len(rates)), key=lambda k: rates[k] / self._margin(k, margin))
        if best != min(self._best, most):
            if step - self.verify[best].at > _STALE:  # that was another time: what is it now?
                return self._try(best, step)
            self._best, self._pause, self._vain = best, _PAUSE, 0
            self.due = step + self._pause
        elif tried > self._best and self._goes_on(nearly=rates[tried] > _NEARLY * rates[best]):
            self._trying, self._until = tried, step + _TRIAL - 1
            return tried
        if step >= self.due:
            self._pause = min(2 * self._pause, _LONGEST)
            self.due = step + self._pause
            other = 1 if self._anew and most else self._other(promised, rates, step)
            self._anew = False
            if other >= 0:
                return self._try(other, step)
        return min(self._best, most)

    def _margin(self, k: int, least: float) -> float:
        """So many times the rate of now is to be promised by `k` drafts."""
        if k <= self._best:
            return 1.0
        doubt = math.hypot(self.verify[k].doubt, self.verify[self._best].doubt)
        return max(least, 1 + _CAUTION * doubt)

    def _goes_on(self, *, nearly: bool) -> bool:
        """The trial that has just ended is made longer."""
        self._extended += nearly
        return nearly and self._extended <= (1 if self.reads else _EXTENSIONS)

    def _try(self, k: int, step: int) -> int:
        self._trying, self._until, self._extended = k, step + _COLD + _TRIAL - 1, 0
        self.cold = range(step, step + _COLD)
        self.verify[k].renew()
        return k

    def _other(self, promised: list[float], rates: list[float], step: int) -> int:
        """A number beside the best that may be better, or -1."""
        best = min(self._best, len(promised) - 1)
        found = []
        for k in (best - 1, best + 1):
            if not 0 <= k < len(promised):
                continue
            # What was never tried takes as much more as the one before did, it is assumed.
            hoped = rates[k] or rates[best] * promised[k] / promised[best] * _HOPE
            # Fewer cost little to try, and what they took was perhaps measured while the pool filled.
            old = k < best and step - self.verify[k].at > _STALE
            if hoped > _WORTH * rates[best] or old or self._pause == _LONGEST:
                found.append(k)
        self._turn += 1
        return found[self._turn % len(found)] if found else -1
