"""`Session`: a conversation that goes on, and is read once.

A turn happens as a whole or not at all. What a session is lies in one value (`Record`) that the end of a turn replaces;
until then an error, a cancellation or a caller who goes away leaves it as it was, the model's memory of it included.
"""

from __future__ import annotations

import copy
import threading
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, Self

from typing_extensions import override

from cherenkov.chat.kept import Kept
from cherenkov.chat.prompting import certain_length, checked_said, fitting
from cherenkov.chat.record import Record, checked_system, read_record, write_record
from cherenkov.chat.replies import Finished, reply_of
from cherenkov.errors import Cancelled, RequestError
from cherenkov.prefill import advance
from cherenkov.text.tool_schema import ToolSet

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np
    from typing_extensions import Unpack

    from cherenkov.chat.options import ChatOptions, Settings
    from cherenkov.chat.replies import Event, Reply, Usage
    from cherenkov.chat.responder import Prompt, Responder
    from cherenkov.lane import Step
    from cherenkov.state import State

    Said = str | Mapping[str, Any] | Sequence[Mapping[str, Any]]

__all__ = ["Session"]


class _Model(Protocol):
    @property
    def responder(self) -> Responder: ...


class Session:
    """A conversation with a model. Make one with `Model.session`.

    One turn at a time: while an answer is being made, another thread may `cancel` it or look at `history`, and is refused
    anything else. Once the model is closed it can be looked at and saved, and refuses all else.
    """

    def __init__(
        self,
        responder: Responder,
        *,
        settings: Settings,
        system: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        overflow: str = "error",
    ) -> None:
        """Use `Model.session`."""
        responder.check_open()
        self._begin_with(
            responder,
            Record.begin(system=system, tools=tools, settings=settings, overflow=overflow),
        )

    def _begin_with(self, responder: Responder, record: Record) -> None:
        self._responder = responder
        self._record = record
        self._kept = Kept(responder.loaded)
        self._busy = threading.Lock()
        self._cancelled = threading.Event()

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: _Model) -> Self:
        """Go on with a conversation that `save` wrote. The next turn reads it again, all of it.

        Args:
            path: of the file.
            model: the model that it was held with.

        Raises:
            CorruptModel: the file is missing or damaged.
            UnsupportedModel: a later release wrote it, or it belongs to another store.
            DiskError: the system refused to read it.
        """
        responder = model.responder
        responder.check_open()
        session = cls.__new__(cls)
        session._begin_with(responder, read_record(path, responder.fingerprint))
        return session

    # --- what it is

    @property
    def history(self) -> list[dict[str, Any]]:
        """All messages so far, the system message first; yours to change."""
        record = self._record
        return copy.deepcopy([*record.opening, *record.messages])

    @property
    def system(self) -> str | None:
        """The system message. Set it to have the model read everything anew under another one."""
        return self._record.system

    @system.setter
    def system(self, text: str | None) -> None:
        checked = checked_system(text)
        with self._claimed():
            self._record = replace(self._record, system=checked)

    @property
    def tools(self) -> list[Mapping[str, Any]]:
        """The functions that the model may call."""
        return copy.deepcopy(self._record.tools.definitions)

    @property
    def settings(self) -> Settings:
        """How answers are made."""
        return self._record.settings

    @property
    def usage(self) -> Usage:
        """What all turns took together."""
        return self._record.usage

    @property
    def forgotten(self) -> int:
        """How many of the oldest messages, not counting the system message, trimming keeps from the model."""
        return self._record.first

    @property
    def cached_tokens(self) -> int:
        """Tokens that the model has read, and need not read again."""
        return self._kept.tokens

    @override
    def __repr__(self) -> str:
        return f"<Session of {len(self._record.messages)} messages>"

    # --- turns

    def send(
        self,
        message: Said,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **options: Unpack[ChatOptions],
    ) -> Reply:
        """Say something, and take the answer.

        Args:
            message: what the user says; or a message; or several, such as the results of tools.
            tools: functions that the model may call from now on; None leaves them as they are.
            options: see `ChatOptions`; they hold from now on. A `seed` begins the random numbers anew.

        Raises:
            RequestError: something makes no sense, or the session is busy; `param` says what.
            ContextTooLong: the conversation and its answer do not fit the context.
            Cancelled: another thread called `cancel`.
            TemplateError: the template failed, or refused the messages.
            DiskError, CorruptModel: an expert could not be read.
        """
        return reply_of(self.stream(message, tools=tools, **options))

    def stream(
        self,
        message: Said,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **options: Unpack[ChatOptions],
    ) -> Iterator[Event]:
        """Say something, and take the answer piece by piece.

        Arguments and errors are those of `send`. The turn counts once `Finished` comes; whoever leaves before takes it back.
        """
        self._responder.check_open()
        said = checked_said(message)
        self._record.settings.updated(options)  # refused now, not at the first piece
        offered = None if tools is None else ToolSet(tools)
        return self._turn(said, offered, dict(options))

    def cancel(self) -> None:
        """End the answer that another thread is waiting for, as soon as the step is done. Without one, nothing happens."""
        if self._busy.locked():
            self._cancelled.set()

    def reset(self) -> None:
        """Forget all messages, and what they took. The settings stay."""
        self._responder.check_open()
        with self._claimed():
            record = self._record
            self._kept = Kept(self._responder.loaded)
            self._record = Record(
                record.system, record.tools, record.settings, record.random, record.overflow
            )

    def fork(self) -> Self:
        """The same conversation, to go on apart: with the same words it gives the same answers, bit for bit."""
        self._responder.check_open()
        with self._claimed():
            other = type(self).__new__(type(self))
            other._begin_with(self._responder, self._record)
            with self._responder.lock:
                other._kept = self._kept.copy()
            return other

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the conversation to a file, in one step. The model's memory of it is not written.

        Raises:
            DiskError: if it cannot be written.
            RequestError: if the session is busy.
        """
        with self._claimed():
            write_record(path, self._record, self._responder.fingerprint)

    # --- how a turn goes

    def _turn(
        self, said: list[dict[str, Any]], tools: ToolSet | None, options: Mapping[str, Any]
    ) -> Iterator[Event]:
        self._claimed().take()
        try:  # not `with`: an interrupt could come between its end and the release
            before = self._record
            settings = before.settings.updated(options)
            record = replace(
                before, settings=settings, tools=before.tools if tools is None else tools
            )
            record, prompt = fitting(self._responder, record, said)
            random = record.numbers(options)
            with self._responder.lock:
                self._check()
                state = self._kept.begin(prompt.ids)
            try:
                certain = certain_length(self._responder, record, said, prompt)
                steps = self._steps(prompt, certain, state, settings, random)
                events = self._responder.events(
                    steps, prompt, record.tools, settings, state.position
                )
                with closing(events):
                    for event in events:
                        if isinstance(event, Finished):
                            self._commit(record, said, event.reply, random)
                        yield event
            finally:
                with self._responder.lock:
                    self._kept.undo()  # does nothing after a commit
        finally:
            self._busy.release()

    def _commit(
        self,
        record: Record,
        said: list[dict[str, Any]],
        reply: Reply,
        random: np.random.Generator,
    ) -> None:
        """End the turn: everything that it changes, in one assignment."""
        self._check()
        after = record.after(said, reply, random)
        self._kept.settle()
        self._record = after

    def _steps(
        self,
        prompt: Prompt,
        certain: int,
        state: State[Any],
        settings: Settings,
        random: np.random.Generator,
    ) -> Iterator[Step]:
        """The steps of a turn, leaving a mark after the first `certain` tokens of the prompt."""
        loaded = self._responder.loaded
        if state.position < certain < len(prompt.ids):
            tokens = prompt.ids[state.position : certain]
            advance(
                loaded.network, state, tokens, loaded.chunk_rows, self._check, loaded.speculation
            )
            self._kept.mark()
        steps = self._responder.steps(
            prompt, settings, check=self._check, state=state, random=random
        )
        for count, step in enumerate(steps):
            if count == 0 and certain == len(prompt.ids):
                self._kept.mark()
            yield step

    def _check(self) -> None:
        self._responder.check_open()
        if self._cancelled.is_set():
            raise Cancelled("the answer was cancelled")

    def _claimed(self) -> _Claim:
        return _Claim(self._busy, self._cancelled)


class _Claim:
    """The right to change a session, or a refusal."""

    def __init__(self, busy: threading.Lock, cancelled: threading.Event) -> None:
        self._busy = busy
        self._cancelled = cancelled

    def __enter__(self) -> None:
        self.take()

    def take(self) -> None:
        """Claim it; whoever does releases the lock.

        Raises:
            RequestError: another has it.
        """
        if not self._busy.acquire(blocking=False):
            raise RequestError(
                "the session is busy with an answer: wait for it, cancel it, or fork before",
                code="busy",
            )
        self._cancelled.clear()

    def __exit__(self, *_: object) -> None:
        self._busy.release()
