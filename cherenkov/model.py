"""`Model`: a store, opened on a backend, ready to answer."""

from __future__ import annotations

import itertools
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Self

from typing_extensions import override

from cherenkov.assembly import Guessing, Streaming, describe, loaded_of, open_experts, text_folder
from cherenkov.backends import create
from cherenkov.backends.base import Backend, Options
from cherenkov.budget import available_memory, demand_of, make_plan, memory_of, within
from cherenkov.chat.options import Settings, sampled
from cherenkov.chat.replies import Reply, Run, reply_of
from cherenkov.chat.responder import Responder, Stopwatch
from cherenkov.chat.session import Session
from cherenkov.comparison import Difference, admit_reference, differences
from cherenkov.config import load_settings
from cherenkov.errors import RequestError
from cherenkov.events import Listener, ignore
from cherenkov.experts.report import Drafts, Report, report_of
from cherenkov.generate import generate
from cherenkov.lane import Wanted, admit
from cherenkov.packing.lowbit import at_precision
from cherenkov.packing.store import PackedStore
from cherenkov.preparation import locate
from cherenkov.ranges import check_real
from cherenkov.reading import Reader
from cherenkov.sampling import Sampling
from cherenkov.text.reasoning import OPEN, opens_reasoning
from cherenkov.text.stops import StopStrings
from cherenkov.text.tokenizer import Tokenizer
from cherenkov.text.tool_schema import ToolSet
from cherenkov.units import MIB

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Unpack

    from cherenkov.budget import Plan
    from cherenkov.chat.options import ChatOptions, SamplingOptions
    from cherenkov.chat.replies import Event
    from cherenkov.config import ModelOptions
    from cherenkov.config import Settings as Configuration
    from cherenkov.lane import Step
    from cherenkov.text.stops import StopMatcher

__all__ = ["Model", "Run"]

GREEDY = Sampling()
_TAIL_TOKENS = 8


