"""What share of drafts turns out right: of a text, beginning with what all texts before have taught."""

from __future__ import annotations

from cherenkov.speculation.figures import MOST_DRAFTS

__all__ = ["Acceptance", "Mean"]

_MOST = 16
_WEIGHT = 1 / _MOST
_KNOWN = 6
"""Drafts of a text that weigh as much as those of all texts before."""


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
