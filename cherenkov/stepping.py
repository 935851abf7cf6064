"""Steps: what a loop for one caller and an engine for many have in common.

    stepper = Stepper(loaded)
    while not lane.is_over:
        (steps,) = stepper.step([lane])
        for step in steps: ...

One step runs, for each lane given, a piece of what its prompt lacks, or the token sampled last and the drafts behind it.
What it brings comes lane by lane: nothing while the prompt is not through, then one token or several. They are sampled as
they are asked for, so whoever stops listening leaves a sequence, and random numbers, as if no more had been tried. All of
a step's tokens must have been taken, or given up, before the next step of the same lane.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

from cherenkov.state import Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from cherenkov.lane import Lane, Loaded, Step
    from cherenkov.state import State

__all__ = ["Stepper"]


class Stepper:
    """Runs lanes of one model. Not for several threads at once.

    Attributes:
        wide: the residual that the last step left, until the next.
        rows: how many of its rows each lane had, drafts included.
        shares: the logits of each lane that were asked for, or None.
    """

    def __init__(self, loaded: Loaded, clock: Callable[[], float] = time.perf_counter) -> None:
        """Make one for a model; it costs nothing."""
        self._loaded = loaded
        self._clock = clock
        self.wide: Any = None
        self.rows: list[int] = []
        self.shares: list[NDArray[np.float32] | None] = []

    def step(
        self,
        lanes: Sequence[Lane],
        rows: Sequence[int] | None = None,
        check: Callable[[], None] | None = None,
    ) -> list[Iterator[Step]]:
        """Make a step of some lanes, none of which is over.

        Args:
            lanes: each once.
            rows: how many of its pending tokens to run for each, at least one; all of them if left out.
            check: called between layers; raises to stop. The lanes' sequences are lost then.

        Returns:
            What it brings each lane: an iterator that samples.

        Raises:
            DiskError, CorruptModel: an expert could not be read.
        """
        counts = [len(lane.pending) for lane in lanes] if rows is None else rows
        speculation, network = self._loaded.speculation, self._loaded.network
        deciding = [lane for lane in lanes if lane.is_deciding] if speculation.is_on else []
        begun = self._clock()
        if deciding:
            speculation.propose(deciding)
        read_bytes = network.read_bytes
        parts = [(lane.state, lane.prepare(n)) for lane, n in zip(lanes, counts, strict=True)]
        wide = network.forward(Rows(parts), check=check)
        wanted = _wanted(lanes, parts)
        logits = self._loaded.backend.host(network.logits(wide, wanted)) if wanted else None
        if speculation.is_on:
            speculation.remember(lanes, parts, wide)
        if deciding:
            alone = self._clock() - begun if len(deciding) == len(lanes) else None
            speculation.verified(deciding, network.read_bytes - read_bytes, alone)
        self.wide, self.rows = wide, [len(tokens) for _, tokens in parts]
        self.shares = _shared(lanes, logits)
        return [
            iter(()) if share is None else lane.take(share)
            for lane, share in zip(lanes, self.shares, strict=True)
        ]


def _wanted(lanes: Sequence[Lane], parts: Sequence[tuple[State[Any], list[int]]]) -> list[int]:
    """The rows whose logits are asked for."""
    if len(lanes) == 1:
        stop = len(parts[0][1])
        return list(range(stop - lanes[0].asks, stop))
    stops = itertools.accumulate(len(tokens) for _, tokens in parts)
    return [
        row
        for lane, stop in zip(lanes, stops, strict=True)
        for row in range(stop - lane.asks, stop)
    ]


def _shared(
    lanes: Sequence[Lane], logits: NDArray[np.float32] | None
) -> list[NDArray[np.float32] | None]:
    """Every lane's share of the logits."""
    if len(lanes) == 1:
        return [logits]
    found: list[NDArray[np.float32] | None] = []
    at = 0
    for lane in lanes:
        found.append(logits[at : at + lane.asks] if logits is not None and lane.asks else None)
        at += lane.asks
    return found
