"""`Model.chat` and `Model.stream_chat`, on Glow."""

import math

import numpy as np
import pytest

from cherenkov import (
    Finished,
    Model,
    ReasoningDelta,
    Reply,
    Sampling,
    TextDelta,
    ToolCallEvent,
)
from cherenkov.errors import ContextTooLong, RequestError, TemplateError, UnsupportedParam

QUESTION = {"role": "user", "content": "What is the capital of France?"}
ANSWER = "The capital of France is Paris."
WEATHER = {
    "name": "get_weather",
    "description": "Weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}


@pytest.fixture(scope="module")
def model(glow_store):
    with Model.load(glow_store, context_tokens=512) as loaded:
        yield loaded


def said(*contents):
    """A conversation of these contents, the user's first."""
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)]


def test_an_answer(model):
    reply = model.chat([QUESTION])
    assert isinstance(reply, Reply)
    assert (reply.text, reply.reasoning, reply.tool_calls) == (ANSWER, "", ())
    assert reply.finish_reason == "stop"
    assert reply.logprobs == ()
    assert (reply.usage.output_tokens, reply.usage.cached_tokens) == (9, 0)
    assert reply.usage.prompt_tokens == len(model.encode_prompt(QUESTION["content"]))
    assert reply.text == model.generate(QUESTION["content"])
    assert model.last_run.usage == reply.usage


def test_pieces_join_to_the_reply(model):
    *pieces, last = model.stream_chat([QUESTION])
    assert all(isinstance(piece, TextDelta) for piece in pieces)
    assert len(pieces) > 3
    assert isinstance(last, Finished)
    assert "".join(piece.text for piece in pieces) == last.reply.text == ANSWER


def test_reasoning_is_apart(model):
    *pieces, last = model.stream_chat(
        [{"role": "user", "content": "What is 17 plus 25?"}], thinking=True, max_tokens=200
    )
    reply = last.reply
    assert "think>" not in reply.text + reply.reasoning
    thought = [p.text for p in pieces if isinstance(p, ReasoningDelta)]
    assert "".join(thought) == reply.reasoning
    whole = model.generate("What is 17 plus 25?", thinking=True, max_tokens=200)
    assert whole.replace(" ", "").replace("\n", "") == (
        f"<think>{reply.reasoning}</think>{reply.text}".replace(" ", "").replace("\n", "")
    )


def test_a_tool_is_called_and_its_result_read(model):
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    *pieces, last = model.stream_chat(messages, tools=[WEATHER])
    (call,) = last.reply.tool_calls
    assert (call.name, call.arguments) == ("get_weather", {"city": "Paris"})
    assert last.reply.finish_reason == "tool_calls"
    assert [p for p in pieces if isinstance(p, ToolCallEvent)] == [ToolCallEvent(0, call)]
    messages += [
        last.reply.message,
        {"role": "tool", "content": '{"temperature": 18, "sky": "clear"}'},
    ]
    reply = model.chat(messages, tools=[WEATHER])
    assert "18" in reply.text
    assert reply.finish_reason == "stop"


@pytest.mark.parametrize(("stop", "text"), [(" is", "The capital of France"), (["zz", "Th"], "")])
def test_stop_strings(model, stop, text):
    reply = model.chat([QUESTION], stop=stop)
    assert (reply.text, reply.finish_reason) == (text, "stop")


def test_max_tokens(model):
    reply = model.chat([QUESTION], max_tokens=3)
    assert reply.finish_reason == "length"
    assert reply.usage.output_tokens == 3
    assert ANSWER.startswith(reply.text)


def test_logprobs_are_those_of_the_logits(model):
    reply = model.chat([QUESTION], logprobs=True, top_logprobs=3)
    ids = model.encode_prompt(QUESTION["content"])
    logits = model.logits([*ids, *(one.token for one in reply.logprobs[:-1])])[len(ids) - 1 :]
    assert len(reply.logprobs) == reply.usage.output_tokens == len(logits)
    for one, row in zip(reply.logprobs, logits.astype(np.float64), strict=True):
        exact = row - row.max() - math.log(np.exp(row - row.max()).sum())
        assert one.logprob == pytest.approx(exact[one.token], abs=1e-4)
        assert [i for i, _ in one.top] == np.argsort(-exact, kind="stable")[:3].tolist()
        assert one.top[0][0] == one.token  # greedy
    text = model.tokenizer.decode([one.token for one in reply.logprobs])
    assert text == ANSWER


def test_a_seed_repeats(model):
    def tell(seed):
        return model.chat(said("Tell me a story."), temperature=1, seed=seed, max_tokens=16).text

    assert tell(1) == tell(1)
    assert len({tell(1), tell(2), tell(3)}) > 1
    whole = model.chat(said("Tell me a story."), sampling=Sampling(1.0, seed=1), max_tokens=16)
    assert whole.text == tell(1)


def test_an_abandoned_stream_leaves_the_model_well(model):
    stream = model.stream_chat([QUESTION])
    next(stream)
    stream.close()
    assert model.last_run.finish_reason is None
    assert model.chat([QUESTION]).text == ANSWER


