"""What a person writes, or a pipe brings: things said, of one line or several."""

from __future__ import annotations

import io
import sys

from cherenkov.errors import RequestError

__all__ = ["Lines"]

_QUOTES = '"""'
_LIMIT_CHARS = 64 << 20


class Lines:
    """Reads things said from standard input. On a terminal lines can be edited, and called back with the arrow keys.

    A backslash at the end of a line joins it to the next; what stands between two lines that begin and end with three
    quotes is one thing said.
    """

    def __init__(self) -> None:
        self.is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        if self.is_terminal:
            _edit_lines()
        elif isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(encoding="utf-8", errors="strict")

    def read(self, prompt: str) -> str | None:
        """The next thing said, without its line break; None if there is nothing more.

        Raises:
            RequestError: if it is not UTF-8, or too long.
        """
        line = self._line(prompt)
        if line is None:
            return None
        if line.lstrip().startswith(_QUOTES):
            return self._quoted(line.lstrip()[len(_QUOTES) :])
        parts, size = [], 0
        while line is not None and line.endswith("\\"):
            parts.append(line[:-1])
            size = _counted(size, line)
            line = self._line(". ")
        return "\n".join([*parts, line] if line is not None else parts)

    def _quoted(self, line: str) -> str:
        parts, size = [], 0
        rest: str | None = line
        while rest is not None and not rest.rstrip().endswith(_QUOTES):
            parts.append(rest)
            size = _counted(size, rest)
            rest = self._line(". ")
        if rest is not None:
            parts.append(rest.rstrip().removesuffix(_QUOTES))
        return "\n".join(parts).strip("\n")

    def _line(self, prompt: str) -> str | None:
        try:
            if self.is_terminal:
                return input(prompt)
            if sys.stdin.isatty():
                print(prompt, end="", file=sys.stderr, flush=True)
            line = sys.stdin.readline(_LIMIT_CHARS + 1)
        except EOFError:
            return None
        except UnicodeDecodeError as error:
            raise RequestError(
                f"standard input is not UTF-8: there is a byte 0x{error.object[error.start]:02x}"
            ) from error
        _counted(0, line)
        return line.removesuffix("\n") if line else None


def _counted(size: int, line: str) -> int:
    size += len(line)
    if size > _LIMIT_CHARS:
        raise RequestError("standard input: more than 64 Mi characters at once")
    return size


def _edit_lines() -> None:
    """Arrow keys and history for `input`, where Python has them."""
    import importlib.util

    if importlib.util.find_spec("readline") is not None:
        importlib.import_module("readline")
