"""Answers under way: who takes part in the next step, and what becomes of each afterwards.

A step runs rows of several answers: the pending tokens of those that are being sampled, and a chunk of the prompts of
those that are being read. None of them can tell. If a step fails, nobody knows what it has left of anyone's state: each
goes back to its tokens, reads them again by itself, and whoever made it fail fails then, alone.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cherenkov.chat.kept import common_length
from cherenkov.errors import Cancelled
from cherenkov.lane import Lane
from cherenkov.logprobs import logprobs
from cherenkov.serving.job import in_our_words
from cherenkov.serving.requests import Echoed, Started
from cherenkov.stepping import Stepper
from cherenkov.units import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from cherenkov.chat.responder import Responder
    from cherenkov.lane import Step
    from cherenkov.prefix_cache import PrefixCache
    from cherenkov.serving.job import Job
    from cherenkov.serving.line import Line
    from cherenkov.serving.pacing import Pace
    from cherenkov.serving.sessions import Sessions
    from cherenkov.state import State

__all__ = ["Batch", "Tally"]

_WORTH_KEEPING = 64
"""Tokens read, from which on it is worth while to keep what a cancelled prompt has come to, or to wait for another's."""
_LOGITS_BYTES = 8 * MIB


@dataclass(slots=True)
class Tally:
    """Counts since the start; see `Metrics`."""

    completed: int = 0
    cancelled: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    prefill_chunks: int = 0
    decode_steps: int = 0
    decode_rows: int = 0
    rebuilt: int = 0


@dataclass(frozen=True, slots=True)
class _Part:
    """What a job gives to a step: `rows` of its `pending` tokens, which go on from `position` of its state."""

    job: Job
    rows: int
    pending: list[int]
    position: int
    reads: bool


