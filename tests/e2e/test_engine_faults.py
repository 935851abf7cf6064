"""One request fails, is cancelled, or never fits: the others say what they would have said."""

import threading
import time

import pytest

from cherenkov import Model
from cherenkov.chat.options import Settings
from cherenkov.engine import ChatRequest, CompletionRequest, Engine, Limits
from cherenkov.errors import (
    BackendError,
    Cancelled,
    CapacityError,
    CherenkovError,
    ContextTooLong,
    DiskError,
    RequestError,
    TemplateError,
)
from cherenkov.text.tool_schema import ToolSet

OPTIONS = {"max_tokens": 8, "temperature": 0.8, "seed": 11, "top_logprobs": 1}
LONG = "Tell me about the capital of France. " * 9
TEXTS = ["What is the capital of France?", LONG, "Count to ten.", "Hello"]
MARK = 777
"""A token that only the poisoned request's prompt has."""


class Broken(Exception):
    """What no code expects."""


@pytest.fixture(scope="module")
def alone(model):
    return [words(model.chat(said(text), **OPTIONS)) for text in TEXTS]


def said(text):
    return [{"role": "user", "content": text}]


def asked(text, **options):
    return ChatRequest(said(text), Settings().updated(OPTIONS | options))


def poisoned():
    return CompletionRequest([5, 6, MARK, 8, 9] * 5, Settings().updated({"max_tokens": 8}))


def words(reply):
    return reply.text, reply.finish_reason, reply.logprobs


def outcome(ticket):
    try:
        return words(ticket.reply())
    except CherenkovError as error:
        return type(error)


def parts(model):
    """Where a step can fail: an object and its method."""
    loaded = model.responder.loaded
    return {
        "layer": (model.experts, "acquire"),
        "stretch": (loaded.backend, "stretch"),
        "mixture": (loaded.backend, "mixture"),
        "embed": (loaded.backend, "embed"),
        "forward": (loaded.network, "forward"),
        "logits": (loaded.network, "logits"),
        "copy": (loaded.backend, "copy"),
        "new state": (loaded.network, "new_state"),
        "decoder": (model.tokenizer, "token_bytes"),
        "template": (model.responder, "prompt"),
    }


def failing(function, at, *, after):
    """The function, but for its call number `at`."""
    count = 0

    def wrapped(*arguments, **options):
        nonlocal count
        count += 1
        if count == at and not after:
            raise Broken
        result = function(*arguments, **options)
        if count == at:
            raise Broken
        return result

    return wrapped


@pytest.mark.parametrize("part", ["layer", "stretch", "mixture", "embed", "forward", "logits"])
@pytest.mark.parametrize("at", [2, 7])
def test_a_step_that_fails_once(model, alone, monkeypatch, part, at):
    """A failure that nobody's tokens explain: at most one request, which was alone then, is lost to it."""
    thing, name = parts(model)[part]
    with Engine(model) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(thing, name, failing(getattr(thing, name), at, after=bool(at % 2)))
            found = [outcome(t) for t in [engine.submit(asked(text)) for text in TEXTS]]
        lost = [one for one in found if one is BackendError]
        assert len(lost) <= 1
        assert all(one in {BackendError, want} for one, want in zip(found, alone, strict=True))
        assert engine.metrics().rebuilt or lost or at > 5
        assert [outcome(engine.submit(asked(text))) for text in TEXTS] == alone
        settled(engine)


@pytest.mark.parametrize("part", ["copy", "new state", "decoder", "template"])
@pytest.mark.parametrize("at", [1, 9])
def test_what_is_one_requests_own(model, alone, monkeypatch, part, at):
    thing, name = parts(model)[part]
    with Engine(model) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(thing, name, failing(getattr(thing, name), at, after=True))
            found = [outcome(t) for t in [engine.submit(asked(text)) for text in TEXTS]]
        assert sum(one is BackendError for one in found) <= 1
        assert all(one in {BackendError, want} for one, want in zip(found, alone, strict=True))
        assert engine.metrics().rebuilt == 0
        assert [outcome(engine.submit(asked(text))) for text in TEXTS] == alone
        settled(engine)


