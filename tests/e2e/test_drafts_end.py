"""Answers that end inside accepted drafts: at the right character, with the model's own log-probabilities, and nothing shown too early."""

import pytest

from cherenkov import Finished, Model, TextDelta
from cherenkov.chat.options import Settings
from cherenkov.engine import ChatRequest, Engine
from cherenkov.errors import BackendError

QUESTIONS = ("Count to ten.", "What is the capital of France?")
HOW = {"max_tokens": 32, "top_logprobs": 2}


def load(store, **options):
    try:
        return Model.load(store, backend="native", context_tokens=256, sequences=2, **options)
    except BackendError as error:
        pytest.skip(str(error))


def said(text):
    return [{"role": "user", "content": text}]


def told(reply):
    return reply.text, reply.finish_reason, reply.logprobs, reply.usage.output_tokens


def cases(text):
    """Stop strings that lie in a text: of one character, across tokens, inside of one, none; and one that never comes."""
    middle = len(text) // 2
    spots = (0, 1, middle, middle + 1, len(text) - 3)
    found = [text[at : at + size] for at in spots for size in (1, 2, 7)]
    return [stop for stop in found if stop.strip()] + ["never said"]


@pytest.fixture(scope="module")
def expected(glow_store):
    """Without drafts: what is said until each of some stop strings comes."""
    with load(glow_store, speculate="off") as model:
        whole = {q: model.chat(said(q), **HOW) for q in QUESTIONS}
        stops = {q: cases(reply.text) for q, reply in whole.items()}
        return {
            (q, stop): told(model.chat(said(q), stop=stop, **HOW))
            for q in QUESTIONS
            for stop in stops[q]
        } | {(q, None): told(reply) for q, reply in whole.items()}


@pytest.fixture(scope="module", params=["mtp", "ngram"])
def model(request, glow_store):
    with load(glow_store, speculate=request.param, drafts=3) as loaded:
        loaded.responder.loaded.speculation.pace.fixed = 3
        yield loaded


def options(stop):
    return HOW | ({} if stop is None else {"stop": stop})


def test_they_end_where_they_would(model, expected):
    ends = set()
    for (question, stop), wanted in expected.items():
        assert told(model.chat(said(question), **options(stop))) == wanted
        ends.add(wanted[1])
    assert "stop" in ends
    counts = model.stats().drafts
    assert sum(map(sum, counts.accepted.values())) > 0


def test_streams_show_what_is_certain_and_no_more(model, expected):
    for (question, stop), wanted in list(expected.items())[::3]:
        text, seen = "", False
        for event in model.stream_chat(said(question), **options(stop)):
            if isinstance(event, TextDelta):
                text += event.text
                assert wanted[0].startswith(text)
            seen = seen or isinstance(event, Finished)
        assert seen
        assert text == wanted[0]


def test_the_engine_ends_them_too(model, expected):
    with Engine(model) as engine:
        for some in (list(expected)[::2], list(expected)[1::2]):
            tickets = [
                engine.submit(ChatRequest(said(question), Settings().updated(options(stop))))
                for question, stop in some
            ]
            for ticket, case in zip(tickets, some, strict=True):
                assert told(ticket.reply()) == expected[case]


def test_a_session_goes_on_from_there(model, glow_store, expected):
    """Whatever was guessed behind a stop string is no part of the conversation."""
    stops = [stop for question, stop in expected if question == QUESTIONS[1]][2:5]
    with load(glow_store, speculate="off") as plain:
        for stop in stops:
            ours, theirs = model.session(), plain.session()
            for question in (QUESTIONS[1], QUESTIONS[0]):
                assert told(ours.send(question, **options(stop))) == told(
                    theirs.send(question, **options(stop))
                )
            assert ours.history == theirs.history
            assert ours.usage == theirs.usage
