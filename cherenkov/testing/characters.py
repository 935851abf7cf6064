"""A tokenizer for tests: its tokens are characters."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from cherenkov.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["STOP", "Characters"]

STOP = 0
"""The token that ends an answer."""


class Characters:
    """A tokenizer whose tokens are characters."""

    stop_ids = frozenset({STOP})
    size = 0x110000

    def encode(self, text: str, *, special: bool = False) -> list[int]:  # noqa: ARG002 - nothing is
        """One id a character."""
        if any(0xD800 <= ord(c) < 0xE000 for c in text):
            raise RequestError("the text is not valid Unicode", param="prompt")
        return [ord(c) for c in text]

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """The characters."""
        return b"".join(self.token_bytes(i, special=special) for i in ids).decode()

    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        """One character as UTF-8; nothing for what is none."""
        if token == STOP:
            return b"<stop>" if special else b""
        known = token < self.size and not 0xD800 <= token < 0xE000
        return chr(token).encode() if known else b""

    def decoder(self, *, special: bool = False) -> Any:
        """Nothing is ever held back."""
        return SimpleNamespace(
            feed=lambda token: self.token_bytes(token, special=special).decode(),
            flush=lambda: "",
        )
