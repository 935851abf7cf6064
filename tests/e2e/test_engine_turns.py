"""Turns of an engine's sessions, and answers that go on however they would end."""

import pytest

from cherenkov.chat.options import Settings
from cherenkov.engine import ChatRequest, Engine, Limits, TurnRequest
from cherenkov.errors import BackendError, RequestError

OPTIONS = {"max_tokens": 8, "temperature": 0.8, "seed": 11, "top_logprobs": 1}


def said(text):
    return [{"role": "user", "content": text}]


def words(reply):
    return reply.text, reply.finish_reason, reply.logprobs


def broken(*_, **__):
    raise ZeroDivisionError


def test_going_on_whatever_the_model_says(model):
    settings = Settings().updated({"max_tokens": 30})
    with Engine(model) as engine:
        ended = engine.submit(ChatRequest(said("Hello"), settings)).reply()
        assert ended.finish_reason == "stop"
        on = engine.submit(ChatRequest(said("Hello"), settings, ignore_eos=True)).reply()
        assert (on.finish_reason, on.usage.output_tokens) == ("length", 30)
        assert on.text.startswith(ended.text)


def test_an_answer_that_says_too_much(model):
    settings = Settings().updated({"max_tokens": 60})
    with Engine(model, Limits(response_bytes=10)) as engine:
        reply = engine.submit(ChatRequest(said("Hello"), settings, ignore_eos=True)).reply()
    assert reply.finish_reason == "length"
    assert 10 < len(reply.text) < 60


# --- sessions


def test_a_turn_counts_or_does_not(model, monkeypatch):
    with Engine(model) as engine:
        session = engine.open_session(**OPTIONS).id
        twin = model.session(**OPTIONS)
        assert words(engine.submit(TurnRequest(session, "Hello")).reply()) == words(
            twin.send("Hello")
        )
        before = engine.session(session)
        turn = TurnRequest(session, "More.", {"max_tokens": 100, "temperature": 0.1, "seed": 5})
        ticket = engine.submit(turn)
        with pytest.raises(RequestError) as error:
            engine.submit(turn)
        assert error.value.code == "busy"
        ticket.started()
        ticket.cancel()
        assert ticket.reply().finish_reason == "cancelled"
        with monkeypatch.context() as patch:
            patch.setattr(model._loaded.network, "logits", broken)
            with pytest.raises(BackendError):
                engine.submit(turn).reply()
        with pytest.raises(RequestError):
            engine.submit(TurnRequest(session, "More.", {"max_tokens": 0})).reply()
        after = engine.session(session)
        assert (after.turns, after.usage, after.messages) == (1, before.usage, before.messages)
        assert after.settings == before.settings
        assert words(engine.submit(TurnRequest(session, "And?")).reply()) == words(
            twin.send("And?")
        )
        for code in ("session_not_found",):
            with pytest.raises(RequestError) as error:
                engine.submit(TurnRequest(session, "And?", owner="another"))
            assert error.value.code == code
        engine.close_session(session)
        with pytest.raises(RequestError) as error:
            engine.session(session)
        assert error.value.code == "session_not_found"


def test_a_seed_begins_anew(model):
    with Engine(model) as engine:
        options = {"max_tokens": 10, "temperature": 1.3}
        session = engine.open_session(seed=1, **options).id
        fresh = engine.open_session(seed=9, **options).id
        engine.submit(TurnRequest(session, "Hello")).reply()
        engine.submit(TurnRequest(fresh, "Hello", {"seed": 1})).reply()
        engine.submit(TurnRequest(session, "And?", {"seed": 1})).reply()
        texts = [
            engine.submit(TurnRequest(one, "Why?")).reply().text for one in (session, fresh, fresh)
        ]
        assert len(set(texts)) > 1  # it goes on from where it is
        assert engine.session(session).settings == engine.session(fresh).settings
