"""Control tokens, and how text that people wrote is kept from spelling one.

A control token is matched by its spelling, wherever it stands in a text. So a spelling that comes from a person is
*cut*: the text is taken apart between the first and the second character of every place where a spelling begins,
and the pieces are encoded one by one. No piece holds a whole spelling, so no control token can arise, and put
together the pieces are the text, unchanged. Text without such spellings is never cut, and encodes as ever.

A chat template joins strings, so for it the cut is written into the string as a character that occurs nowhere else
(`Controls.mark`), and the rendered text is taken apart there. The end of a string is cut too where it could begin a
spelling that the following string completes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Controls"]


@dataclass(frozen=True)
class Controls:
    """The spellings that become control tokens.

    Attributes:
        special: tokens that structure the conversation, such as `<|im_start|>`.
        markup: tokens that the model itself writes inside its answers, such as `<think>` or `<tool_call>`.
            Templates look for these in what the assistant said, so there they stay whole.
    """

    special: tuple[str, ...] = ()
    markup: tuple[str, ...] = ()
    _all: _Spellings = field(init=False, repr=False, compare=False)
    _special: _Spellings = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_all", _Spellings((*self.special, *self.markup)))
        object.__setattr__(self, "_special", _Spellings(self.special))

    def may_occur_in_json(self, text: str) -> bool:
        """Whether a spelling may begin inside a string of a JSON text: a quick no for most conversations."""
        return self._all.is_escaped or self._all.may_begin(text)

    def pieces(self, text: str) -> list[str]:
        """`text` taken apart so that no piece holds a control spelling; one piece if it holds none."""
        if not self._all.may_begin(text):
            return [text]
        cuts = [0, *sorted(self._all.cuts(text)), len(text)]
        return [text[a:b] for a, b in pairwise(cuts)]

    def mark(self, text: str, cut: str, *, markup: bool = True) -> str:
        """`text` with `cut` written wherever it must be taken apart, its open end included.

        Args:
            text: one string of a message.
            cut: a character that occurs in no string of the conversation.
            markup: cut markup tokens too, not only special ones.
        """
        spellings = self._all if markup else self._special
        if not spellings.may_begin(text):
            return text
        cuts = [0, *sorted(spellings.cuts(text) | spellings.open_end(text)), len(text)]
        return cut.join(text[a:b] for a, b in pairwise(cuts))


class _Spellings:
    """Finds where spellings begin. One character alone is a letter, not a spelling, and is left out."""

    def __init__(self, spellings: Iterable[str]) -> None:
        self._words = sorted({s for s in spellings if len(s) > 1}, key=len, reverse=True)
        # A look-ahead, so that overlapping spellings are all found; one word per start is enough to cut there.
        pattern = "|".join(map(re.escape, self._words)) or r"(?!)"
        self._starts = re.compile(f"(?={pattern})")
        self._firsts = {word[0] for word in self._words}
        self._beginnings = {word[:n] for word in self._words for n in range(1, len(word))}
        self._longest = max(map(len, self._beginnings), default=0)
        # Characters that JSON does not write as they are.
        self.is_escaped = any(c in '"\\' or not c.isprintable() for c in self._firsts)

    def may_begin(self, text: str) -> bool:
        """Whether any character that begins a spelling occurs: a quick no for most texts."""
        return any(first in text for first in self._firsts)

    def cuts(self, text: str) -> set[int]:
        """Indices to cut at, one past the start of every spelling."""
        if not any(word in text for word in self._words):
            return set()
        return {match.start() + 1 for match in self._starts.finditer(text)}

    def open_end(self, text: str) -> set[int]:
        """Indices to cut at so that what follows `text`, or its part before trailing blanks, completes nothing."""
        bare = text.rstrip()
        starts = range(max(0, len(bare) - self._longest), len(bare))
        return {i + 1 for i in starts if bare[i:] in self._beginnings}
