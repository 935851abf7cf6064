"""The draft head's operations of the `native` backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from cherenkov.backends import native_weights as describe
from cherenkov.backends.base import (
    Block,
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

    import cherenkov._native as _native  # noqa: PLR0402 - the package itself is not what is meant
    from cherenkov.backends.native_weights import Matrix

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
        block, mixture = drafts.block, self._memory()
        out = np.empty((len(ends), wide.shape[1]), dtype=np.float32)
        ids = np.empty((len(ends), block.router.top_k), dtype=np.int32)
        on = self._drafting(drafts, resident)
        whole = self._engine.draft(
            *on.head,
            tokens,
            wide,
            self._head_spans(on.trunk, block, spans),
            np.array(ends, dtype=np.int32),
            *on.experts,
            mixture,
            ids,
            out,
            *on.lower,
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
    ) -> tuple[Ids, Ids] | None:
        block = drafts.block
        found = np.empty((depth, len(spans)), dtype=np.int32)
        ids = np.empty((depth, len(spans), block.router.top_k), dtype=np.int32)
        on = self._drafting(drafts, resident)
        mixture = self._memory()
        whole = self._engine.guess(
            *on.head,
            self._describe(drafts.head, describe.head_weights),
            tokens,
            wide,
            self._head_spans(on.trunk, block, spans),
            *on.experts,
            mixture,
            found,
            ids,
            not partial,
            *on.lower,
        )
        self._mixtures.append(mixture)
        if not whole:
            return None
        advance_head(spans, depth - 1)
        return found, ids

    def _drafting(self, drafts: DraftHead[Matrix, Floats], resident: Resident) -> Drafting:
        """What operations of the draft head work on, described once for each pool."""
        on, pool, block = self._head, resident.pool, drafts.block
        table = resident.slot_table
        if on is None or on.block is not block or on.pool is not pool or on.table is not table:
            trunk = self._describe(block, self._alone)
            fuse = self._describe(drafts.fuse, describe.fuse_weights)
            record = self._describe(pool.layout, describe.expert_record)
            self._head = on = Drafting(
                block,
                pool,
                table,
                trunk,
                (fuse, drafts.embedding.table.placed, trunk),
                (record, pool.memory, table[block.index :]),
                self._lower(pool),
            )
        return on

    def _head_spans(
        self,
        trunk: _native.Trunk,
        block: Block[Matrix, Floats],
        spans: Sequence[Span[Memory[Floats]]],
    ) -> list[tuple[int, int, int, _native.Memory]]:
        return [
            (start, stop, position, self._bound(trunk, (block,), state))
            for start, stop, position, state in spans
        ]