@pytest.mark.parametrize("what", ["embed", "late"])
def test_a_poisoned_request(model, alone, monkeypatch, what):
    """Every step that runs its rows fails, from the start or from its third token on: it fails alone."""
    backend, network = model.responder.loaded.backend, model.responder.loaded.network
    embed, forward = backend.embed, network.forward

    def no_mark(w, tokens):
        if MARK in tokens:
            raise Broken
        return embed(w, tokens)

    def late(rows, *arguments, **options):
        wide = forward(rows, *arguments, **options)
        if any(MARK in s.state.tokens and s.state.position > 27 for s in rows.segments):
            raise Broken
        return wide

    if what == "embed":
        monkeypatch.setattr(backend, "embed", no_mark)
    else:
        monkeypatch.setattr(network, "forward", late)
    with Engine(model) as engine:
        tickets = [engine.submit(asked(text)) for text in TEXTS[:2]]
        bad = engine.submit(poisoned())
        tickets += [engine.submit(asked(text)) for text in TEXTS[2:]]
        assert [outcome(ticket) for ticket in tickets] == alone
        assert outcome(bad) is BackendError
        assert engine.metrics().failed == 1
        settled(engine)


def test_a_failure_between_steps(model, alone, monkeypatch):
    with Engine(model) as engine:
        engine.wait_ready()
        for owner, name in ((engine._batch.line, "next"), (engine._batch.cache, "sweep")):
            once = failing(getattr(owner, name), 1, after=False)
            monkeypatch.setattr(owner, name, once)
            assert outcome(engine.submit(asked(TEXTS[0]))) in {alone[0], BackendError}
            assert outcome(engine.submit(asked(TEXTS[0]))) == alone[0]


def test_what_ends_the_engines_thread_ends_all_requests(model, monkeypatch):
    def gone(*_):
        raise SystemExit

    with Engine(model) as engine:
        engine.wait_ready()
        monkeypatch.setattr(engine._batch, "turn", gone)
        with pytest.raises(BackendError, match="SystemExit"):
            engine.submit(asked(TEXTS[0])).reply()
        assert engine.state == "failed"


def test_a_record_that_cannot_be_read(model, alone, monkeypatch):
    """Only those that need it fail, and it is the disk's fault that they are told of."""
    acquire = model.experts.acquire
    needed = {}
    for text in TEXTS:
        ids = model.responder.prompt(said(text), ToolSet(None), Settings()).ids
        needed[text] = {int(i) for i in model.routes(ids)[:, 0].ravel()}
    only = next(iter(needed[LONG] - needed["Hello"]))

    def broken(layer, ids, *rest, **options):
        if layer == 0 and only in ids:
            raise DiskError("experts.bin", "read", 5)
        return acquire(layer, ids, *rest, **options)

    with Engine(model) as engine:
        monkeypatch.setattr(model.experts, "acquire", broken)
        found = [outcome(t) for t in [engine.submit(asked(text)) for text in TEXTS]]
        assert found[1] is DiskError
        assert found[3] == alone[3] or only in _routed(model, "Hello")
        assert all(one in {DiskError, want} for one, want in zip(found, alone, strict=True))
        settled(engine)


def _routed(model, text):
    ids = [*model.responder.prompt(said(text), ToolSet(None), Settings()).ids]
    reply = model.chat(said(text), **OPTIONS)
    return {int(i) for i in model.routes([*ids, *(p.token for p in reply.logprobs)])[:, 0].ravel()}


def settled(engine):
    """Nothing is left of what is over."""
    deadline = time.monotonic() + 10
    while engine.requests() and time.monotonic() < deadline:
        time.sleep(0.01)
    figures = engine.metrics()
    assert (figures.active, figures.queued, figures.preparing) == (0, 0, 0)
    assert figures.state_bytes == 0


# --- cancelling


