"""The library as the golden tests drive it: below `Model`, so that states and drafts can be seen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from cherenkov.architectures import family_of
from cherenkov.backends import create
from cherenkov.backends.base import AttentionState, Backend, DeltaState, Options
from cherenkov.experts.policy import DEFAULT, POLICIES
from cherenkov.experts.reader import RecordReader
from cherenkov.experts.store import ExpertStore
from cherenkov.packing.store import PackedStore
from cherenkov.state import Rows, State

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import TracebackType

__all__ = ["Engine", "Run"]

Floats = NDArray[np.float32]


@dataclass
class Run:
    """Logits `[T, V]`, the residual `[T, S*D]`, and states by the names that the vectors use."""

    logits: Floats
    wide: Floats
    states: dict[str, Floats] = field(default_factory=dict)


class Engine:
    """A store on a backend. `slots` bounds the expert pool; the rest says how it is filled."""

    def __init__(
        self,
        store: Path,
        backend: str = "reference",
        options: Options | None = None,
        slots: int | None = None,
        *,
        make_reader: Callable[..., RecordReader] = RecordReader,
        readers: int = 0,
        lookahead: str = "auto",
        policy: str = DEFAULT,
    ) -> None:
        opened = PackedStore.open(store)
        self.ops: Backend[Any, Any] = create(backend, options)
        section, layout = opened.manifest.experts, opened.expert_layout
        assert opened.integrity is not None
        sums = np.array(opened.integrity.records, dtype=np.uint64)
        shape = (opened.experts_path, layout.stride_bytes, section.experts)
        reader = make_reader(*shape, sums, threads=readers)
        pool = self.ops.pool(layout, slots or opened.records)
        self.experts = ExpertStore(
            pool,
            reader,
            section.layers,
            section.experts,
            policy=POLICIES[policy],
            lookahead=lookahead,
        )
        self.network: Any = family_of(opened.config).build(opened, self.ops, self.experts)

    def run(self, ids: Sequence[int], chunks: Sequence[int] = ()) -> Run:
        """A prompt, whole or cut into chunks of the given lengths, from an empty state."""
        state = self.network.new_state(len(ids))
        wide = self._trunk(state, ids, chunks or [len(ids)])
        return Run(self._logits(wide), wide, self._states(state))

    def drafts(
        self,
        ids: Sequence[int],
        count: int,
        *,
        after: Run | None = None,
        chunks: Sequence[int] = (),
    ) -> Floats:
        """Logits `[count, V]` of the drafts that follow a prompt and the trunk's own greedy next token.

        The head sees the prompt in chunks: row p holds the trunk's residual at p and token p+1.

        Args:
            ids: the prompt.
            count: drafts to chain.
            after: a run of this prompt, or of a longer one, to save running the trunk again.
            chunks: lengths that add up to the prompt's.
        """
        after = after or self.run(ids)
        state = self.network.new_state(len(ids) + count)
        following = [*ids[1:], int(after.logits[len(ids) - 1].argmax())]
        wide = own = after.wide[: len(ids)]
        start = 0
        for length in chunks or [len(ids)]:
            own = self._head(state, following[start : start + length], wide[start : start + length])
            start += length
        rows = [self._draft_logits(own)]
        while len(rows) < count:
            own = self._head(state, [int(rows[-1].argmax())], own[-1:])
            rows.append(self._draft_logits(own))
        return np.stack(rows)

    def greedy(self, ids: Sequence[int], count: int) -> list[int]:
        """The `count` most likely tokens that follow, the prompt in one piece and then one by one."""
        state = self.network.new_state(len(ids) + count)
        found: list[int] = []
        step = ids
        for _ in range(count):
            wide = self._trunk(state, step, [len(step)])
            found.append(int(self._logits(wide[-1:])[0].argmax()))
            step = found[-1:]
        return found

    def close(self) -> None:
        """Close files."""
        self.network.close()
        self.experts.close()
        self.ops.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _trunk(self, state: State[Any], ids: Sequence[int], chunks: Sequence[int]) -> Floats:
        if sum(chunks) != len(ids):
            raise ValueError("chunks do not add up to the prompt")
        parts, start = [], 0
        for length in chunks:
            rows: Rows[Any] = Rows([(state, ids[start : start + length])])
            parts.append(np.array(self.ops.host(self.network.forward(rows))))
            start += length
        return np.concatenate(parts)

    def _head(self, state: State[Any], tokens: Sequence[int], wide: Floats) -> Floats:
        rows: Rows[Any] = Rows([(state, tokens)])
        return np.array(self.ops.host(self.network.draft(rows, self.ops.array(wide))))

    def _logits(self, wide: Floats) -> Floats:
        rows = range(len(wide))
        return np.array(self.ops.host(self.network.logits(self.ops.array(wide), rows)))

    def _draft_logits(self, wide: Floats) -> Floats:
        last = [len(wide) - 1]
        row: Floats = np.array(
            self.ops.host(self.network.draft_logits(self.ops.array(wide), last))
        )[0]
        return row

    def _states(self, state: State[Any]) -> dict[str, Floats]:
        """DeltaNet and PLE states as recorded, and what attention layers cached."""
        found: dict[str, Any] = {}
        for index, layer in enumerate(state.layers):
            if isinstance(layer, DeltaState):
                mixer = self.network.weights.layers[index].mixer
                matrix = self.ops.settled(mixer, layer, state.position)
                found |= {
                    f"{index}/matrix": matrix,
                    f"{index}/history": self.ops.behind(layer, state.position),
                }
            else:
                found |= self._cached(f"{index}/", layer)
        found |= {
            f"{index}/ple": self.ops.behind(ple, state.position) for index, ple in state.ple.items()
        }
        return {name: np.array(self.ops.host(value)) for name, value in found.items()}

    def _cached(self, prefix: str, layer: AttentionState[Any]) -> dict[str, Any]:
        names = ("keys", "values", "index_keys", "block_keys")
        return {f"{prefix}{name}": getattr(layer, name) for name in names}
