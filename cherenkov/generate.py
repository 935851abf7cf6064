"""Generation for one caller: prefill, then step, sample, stop, yield."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cherenkov.lane import Lane
from cherenkov.prefill import chunks
from cherenkov.stepping import Stepper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np

    from cherenkov.lane import Loaded, Step, Wanted
    from cherenkov.state import State

__all__ = ["generate"]


def generate(
    loaded: Loaded,
    prompt: Sequence[int],
    wanted: Wanted,
    *,
    check: Callable[[], None],
    state: State[Any] | None = None,
    random: np.random.Generator | None = None,
) -> Iterator[Step]:
    """Continue a prompt.

    Args:
        loaded: the model.
        prompt: token ids, at least one.
        wanted: what is asked of the answer.
        check: called between steps; raises to stop.
        state: a sequence that `prompt` continues, and that goes on with it; None begins one.
        random: where random numbers come from; None begins with the seed.

    Raises:
        RequestError, ContextTooLong: as `Lane`.
    """
    lane, stepper = Lane(loaded, prompt, wanted, state, random), Stepper(loaded)
    for start, stop in chunks(len(lane.pending), loaded.chunk_rows):
        check()
        (steps,) = stepper.step([lane], [stop - start], check)
        yield from steps  # of the last one
    while not lane.is_over:
        check()
        (steps,) = stepper.step([lane])
        yield from steps