def blocked(model, monkeypatch):
    """Steps wait for a signal, one each."""
    forward, allowed, begun = model.responder.loaded.network.forward, threading.Semaphore(0), []

    def wait(rows, *arguments, **options):
        begun.append(len(rows))
        assert allowed.acquire(timeout=20)
        return forward(rows, *arguments, **options)

    monkeypatch.setattr(model.responder.loaded.network, "forward", wait)
    return allowed, begun


def until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_cancelling_while_queued(model, monkeypatch):
    allowed, begun = blocked(model, monkeypatch)
    with Engine(model, Limits(max_batch=1)) as engine:
        first, second = engine.submit(asked("Hello")), engine.submit(asked("Hello"))
        until(lambda: begun and [r.phase for r in engine.requests()][1:] == ["queued"])
        assert engine.cancel(second.id)
        assert not engine.cancel("another")
        allowed.release(100)
        with pytest.raises(Cancelled):
            second.started()
        assert first.reply().finish_reason == "length"
        assert not first.cancel()
        settled(engine)


def test_cancelling_while_prefilling(model, alone, monkeypatch):
    """Within the chunk, if nobody else is in it; else after it. The others go on."""
    allowed, begun = blocked(model, monkeypatch)
    with Engine(model, Limits(prefill_quantum=16)) as engine:
        long = engine.submit(asked(LONG))
        until(lambda: begun)
        other = engine.submit(asked("Hello"))
        long.cancel()
        allowed.release(1)
        reply = long.reply()
        assert (reply.finish_reason, reply.text) == ("cancelled", "")
        assert reply.usage.output_tokens == 0
        allowed.release(100)
        assert words(other.reply()) == alone[3]
        settled(engine)


def test_cancelling_while_decoding(model, alone):
    with Engine(model) as engine:
        endless = engine.submit(asked("Count to ten.", max_tokens=150, logit_bias={2: -100.0}))
        other = engine.submit(asked("Hello"))
        endless.started()
        first = next(event for event in endless if hasattr(event, "text"))
        endless.cancel()
        reply = endless.reply()
        assert reply.finish_reason == "cancelled"
        assert reply.text.startswith(first.text)
        assert words(other.reply()) == alone[3]
        settled(engine)


def test_a_reader_who_reads_nothing(model, alone):
    with Engine(model, Limits(unread_events=8, stall_s=0.2)) as engine:
        endless = engine.submit(asked("Hello", max_tokens=200, logit_bias={2: -100.0}))
        assert words(engine.submit(asked("Hello")).reply()) == alone[3]
        until(lambda: not engine.requests())
        with pytest.raises(Cancelled):
            endless.reply()
        settled(engine)


def test_a_slow_reader_gets_it_all(model, alone):
    with Engine(model, Limits(unread_events=4)) as engine:
        events = []
        for event in engine.submit(asked("Hello")):
            events.append(event)
            time.sleep(0.01)
        assert words(events[-1].reply) == alone[3]


# --- room


def test_what_never_fits(model):
    small = model.sequence_bytes(60)
    with Engine(model, Limits(active_state_bytes=small)) as engine:
        with pytest.raises(CapacityError, match="all answers together") as error:
            engine.submit(asked("Hello", max_tokens=200)).started()
        assert error.value.asked_bytes > error.value.available_bytes == small
        assert error.value.retry_after_s is None
        with pytest.raises(ContextTooLong):
            engine.submit(asked(LONG * 9)).started()
        assert engine.submit(asked("Hello")).reply().finish_reason == "length"


def test_a_full_queue(model, monkeypatch):
    allowed, _ = blocked(model, monkeypatch)
    with Engine(model, Limits(max_batch=1, queue_depth=2)) as engine:
        tickets = [engine.submit(asked("Hello")) for _ in range(3)]
        with pytest.raises(CapacityError) as error:
            engine.submit(asked("Hello"))
        assert error.value.retry_after_s >= 1
        assert engine.metrics().refused == 1
        allowed.release(1000)
        assert len({outcome(ticket) for ticket in tickets}) == 1


