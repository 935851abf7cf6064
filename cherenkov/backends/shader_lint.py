"""The dialect's rules that a compiler does not know: docs/kernels.md numbers them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cherenkov.backends.shaders import ATTRIBUTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cherenkov.backends.shaders import Kernel

__all__ = ["problems"]

_COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_NOT_FLOAT = re.compile(r"(?<![\w.])(?:\d+\.\d*|\.\d+|\d+[eE][-+]?\d+)(?:[eE][-+]?\d+)?(?![\w.])")
_FORBIDDEN = re.compile(
    r"\b(double|goto|dynamic_cast|new|delete|throw|try|virtual|std|asm|static)\b"
)
_TYPES = (
    r"void|bool|u?char|u?short|u?int|u?long|size_t|half|bfloat|float|u?int(?:8|16|32|64)_t|b?float16_t|"
    r"(?:float|int|uint|half|bfloat|uchar|ushort)[234]|[TU]"
)
_POINTER = re.compile(
    rf"((?:\b(?:const|device|constant|threadgroup|thread)\s+)*)\b(?:{_TYPES})\b"
    r"((?:\s+(?:const|device|constant|threadgroup|thread))*)\s*[*&](?!&)"
)
_SWIZZLE = re.compile(r"\.(?:[xyzw]{2,4}|[rgba]{1,4}|s[0-9a-f]+)\b(?!\s*\()")


def problems(kernel: Kernel) -> list[str]:
    """What a kernel does that the dialect forbids, or that Metal would refuse and other compilers do not."""
    found = [*_text("header", kernel.header), *_text("body", kernel.body)]
    names = set(re.findall(r"[A-Za-z_]\w*", _COMMENTS.sub("", kernel.body)))
    described = [
        f"{name}_{what}" for name in kernel.inputs for what in ("shape", "strides", "ndim")
    ]
    found += [
        f"body: MLX adds '{name}' since the text contains it, but the code does not use it"
        for name in [*ATTRIBUTES, *described]
        if name in kernel.body and name not in names
    ]
    found += [f"body: input '{name}' is unused" for name in kernel.inputs if name not in names]
    return found


def _text(part: str, text: str) -> Iterator[str]:
    if not text.isascii():
        yield f"{part}: not ASCII, which is all that MLX hands to Metal"
    code = _COMMENTS.sub("", text)
    for match in _NOT_FLOAT.finditer(code):
        yield f"{part}: a number without f, which would be double: {match[0]}"
    for match in _FORBIDDEN.finditer(code):
        yield f"{part}: '{match[0]}' is outside the dialect"
    for match in _POINTER.finditer(code):
        if not re.search(r"device|constant|thread", match[1] + match[2]):
            yield f"{part}: a pointer or reference without an address space: {match[0]}"
    for match in _SWIZZLE.finditer(code):
        yield f"{part}: a vector swizzle: {match[0]}"
