"""Reasoning apart from the answer proper, while both stream.

A model thinks between `<think>` and `</think>`, once, at the beginning of what it says. Mostly the prompt has opened
the block already, and all that comes is thought until it is closed. Blanks that touch a marker belong to the markup:
templates write them anew around what they are given. Whatever else looks like a marker, such as a `<think>` in the
middle of an answer, is text.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from cherenkov.text.markers import BLANKS, held_from

__all__ = ["CLOSE", "OPEN", "Part", "ReasoningSplitter", "opens_reasoning"]

OPEN = "<think>"
CLOSE = "</think>"


@dataclass(frozen=True, slots=True)
class Part:
    """What one piece of the stream adds: thought first, then answer."""

    reasoning: str = ""
    content: str = ""


class _Place(Enum):
    BEFORE = "nothing said yet, no block open"
    OPENED = "in the block, only blanks so far"
    INSIDE = "in the block"
    CLOSED = "after the block, only blanks so far"
    CONTENT = "in the answer proper"


def opens_reasoning(prompt: str) -> bool:
    """Whether a prompt ends inside a block that it opened, so that the model goes on thinking."""
    return prompt.rstrip(BLANKS).endswith(OPEN)


class ReasoningSplitter:
    """Splits one answer.

    For any split of the stream the parts join to the same two texts. Only blanks and what may begin a marker are held
    back.
    """

    def __init__(self, *, opened: bool) -> None:
        """Begin.

        Args:
            opened: the prompt ended inside the block, see `opens_reasoning`.
        """
        self._place = _Place.OPENED if opened else _Place.BEFORE
        self._held = ""
        self._blanks: list[str] = []  # before what is held, apart: there may be no end of them

    @property
    def is_inside(self) -> bool:
        """The block is open: if the stream ends here, the model stopped while thinking."""
        return self._place in {_Place.OPENED, _Place.INSIDE}

    def feed(self, text: str) -> Part:
        """Take a piece of the answer."""
        self._held += text
        reasoning, content = [], []
        before = None
        while self._held and before is not self._place:
            before = self._place
            if self._place is _Place.BEFORE:
                self._find_open()
            elif self._place is _Place.INSIDE:
                reasoning.append(self._think())
            elif self._place is _Place.CONTENT:
                content.append(self._take(len(self._held)))
            else:
                self._skip_blanks()
        return Part("".join(reasoning), "".join(content))

    def flush(self) -> Part:
        """The stream is over: what was held back. Blanks at the end stay only where no marker touches them."""
        rest, place = self._with_blanks(self._take(len(self._held))), self._place
        if place is _Place.INSIDE:
            return Part(reasoning=rest)
        return Part(content=rest if place in {_Place.BEFORE, _Place.CONTENT} else "")

    def _find_open(self) -> None:
        self._hold_blanks()
        if self._held.startswith(OPEN):
            self._take(len(OPEN))
            self._blanks.clear()
            self._place = _Place.OPENED
        elif not OPEN.startswith(self._held):
            self._held = self._with_blanks(self._held)
            self._place = _Place.CONTENT

    def _skip_blanks(self) -> None:
        self._held = self._held.lstrip(BLANKS)
        if self._held:
            opened = self._place is _Place.OPENED
            self._place = _Place.INSIDE if opened else _Place.CONTENT

    def _think(self) -> str:
        end = self._held.find(CLOSE)
        if end < 0:
            text = self._take(held_from(self._held, CLOSE))
            text = self._with_blanks(text) if text else ""
            self._hold_blanks()
            return text
        thought = self._with_blanks(self._take(end)).rstrip(BLANKS)
        self._take(len(CLOSE))
        self._place = _Place.CLOSED
        return thought

    def _hold_blanks(self) -> None:
        bare = self._held.lstrip(BLANKS)
        self._blanks.append(self._take(len(self._held) - len(bare)))

    def _with_blanks(self, text: str) -> str:
        """The blanks that were held back, and what follows them."""
        if self._blanks:
            text = "".join([*self._blanks, text])
            self._blanks.clear()
        return text

    def _take(self, count: int) -> str:
        taken, self._held = self._held[:count], self._held[count:]
        return taken
