"""Stop strings in streamed text: held back while they may still arise, removed exactly.

The answer ends with the stop string that completes first; of several that complete at the same character, the longest
counts. So where it ends depends on the text alone, not on the pieces in which it came, and no text beyond the decision
is ever needed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cherenkov.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["StopMatcher", "StopStrings"]

MAX_STRINGS = 32
MAX_CHARACTERS = 256


class StopStrings:
    """Strings that end an answer. Immutable; one serves any number of answers.

    Attributes:
        strings: the distinct strings, in the order given.
    """

    def __init__(self, strings: str | Sequence[str] | None = ()) -> None:
        """Take stop strings.

        Args:
            strings: one, or at most 32; each of 1 to 256 characters. None is none.

        Raises:
            RequestError: if there are too many, or one is empty, too long or no string.
        """
        self.strings = _checked(strings)
        self._root = _automaton(self.strings)

    def __bool__(self) -> bool:
        return bool(self.strings)

    def matcher(self) -> StopMatcher:
        """A fresh matcher for one answer."""
        return StopMatcher(self._root)


class StopMatcher:
    """Cuts one answer's text before the first stop string.

    What `feed` and `flush` return joins to the text up to the stop string, or to the whole text if none arose.

    Attributes:
        found: the stop string that ended the text, or None so far. Text fed after it is ignored.
    """

    def __init__(self, root: _Node) -> None:
        self.found: str | None = None
        self._root = root
        self._node = root
        self._held = ""

    def feed(self, text: str) -> str:
        """Take a piece; give what is certain not to belong to a stop string."""
        if self.found is not None:
            return ""
        if not self._root.after:
            return text
        held = self._held + text
        for i in range(len(self._held), len(held)):
            self._node = _follow(self._node, held[i])
            if self._node.ends is not None:
                self.found, self._held = self._node.ends, ""
                return held[: i + 1 - len(self.found)]
        certain = len(held) - self._node.depth
        self._held = held[certain:]
        return held[:certain]

    def flush(self) -> str:
        """The text is over: what was held back."""
        rest, self._held, self._node = self._held, "", self._root
        return rest


def _checked(strings: str | Sequence[str] | None) -> tuple[str, ...]:
    given: object = strings
    if given is None:
        return ()
    if isinstance(given, str):
        given = (given,)
    if not isinstance(given, list | tuple):
        raise RequestError("stop: must be a string or a list of strings", param="stop")
    if len(given) > MAX_STRINGS:
        raise RequestError(
            f"stop: {len(given)} strings, but at most {MAX_STRINGS} are allowed", param="stop"
        )
    for i, string in enumerate(given):
        if not isinstance(string, str) or not 0 < len(string) <= MAX_CHARACTERS:
            raise RequestError(
                f"stop[{i}]: must be a string of 1 to {MAX_CHARACTERS} characters", param="stop"
            )
    return tuple(dict.fromkeys(given))


@dataclass(slots=True, eq=False)
class _Node:
    """A beginning of stop strings.

    Attributes:
        depth: its length.
        after: the beginnings that are one character longer.
        shorter: the longest other beginning that this one ends with; None for the empty one.
        ends: the longest stop string that this beginning ends with.
    """

    depth: int
    after: dict[str, _Node] = field(default_factory=dict)
    shorter: _Node | None = None
    ends: str | None = None


def _follow(node: _Node, character: str) -> _Node:
    """The longest beginning that the text ends with, one character on."""
    step: _Node | None = node
    while step is not None:
        found = step.after.get(character)
        if found is not None:
            return found
        node, step = step, step.shorter
    return node  # the empty beginning


def _automaton(strings: Sequence[str]) -> _Node:
    """All beginnings of the strings, linked so that matching takes one pass.

    Source: Aho and Corasick, Efficient string matching (1975).
    """
    root = _Node(0)
    for string in strings:
        node = root
        for character in string:
            node = node.after.setdefault(character, _Node(node.depth + 1))
        node.ends = string
    queue = deque([root])
    while queue:
        node = queue.popleft()
        for character, longer in node.after.items():
            longer.shorter = root if node.shorter is None else _follow(node.shorter, character)
            longer.ends = longer.ends or longer.shorter.ends
            queue.append(longer)
    return root
