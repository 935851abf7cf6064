"""`Engine`: one thread that owns a model, for many callers.

Requests go in, events come out. Answers under way share each step of the model as its rows, and each says what it would
say alone, bit for bit. See `docs/engine.md` for how a request travels.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections import deque
from typing import TYPE_CHECKING, Any, Self

from cherenkov.chat.options import Settings
from cherenkov.chat.record import Record
from cherenkov.errors import Cancelled, CapacityError, CherenkovError, RequestError
from cherenkov.prefix_cache import PrefixCache
from cherenkov.prefix_files import FileCounts, PrefixFiles
from cherenkov.serving.batch import Batch, Tally
from cherenkov.serving.figures import Metrics, PrefixFigures, RequestStatus, SessionInfo
from cherenkov.serving.job import Job, in_our_words
from cherenkov.serving.line import Line
from cherenkov.serving.pacing import Pace
from cherenkov.serving.preparing import Preparer
from cherenkov.serving.requests import (
    Accepted,
    ChatRequest,
    CompletionRequest,
    Echoed,
    Limits,
    Logprobs,
    Request,
    Started,
    TurnRequest,
)
from cherenkov.serving.sessions import Sessions
from cherenkov.serving.ticket import Ticket
from cherenkov.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from typing_extensions import Unpack

    from cherenkov.chat.options import ChatOptions
    from cherenkov.model import Model

__all__ = [
    "Accepted",
    "ChatRequest",
    "CompletionRequest",
    "Echoed",
    "Engine",
    "Limits",
    "Logprobs",
    "Metrics",
    "PrefixFigures",
    "Request",
    "RequestStatus",
    "SessionInfo",
    "Started",
    "Ticket",
    "TurnRequest",
]


_REQUEST_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")
_IDLE_S = 1.0
"""How often an idle engine looks for what has become too old."""
_LOADING_S = 5.0
_DRAINING_S = 30.0
_MOST_RETRY_S = 60.0


class Engine:
    """Answers many callers with one model. Threads start with the first request, or with `start`; `close` joins them.

    All methods may be called from any thread, and but for `wait_ready`, `drain` and `close` none of them waits for the
    model.
    """

    def __init__(self, model: Model | Callable[[], Model], limits: Limits | None = None) -> None:
        """Take a model, or what makes one: that is called in the engine's thread, and its model closed with the engine."""
        if not callable(model) and not hasattr(model, "responder"):
            reason = "must be a Model, or a function that loads one"
            raise RequestError(f"model = {model!r:.60}: {reason}", param="model")
        self._limits = limits or Limits()
        self._given = model
        self._changed = threading.Condition()  # guards all that follows
        self._state = "idle"
        self._error: BaseException | None = None
        self._model: Model | None = None
        self._threads: list[threading.Thread] = []
        self._jobs: dict[str, Job] = {}  # under way, the oldest first
        self._arrived: deque[Job] = deque()  # to be prepared
        self._prepared: deque[Job] = deque()  # to be queued
        self._refused = 0
        self._unprepared = Tally()  # ends that the batch does not see
        self._recent_s: deque[float] = deque(maxlen=32)  # how long answers took
        self._batch: Batch | None = None
        self._files: PrefixFiles[Any] | None = None
        self._stirred = False  # something changed since the owner looked
        limits = self._limits
        self._sessions = Sessions(
            limits.max_sessions, limits.session_history_bytes, limits.session_idle_s
        )

    # --- life

    def start(self) -> None:
        """Start the threads, and load the model if it is to be. Safe to call twice."""
        with self._changed:
            if self._state != "idle":
                return
            self._state = "loading"
            prompts = threading.Thread(target=self._prepare, name="cherenkov-prompts", daemon=True)
            owner = threading.Thread(
                target=self._own, args=[prompts], name="cherenkov-engine", daemon=True
            )
            self._threads = [owner, prompts]
            for thread in self._threads:
                thread.start()

    def wait_ready(self, timeout_s: float | None = None) -> Model:
        """Wait for the model. Raises what loading raised; TimeoutError; RequestError if the engine is closed."""
        self.start()
        with self._changed:
            if not self._changed.wait_for(
                lambda: self._model is not None or self._is_stopping(), timeout_s
            ):
                raise TimeoutError(f"the model is not loaded after {timeout_s} s")
            if self._error is not None:
                raise self._error
            if self._model is None:
                raise RequestError("the engine is closed", code="closed")
            return self._model

    @property
    def state(self) -> str:
        """`idle`, `loading`, `ready`, `draining`, `closed` or `failed`."""
        return self._state

    def drain(self, timeout_s: float | None = None) -> bool:
        """Let nobody in any more, and wait for what is under way; what is not over in time is cancelled.

        Returns:
            Whether all ended by themselves.
        """
        with self._changed:
            if self._state in {"loading", "ready"}:
                self._state = "draining"
            self._changed.notify_all()
            if self._changed.wait_for(lambda: not self._jobs, timeout_s):
                return True
            left = list(self._jobs.values())
        for job in left:
            job.ticket.cancel()
        with self._changed:
            self._changed.wait_for(lambda: not self._jobs, _IDLE_S)
        return False

    def close(self) -> None:
        """Cancel everything, join the threads. Safe to call twice."""
        with self._changed:
            if self._state != "failed":
                self._state = "closed"
            threads, self._threads = self._threads, []
            self._changed.notify_all()
        for thread in threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- requests

    def submit(self, request: Request) -> Ticket:
        """Ask for an answer.

        What can be refused at a glance is refused here, all else with the ticket's first events.

        Raises:
            RequestError: with `code`: `duplicate_request_id` (409), `session_not_found` (404), `busy` (409: a turn of the
                session is under way), others 400.
            CapacityError: the queue is full, or the engine is loading or draining: `retry_after_s` says when to try again,
                `engine.state` which of these it is.
        """
        self.start()
        name = request.request_id or uuid.uuid4().hex
        if not isinstance(name, str) or not _REQUEST_ID.fullmatch(name):
            raise RequestError(
                f"request_id = {name!r:.100}: must be 1 to 80 of A-Z a-z 0-9 _ -",
                param="request_id",
            )
        session = request.session_id if isinstance(request, TurnRequest) else None
        ticket = Ticket(name, session, most_unread=self._limits.unread_events, on_change=self._wake)
        with self._changed:
            self._admit(name)
            turn = None if session is None else self._sessions.claim(session, request.owner, ticket)
            job = Job(ticket, request, turn)
            self._jobs[name] = job
            self._arrived.append(job)
            self._changed.notify_all()
        return ticket

    def cancel(self, request_id: str, owner: str | None = None) -> bool:
        """End a request as soon as the step is done. False if there is none, or none of this owner's."""
        with self._changed:
            job = self._jobs.get(request_id)
        if job is None or owner not in {None, job.request.owner}:
            return False
        return job.ticket.cancel()

    def requests(self, owner: str | None = None) -> list[RequestStatus]:
        """Requests under way, the oldest first; of one owner, or of all."""
        with self._changed:
            jobs = list(self._jobs.values())
        return [job.status() for job in jobs if owner in {None, job.request.owner}]

    def metrics(self) -> Metrics:
        """Figures."""
        with self._changed:
            jobs = list(self._jobs.values())
            batch, own, state, refused = self._batch, self._unprepared, self._state, self._refused
        sessions, session_bytes = self._sessions.figures()
        tally = Tally() if batch is None else batch.tally
        active = [job for job in jobs if job.phase in {"prefilling", "decoding"}]
        return Metrics(
            state=state,
            preparing=sum(job.phase == "preparing" for job in jobs),
            queued=sum(job.phase == "queued" for job in jobs),
            active=len(active),
            completed=tally.completed,
            cancelled=tally.cancelled + own.cancelled,
            failed=tally.failed + own.failed,
            refused=refused,
            prompt_tokens=tally.prompt_tokens,
            cached_tokens=tally.cached_tokens,
            output_tokens=tally.output_tokens,
            prefill_s=tally.prefill_s,
            decode_s=tally.decode_s,
            prefill_chunks=tally.prefill_chunks,
            decode_steps=tally.decode_steps,
            decode_rows=tally.decode_rows,
            rebuilt=tally.rebuilt,
            chunk_tokens=0 if batch is None else batch.pace.tokens(in_company=len(jobs) > 1),
            state_bytes=sum(job.ready.size_bytes for job in active),
            state_limit_bytes=0 if batch is None else batch.line.limit_bytes,
            sessions=sessions,
            session_bytes=session_bytes,
            prefix=PrefixFigures() if batch is None else _figures(batch.cache, self._files),
        )

    # --- sessions

    def open_session(
        self,
        *,
        owner: str = "",
        system: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        overflow: str = "error",
        **options: Unpack[ChatOptions],
    ) -> SessionInfo:
        """Begin a session. Arguments as for `Model.session`.

        Raises:
            RequestError: something makes no sense; `param` says what.
            CapacityError: every session that there may be is busy.
        """
        settings = Settings().updated(options)
        record = Record.begin(system=system, tools=tools, settings=settings, overflow=overflow)
        return self._sessions.open(owner, record)

    def session(self, session_id: str, owner: str = "") -> SessionInfo:
        """A session. Raises RequestError with code `session_not_found`."""
        return self._sessions.info(session_id, owner)

    def close_session(self, session_id: str, owner: str = "") -> None:
        """Forget a session; a turn under way is cancelled. Raises RequestError with code `session_not_found`."""
        self._sessions.close(session_id, owner)

    # --- inside

    def _wake(self) -> None:
        with self._changed:
            self._stirred = True
            self._changed.notify_all()

    def _admit(self, name: str) -> None:
        """Let a request in, or refuse it. Hold the lock."""
        if self._error is not None:
            raise self._error
        if self._state == "closed":
            raise RequestError("the engine is closed", code="closed")
        if name in self._jobs:
            raise RequestError(
                f"request {name} is under way: choose another request_id",
                param="request_id",
                code="duplicate_request_id",
            )
        if self._state == "draining":
            self._refused += 1
            raise CapacityError("the engine is shutting down", retry_after_s=_DRAINING_S)
        if self._state == "loading" and callable(self._given):
            self._refused += 1
            raise CapacityError("the model is being loaded", retry_after_s=_LOADING_S)
        limits = self._limits
        if len(self._jobs) >= limits.max_batch + limits.queue_depth:
            self._refused += 1
            raise CapacityError(
                f"{len(self._jobs)} requests are under way or waiting, and no more may",
                retry_after_s=self._retry_s(),
            )

    def _retry_s(self) -> float:
        """When the queue will likely have room: after as long as an answer took of late."""
        recent = self._recent_s
        usual = sum(recent) / len(recent) if recent else 1.0
        return min(_MOST_RETRY_S, max(1.0, usual / self._limits.max_batch))

    def _prepare(self) -> None:
        """The thread that makes requests ready."""
        try:
            model = self.wait_ready()
        except (CherenkovError, OSError, MemoryError):
            return  # the owner says so to everyone
        assert self._batch is not None
        keeps = self._batch.cache.is_on
        preparer = Preparer(model, self._batch.line.limit_bytes, keeps=keeps)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._arrived or self._is_stopping())
                if self._is_stopping():
                    return
                job = self._arrived.popleft()
            try:
                job.prepared = preparer.prepare(job)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is this request's alone
                self._end_unprepared(job, error)
                continue
            job.ticket.put(Accepted(len(job.prepared.ids)))
            job.phase = "queued"
            with self._changed:
                self._prepared.append(job)
                self._changed.notify_all()

    def _own(self, prompts: threading.Thread) -> None:
        """The thread that owns the model; `prompts` makes requests ready for it."""
        made: Model | None = None
        try:
            try:
                model = self._given() if callable(self._given) else self._given
                made = model if callable(self._given) else None
                batch = self._batch_of(model)
            except BaseException as error:  # noqa: BLE001 - told to whoever asks
                self._give_up(error)
                return
            with self._changed:
                self._model, self._batch = model, batch
                if self._state == "loading":
                    self._state = "ready"
                self._changed.notify_all()
            end: BaseException = Cancelled("the engine is closed")
            try:
                self._run(batch)
            except BaseException as error:  # noqa: BLE001 - else whoever waits would wait for ever
                end = in_our_words(error)
                with self._changed:
                    self._state, self._error = "failed", end
                    self._changed.notify_all()
            prompts.join()
            self._end_all(batch, end)
        finally:
            if made is not None:
                made.close()

    def _run(self, batch: Batch) -> None:
        busy = False
        while not self._is_stopping():
            with self._changed:
                if not busy and not self._prepared and not self._stirred:
                    self._changed.wait(_IDLE_S)
                self._stirred = False
                while self._prepared:
                    batch.line.add(self._prepared.popleft())
            try:
                busy = batch.turn()
                if not busy:
                    batch.cache.sweep()
            except Exception as error:  # noqa: BLE001 - nobody knows whose it is, and others will come
                busy = False
                batch.fail_all(error)

    def _end_all(self, batch: Batch, error: BaseException) -> None:
        """The engine is closed: whatever is under way ends, wherever it is."""
        batch.fail_all(error)
        with self._changed:
            left = list(self._jobs.values())
        for job in left:
            self._end_unprepared(job, error)
        if self._files is not None:
            for point in batch.cache.points():
                self._files.put(point, wait=True)
            self._files.close()
        batch.cache.clear()

    def _batch_of(self, model: Model) -> Batch:
        limits, loaded = self._limits, model.responder.loaded
        bytes_ = limits.active_state_bytes or limits.max_batch * model.sequence_bytes(
            loaded.context_tokens
        )
        quantum = min(limits.prefill_quantum or loaded.chunk_rows, loaded.chunk_rows)
        if limits.prefix_cache_dir is not None and limits.prefix_cache_bytes:
            self._files = PrefixFiles(
                limits.prefix_cache_dir,
                limits.prefix_cache_disk_bytes,
                f"{model.responder.fingerprint} {__version__} {model.backend_name} "
                f"{model.experts.approximations}",
                loaded.backend,
                loaded.network.new_state(1),
            )
        cache: PrefixCache[Any] = PrefixCache(
            loaded.backend,
            limit_bytes=limits.prefix_cache_bytes,
            limit_points=limits.prefix_cache_entries,
            idle_s=limits.prefix_cache_idle_s,
            elsewhere=self._files,
        )
        return Batch(
            model.responder,
            Line(limits.max_batch, bytes_, limits.patience_s),
            Pace(quantum, limits.prefill_chunk_s),
            cache,
            self._sessions,
            vocab=model.vocab,
            stall_s=limits.stall_s,
            most_said_bytes=limits.response_bytes,
            is_stopping=self._is_stopping,
            on_end=self._ended,
        )

    def _is_stopping(self) -> bool:
        return self._state in {"closed", "failed"}

    def _give_up(self, error: BaseException) -> None:
        """The model cannot be had."""
        with self._changed:
            self._state, self._error = "failed", error
            left = list(self._jobs.values())
            self._changed.notify_all()
        for job in left:
            self._end_unprepared(job, error)

    def _end_unprepared(self, job: Job, error: BaseException) -> None:
        if isinstance(error, Cancelled):
            self._unprepared.cancelled += 1
        else:
            self._unprepared.failed += 1
        self._ended(job)
        job.ticket.fail(in_our_words(error))

    def _ended(self, job: Job) -> None:
        """A request is over: nothing of it stays."""
        if job.turn is not None:
            self._sessions.release(job.turn)
        with self._changed:
            if self._jobs.get(job.ticket.id) is job:
                del self._jobs[job.ticket.id]
                if job.begun:
                    self._recent_s.append(time.monotonic() - job.begun)
            self._changed.notify_all()


def _figures(cache: PrefixCache[Any], files: PrefixFiles[Any] | None) -> PrefixFigures:
    counts = cache.counts
    disk = FileCounts() if files is None else files.counts
    return PrefixFigures(
        disk_entries=0 if files is None else len(files),
        disk_bytes=0 if files is None else files.size_bytes,
        spilled=disk.spilled,
        loaded=disk.loaded,
        damaged=disk.damaged,
        unwritten=disk.unwritten,
        entries=len(cache),
        bytes=cache.size_bytes,
        hits=counts.hits,
        misses=counts.misses,
        hit_tokens=counts.hit_tokens,
        stored=counts.stored,
        evictions=counts.evictions,
    )
