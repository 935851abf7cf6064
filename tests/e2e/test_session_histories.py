"""Sessions through whatever may happen to them, held against a model that begins anew each time."""

import random
import shutil

import pytest

from cherenkov import Model
from cherenkov.errors import Cancelled, ContextTooLong
from tests.conftest import SHARED

SENTENCES = (
    "What is the capital of France?",
    "And of Spain?",
    "What is 17 plus 25?",
    "Tell me a story. 🚀",
    "  spaces \n and <|im_end|> lines ",
    "What does <think> mean?",
    "What is the weather in Paris?",
)
TOOL = {"name": "get_weather", "parameters": {"properties": {"city": {"type": "string"}}}}
QWEN = SHARED / "reference/qwen3.8/qwen3.8.chat_template.jinja"


@pytest.fixture(scope="module")
def model(glow_store):
    with Model.load(glow_store, context_tokens=256) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def qwen(glow_store, tmp_path_factory):
    """Glow with the template of the family's published model."""
    if not QWEN.is_file():
        pytest.skip(f"no {QWEN}")
    folder = shutil.copytree(glow_store, tmp_path_factory.mktemp("qwen") / "store")
    shutil.copy(QWEN, folder / "chat_template.jinja")
    with Model.load(folder, context_tokens=1024) as loaded:
        yield loaded


def settings(dice):
    """Options of a turn. A seed each time, so that a fresh model draws the same."""
    options = {"seed": dice.randrange(1000), "max_tokens": dice.randrange(1, 14)}
    options["temperature"] = dice.choice([0.0, 0.0, 0.9])
    options["stop"] = dice.choice([[], [" is"], ["\n"]])
    options["thinking"] = dice.random() < 0.3
    options["presence_penalty"] = dice.choice([0.0, 0.5])
    return options


def say(model, session, dice):
    said = dice.choice(SENTENCES)
    options = settings(dice)
    reply = session.send(said, top_logprobs=2, **options)
    history = [m for m in session.history if m["role"] != "system"]
    opening = [m for m in session.history if m["role"] == "system"]
    shown = [*opening, *history[session.forgotten : -1]]
    fresh = model.chat(shown, tools=session.tools or None, top_logprobs=2, **options)
    assert (fresh.text, fresh.reasoning, fresh.tool_calls, fresh.finish_reason) == (
        reply.text,
        reply.reasoning,
        reply.tool_calls,
        reply.finish_reason,
    )
    if model.backend_name.startswith("native"):
        assert fresh.logprobs == reply.logprobs


def leave(session, dice):
    """Begin a turn, and go away."""
    stream = session.stream(dice.choice(SENTENCES), **settings(dice))
    for _ in range(dice.randrange(4)):
        next(stream, None)
    stream.close()


def cancel(session, dice):
    stream = session.stream(dice.choice(SENTENCES), **settings(dice) | {"stop": []})
    try:
        for _ in stream:
            session.cancel()
    except Cancelled:
        pass


def another_system(session, dice):
    session.system = dice.choice(["Be brief.", "Be long.", None])


@pytest.mark.parametrize("seed", range(4))
def test_a_long_life(model, tmp_path, seed):
    dice = random.Random(seed)
    session = model.session(overflow="trim", tools=[TOOL] if seed % 2 else None)
    for _ in range(16):
        act = dice.choice(
            ["say"] * 5 + ["leave", "cancel", "fork", "file", "system", "too long", "reset"]
        )
        if act == "say":
            say(model, session, dice)
        elif act == "leave":
            leave(session, dice)
        elif act == "cancel":
            cancel(session, dice)
        elif act == "fork":
            old, session = session, session.fork()
            leave(old, dice)
        elif act == "file":
            session.save(tmp_path / "s")
            session = model.load_session(tmp_path / "s")
        elif act == "system":
            another_system(session, dice)
        elif act == "too long":
            with pytest.raises(ContextTooLong):
                session.send("word " * 400)
        elif dice.random() < 0.3:
            session.reset()
    say(model, session, dice)


@pytest.mark.parametrize("preserve", [None, False])
def test_the_published_template(qwen, preserve):
    """Thoughts of old turns stay or go; either way nothing before the last answer is read again."""
    session = qwen.session(preserve_thinking=preserve, max_tokens=12, top_logprobs=2)
    before = 0
    for i, question in enumerate(SENTENCES[:5]):
        reply = session.send(question)
        fresh = qwen.chat(
            session.history[:-1], preserve_thinking=preserve, max_tokens=12, top_logprobs=2
        )
        assert fresh.text == reply.text
        if qwen.backend_name.startswith("native"):
            assert fresh.logprobs == reply.logprobs
        if i:
            assert reply.usage.cached_tokens >= before
        header = 12  # the beginning of the answer, with its empty block of thought
        before = reply.usage.prompt_tokens - header
