"""The double: it does what callers of an engine see, and what its script says."""

import threading

import pytest

from cherenkov import engine as engines
from cherenkov.engine import ChatRequest, CompletionRequest, Limits, TurnRequest
from cherenkov.errors import BackendError, Cancelled, CapacityError, ContextTooLong, RequestError
from cherenkov.testing import Pause, ScriptedModel

HI = [{"role": "user", "content": "hi"}]


def test_it_has_what_an_engine_has():
    double = {name for name in dir(ScriptedModel) if not name.startswith("_")}
    real = {name for name in dir(engines.Engine) if not name.startswith("_")}
    assert double == real


def test_it_says_its_script():
    with ScriptedModel(["Pa", Pause(0.01), "ris."]) as engine:
        ticket = engine.submit(ChatRequest(HI))
        names = [type(event).__name__ for event in ticket]
    assert names == ["Accepted", "Started", *["TextDelta"] * 6, "Finished"]


def test_an_error_fails_its_request_alone():
    def script(request):
        return ["a", BackendError("scripted", "step", "broke")] if request.request_id else "ok"

    with ScriptedModel(script) as engine:
        with pytest.raises(BackendError):
            engine.submit(ChatRequest(HI, request_id="bad")).reply()
        assert engine.submit(ChatRequest(HI)).reply().text == "ok"


def test_room():
    gate = threading.Event()
    with ScriptedModel([Pause(60, gate)], limits=Limits(max_batch=1, queue_depth=1)) as engine:
        first = engine.submit(ChatRequest(HI))
        first.started()
        second = engine.submit(ChatRequest(HI))
        with pytest.raises(CapacityError) as caught:
            engine.submit(ChatRequest(HI))
        assert caught.value.retry_after_s
        second.cancel()
        with pytest.raises(Cancelled):
            second.reply()
        first.cancel()
        assert first.reply().finish_reason == "cancelled"


def test_too_long():
    with ScriptedModel(context_tokens=20) as engine:
        with pytest.raises(ContextTooLong):
            engine.submit(CompletionRequest("x" * 21)).reply()
        assert engine.submit(CompletionRequest("x" * 20)).reply().text == "ok"


def test_sessions():
    with ScriptedModel(lambda request: str(len(request.message))) as engine:
        name = engine.open_session(owner="a").id
        for owner in ("", "b"):
            with pytest.raises(RequestError) as caught:
                engine.submit(TurnRequest(name, HI, owner=owner))
            assert caught.value.code == "session_not_found"
        assert engine.submit(TurnRequest(name, HI, owner="a")).reply().text == "1"
        assert engine.session(name, "a").messages == 2


def test_nothing_is_left_behind():
    before = threading.active_count()
    engine = ScriptedModel([Pause(60)])
    engine.wait_ready()
    ticket = engine.submit(ChatRequest(HI))
    engine.close()
    engine.close()
    with pytest.raises(Cancelled):
        ticket.reply()
    assert threading.active_count() == before
