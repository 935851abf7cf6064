"""What must be held back of a stream because a marker may begin there."""

from __future__ import annotations

__all__ = ["BLANKS", "held_from"]

BLANKS = " \t\r\n"
"""What counts as blank next to a marker. Wider spaces, such as a Chinese indent, are text."""


def held_from(text: str, marker: str) -> int:
    """Where the end of `text` begins that may turn out to belong to `marker`, blanks before it included.

    Args:
        text: a stream so far, without a whole marker in it.
        marker: at least two characters, the first of which occurs in it once and is no blank.

    Returns:
        An index into `text`; its length if nothing needs to be held back.
    """
    begin = text.rfind(marker[0], max(0, len(text) - len(marker) + 1))
    if begin < 0 or not marker.startswith(text[begin:]):
        begin = len(text)
    return len(text[:begin].rstrip(BLANKS))
