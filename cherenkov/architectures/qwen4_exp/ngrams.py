"""Hashed n-grams: which rows of the n-gram table a token looks up.

Row t hashes the tokens t, t-1, … of its own segment; `<eos>` ends a segment and stands in for what lies before
it. Source: transformers `Qwen4ExpTextNGramEmbedding`, and the fact that its integer products wrap at 64 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

_native: ModuleType | None
try:
    import cherenkov._native as _kernels
except ImportError:  # a build without kernels
    _native = None
else:
    _native = _kernels

__all__ = ["NgramHash"]

Int64s = NDArray[np.int64]


@dataclass(frozen=True)
class NgramHash:
    """The hash of one PLE layer. Heads are ordered by n-gram order (2, 3, …), then by head.

    Attributes:
        multipliers: int64 `[n]`, one per distance.
        sizes: int64 `[heads]`, rows of each head.
        offsets: int64 `[heads]`, where each head's rows begin.
        eos: the token that ends a segment.
    """

    multipliers: Int64s
    sizes: Int64s
    offsets: Int64s
    eos: int

    @property
    def context_tokens(self) -> int:
        """Tokens before a row that its hash can see."""
        return len(self.multipliers) - 1

    def rows(self, before: Sequence[int], tokens: NDArray[np.int32]) -> Int64s:
        """Table rows `[R, heads]` of `tokens` `[R]` that follow `before` (only its tail matters)."""
        reach, count = self.context_tokens, len(tokens)
        tail = list(before[-reach:]) if reach else []
        if self._kernel is not None:
            found: Int64s = np.empty((count, len(self.sizes)), np.int64)
            self._kernel.rows(tail, np.ascontiguousarray(tokens, np.int32), found)
            return found
        history = [self.eos] * (reach - len(tail)) + tail
        sequence = np.array([*history, *tokens.tolist()], dtype=np.int64)
        ago = np.array(
            [sequence[reach - k : reach - k + count] for k in range(reach + 1)]
        )  # [n, R]
        ended = np.logical_or.accumulate(ago[1:] == self.eos)
        ago[1:][ended] = self.eos
        mixed = np.bitwise_xor.accumulate(ago * self.multipliers[:, None])[
            1:
        ]  # one more token each
        by_head = np.repeat(mixed, len(self.sizes) // reach, axis=0).T  # [R, heads]
        ids: Int64s = np.remainder(by_head, self.sizes) + self.offsets
        return ids

    @cached_property
    def _kernel(self) -> Any:
        """The same in C++: small arrays cost NumPy more than a layer costs the kernels."""
        if _native is None:
            return None
        multipliers, sizes, offsets = (
            np.ascontiguousarray(part, np.int64)
            for part in (self.multipliers, self.sizes, self.offsets)
        )
        return _native.NgramHash(multipliers, sizes, offsets, self.eos)
