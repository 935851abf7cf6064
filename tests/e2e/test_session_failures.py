"""A turn counts as a whole or not at all: failures of every kind at every stage, on Glow."""

import os
import signal
import threading
from contextlib import contextmanager

import pytest

from cherenkov import Finished, Model
from cherenkov.errors import Cancelled, DiskError, TemplateError

QUESTION = "What is the capital of France?"
SETTINGS = {"temperature": 0.8, "seed": 11, "max_tokens": 6, "top_logprobs": 2}


class Broken(Exception):
    """What no code expects."""


@pytest.fixture(scope="module")
def model(glow_store):
    # A pool so small that experts are read all the time.
    with Model.load(glow_store, context_tokens=256, pool=0.004) as loaded:
        yield loaded


@pytest.fixture
def session(model):
    """A session of one turn."""
    made = model.session(system="Be brief.", **SETTINGS)
    made.send(QUESTION)
    return made


def everything(session):
    """What must be as it was."""
    record = session._record
    return (
        session.history,
        session.tools,
        session.settings,
        session.usage,
        session.forgotten,
        session.cached_tokens,
        repr(record.random),
    )


@contextmanager
def unharmed(session):
    """Whatever happens inside: the session is as before, and goes on as if nothing had happened."""
    twin, before = session.fork(), everything(session)
    yield
    assert everything(session) == before
    reply = session.send("And of Spain?")
    assert reply == twin.send("And of Spain?")
    assert reply.usage.cached_tokens == before[5]
    assert session.history == twin.history


def failing(function, at, error):
    """The function, until its call number `at`, which fails after the work is done."""
    count = 0

    def wrapped(*arguments, **options):
        nonlocal count
        count += 1
        result = function(*arguments, **options)
        if count == at:
            raise error
        return result

    return wrapped


def parts(model):
    """Where a turn can fail: an object and its method."""
    loaded = model.responder.loaded
    return {
        "template": (model.responder, "prompt"),
        "new tokens": (model.tokenizer, "encode_pieces"),
        "copy": (loaded.backend, "copy"),
        "layer": (model.experts, "acquire"),
        "forward": (loaded.network, "forward"),
        "logits": (loaded.network, "logits"),
        "decoder": (model.tokenizer, "token_bytes"),
    }


@pytest.mark.parametrize(
    ("part", "at"),
    [
        ("template", 1),
        ("template", 2),
        ("new tokens", 1),
        ("copy", 1),
        ("copy", 9),
        ("copy", 15),
        ("copy", 20),
        ("layer", 1),
        ("layer", 3),
        ("layer", 6),
        ("layer", 8),  # the last of the prompt; those of later steps may stay with the kernels
        ("forward", 1),
        ("forward", 2),
        ("forward", 4),
        ("logits", 1),
        ("logits", 3),
        ("decoder", 1),
        ("decoder", 3),
    ],
)
def test_a_failure(model, session, monkeypatch, part, at):
    thing, name = parts(model)[part]
    with unharmed(session):
        monkeypatch.setattr(thing, name, failing(getattr(thing, name), at, Broken()))
        with pytest.raises(Broken):
            session.send("Tell me more.", max_tokens=9, temperature=0.3, seed=4, tools=[])
        monkeypatch.undo()


def test_without_memory_to_go_back_the_session_reads_again(model, session, monkeypatch):
    """Then what it had read is lost, and nothing else."""
    before = everything(session)

    def fail(_):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(model.responder.loaded.network, "forward", fail)
        undo = session._kept.undo
        patch.setattr(
            session._kept,
            "undo",
            lambda: (patch.setattr(model.responder.loaded.backend, "copy", fail), undo()),
        )
        with pytest.raises(MemoryError):
            session.send("Tell me more.")
    after = everything(session)
    assert (*after[:5], after[6]) == (*before[:5], before[6])
    assert session.cached_tokens == 0
    other = model.session(system="Be brief.", **SETTINGS)
    other.send(QUESTION)
    mine, theirs = session.send("And of Spain?"), other.send("And of Spain?")
    assert (mine.text, mine.usage.cached_tokens) == (theirs.text, 0)


