"""Hashed n-grams: which rows of the n-gram table a token looks up.

Row t hashes the tokens t, t-1, … of its own segment; `<eos>` ends a segment and stands in for what lies before
it. Source: transformers `Qwen4ExpTextNGramEmbedding`, and the fact that its integer products wrap at 64 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["NgramHash"]

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
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
        reach = self.context_tokens
        tail = list(before[-reach:]) if reach else []
        history = np.array([self.eos] * (reach - len(tail)) + tail, dtype=np.int64)
        shifted = self._shifted(np.concatenate([history, tokens.astype(np.int64)]), len(tokens))
        per_order = len(self.sizes) // reach
        mixed = shifted[0] * self.multipliers[0]
        ids = []
        for distance in range(1, reach + 1):
            mixed = mixed ^ (shifted[distance] * self.multipliers[distance])
            heads = slice((distance - 1) * per_order, distance * per_order)
            ids.append(np.remainder(mixed[:, None], self.sizes[heads]) + self.offsets[heads])
        return np.concatenate(ids, axis=1)

    def _shifted(self, sequence: Int64s, rows: int) -> list[Int64s]:
        """For each distance k, the token k before each row, or eos where that leaves the row's segment."""
        reach = self.context_tokens
        ended = np.zeros(rows, dtype=bool)
        out = [sequence[reach:]]
        for k in range(1, reach + 1):
            token = sequence[reach - k : reach - k + rows]
            ended = ended | (token == self.eos)
            out.append(np.where(ended, self.eos, token))
        return out