class Model:
    """A model that answers. Make one with `Model.load`; use it in a `with` block, or call `close`.

    Several threads may call it; their steps take turns.

    Attributes:
        path: the store.
        plan: how memory is used.
        experts: the expert store.
    """

    def __init__(
        self,
        store: PackedStore,
        backend: Backend[Any, Any],
        *,
        plan: Plan,
        streaming: Streaming | None = None,
        guessing: Guessing | None = None,
    ) -> None:
        self.path = store.path
        self.plan = plan
        self._store = store
        self._backend = backend
        self._streaming = streaming or Streaming()
        folder = text_folder(store)
        self._tokenizer = Tokenizer.open(folder)
        self._demand = demand_of(store.config, store.manifest, backend)
        self._sizes = self._demand.sizes
        self._backend_name = describe(backend)
        self.experts = open_experts(store, backend, plan.slots, self._streaming)
        try:
            self._loaded = loaded_of(store, backend, self.experts, plan, guessing)
        except BaseException:
            self.experts.close()
            raise
        self._responder = Responder(
            self._loaded,
            self._tokenizer,
            folder,
            stop_ids=self._tokenizer.stop_ids | set(self._sizes.stop_ids),
            experts=self.experts,
            fingerprint=store.fingerprint,
        )
        self._reader = Reader(self._responder, self._sizes.vocab)

    @classmethod
    def load(
        cls,
        selector: str | os.PathLike[str] = "demo",
        *,
        on_event: Listener = ignore,
        **options: Unpack[ModelOptions],
    ) -> Self:
        """Open a model, preparing it first if need be.

        Args:
            selector: `"demo"`, or the folder of a store or of a checkpoint. A checkpoint is prepared into the data
                directory, once.
            on_event: told of progress and choices.
            options: see `ModelOptions`. What is left out, None or empty comes from the settings.

        Raises:
            ConfigError: an option makes no sense.
            ModelError: the model cannot be found, is damaged, or is of an unknown kind.
            CapacityError: it does not fit in memory; says what would.
            BackendError: the backend cannot run here.
            DiskError: the system refused to read or write.
        """
        if not callable(on_event):
            raise RequestError(f"on_event = {on_event!r:.80}: must be a function", param="on_event")
        given = {key: value for key, value in options.items() if value not in (None, "")}
        settings = load_settings(**given)
        path = locate(selector, on_event, settings.data_dir)
        store = at_precision(PackedStore.open(path), settings.experts)
        return cls._open(store, settings, Streaming.of(store, settings, on_event), on_event)

    @classmethod
    def _open(
        cls,
        store: PackedStore,
        settings: Configuration,
        streaming: Streaming,
        on_event: Listener,
    ) -> Self:
        options = Options(settings.threads, settings.precision, settings.isa)
        made = create(settings.backend, options, on_event)
        try:
            plan = make_plan(
                demand_of(store.config, store.manifest, made),
                within(memory_of(made, available_memory()), settings.memory_gb),
                context_tokens=settings.context_tokens,
                pool=settings.pool,
                sequences=settings.sequences,
                prefix_bytes=settings.prefix_cache_mib * MIB,
            )
            guessing = Guessing(settings.speculate, settings.drafts)
            return cls(store, made, plan=plan, streaming=streaming, guessing=guessing)
        except BaseException:
            made.close()
            raise

    @property
    def backend_name(self) -> str:
        """The backend that was taken, and what it chose."""
        return self._backend_name

    @property
    def last_run(self) -> Run | None:
        """Figures of the last answer, or None."""
        return self._responder.last_run

    @property
    def tokenizer(self) -> Tokenizer:
        """Text to token ids and back."""
        return self._tokenizer

    @property
    def vocab(self) -> int:
        """Entries of a row of logits."""
        return self._sizes.vocab

    def sequence_bytes(self, tokens: int) -> int:
        """Memory of an answer under way that may grow to so many tokens, its prompt included."""
        return self._demand.sequence_bytes(tokens)

    def generate(
        self,
        prompt: str,
        *,
        max_tokens: int | None = None,
        sampling: Sampling = GREEDY,
        system: str | None = None,
        thinking: bool = False,
        raw: bool = False,
        ignore_eos: bool = False,
        stop: str | Sequence[str] | None = None,
        **options: Unpack[SamplingOptions],
    ) -> str:
        """Answer a prompt.

        Args:
            prompt: what the user says; with `raw`, text to continue as it is.
            max_tokens: most tokens to answer with; None goes on until the model stops or the context is full.
            sampling: how to choose them; greedy by default.
            system: system message.
            thinking: let the model think first, if its template knows how.
            raw: do not apply the chat template; spellings of control tokens are control tokens.
            ignore_eos: go on to `max_tokens`, whatever the model says.
            stop: a string, or at most 32, before which the answer ends.
            options: fields of `Sampling`, in place of those of `sampling`.

        Raises:
            RequestError: the prompt is empty, does not fit the context, or a value makes no sense.
            TemplateError: the model has no chat template, or it failed.
            DiskError, CorruptModel: an expert could not be read.
        """
        return "".join(
            self.stream(
                prompt,
                max_tokens=max_tokens,
                sampling=sampling,
                system=system,
                thinking=thinking,
                raw=raw,
                ignore_eos=ignore_eos,
                stop=stop,
                **options,
            )
        )

    def stream(
        self,
        prompt: str,
        *,
        max_tokens: int | None = None,
        sampling: Sampling = GREEDY,
        system: str | None = None,
        thinking: bool = False,
        raw: bool = False,
        ignore_eos: bool = False,
        stop: str | Sequence[str] | None = None,
        **options: Unpack[SamplingOptions],
    ) -> Iterator[str]:
        """Answer a prompt piece by piece. The pieces join to what `generate` returns; arguments are its own."""
        sampling = sampled(sampling, options)
        stops = StopStrings(stop).matcher()
        ids = self.encode_prompt(prompt, system=system, thinking=thinking, raw=raw)
        stop_ids = frozenset() if ignore_eos else self._responder.stop_ids
        steps = generate(
            self._loaded,
            ids,
            Wanted(sampling, stop_ids, max_tokens),
            check=self._responder.check_open,
        )
        turns = self._responder.taking_turns(steps)
        pieces = self._pieces(turns, len(ids), stops)
        if not raw and opens_reasoning(self._tokenizer.decode(ids[-_TAIL_TOKENS:], special=True)):
            # The prompt began the thinking; the answer should hold the whole block, not its end alone.
            return itertools.chain([f"{OPEN}\n"], pieces)
        return pieces

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **options: Unpack[ChatOptions],
    ) -> Reply:
        """Answer a conversation.

        Args:
            messages: each a mapping with a `role` (`system`, `user`, `assistant`, `tool`) and a `content`. `Reply.message`
                is the answer as one of them.
            tools: functions that the model may call, as JSON schemas.
            options: see `ChatOptions`.

        Raises:
            RequestError: messages, tools or an option make no sense; `param` says which.
            ContextTooLong: messages and answer do not fit the context.
            TemplateError: the model has no chat template, or it failed.
            DiskError, CorruptModel: an expert could not be read.
        """
        return reply_of(self.stream_chat(messages, tools=tools, **options))

    def stream_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **options: Unpack[ChatOptions],
    ) -> Iterator[Event]:
        """Answer a conversation piece by piece: text, reasoning and calls as they come, `Finished` last.

        Arguments and errors are those of `chat`; what can be refused is refused before the first piece.
        """
        settings, offered = Settings().updated(options), ToolSet(tools)
        prompt = self._responder.prompt(messages, offered, settings)
        admit(self._loaded, prompt.ids, settings.max_tokens)
        steps = self._responder.steps(prompt, settings)
        return self._responder.events(steps, prompt, offered, settings)

    def session(
        self,
        *,
        system: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        overflow: str = "error",
        **options: Unpack[ChatOptions],
    ) -> Session:
        """Begin a conversation that remembers. It reads each message once.

        Args:
            system: system message.
            tools: functions that the model may call, as JSON schemas.
            overflow: what to do when the conversation no longer fits the context: `error`, or `trim` to forget the
                oldest turns.
            options: see `ChatOptions`. A turn may change them.

        Raises:
            RequestError: something makes no sense; `param` says what.
        """
        return Session(
            self._responder,
            system=system,
            tools=tools,
            overflow=overflow,
            settings=Settings().updated(options),
        )

    def load_session(self, path: str | os.PathLike[str]) -> Session:
        """Go on with a conversation that `Session.save` wrote.

        Raises:
            CorruptModel: the file is missing or damaged.
            UnsupportedModel: a later release wrote it, or it belongs to another store.
            DiskError: the system refused to read it.
        """
        return Session.load(path, self)

    @property
    def responder(self) -> Responder:
        """What sessions answer with."""
        return self._responder

    def encode_prompt(
        self, prompt: str, *, system: str | None = None, thinking: bool = False, raw: bool = False
    ) -> list[int]:
        """Token ids of a prompt.

        With the chat template, only the template writes control tokens; what the prompt spells stays text. With
        `raw` the prompt is the caller's own, and spellings of control tokens are control tokens.

        Raises:
            RequestError: if the prompt is empty or no valid text.
            TemplateError: as `generate`.
        """
        if not isinstance(prompt, str):
            raise RequestError(
                f"the prompt is of type {type(prompt).__name__}, not text", param="prompt"
            )
        if not prompt:
            raise RequestError("the prompt is empty", param="prompt")
        if raw:
            return self._tokenizer.encode(prompt, special=True)
        if system is not None and not isinstance(system, str):
            raise RequestError(
                f"system: must be text; it is of type {type(system).__name__}", param="system"
            )
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": prompt})
        rendered = self._responder.template().render(messages, thinking=thinking)
        return self._tokenizer.encode_pieces(rendered.pieces)

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Logits of the token after each of `ids`: float32 `[T, V]`.

        Raises:
            RequestError: if `ids` is empty, too long for the context, or holds an id beyond the vocabulary.
        """
        return self._reader.logits(ids)

    def routes(self, ids: Sequence[int]) -> NDArray[np.int32]:
        """Which experts each of `ids` uses: int32 `[T, layers, top_k]`, by falling score.

        Raises:
            RequestError: as `logits`.
        """
        return self._reader.routes(ids)

    def perplexity(self, text: str) -> float:
        """Exp of the mean negative log-likelihood, in nats, of each token of `text` but the first.

        Raises:
            RequestError: if the text has fewer than two tokens, or does not fit the context.
        """
        if not isinstance(text, str):
            raise RequestError(f"the text is of type {type(text).__name__}, not text", param="text")
        ids = self._tokenizer.encode(text)
        if len(ids) < 2:
            raise RequestError("perplexity needs a text of at least two tokens", param="text")
        return math.exp(self._reader.loss(ids))

    def check(self, ids: Sequence[int], *, margin: float = 1e-2) -> list[Difference]:
        """Run the `reference` backend beside this one, and say how far apart they are after each layer.

        Args:
            ids: token ids, at least one.
            margin: the reference's lead of a token, relative to the logits' scale, that counts as clear.

        Raises:
            CapacityError: if the reference does not fit: it keeps the resident weights as float32, eight times as large.
            RequestError: as `logits`.
        """
        self._reader.admit(ids)
        check_real("margin", margin, 0, math.inf, "a number, 0 or more")
        admit_reference(self.plan, available_memory())
        reference = create("reference")
        experts = open_experts(self._store, reference, self.plan.slots, self._streaming)
        loaded = loaded_of(self._store, reference, experts, self.plan)
        try:
            with self._responder.lock:
                self._responder.check_open()
                return differences(self._loaded, loaded, ids, margin)
        finally:
            loaded.network.close()
            experts.close()

    def stats(self) -> Report:
        """What the experts did since the model was loaded: counters, by layer and expert, and over time.

        They are always kept. `Report.as_dict` gives plain values, `Report.write` a file that `cherenkov plot stats` draws.
        """
        with self._responder.lock:
            guessed = self._loaded.speculation
            drafts = Drafts(**asdict(guessed.counts)) if guessed.is_on else None
            return report_of(self.experts, self._loaded.network.tables, drafts)

    def close(self) -> None:
        """Close files, threads and the template process. Safe to call twice."""
        with self._responder.lock:
            if self._responder.close():
                self._loaded.network.close()
                self.experts.close()
                self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @override
    def __repr__(self) -> str:
        return f"<Model {self.path.name} on {self.backend_name}>"

    def _pieces(
        self, steps: Iterator[Step], prompt_tokens: int, stops: StopMatcher
    ) -> Iterator[str]:
        """The text of steps, up to a stop string; leaves `last_run` behind, also when the caller goes away."""
        watch = Stopwatch(self.experts.stats, prompt_tokens)
        decoder = self._tokenizer.decoder()
        try:
            for step in steps:
                watch.tick(step)
                piece = "" if step.finish_reason == "stop" else decoder.feed(step.token)
                ended = step.finish_reason is not None
                piece = stops.feed(piece + decoder.flush() if ended else piece)
                piece += stops.flush() if ended else ""
                if stops.found is not None:
                    watch.stop()
                if piece:
                    yield piece
                if stops.found is not None:
                    return
        finally:
            self._responder.last_run = watch.run()