def test_a_large_request_is_not_starved(model):
    """Small ones go before it while it does not fit, but not for ever."""
    limit = model.sequence_bytes(200) + model.sequence_bytes(60)
    limits = Limits(active_state_bytes=limit, patience_s=0.1, max_batch=4, queue_depth=500)
    with Engine(model, limits) as engine:
        small = [engine.submit(asked("Hello", max_tokens=12)) for _ in range(4)]
        large = engine.submit(asked("Hello", max_tokens=200))
        small += [engine.submit(asked("Hello", max_tokens=12)) for _ in range(16)]
        assert large.started().prompt_tokens
        assert any(r.phase == "queued" for r in engine.requests())
        for ticket in [*small, large]:
            ticket.reply()


# --- others


def test_names(model):
    with Engine(model, Limits(max_batch=1)) as engine:
        first = engine.submit(
            ChatRequest(said(LONG), Settings().updated(OPTIONS), request_id="mine", owner="a")
        )
        assert first.id == "mine"
        with pytest.raises(RequestError) as error:
            engine.submit(ChatRequest(said("Hello"), request_id="mine"))
        assert error.value.code == "duplicate_request_id"
        for bad in ("a b", "ä", "x" * 81, "a/b"):
            with pytest.raises(RequestError, match="request_id"):
                engine.submit(ChatRequest(said("Hello"), request_id=bad))
        assert not engine.cancel("mine", owner="b")
        first.reply()
        again = ChatRequest(said("Hello"), Settings().updated(OPTIONS), request_id="mine")
        assert engine.submit(again).reply()


def test_a_template_that_fails(model, alone, monkeypatch):
    with Engine(model) as engine:
        other = engine.submit(asked("Hello"))
        bad = engine.submit(ChatRequest([{"role": "user", "content": 5}]))
        with pytest.raises(RequestError):
            bad.reply()

        def bomb(*_arguments, **_options):
            raise TemplateError("too long")

        with monkeypatch.context() as patch:
            patch.setattr(model.responder.template(), "render", bomb)
            with pytest.raises(TemplateError):
                engine.submit(asked("Hello")).started()
        assert words(other.reply()) == alone[3]
        settled(engine)


def test_the_model_is_made_in_the_engines_thread(glow_store):
    names = []

    def load():
        names.append(threading.current_thread().name)
        return Model.load(glow_store, context_tokens=128)

    before = threading.active_count()
    with Engine(load) as engine:
        assert threading.active_count() == before
        assert engine.state == "idle"
        model = engine.wait_ready()
        assert engine.submit(asked("Hello")).reply().text
    assert engine.state == "closed"
    with pytest.raises(RequestError):
        model.chat(said("Hello"))
    with pytest.raises(RequestError):
        engine.submit(asked("Hello"))
    assert names == ["cherenkov-engine"]
    assert threading.active_count() == before


def test_a_model_that_cannot_be_had(tmp_path):
    with Engine(lambda: Model.load(tmp_path / "none")) as engine:
        with pytest.raises(Exception, match="none"):
            engine.wait_ready()
        assert engine.state == "failed"
        with pytest.raises(Exception, match="none"):
            engine.submit(asked("Hello"))


def test_draining(model, alone):
    with Engine(model) as engine:
        tickets = [engine.submit(asked(text)) for text in TEXTS]
        assert engine.drain(60)
        assert [outcome(ticket) for ticket in tickets] == alone
        with pytest.raises(CapacityError) as error:
            engine.submit(asked("Hello"))
        assert error.value.retry_after_s
    with Engine(model) as engine:
        endless = engine.submit(asked("Hello", max_tokens=200, logit_bias={2: -100.0}))
        endless.started()
        assert not engine.drain(0.01)
        assert endless.reply().finish_reason in {"cancelled", "length"}
    with Engine(model) as engine:
        left = [engine.submit(asked(text, max_tokens=100)) for text in TEXTS]
    assert all(isinstance(outcome(t), tuple) or outcome(t) is Cancelled for t in left)