def test_a_closed_model_says_so(glow_store):
    model = Model.load(glow_store, context_tokens=64)
    stream = model.stream_chat([QUESTION])
    session = model.session()
    model.close()
    for call in (lambda: next(stream), lambda: model.chat([QUESTION]), lambda: session.send("hi")):
        with pytest.raises(RequestError, match="closed"):
            call()


PICTURE = [{"type": "image_url", "image_url": {"url": "x"}}]
CALL = {"type": "function", "function": {"name": "f", "arguments": "{"}}
ODD = {"role": "user\n\x1b[31m", "content": "x"}


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "at least one message"),
        (None, "at least one message"),
        ("hi", "at least one message"),
        ([5], r"messages\[0\]: must be a mapping"),
        ([{}], r"messages\[0\].role"),
        ([{"role": "critic", "content": "x"}], "'critic' is none of"),
        ([ODD], r"messages\[0\].role"),
        ([{"role": "user"}], r"messages\[0\].content: must be a string"),
        ([{"role": "user", "content": 5}], "must be a string"),
        ([{"role": "user", "content": PICTURE}], "only text is supported"),
        ([{"role": "system", "content": "x"}], "at least one must be the user's"),
        ([{"role": "assistant", "content": "x"}], "at least one must be the user's"),
        ([QUESTION, {"role": "assistant", "tool_calls": [CALL]}], "arguments: not JSON"),
        ([QUESTION, {"role": "assistant", "tool_calls": 5}], "tool_calls: must be a list"),
        ([{"role": "user", "content": "\ud800"}], "not valid Unicode"),
        ([QUESTION] * 10_000, "at most 8192"),
    ],
)
def test_bad_messages(model, messages, words):
    with pytest.raises(RequestError, match=words) as caught:
        model.stream_chat(messages)  # refused at once, not at the first piece
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


def test_pictures_are_unsupported_by_name(model):
    with pytest.raises(UnsupportedParam, match=r"messages\[0\].content\[0\]"):
        model.chat([{"role": "user", "content": PICTURE}])


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        (5, "must be a list"),
        ([5], r"tools\[0\]: must be a mapping"),
        ([{"name": "a b"}], "letters, digits"),
        ([{"name": "x" * 65}], "letters, digits"),
        ([{"name": "f", "parameters": 5}], "must be a JSON schema"),
        ([{"name": "f", "parameters": {"type": "array"}}], "must be 'object'"),
        ([{"name": "f", "parameters": {"properties": {"a<b": {}}}}], "cannot be written in a call"),
        ([WEATHER, WEATHER], "a second tool named 'get_weather'"),
        ([{"name": "f", "parameters": {"x": {1, 2}}}], "cannot be written as JSON"),
    ],
)
def test_bad_tools(model, tools, words):
    for call in (lambda: model.chat([QUESTION], tools=tools), lambda: model.session(tools=tools)):
        with pytest.raises(RequestError, match=words) as caught:
            call()
        assert caught.value.param == "tools"
        assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("options", "param"),
    [({"temperature": -1}, "temperature"), ({"stop": ["x"] * 99}, "stop"), ({"sedd": 1}, "sedd")],
)
def test_bad_options(model, options, param):
    for call in (model.chat, model.stream_chat, lambda _, **o: model.session(**o)):
        with pytest.raises(RequestError) as caught:
            call([QUESTION], **options)
        assert caught.value.param == param


def test_a_bias_beyond_the_vocabulary(model):
    with pytest.raises(RequestError, match="there is no token 999999"):
        model.chat([QUESTION], logit_bias={999_999: 1})


def test_what_does_not_fit_says_the_numbers(model):
    with pytest.raises(ContextTooLong, match="512") as caught:
        model.stream_chat([QUESTION], max_tokens=600)
    assert (caught.value.prompt_tokens, caught.value.max_tokens) == (22, 600)
    with pytest.raises(ContextTooLong):
        model.chat(said("word " * 900))


def test_the_templates_own_words(glow_store, tmp_path, capsys):
    import shutil

    copy = shutil.copytree(glow_store, tmp_path / "store")
    (copy / "chat_template.jinja").write_text("{{ raise_exception('Only on Sundays.') }}")
    with Model.load(copy, context_tokens=64) as model:
        with pytest.raises(TemplateError, match=r"refused the messages: Only on Sundays\.$"):
            model.chat([QUESTION])
        with pytest.raises(TemplateError, match="Only on Sundays"):
            model.session().send("hi")
        assert model.generate("Once", raw=True, max_tokens=2)
    from cherenkov_cli.main import run

    for line in (["run", str(copy), "hi", "-q"], ["run", str(copy), "hi", "--json", "-q"]):
        assert run(line) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert err == "cherenkov: the chat template refused the messages: Only on Sundays.\n"
    (copy / "chat_template.jinja").write_text("{{ 1 / 0 }}")
    with (
        Model.load(copy, context_tokens=64) as model,
        pytest.raises(TemplateError, match="ZeroDivisionError"),
    ):
        model.chat([QUESTION])
