"""Who drafts, and how much: `Speculation` for a model, a `Drafter` for each answer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

from cherenkov.errors import ConfigError
from cherenkov.speculation.figures import DraftCounts
from cherenkov.speculation.head import Head
from cherenkov.speculation.lookup import Lookup
from cherenkov.speculation.pace import Acceptance, Pace
from cherenkov.trail import MOST_BEHIND

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cherenkov.architectures import Network
    from cherenkov.backends.base import Backend
    from cherenkov.state import State

__all__ = ["Drafter", "Speculation"]


class Drafter:
    """The drafts of one answer.

    Attributes:
        tokens: those of the step that comes, or was made.
        kind: of these: `mtp`, or `ngram` and the length of the ending that was looked up.
        found: what was looked up.
    """

    def __init__(self, speculation: Speculation) -> None:
        """Use `Speculation.drafter`."""
        self._speculation = speculation
        self.acceptance = Acceptance(speculation.acceptance)
        self.tokens: list[int] = []
        self.kind = ""
        self.found: list[int] = []
        self._lookup = Lookup()

    def look_up(self, tokens: Sequence[int], last: int, most: int) -> tuple[str, list[int]]:
        """What followed the last time that the text ended so, after the kind of draft that this is."""
        self._lookup.read(tokens, last)
        found, length = self._lookup.guess(most)
        return f"ngram{length}", found

    def decided(self) -> None:
        """The model said a token."""
        self._speculation.counts.tokens += 1

    def judged(self, depth: int, *, accepted: bool) -> None:
        """The model said its `depth`-th draft as well, or something else."""
        self.acceptance.judged(self.kind, depth, accepted=accepted)
        self._speculation.counts.judged(self.kind.rstrip("234"), depth, accepted=accepted)


class Drafting(Protocol):
    """What a lane is to speculation."""

    state: State[Any]
    pending: list[int]
    drafter: Drafter

    @property
    def room(self) -> int:
        """Drafts that would be of use: so many tokens may still come beyond the next one."""


class Speculation:
    """Drafts for the answers of one model.

    Args:
        network: the model.
        backend: what it runs on.
        mode: `mtp` for drafts of the model's head, `ngram` for those of the text, `auto` for whichever promises more,
            `off` for none.
        drafts: for a step, at most; 0 to 3.

    Attributes:
        counts: what happened so far.
        acceptance: of all texts.
        pace: what steps take.
        clock: what measures it, in seconds.

    Raises:
        ConfigError: `mtp`, and the model has no head.
    """

    def __init__(
        self,
        network: Network[Any],
        backend: Backend[Any, Any],
        mode: str = "off",
        drafts: int = 2,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if mode == "mtp" and drafts and not network.drafts:
            raise ConfigError(
                "speculate",
                mode,
                "this model has no draft head; ngram needs none, auto takes what there is",
            )
        # Where a row's bits depend on its company, drafts could change what is said: they must be asked for.
        wanted = bool(drafts) and mode != "off" and (mode != "auto" or backend.rows_alike)
        self._most = drafts if wanted else 0
        self._looks_up = mode in ("auto", "ngram")
        self._backend = backend
        self.clock = clock
        self._head: Head[Any] | None = None
        if wanted and network.drafts and mode != "ngram":
            self._head = Head(network, backend)
        self.counts = DraftCounts()
        self.acceptance = Acceptance()
        self.pace = Pace(self._most)

    @property
    def is_on(self) -> bool:
        """There may be drafts."""
        return self._most > 0

    def drafter(self) -> Drafter:
        """For an answer that begins."""
        return Drafter(self)

    def ran(self, state: State[Any], rows: int, wide: Any, *, certain: bool) -> None:
        """The trunk has run the last rows of a sequence.

        Args:
            state: the sequence.
            rows: how many.
            wide: what they left behind, `[rows, S*D]`.
            certain: they will not be taken back.
        """
        if self._head is None:
            return
        self._head.ran(state, state.position - rows, rows, wide)
        if certain and state.position - state.draft_position > MOST_BEHIND:
            self._head.catch_up(state)

    def catch_up(self, state: State[Any]) -> None:
        """Have the head read all that is certain, so that what it lacks is one row: before a state is kept for long."""
        if self._head is not None:
            self._head.catch_up(state)

    def propose(self, lanes: Sequence[Drafting]) -> None:
        """Give each lane, whose next step is that of the token sampled last, its drafts (`Drafter.tokens`)."""
        for lane in lanes:
            lane.drafter.tokens = []
            behind = lane.state.position - lane.state.draft_position
            if self._head is not None and behind > MOST_BEHIND:
                self._head.catch_up(lane.state)
        most = min(self._most, max((lane.room for lane in lanes), default=0))
        if not most:
            return
        gains = [self._choose(lane, most) for lane in lanes]
        by_head = [lane for lane in lanes if lane.drafter.kind == "mtp"]
        count = self.pace.drafts(gains, len(by_head), most)
        for lane in lanes:
            drafter = lane.drafter
            drafter.tokens = drafter.found[: min(count, lane.room)]
        able = [lane for lane in by_head if lane.room]
        if count and able:
            self._ask_head(able, count)

    def verified(self, lanes: Sequence[Drafting], read_bytes: int, seconds: float | None) -> None:
        """A step of these lanes was made.

        Args:
            lanes: those that had drafts, or could have had.
            read_bytes: what was read of experts meanwhile.
            seconds: what it took, drafting not counted; None if it was not of these lanes alone.
        """
        for lane in lanes:
            self.counts.rows[len(lane.drafter.tokens)] += 1
        self.counts.read_bytes += read_bytes
        if seconds is not None:
            drafts = max(len(lane.drafter.tokens) for lane in lanes)
            self.pace.took(len(lanes), drafts, seconds)

    def _ask_head(self, lanes: Sequence[Drafting], count: int) -> None:
        assert self._head is not None
        begun = self.clock()
        parts = [(lane.state, lane.pending[0]) for lane in lanes]
        for lane, guess in zip(lanes, self._head.draft(parts, count), strict=True):
            lane.drafter.tokens = guess[: lane.room]
        self.pace.drafted(len(lanes), count, self.clock() - begun)
        self.counts.head_rows = self._head.rows

    def _choose(self, lane: Drafting, most: int) -> list[float]:
        """Choose the kind of draft that promises a lane most. Returns the tokens it promises, by number of drafts."""
        drafter, rate = lane.drafter, 0.0
        drafter.kind, drafter.found, gain = "", [], [1.0] * (most + 1)
        if self._head is not None and self._head.can_draft(lane.state):
            drafter.kind, gain = "mtp", drafter.acceptance.tokens("mtp", most)
            rate = gain[most] / (self.pace.seconds(most, head=True) or 1.0)
        if self._looks_up:
            kind, found = drafter.look_up(lane.state.tokens, lane.pending[0], most)
            theirs = drafter.acceptance.tokens(kind, most)
            if found and theirs[most] / (self.pace.seconds(most, head=False) or 1.0) >= rate:
                drafter.kind, drafter.found, gain = kind, found, theirs
        return gain