class Batch:
    """Answers under way. For the thread that owns the model.

    Args:
        responder: the model.
        line: who waits.
        pace: of prompts.
        cache: what was read before.
        sessions: for turns that end.
        vocab: entries of a row of logits.
        stall_s: how long an answer waits for its reader.
        most_said_bytes: of an answer.
        is_stopping: no step may go on.
        on_end: told of each job that is over.
    """

    def __init__(  # noqa: PLR0913 - its parts
        self,
        responder: Responder,
        line: Line,
        pace: Pace,
        cache: PrefixCache[Any],
        sessions: Sessions,
        *,
        vocab: int,
        stall_s: float,
        most_said_bytes: int,
        is_stopping: Callable[[], bool],
        on_end: Callable[[Job], None],
    ) -> None:
        self.tally = Tally()
        self.line, self.pace, self.cache = line, pace, cache
        self._responder, self._sessions = responder, sessions
        self._loaded, self._vocab = responder.loaded, vocab
        self._stall_s, self._is_stopping, self._on_end = stall_s, is_stopping, on_end
        self._stepper = Stepper(responder.loaded)
        self._most_said_bytes = most_said_bytes
        self._active: list[Job] = []  # those that read a prompt take turns: the next one first
        self._odd = False

    @property
    def running(self) -> tuple[Job, ...]:
        """Answers under way."""
        return tuple(self._active)

    @property
    def used_bytes(self) -> int:
        """Memory that they take."""
        return sum(job.ready.size_bytes for job in tuple(self._active))

    def turn(self) -> bool:
        """Let go of who is gone, let in who is next, make a step. False if there is nothing to do for now."""
        self._sweep()
        while job := self.line.next(len(self._active), self.used_bytes, self._is_held):
            self._begin(job)
        parts = self._parts()
        if parts:
            self._step(parts)
        return bool(parts)

    def fail_all(self, error: BaseException) -> None:
        """End everything."""
        for job in [*self._active, *self.line]:
            if job.phase == "queued":
                self.line.remove(job)
            self._fail(job, error)

    # --- in and out

    def _sweep(self) -> None:
        for job in self.line:
            if job.ticket.is_cancelled:
                self.line.remove(job)
                self._fail(job, Cancelled(f"request {job.ticket.id} was cancelled"))
        for job in list(self._active):
            if job.ticket.full_s > self._stall_s:
                self._fail(job, Cancelled(f"request {job.ticket.id}: nobody took its events"))
            elif job.ticket.is_cancelled:
                self._cancel(job)

    def _is_held(self, job: Job) -> bool:
        """Another is reading what this one begins with, and will leave a point: then it need not be read twice."""
        if not self.cache.is_on or job.ready.reads_all:
            return False
        owner, ids = job.request.owner, job.ready.ids
        best = 0
        for other in self._active:
            if other.phase != "prefilling" or other.request.owner != owner or other.alone:
                continue
            shared = common_length(other.ready.ids, ids)
            best = max([best, *(p for p in other.ready.points if other.position < p <= shared)])
        if not best:
            return False
        point = self.cache.find(owner, ids)
        have = 0 if point is None else point.position
        return best - have >= min(_WORTH_KEEPING, len(ids) - 1)

    def _begin(self, job: Job) -> None:
        ready = job.ready
        self._active.append(job)
        job.begun = job.last = time.monotonic()
        job.phase = "prefilling"
        try:
            if not ready.samples and not ready.reads_all:
                self._start(job, 0)
                self._finish(job)
                return
            point = None if ready.reads_all else self.cache.find(job.request.owner, ready.ids)
            state = self._loaded.network.new_state(ready.capacity)
            if point is not None:
                point.resume(state, self._loaded.backend)
            wanted = self._responder.wanted(ready.settings)
            if job.request.ignore_eos:
                wanted = replace(wanted, stop_ids=frozenset())
            job.lane = Lane(self._loaded, ready.ids, wanted, state, ready.random)
            self._note_shared(job)
            self._start(job, state.position)
            if point is not None and not job.lane.pending:
                assert point.logits is not None, "what a whole prompt goes on from"
                self._sample(job, job.lane.take(point.logits))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this job's alone
            self._fail(job, error)

    def _start(self, job: Job, cached: int) -> None:
        ready = job.ready
        job.cached = cached
        self.tally.prompt_tokens += len(ready.ids)
        self.tally.cached_tokens += cached
        self.cache.note(cached)
        job.ticket.put(Started(len(ready.ids), cached))
        if ready.echo is not None and not ready.reads_all:
            job.ticket.put(Echoed(ready.echo, ready.ids, ()))

    def _note_shared(self, job: Job) -> None:
        """Where a prompt parts from one that was read before, others will part too: that is worth a point."""
        ready = job.ready
        if ready.reads_all or not self.cache.is_on:
            return
        shared = self.cache.shared(job.request.owner, ready.ids)
        far = all(abs(shared - p) >= _WORTH_KEEPING for p in (0, job.position, *ready.points))
        if far and shared > job.position:
            points = tuple(sorted({*ready.points, shared}))
            job.prepared = replace(ready, points=points)

    # --- a step

    def _parts(self) -> list[_Part]:
        """Who takes part in the next step, and with what."""
        alone = [job for job in self._active if job.alone]
        self._odd = not self._odd
        if alone and (self._odd or len(alone) == len(self._active)):
            room = self.pace.tokens(in_company=len(self._active) > 1)
            return [self._reading(alone[0], room)]
        parts = [
            _Part(job, 1, list(job.running.pending), job.position, reads=False)
            for job in self._active
            if job.phase == "decoding" and not job.ticket.full_s
        ]
        room = self.pace.tokens(in_company=len(self._active) + len(self.line) > 1)
        room = min(room, max(1, self._loaded.chunk_rows - sum(part.rows for part in parts)))
        for job in self._active:
            if job.phase == "prefilling" and not job.alone and room > 0:
                part = self._reading(job, room)
                parts.append(part)
                room -= part.rows
        return parts

    @staticmethod
    def _reading(job: Job, room: int) -> _Part:
        """The next chunk of a prompt: as few as need be, of nearly equal length."""
        count = job.until()
        rows = -(-count // -(-count // room))
        return _Part(job, rows, list(job.running.pending), job.position, reads=True)

    def _step(self, parts: list[_Part]) -> None:
        jobs, stepper = [part.job for part in parts], self._stepper

        def check() -> None:
            if self._is_stopping() or all(job.ticket.is_cancelled for job in jobs):
                raise Cancelled("nobody waits for this step")

        begun = time.perf_counter()
        try:
            with self._responder.lock:
                self._responder.check_open()
                found = stepper.step(
                    [job.running for job in jobs], [part.rows for part in parts], check
                )
        except Exception as error:  # noqa: BLE001 - whatever it is, somebody must be told
            self._broken(parts, error)
            return
        self._note(parts, time.perf_counter() - begun)
        row = 0
        for i, (part, steps) in enumerate(zip(parts, found, strict=True)):
            try:
                self._stepped(part, row, stepper.shares[i], steps)
            except Exception as error:  # noqa: BLE001 - the others have what they need
                self._fail(part.job, error)
            row += stepper.rows[i]

    def _stepped(
        self, part: _Part, row: int, share: NDArray[np.float32] | None, steps: Iterator[Step]
    ) -> None:
        """A job's rows have been run, the first as `row` of the step; `share` are logits if it samples now."""
        job = part.job
        if part.reads:
            if job.ready.reads_all and len(job.prompt_logprobs) < len(job.ready.ids):
                self._read(part, self._stepper.wide, row)
            self._active.remove(job)
            self._active.append(job)
            if job.position in job.ready.points:
                self.cache.store(job.request.owner, job.running.state, share)
            if share is None:
                return
        if job.ready.samples:
            self._sample(job, steps)
        else:
            self._finish(job)

    def _read(self, part: _Part, wide: Any, row: int) -> None:
        """How likely each token of a prompt was, a few rows at a time."""
        job, network, backend = part.job, self._loaded.network, self._loaded.backend
        ids, top = job.ready.ids, job.ready.settings.top_logprobs
        assert top is not None
        found = job.prompt_logprobs or [None]
        last = min(part.position + part.rows, len(ids) - 1)  # what follows the last is sampled
        few = max(1, _LOGITS_BYTES // (4 * self._vocab))
        for first in range(part.position, last, few):
            some = range(first, min(first + few, last))
            picked = [row + position - part.position for position in some]
            hosted = backend.host(network.logits(wide, picked))
            found += [
                logprobs(values, ids[position + 1], top, backend=backend.name)
                for values, position in zip(hosted, some, strict=True)
            ]
        job.prompt_logprobs = found
        if last == len(ids) - 1:
            assert job.ready.echo is not None
            job.ticket.put(Echoed(job.ready.echo, ids, tuple(found)))

    def _sample(self, job: Job, steps: Iterator[Step]) -> None:
        """Tokens come of a step, and events of tokens."""
        job.phase, job.alone = "decoding", False
        lane, answer = job.running, job.ready.answer
        for step in steps:
            self.tally.output_tokens += 1
            job.take(step)
            if answer.is_over:
                break
        if lane.is_over or answer.is_over:
            self._finish(job)
        elif job.said_bytes > self._most_said_bytes:
            self._finish(job, "length")

    def _note(self, parts: Sequence[_Part], seconds: float) -> None:
        read = sum(part.rows for part in parts if part.reads)
        if read:
            self.tally.prefill_chunks += 1
            self.tally.prefill_s += seconds
            if len(self._active) + len(self.line) > 1:
                self.pace.note(read, seconds)
        else:
            self.tally.decode_steps += 1
            self.tally.decode_s += seconds
        self.tally.decode_rows += sum(part.rows for part in parts if not part.reads)

    # --- ends

    def _broken(self, parts: list[_Part], error: Exception) -> None:
        """A step has failed. Alone, a job has itself to blame; else each reads its tokens again, by itself."""
        for part in parts:
            job = part.job
            if job.ticket.is_cancelled:
                self._cancel(job, keeps=False)
            elif len(parts) == 1 or self._is_stopping():
                self._fail(job, error)
            else:
                try:
                    self._reread(part)
                except Exception as another:  # noqa: BLE001 - as for any step
                    self._fail(job, another)

    def _reread(self, part: _Part) -> None:
        job, lane = part.job, part.job.running
        tokens = [*lane.state.tokens[: part.position], *part.pending]
        state = self._state(job, tokens)
        lane.restart(state, tokens[state.position :])
        job.phase, job.alone = "prefilling", True
        self.tally.rebuilt += 1

    def _state(self, job: Job, tokens: list[int]) -> State[Any]:
        """The longest state that there is of a sequence, but for its last token."""
        state = self._loaded.network.new_state(job.ready.capacity)
        reads_all = job.ready.reads_all and len(job.prompt_logprobs) < len(job.ready.ids)
        point = None if reads_all else self.cache.find(job.request.owner, tokens[:-1])
        if reads_all:
            job.prompt_logprobs = []
        if point is not None:
            point.resume(state, self._loaded.backend)
        return state

    def _finish(self, job: Job, reason: str | None = None) -> None:
        """An answer has ended, by itself or for a `reason`: it counts, unless its caller was quicker."""
        events, reply = job.ended(reason)
        ready, turn = job.ready, job.turn
        if turn is not None:
            assert ready.record is not None
            record = ready.record.after(ready.said, reply, ready.random)
            self._sessions.reserve(turn, record)
            if not job.ticket.complete():
                self._cancel(job)
                return
            self._sessions.commit(turn, record)
        elif not job.ticket.complete():
            self._cancel(job)
            return
        self._leave(job)
        self.tally.completed += 1
        job.say(events, reply)
        if ready.keeps_answer and job.lane is not None:
            self.cache.store(job.request.owner, job.running.state)

    def _cancel(self, job: Job, *, keeps: bool = True) -> None:
        """The caller wants no more: what there is of the answer is the answer."""
        self._leave(job)
        self.tally.cancelled += 1
        try:
            if keeps and job.phase == "prefilling" and job.position >= job.cached + _WORTH_KEEPING:
                self.cache.store(job.request.owner, job.running.state)
            job.say(*job.ended("cancelled"))
        except Exception as error:  # noqa: BLE001 - it is over all the same
            job.ticket.fail(in_our_words(error))

    def _fail(self, job: Job, error: BaseException) -> None:
        self._leave(job)
        if isinstance(error, Cancelled):
            self.tally.cancelled += 1
        else:
            self.tally.failed += 1
        job.ticket.fail(in_our_words(error))

    def _leave(self, job: Job) -> None:
        """What a job takes is free: before its caller hears that it is over, and may ask for more."""
        if job in self._active:
            self._active.remove(job)
        self._on_end(job)
