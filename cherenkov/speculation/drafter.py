"""Who drafts, and how much: `Speculation` for a model, a `Drafter` for each answer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

from cherenkov.errors import ConfigError
from cherenkov.speculation.acceptance import Acceptance
from cherenkov.speculation.figures import MOST_DRAFTS, DraftCounts
from cherenkov.speculation.head import Head
from cherenkov.speculation.lookup import LENGTHS, Lookup
from cherenkov.speculation.pace import Draft, Pace
from cherenkov.trail import MOST_BEHIND

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cherenkov.architectures import Network
    from cherenkov.backends.base import Backend
    from cherenkov.state import State

__all__ = ["Drafter", "Speculation"]

_AUTO_LANES = 1
"""Answers that share a step, at most, for `auto` to guess: they share weights already, and drafts bring next to nothing."""
_ANY = 1 << 30
_KINDS = {0: "", **{length: f"ngram{length}" for length in LENGTHS}}
_SOURCES = {"mtp": "mtp", **dict.fromkeys(_KINDS.values(), "ngram")}


class Drafter:
    """The drafts of one answer.

    Attributes:
        tokens: those of the step that comes, or was made.
        kind: of these: `mtp`, or `ngram` and the length of the ending that was looked up.
        found: what was looked up.
        keeps: the head is to be kept in step, for its drafts may pay.
    """

    def __init__(self, speculation: Speculation, *, keeps: bool) -> None:
        """Use `Speculation.drafter`."""
        self.keeps = keeps
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
        return _KINDS[length], found

    def gain(self, most: int) -> list[float]:
        """Tokens that a step with 0, 1, ... `most` such drafts will likely bring."""
        return self.acceptance.tokens(self.kind, most) if self.kind else [1.0] * (most + 1)

    def decided(self) -> None:
        """The model said a token."""
        self._speculation.counts.tokens += 1

    def judged(self, depth: int, *, accepted: bool) -> None:
        """The model said its `depth`-th draft as well, or something else."""
        self.acceptance.judged(self.kind, depth, accepted=accepted)
        counts, source = self._speculation.counts, _SOURCES[self.kind]
        counts.drafted[source][depth] += 1
        counts.accepted[source][depth] += accepted


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
        is_on: there may be drafts.
        counts: what happened so far.
        acceptance: of all texts.
        pace: what steps take.
        clock: what measures it, in seconds.
        most_lanes: sequences that may share a step with drafts.

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
        self.is_on = self._most > 0
        self._looks_up = mode in ("auto", "ngram")
        self.most_lanes = _AUTO_LANES if mode == "auto" else _ANY
        self._backend = backend
        self.clock = clock
        self._head: Head[Any] | None = None
        if wanted and network.drafts and mode != "ngram":
            self._head = Head(network, backend)
        self._head_s = 0.0  # of the head, in the step under way
        self._draft: Draft | None = None
        self.counts = DraftCounts()
        self.acceptance = Acceptance()
        self.pace = Pace(self._most)

    def drafter(self) -> Drafter:
        """For an answer that begins."""
        return Drafter(self, keeps=self.pace.text_begins())

    def ran(self, state: State[Any], rows: int, wide: Any, *, certain: bool) -> None:
        """The trunk has run the last rows of a sequence.

        Args:
            state: the sequence.
            rows: how many.
            wide: what they left behind, `[rows, S*D]`.
            certain: they will not be taken back.
        """
        if self._head is not None:
            self._head.ran(state, rows, wide, certain=certain)

    def remember(
        self,
        lanes: Sequence[Drafting],
        parts: Sequence[tuple[State[Any], Sequence[int]]],
        wide: Any,
    ) -> None:
        """The trunk has run a step of some lanes, the last rows of their sequences, and left `wide` `[R, S*D]`."""
        head, at = self._head, 0
        if head is None or len(lanes) > self.most_lanes:
            return
        for lane, (state, tokens) in zip(lanes, parts, strict=True):
            rows = len(tokens)
            piece = wide if len(lanes) == 1 else self._backend.take(wide, range(at, at + rows))
            certain = not lane.drafter.tokens
            soon = rows > 1 and certain and self.pace.drafts_now
            head.ran(state, rows, piece, certain=certain, soon=soon)
            at += rows

    def catch_up(self, state: State[Any]) -> None:
        """Have the head read all that is certain, so that what it lacks is one row: before a state is kept for long."""
        if self._head is not None:
            self._head.catch_up(state)

    def propose(self, lanes: Sequence[Drafting]) -> None:
        """Give each lane, whose next step is that of the token sampled last, its drafts (`Drafter.tokens`)."""
        for lane in lanes:
            lane.drafter.tokens = []
        if len(lanes) > self.most_lanes:
            for lane in lanes:  # nor will the head be asked when it is alone again: to keep it in step costs all of them
                lane.state.trail.close()
        elif not self.pace.rests(len(lanes)):
            rooms = [lane.room for lane in lanes]
            most = min(self._most, max(rooms, default=0))
            if most:
                self._guess(lanes, rooms, most)

    def _guess(self, lanes: Sequence[Drafting], rooms: Sequence[int], most: int) -> None:
        """Choose who drafts for each lane, and how many; `rooms` are what it has room for."""
        by_head = [lane for lane in lanes if self._choose(lane, most)]
        count = self.pace.settled(len(lanes), len(by_head), most)
        if count < 0:
            gains = [lane.drafter.gain(most) for lane in lanes]
            count = self.pace.drafts(gains, len(by_head), most)
        if not count:
            return
        if len(by_head) < len(lanes):
            for lane, room in zip(lanes, rooms, strict=True):
                lane.drafter.tokens = lane.drafter.found[: min(count, room)]
        able = [lane for lane in by_head if lane.room]
        if able:
            self._ask_head(able, count)

    def verified(self, lanes: Sequence[Drafting], read_bytes: int, seconds: float | None) -> None:
        """A step of these lanes was made.

        Args:
            lanes: those that had drafts, or could have had.
            read_bytes: what was read of experts meanwhile.
            seconds: what it took, `propose` counted; None if it was not of these lanes alone.
        """
        drafts = 0
        for lane in lanes:
            count = len(lane.drafter.tokens)
            self.counts.rows[count] += 1
            drafts = max(drafts, count)
        self.counts.read_bytes += read_bytes
        if seconds is not None and len(lanes) <= self.most_lanes:
            verify_s = seconds - self._head_s
            self.pace.took(len(lanes), drafts, verify_s, self._draft, reading=read_bytes > 0)
        self._head_s, self._draft = 0.0, None

    def _ask_head(self, lanes: Sequence[Drafting], count: int) -> None:
        assert self._head is not None
        asked = self.clock()
        for lane in lanes:  # after a pause: that is the pause's price, and no step's
            if lane.state.position - lane.state.draft_position > MOST_DRAFTS + 1:
                self._head.catch_up(lane.state)
        begun = self.clock()
        parts = [(lane.state, lane.pending[0]) for lane in lanes]
        guesses = self._head.draft(parts, count)
        for lane, guess in zip(lanes, guesses, strict=True):
            lane.drafter.tokens = guess[: lane.room]
        done = self.clock()
        self._draft = Draft(len(lanes), count, done - begun)
        self._head_s = done - asked
        self.counts.head_rows = self._head.rows

    def _choose(self, lane: Drafting, most: int) -> bool:
        """Choose the kind of draft that promises a lane most (`Drafter.kind`, and `found`). Is it one of the head's?"""
        drafter, head, state = lane.drafter, self._head, lane.state
        drafter.kind, drafter.found = "", []
        if head is not None:
            if state.position - state.draft_position > MOST_BEHIND:
                head.catch_up(state)
            if head.can_draft(state):
                drafter.kind = "mtp"
        if self._looks_up:
            kind, found = drafter.look_up(state.tokens, lane.pending[0], most)
            if found and (not drafter.kind or self._is_better(drafter, kind, most)):
                drafter.kind, drafter.found = kind, found
        return drafter.kind == "mtp"

    def _is_better(self, drafter: Drafter, kind: str, most: int) -> bool:
        """To look up promises more tokens a second than to ask the head."""
        k = self.pace.likely(most)
        tokens, theirs = (drafter.acceptance.tokens(each, k)[k] for each in ("mtp", kind))
        seconds = [self.pace.seconds(k, head=head) for head in (True, False)]
        return not all(seconds) or theirs * seconds[0] >= tokens * seconds[1]
