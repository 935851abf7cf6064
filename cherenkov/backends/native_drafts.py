"""The draft head's operations of the `native` backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from cherenkov.backends import native_weights as describe
from cherenkov.backends.base import (
    DraftHead,
    Floats,
    Ids,
    Memory,
    Resident,
    Span,
    Stretch,
)
from cherenkov.backends.native_engine import NativeEngine
from cherenkov.backends.native_states import Drafting, NativeChoice, advance_head

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cherenkov.backends.native_weights import Matrix

if not describe.missing:
    import cherenkov._native as _native  # noqa: PLR0402 - the package itself is not what is meant

__all__ = ["NativeDrafts"]


class NativeDrafts(NativeEngine):
    """See `Native`."""

    @override
    def draft_step(
        self,
        drafts: DraftHead[Matrix, Floats],
        tokens: Ids,
        wide: Floats,
        spans: Sequence[Span[Memory[Floats]]],
        resident: Resident,
        ends: Sequence[int],
    ) -> Stretch[Floats]:
        on, mixture = self._drafting(drafts, resident), self._memory()
        out = np.empty((len(ends), wide.shape[1]), dtype=np.float32)
        ids = np.empty((len(ends), on.top_k), dtype=np.int32)
        whole = self._engine.draft(
            on.described,
            tokens,
            wide,
            self._head_spans(on, spans),
            np.array(ends, dtype=np.int32),
            mixture,
            ids,
            out,
        )
        advance_head(spans)
        if not whole:
            return Stretch(out, ids[None, :0], NativeChoice(ids, mixture))
        self._mixtures.append(mixture)
        return Stretch(out, ids[None], None)

    @override
    def guess(
        self,
        drafts: DraftHead[Matrix, Floats],
        tokens: Ids,
        wide: Floats,
        spans: Sequence[Span[Memory[Floats]]],
        resident: Resident,
        depth: int,
        *,
        partial: bool,
    ) -> tuple[list[list[int]], Ids] | None:
        on, mixture = self._drafting(drafts, resident), self._memory()
        ids = np.empty((depth, len(spans), on.top_k), dtype=np.int32)
        found = self._engine.guess(
            on.described, tokens, wide, self._head_spans(on, spans), mixture, ids, not partial
        )
        self._mixtures.append(mixture)
        if found is None:
            return None
        advance_head(spans, depth - 1)
        return found, ids

    def _drafting(self, drafts: DraftHead[Matrix, Floats], resident: Resident) -> Drafting:
        """What operations of the draft head work on, described once for each pool."""
        on, pool = self._head, resident.pool
        table = resident.slot_table
        if on is None or on.drafts is not drafts or on.pool is not pool or on.table is not table:
            block = drafts.block
            trunk = self._describe(block, self._alone)
            record = self._describe(pool.layout, describe.expert_record)
            described = _native.Drafts(
                self._describe(drafts.fuse, describe.fuse_weights),
                drafts.embedding.table.placed,
                trunk,
                self._describe(drafts.head, describe.head_weights),
                (record, pool.memory, table[block.index :], *self._lower(pool)),
            )
            self._head = on = Drafting(drafts, pool, table, trunk, described, block.router.top_k)
        return on

    def _head_spans(
        self, on: Drafting, spans: Sequence[Span[Memory[Floats]]]
    ) -> list[tuple[int, int, int, _native.Memory]]:
        blocks, trunk = (on.drafts.block,), on.trunk
        return [
            (start, stop, position, self._bound(trunk, blocks, state))
            for start, stop, position, state in spans
        ]
