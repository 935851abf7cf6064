"""What is of the wrong type is refused at the door: one line, an error of ours, and the parameter's name."""

from __future__ import annotations

import pytest

import cherenkov
from cherenkov import Model
from cherenkov.errors import CherenkovError, RequestError

SAID = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def model(glow_store):
    with Model.load(glow_store, context_tokens=256) as loaded:
        yield loaded


def one_line(caught, param):
    assert "\n" not in str(caught.value)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("call", "param"),
    [
        (lambda: Model.load(5), "selector"),
        (lambda: Model.load(None), "selector"),
        (lambda: Model.load(b"demo"), "selector"),
        (lambda: Model.load("demo", on_event=3), "on_event"),
        (lambda: cherenkov.prepare(5, "out"), "source"),
        (lambda: cherenkov.prepare("demo", 5), "output"),
        (lambda: cherenkov.verify(5), "path"),
        (lambda: cherenkov.Engine("demo"), "model"),
    ],
)
def test_of_functions(call, param):
    with pytest.raises(RequestError) as caught:
        call()
    one_line(caught, param)


@pytest.mark.parametrize(
    ("call", "param"),
    [
        (lambda m: m.generate(3), "prompt"),
        (lambda m: m.generate("a", system=3), "system"),
        (lambda m: m.generate("a", max_tokens="x"), "max_tokens"),
        (lambda m: m.generate("a", sampling=3), "sampling"),
        (lambda m: m.generate("a", stop=3), "stop"),
        (lambda m: m.chat("text"), "messages"),
        (lambda m: m.chat(SAID[0]), "messages"),
        (lambda m: m.chat(SAID, tools=3), "tools"),
        (lambda m: m.chat(SAID, max_tokens="x"), "max_tokens"),
        (lambda m: m.chat(SAID, thinking="x"), "thinking"),
        (lambda m: m.session(system=3), "system"),
        (lambda m: m.session().send(3), "messages"),
        (lambda m: m.load_session(3), "path"),
        (lambda m: m.session().save(3), "path"),
        (lambda m: m.logits(3), "ids"),
        (lambda m: m.logits("abc"), "ids"),
        (lambda m: m.routes(None), "ids"),
        (lambda m: m.perplexity(3), "text"),
        (lambda m: m.check([70, 71], margin="x"), "margin"),
        (lambda m: m.tokenizer.encode(3), "text"),
        (lambda m: m.tokenizer.decode(3), "ids"),
        (lambda m: m.tokenizer.decode("abc"), "ids"),
        (lambda m: m.tokenizer.decode([1.5]), "ids"),
    ],
)
def test_of_methods(model, call, param):
    with pytest.raises(RequestError) as caught:
        call(model)
    one_line(caught, param)


def test_a_session_of_a_closed_model_refuses_at_once(glow_store, tmp_path):
    model = Model.load(glow_store, context_tokens=256)
    session = model.session(max_tokens=2)
    session.send("Hello")
    model.close()
    for call in (
        lambda: session.send("More"),
        lambda: session.stream("More"),
        session.fork,
        session.reset,
        model.session,
        lambda: model.load_session(tmp_path / "session.json"),
    ):
        with pytest.raises(CherenkovError, match="the model is closed") as caught:
            call()
        assert caught.value.code == "closed"
    assert len(session.history) == 2
    session.cancel()
    session.save(tmp_path / "session.json")
    with Model.load(glow_store, context_tokens=256) as again:
        assert again.load_session(tmp_path / "session.json").history == session.history
