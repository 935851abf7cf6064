"""The `qwen4_exp` forward pass: a composition of fused operations, and nothing else.

    embed -> 48 x [ n-gram features? -> read -> DeltaNet or attention -> inject -> read -> experts -> inject ]
          -> final mixer -> LM head

The residual is wide: S streams of the hidden size, which hyper-connections read from and write back to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from cherenkov.backends.base import (
    AttentionState,
    Backend,
    Block,
    Choice,
    DeltaNet,
    DraftHead,
    Floats,
)
from cherenkov.experts.lookahead import NextRouter
from cherenkov.state import Rows, State

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cherenkov.architectures import Observer
    from cherenkov.architectures.qwen4_exp.config import Config
    from cherenkov.architectures.qwen4_exp.weights import Weights
    from cherenkov.experts.lookahead import Predictor
    from cherenkov.experts.rows import Pending, RowTable
    from cherenkov.experts.store import ExpertStore

__all__ = ["Qwen4Exp"]

M = TypeVar("M")
A = TypeVar("A")


class _Late(dict[int, A]):
    """N-gram features by layer; those whose rows are still being read are waited for when they are asked for."""

    def __init__(
        self, here: Mapping[int, A], awaited: Mapping[int, Pending], place: Callable[[Floats], A]
    ) -> None:
        super().__init__(here)
        self._awaited = awaited
        self._place = place

    def __missing__(self, layer: int) -> A:
        self[layer] = self._place(self._awaited[layer].take())  # [R, P]
        return self[layer]


class Qwen4Exp(Generic[M, A]):
    """A model that can run: weights on a backend, experts in a store, n-gram rows in tables.

    Args:
        config: the geometry.
        ops: the backend.
        weights: the resident part, placed on `ops`.
        experts: where routed experts come from; its layers are the trunk's, then the draft head's.
        tables: the n-gram table of each layer that has one.

    Attributes:
        predict: guesses the next layer's experts, where not all are in memory.
    """

    def __init__(
        self,
        config: Config,
        ops: Backend[M, A],
        weights: Weights[M, A],
        experts: ExpertStore,
        tables: Mapping[int, RowTable],
    ) -> None:
        self.config = config
        self.ops = ops
        self.weights = weights
        self.experts = experts
        self.tables = tables
        self.predict: Predictor = NextRouter(ops)
        head = weights.draft
        self._drafts = (
            None if head is None else DraftHead(head.fuse, head.layer, weights.embedding, head.head)
        )

    @property
    def drafts(self) -> bool:
        """There is a draft head."""
        return self._drafts is not None

    @property
    def read_bytes(self) -> int:
        """Bytes of experts that were read so far."""
        return self.experts.stats.read_bytes

    def forward(
        self,
        rows: Rows[A],
        observe: Observer[A] | None = None,
        check: Callable[[], None] | None = None,
    ) -> A:
        """Run rows through the trunk and commit them. Returns the wide residual, `[R, S*D]`. See `Network`."""
        wide = self.ops.embed(self.weights.embedding, rows.tokens)  # [R, S*D]
        features, awaited = self._features(rows)
        if self.ops.late_features:  # then a layer waits for its own
            features, awaited = _Late(features, awaited, self.ops.array), {}
        spans, layers, at = rows.spans(), self.weights.layers, 0
        # Look ahead in this step? Kernels that do it themselves know but one predictor.
        ahead = self.experts.begin_step(
            len(rows.tokens), flows=isinstance(self.predict, NextRouter)
        )
        while at < len(layers):
            if check is not None and at:
                check()
            if at in awaited:
                features[at] = self.ops.array(awaited.pop(at).take())  # [R, P]
            until = at + 1 if observe is not None else min(awaited, default=len(layers))
            wide, ids, choice = self.ops.stretch(  # whole layers, while their experts are in memory
                layers, range(at, until), wide, spans, features, self.experts
            )
            self.experts.used(at, ids)
            at += len(ids)
            if choice is not None:
                wide = self._mixture(layers[at], wide, choice, ahead=ahead)
                at += 1
            if observe is not None:
                observe(f"layer {at - 1}", wide)
        self.experts.end_step()
        rows.commit(self.ops.most_back)
        return wide

    def logits(self, wide: A, rows: Sequence[int]) -> A:
        """Logits `[len(rows), V]` of chosen rows of a residual."""
        return self.ops.logits(self.weights.head, wide, rows)

    def draft(self, rows: Rows[A], wide: A, ends: Sequence[int] | None = None) -> A:
        """Run the draft head over positions it has not seen.

        Args:
            rows: for each position p, the token at p + 1.
            wide: the trunk's residual at p, `[R, S*D]`; to chain drafts, the head's own from the row before.
            ends: rows to give the residual of, ascending; all if left out. The others are there to be looked back at.

        Returns:
            The head's residual `[len(ends), S*D]`, of which `draft_logits` predicts the token at p + 2.

        Source: published MTP semantics; transformers has no implementation.
        """
        drafts, experts = self._drafts, self.experts
        assert drafts is not None
        ends = range(len(rows)) if ends is None else ends
        wide, ids, choice = self.ops.draft_step(
            drafts, rows.tokens, wide, rows.draft(), experts, ends
        )
        if choice is not None:
            return self._mixture(drafts.block, wide, choice)
        if ids.size:
            experts.used(drafts.block.index, ids)
        return wide

    def guess(self, rows: Rows[A], wide: A, depth: int) -> list[list[int]]:
        """Chain drafts.

        Args:
            rows: as for `draft`, of one or several sequences.
            wide: as well.
            depth: tokens to guess for each sequence.

        Returns:
            What may come after the last token of each: `depth` tokens.
        """
        drafts, experts = self._drafts, self.experts
        assert drafts is not None
        found = self.ops.guess(
            drafts,
            rows.tokens,
            wide,
            rows.draft(),
            experts,
            depth,
            # What a draft says is verified: where experts come and go, one without them now beats the best one later.
            partial=not experts.holds_all,
        )
        if found is not None:
            chains, ids = found
            experts.made_do(drafts.block.index, ids.reshape(1, -1, ids.shape[2]))
            return chains
        tokens: list[list[int]] = [[] for _ in rows.segments]
        ends: Sequence[int] = [s.stop - 1 for s in rows.segments]
        for _ in range(depth):
            wide = self.draft(rows, wide, ends)
            best = self.ops.argmax(drafts.head, wide, range(len(ends))).tolist()
            for chain, token in zip(tokens, best, strict=True):
                chain.append(token)
            rows = Rows([(s.state, [token]) for s, token in zip(rows.segments, best, strict=True)])
            ends = range(len(best))
        return tokens

    def draft_logits(self, wide: A, rows: Sequence[int]) -> A:
        """Logits `[len(rows), V]` of the draft head's residual."""
        assert self._drafts is not None
        return self.ops.logits(self._drafts.head, wide, rows)

    def new_state(self, context_tokens: int) -> State[A]:
        """An empty sequence that can grow to `context_tokens`."""
        c = self.config
        return State(
            layers=tuple(
                self.ops.delta_state(layer.mixer)
                if isinstance(layer.mixer, DeltaNet)
                else self._attention_state(context_tokens)
                for layer in self.weights.layers
            ),
            ple={i: self.ops.ple_state((c.ple_taps - 1) * c.ngram, c.wide) for i in c.ple_layers},
            draft=self._attention_state(context_tokens) if self.drafts else None,
            context_tokens=context_tokens,
        )

    def close(self) -> None:
        """Close the n-gram tables."""
        for table in self.tables.values():
            table.close()

    def _features(self, rows: Rows[A]) -> tuple[dict[int, A], dict[int, Pending]]:
        """N-gram features `[R, P]` by layer: those at hand, and those whose rows are being read from now on.

        They depend on tokens alone, so the first layers run meanwhile.
        """
        features, awaited = {}, {}
        for layer, hashed in self.weights.hashes.items():
            each = [
                hashed.rows(s.state.tokens, rows.tokens[s.start : s.stop]) for s in rows.segments
            ]
            ids, table = each[0] if len(each) == 1 else np.concatenate(each), self.tables[layer]
            if table.on_disk:
                awaited[layer] = table.begin(ids)
            else:
                features[layer] = self.ops.array(table.gather(ids))
        return features, awaited

    def _mixture(self, layer: Block[M, A], wide: A, choice: Choice, *, ahead: bool = False) -> A:
        weights = self.ops.weights(choice) if self.experts.cut_weak else None
        with self.experts.acquire(layer.index, choice.ids, weights) as lease:  # finds, pins
            if ahead and layer.index + 1 < len(self.weights.layers):
                following = self.weights.layers[layer.index + 1]
                self.experts.expect(following.index, self.predict(following, wide))
            return self.ops.mixture(layer.shared, wide, choice, lease)  # then the rest as it lands

    def _attention_state(self, tokens: int) -> AttentionState[A]:
        c = self.config
        return AttentionState(
            keys=self.ops.cache((tokens, c.kv_heads, c.head_dim)),
            values=self.ops.cache((tokens, c.kv_heads, c.head_dim)),
            index_keys=self.ops.cache((tokens, c.index_dim)),
            block_keys=self.ops.cache((max(1, tokens // c.block), c.index_dim)),
            block=c.block,
        )
