"""A store without bytes: replays a routing trace against a policy, and counts.

It follows the store's rules. A pass of fewer than `stream_rows` rows needs all its experts in slots, together if they
fit, in groups if they do not. A longer one reads a prompt: each of its experts is used where it lies, or passes
through without needing a slot, and only what the policy admits stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from cherenkov.experts.policy import EMPTY, Worth

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from cherenkov.experts.policy import Ids, Policy, Records
    from cherenkov.experts.traces import Trace

__all__ = ["STREAM_ROWS", "Belady", "Outcome", "simulate"]

STREAM_ROWS = 64
"""Rows from which a pass reads a prompt."""
_NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was counted, in distinct experts of a layer and pass.

    Attributes:
        hits: found in memory by passes that decode.
        misses: read for them.
        prompt_hits: found in memory by passes that read a prompt.
        prompt_misses: read for those.
    """

    hits: int
    misses: int
    prompt_hits: int
    prompt_misses: int

    @property
    def hit_rate(self) -> float:
        """Of decoding."""
        return self.hits / max(1, self.hits + self.misses)


class Belady(Worth):
    """The optimum, which knows the future: what is needed last leaves first.

    No policy reads less over the trace it was made for, as long as the experts of each pass that decodes fit in memory.

    Args:
        slots: of the pool.
        trace: that will be replayed, from its beginning.
    """

    def __init__(self, slots: int, trace: Trace) -> None:
        self._plan = _next_uses(trace)
        super().__init__(slots, trace.layers, trace.experts)

    @override
    def _clear(self) -> None:
        self.table[:] = -_NEVER
        self._event = 0

    @override
    def _count(self, first_layer: int, ids: Ids) -> None:
        for _ in range(len(ids)):
            records, following = self._plan[self._event]
            self._worth[records] = -following
            self._event += 1


def simulate(
    trace: Trace, policy: Policy, slots: int, *, stream_rows: int = STREAM_ROWS
) -> Outcome:
    """Replay a trace against a new policy of as many slots, from an empty pool."""
    pool = _Pool(trace, policy, slots)
    decode, prompt = [0, 0], [0, 0]
    for layer, ids in trace:
        records = layer * trace.experts + _distinct(ids)
        policy.used(layer, ids)
        missing = records[pool.slot_of[records] == EMPTY]
        counts = prompt if len(ids) >= stream_rows else decode
        counts[0] += len(records) - len(missing)
        counts[1] += len(missing)
        if len(missing) and len(ids) >= stream_rows:
            pool.stream(missing)
        elif len(missing):
            pool.fetch(records, missing)
    return Outcome(*decode, *prompt)


class _Pool:
    """Slots and what is in them."""

    def __init__(self, trace: Trace, policy: Policy, slots: int) -> None:
        self.policy = policy
        self.slots = slots
        self.slot_of = np.full(trace.layers * trace.experts, EMPTY, dtype=np.int64)
        self.record_in = np.full(slots, EMPTY, dtype=np.int64)

    def fetch(self, records: Records, missing: Records) -> None:
        """Bring records in, beside those of the same pass."""
        pinned = self.slot_of[records]
        pinned = pinned[pinned != EMPTY]
        while len(missing):
            group, missing = missing[: self.slots], missing[self.slots :]
            allowed = np.ones(self.slots, dtype=np.bool_)
            if len(pinned) + len(group) <= self.slots:
                allowed[pinned] = False
            pinned = pinned[:0]
            self._replace(group, self.policy.victims(len(group), allowed))

    def stream(self, missing: Records) -> None:
        """Let records pass through; some stay."""
        allowed = np.ones(self.slots, dtype=np.bool_)
        self._replace(*self.policy.admits(missing, allowed))

    def _replace(self, records: Records, slots: NDArray[np.int64]) -> None:
        assert len(records) == len(slots) == len(set(slots.tolist()))
        for record, slot in zip(records.tolist(), slots.tolist(), strict=True):
            before = self.record_in[slot]
            if before != EMPTY:
                self.slot_of[before] = EMPTY
                self.policy.left(slot)
            self.policy.arrived(slot, record)
            self.record_in[slot], self.slot_of[record] = record, slot


def _next_uses(trace: Trace) -> list[tuple[Records, Records]]:
    """Of each event: its records, and the events that use them next."""
    following = np.full(trace.layers * trace.experts, _NEVER, dtype=np.int64)
    plan = []
    for event, (layer, ids) in reversed(list(enumerate(trace))):
        records = layer * trace.experts + _distinct(ids)
        plan.append((records, following[records]))
        following[records] = event
    plan.reverse()
    return plan


def _distinct(ids: Ids) -> Records:
    """Distinct ids in order of first appearance."""
    return np.array(list(dict.fromkeys(ids.ravel().tolist())), dtype=np.int64)
