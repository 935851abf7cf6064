"""Hashed n-grams: which rows of the n-gram table a token looks up.

Row t hashes the tokens t, t-1, … of its own segment; `<eos>` ends a segment and stands in for what lies before
it. Source: transformers `Qwen4ExpTextNGramEmbedding`, and the fact that its integer products wrap at 64 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["NgramHash"]

Int64s = NDArray[np.int64]

_HALF, _WHOLE = 2**63, 2**64
_FEW = 4
"""Rows that are cheaper one by one."""


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
        if count <= _FEW:
            both = [*tail, *tokens.tolist()]
            ends = range(len(both) - count + 1, len(both) + 1)
            return np.array([self._row(both[:end]) for end in ends], dtype=np.int64)
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

    def _row(self, sequence: list[int]) -> list[int]:
        """As `rows`, for the last token of `sequence`: whole numbers of Python cost a tenth of small arrays."""
        mixed, ended = sequence[-1] * self._factors[0], False
        found: list[int] = []
        for ago, heads in enumerate(self._heads, 2):
            token = sequence[-ago] if ago <= len(sequence) else self.eos
            ended = ended or token == self.eos
            mixed ^= (self.eos if ended else token) * self._factors[ago - 1]
            # Products wrap at 64 bits, and so does what is made of them.
            wrapped = (mixed + _HALF) % _WHOLE - _HALF
            found += [wrapped % size + offset for size, offset in heads]
        return found

    @cached_property
    def _heads(self) -> list[list[tuple[int, int]]]:
        """Size and offset of each head, by n-gram order."""
        pairs = list(zip(self.sizes.tolist(), self.offsets.tolist(), strict=True))
        each = len(pairs) // max(1, self.context_tokens)
        return [pairs[i * each : (i + 1) * each] for i in range(self.context_tokens)]

    @cached_property
    def _factors(self) -> list[int]:
        return [int(factor) for factor in self.multipliers]
