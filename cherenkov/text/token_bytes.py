"""How the vocabularies of tokenizers spell bytes."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["KNOWN", "byte_fallback", "byte_level", "spelling_of"]

KNOWN = "ByteLevel; ByteFallback with a replaced '▁'"

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "▁"
_REPLACED = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}


def spelling_of(decoder: Any) -> Callable[[str], bytes] | None:
    """How a tokenizer's decoder reads its tokens: a function from a token's spelling to its bytes, or None if unknown.

    Args:
        decoder: of the `tokenizers` package, or None.
    """
    if decoder is None:
        return None
    state = json.loads(decoder.__getstate__())
    if state.get("type") == "ByteLevel":
        return byte_level
    steps = [s for s in state.get("decoders", ()) if s != {"type": "Fuse"}]
    if steps == [_REPLACED, {"type": "ByteFallback"}]:
        return byte_fallback
    return None


def byte_level(token: str) -> bytes:
    """The bytes of a token of byte-level BPE: one character each, in an alphabet of their own."""
    try:
        return bytes(_BYTE_OF[c] for c in token)
    except KeyError:  # spelt in plain text, not in the alphabet
        return token.encode()


def byte_fallback(token: str) -> bytes:
    """The bytes of a token of a vocabulary in plain text, where `▁` is a space and `<0xE9>` a byte."""
    byte = _BYTE.fullmatch(token)
    return bytes.fromhex(byte[1]) if byte else token.replace(_SPACE, " ").encode()


def _byte_alphabet() -> dict[str, int]:
    """Character to byte, in the alphabet of byte-level BPE.

    Printable bytes stand for themselves, the others for the characters from U+0100 on, in order.

    Source: the GPT-2 tokenizer.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


_BYTE_OF = _byte_alphabet()