def test_a_disk_that_fails_half_way(session, model, monkeypatch):
    experts = model.experts
    monkeypatch.setattr(
        experts, "acquire", failing(experts.acquire, 5, DiskError("experts.bin", "read", 5))
    )
    with unharmed(session):
        with pytest.raises(DiskError):
            session.send("Why is the sky blue?")
        monkeypatch.undo()


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt, SystemExit])
def test_what_is_no_exception_of_ours(session, model, monkeypatch, error):
    network = model.responder.loaded.network
    with unharmed(session):
        monkeypatch.setattr(network, "forward", failing(network.forward, 3, error()))
        with pytest.raises(error):
            session.send("Tell me more.")
        monkeypatch.undo()


def test_a_template_that_refuses(session, model, monkeypatch):
    def refuse(*_):
        raise TemplateError("Only on Sundays.")

    with unharmed(session):
        monkeypatch.setattr(model.responder, "prompt", refuse)
        with pytest.raises(TemplateError):
            session.send("Tell me more.")
        monkeypatch.undo()


def test_a_template_that_refuses_the_probe_costs_the_mark_alone(session, model, monkeypatch):
    prompt = model.responder.prompt

    def refuse(messages, *rest):
        if len(messages) > 1 and messages[-2]["content"] == messages[-1]["content"] == "a":
            raise TemplateError("Only on Sundays.")
        return prompt(messages, *rest)

    twin = session.fork()
    monkeypatch.setattr(model.responder, "prompt", refuse)
    assert session.send("Tell me more.") == twin.send("Tell me more.")


@pytest.mark.parametrize("pieces", [0, 1, 3])
def test_a_caller_who_goes_away(session, pieces):
    with unharmed(session):
        stream = session.stream("Tell me more.", max_tokens=9)
        for _ in range(pieces):
            next(stream)
        stream.close()


def test_a_stream_that_is_forgotten(session):
    with unharmed(session):
        stream = session.stream("Tell me more.")
        next(stream)
        del stream


def test_leaving_at_the_last_event_counts(session):
    for event in session.stream("Tell me more."):
        if isinstance(event, Finished):
            break
    assert len(session.history) == 5
    assert session.history[-1] == event.reply.message


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_cancelled_at_a_step(session, model, monkeypatch, steps):
    network, count = model.responder.loaded.network, 0
    forward = network.forward

    def cancelling(*arguments, **more):
        nonlocal count
        if count == steps:
            session.cancel()
        count += 1
        return forward(*arguments, **more)

    with unharmed(session):
        monkeypatch.setattr(network, "forward", cancelling)
        with pytest.raises(Cancelled):
            session.send("Tell me more.", max_tokens=30, logit_bias={2: -100})
        monkeypatch.undo()
        assert count == steps + 1


def test_cancelled_at_the_very_end(session):
    """After the last token, before the turn counts."""
    with unharmed(session):
        responder = session._responder
        events = responder.events

        def then_cancel(*arguments):
            for event in events(*arguments):
                if isinstance(event, Finished):
                    session.cancel()
                yield event

        responder.events = then_cancel
        try:
            with pytest.raises(Cancelled):
                session.send("Tell me more.")
        finally:
            del responder.events


def test_interrupted_by_a_signal(session):
    """Ctrl-C, as it comes to a script that did not prepare for it."""
    with unharmed(session):
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            session.send("Tell me more.", max_tokens=150, logit_bias={2: -100, 0: -100})
        timer.join()


def test_the_first_turn_can_fail_too(model, monkeypatch):
    session = model.session(**SETTINGS)
    network = model.responder.loaded.network
    with unharmed(session):
        monkeypatch.setattr(network, "forward", failing(network.forward, 2, Broken()))
        with pytest.raises(Broken):
            session.send(QUESTION)
        monkeypatch.undo()
        assert session.history == []


def test_a_long_prompt_is_cancelled_between_layers(session, model, monkeypatch):
    """Not only between chunks: a chunk may take a minute."""
    ops = model.responder.loaded.backend
    layers, stretch = 0, ops.stretch

    def counting(*arguments):
        nonlocal layers
        layers += 1
        if layers == 2:
            session.cancel()
        return stretch(*arguments)

    with unharmed(session):
        monkeypatch.setattr(ops, "stretch", counting)
        with pytest.raises(Cancelled):
            session.send("many words " * 20, max_tokens=1)
        monkeypatch.undo()
    assert layers == 2
