"""`Session`, on Glow: what it reads again and what not, and that it never says anything else than a fresh model would."""

import asyncio
import shutil
import threading

import pytest

from cherenkov import Finished, Model, Session, TextDelta
from cherenkov.errors import Cancelled, ContextTooLong, RequestError

FRANCE = "What is the capital of France?"
PARIS = "The capital of France is Paris."
TOOL = {
    "name": "get_weather",
    "description": "Weather of a city",
    "parameters": {"properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@pytest.fixture(scope="module")
def model(glow_store):
    with Model.load(glow_store, context_tokens=512) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def small(glow_store):
    """A model with little context."""
    with Model.load(glow_store, context_tokens=160) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def forgetful(glow_store, tmp_path_factory):
    """A model whose template leaves old thoughts away, think block and all."""
    folder = shutil.copytree(glow_store, tmp_path_factory.mktemp("forgetful") / "store")
    template = folder / "chat_template.jinja"
    text = template.read_text()
    block = r"'<|im_start|>assistant\n<think>\n' + thought + '\n</think>\n\n' + body"
    assert block in text
    template.write_text(text.replace(block, r"'<|im_start|>assistant\n' + body"))
    with Model.load(folder, context_tokens=512) as loaded:
        yield loaded


def same(session, model, reply, **options):
    """A fresh model gives the same answer to the same history, with the very same numbers where rows do not matter."""
    tools = session.tools or None
    fresh = model.chat(session.history[:-1], tools=tools, logprobs=True, top_logprobs=5, **options)
    assert fresh.text == reply.text
    assert fresh.tool_calls == reply.tool_calls
    if model.backend_name.startswith("native"):
        assert fresh.logprobs == reply.logprobs
    assert fresh.usage.prompt_tokens == reply.usage.prompt_tokens


def test_a_new_turn_reads_only_what_is_new(model):
    session = model.session(system="Be brief.", top_logprobs=5)
    seen = 0
    for question in (FRANCE, "And of Spain?", "What is 17 plus 25?"):
        reply = session.send(question)
        assert reply.usage.cached_tokens == seen
        assert reply.usage.prompt_tokens - seen < 35
        assert model.last_run.usage == reply.usage
        same(session, model, reply)
        # All but the stop token, which the next prompt brings along.
        seen = session.cached_tokens
        assert seen == reply.usage.prompt_tokens + reply.usage.output_tokens - 1
    assert [m["role"] for m in session.history] == ["system", *["user", "assistant"] * 3]
    assert session.usage.prompt_tokens > session.usage.cached_tokens > 0


def test_rows_that_pass_through_the_model(model, monkeypatch):
    """Not what we count, but what the network is given, if nothing is guessed."""
    monkeypatch.setattr(model.responder.loaded.speculation, "_most", 0)
    session = model.session()
    session.send(FRANCE)
    network = model.responder.loaded.network
    rows, forward = [], network.forward
    monkeypatch.setattr(
        network,
        "forward",
        lambda given, **rest: (rows.append(len(given)), forward(given, **rest))[1],
    )
    reply = session.send("And of Spain?")
    usage = reply.usage
    assert sum(rows) == usage.prompt_tokens - usage.cached_tokens + usage.output_tokens - 1
    assert usage.cached_tokens > usage.prompt_tokens / 2


def test_thoughts_that_stay_are_not_read_again(model):
    session = model.session(thinking=True, top_logprobs=5, max_tokens=120)
    for question in ("What is 17 plus 25?", FRANCE):
        reply = session.send(question)
        same(session, model, reply, thinking=True, max_tokens=120)
    assert reply.usage.cached_tokens > 0


def test_thoughts_that_go_cost_their_turn_alone(forgetful):
    """The template drops the think block of old answers: what was read before the answer still counts."""
    session = forgetful.session(top_logprobs=5)
    first = session.send(FRANCE)
    second = session.send("And of Spain?")
    same(session, forgetful, second)
    header = len(forgetful.tokenizer.encode("<think>\n\n</think>\n\n", special=True))
    assert second.usage.cached_tokens == first.usage.prompt_tokens - header
    third = session.send("What is 17 plus 25?")
    same(session, forgetful, third)
    # The second answer is read again, and no more.
    assert second.usage.prompt_tokens - header == third.usage.cached_tokens


@pytest.mark.parametrize(
    "options", [{"stop": " is"}, {"max_tokens": 4}, {"temperature": 1.2, "seed": 7}]
)
def test_answers_that_end_early_or_oddly(model, options):
    """Stop strings are not in the next prompt, and sampled tokens may be cut otherwise: the mark is where it goes on."""
    session = model.session(top_logprobs=5, max_tokens=12)
    first = session.send(FRANCE, **options)
    second = session.send("And of Spain?", stop=None, max_tokens=9, temperature=0)
    same(session, model, second, max_tokens=9)
    assert second.usage.cached_tokens >= first.usage.prompt_tokens


def test_tools_over_turns(model):
    session = model.session(tools=[TOOL], top_logprobs=5)
    reply = session.send("What is the weather in Paris?")
    (call,) = reply.tool_calls
    assert call.arguments == {"city": "Paris"}
    assert session.tools[0]["function"]["name"] == "get_weather"
    after = session.send({"role": "tool", "content": '{"temperature": 18, "sky": "clear"}'})
    assert "18" in after.text
    assert after.usage.cached_tokens == reply.usage.prompt_tokens + reply.usage.output_tokens - 1
    same(session, model, after)
    assert [m["role"] for m in session.history] == ["user", "assistant", "tool", "assistant"]
    several = session.send(
        [{"role": "tool", "content": "x"}, {"role": "user", "content": FRANCE}], tools=[]
    )
    assert session.tools == []
    same(session, model, several)


def test_the_stream_and_the_reply(model):
    session = model.session()
    *pieces, last = session.stream(FRANCE)
    assert "".join(p.text for p in pieces if isinstance(p, TextDelta)) == last.reply.text == PARIS
    assert session.history[-1] == last.reply.message


def test_history_belongs_to_the_caller(model):
    session = model.session(system="Be brief.", tools=[TOOL])
    message = {"role": "user", "content": FRANCE}
    session.send(message)
    message["content"] = "changed"
    session.history[1]["content"] = "changed"
    session.history.clear()
    session.tools[0]["function"]["name"] = "changed"
    assert session.history[1]["content"] == FRANCE
    assert session.tools[0]["function"]["name"] == "get_weather"


def test_settings_hold_from_the_turn_on(model):
    session = model.session(max_tokens=3)
    assert session.send(FRANCE).usage.output_tokens == 3
    assert session.send(FRANCE, max_tokens=5).usage.output_tokens == 5
    assert session.send(FRANCE).usage.output_tokens == 5
    assert session.settings.max_tokens == 5


def test_random_numbers_go_on_and_a_seed_begins_anew(model):
    def story(session, **options):
        return session.send("Tell me a story.", max_tokens=12, **options).text

    one, two = (model.session(temperature=1.0, seed=5) for _ in range(2))
    first = [story(one), story(one)]
    assert first == [story(two), story(two)]
    session = model.session(temperature=1.0, seed=5)
    story(session)
    session.reset()
    assert story(session) != first[0]  # the numbers went on
    session.reset()
    assert story(session, seed=5) == first[0]


def test_forks_go_apart_and_are_alike(model):
    session = model.session(temperature=0.8, seed=3, max_tokens=16, top_logprobs=3)
    session.send("Tell me a story.")
    fork = session.fork()
    assert isinstance(fork, Session)
    assert (fork.history, fork.usage, fork.cached_tokens) == (
        session.history,
        session.usage,
        session.cached_tokens,
    )
    mine, theirs = session.send("Go on."), fork.send("Go on.")
    assert mine == theirs
    assert mine.usage.cached_tokens > 0
    theirs = fork.send("What then?")
    assert len(session.history) == 4
    assert session.send("What then?") == theirs
    same_again = model.session(temperature=0.8, seed=3, max_tokens=16, top_logprobs=3)
    same_again.send("Tell me a story.")
    assert same_again.send("Go on.").text == mine.text


def test_reset_and_another_system_message(model):
    session = model.session(system="Be brief.")
    session.send(FRANCE)
    session.system = "Be long."
    assert session.history[0] == {"role": "system", "content": "Be long."}
    assert session.send("And of Spain?").usage.cached_tokens == 0
    session.reset()
    assert session.history == [{"role": "system", "content": "Be long."}]
    assert (session.usage.prompt_tokens, session.cached_tokens, session.forgotten) == (0, 0, 0)
    session.system = None
    assert session.history == []
    with pytest.raises(RequestError, match="must be text"):
        session.system = 5


# --- the context


def test_a_full_context_is_an_error_with_numbers(model):
    session = model.session()
    session.send(FRANCE)
    before = session.history
    with pytest.raises(ContextTooLong, match="512") as caught:
        session.send("word " * 600)
    assert caught.value.prompt_tokens > 600
    assert session.history == before
    assert session.send("And of Spain?").usage.cached_tokens > 0


def test_trimming_forgets_whole_turns_oldest_first(small):
    session = small.session(system="Be brief.", overflow="trim", max_tokens=20, top_logprobs=1)
    for i in range(8):
        reply = session.send(f"What is {i} plus {i + 1}? " + "word " * 10)
        assert reply.usage.prompt_tokens + 20 <= 161
    assert session.forgotten > 0
    assert session.forgotten % 2 == 0
    history = session.history
    assert len(history) == 17
    shown = [history[0], *history[1 + session.forgotten : -1]]
    assert shown[1]["role"] == "user"
    fresh = small.chat(shown, max_tokens=20, top_logprobs=1)
    if small.backend_name.startswith("native"):
        assert fresh.text == reply.text
    assert fresh.usage.prompt_tokens == reply.usage.prompt_tokens


def test_trimming_leaves_room_so_that_it_is_rare(small):
    session = small.session(overflow="trim", max_tokens=4)
    trims, cached, forgotten = 0, 0, 0
    for i in range(16):
        usage = session.send(f"{i} word").usage
        trims += session.forgotten > forgotten
        forgotten = session.forgotten
        cached += usage.cached_tokens > 0
    assert 1 <= trims <= 6
    assert cached >= 15 - trims


def test_the_last_turn_is_never_trimmed(model):
    session = model.session(tools=[TOOL], overflow="trim", max_tokens=30)
    session.send("hello")
    session.send("What is the weather in Paris?")
    with pytest.raises(ContextTooLong):
        session.send({"role": "tool", "content": "word " * 500})
    assert session.forgotten == 0
    session.send({"role": "tool", "content": "word " * 340})
    assert session.forgotten == 2
    with pytest.raises(ContextTooLong):
        session.send("word " * 600)
    assert session.forgotten == 2


# --- threads


def test_cancel_from_another_thread(model):
    session = model.session()
    session.send(FRANCE)
    before = (session.history, session.usage, session.cached_tokens)
    begun, raised = threading.Event(), []

    def listen():
        try:
            for _ in session.stream("Tell me a story.", max_tokens=400, logit_bias={2: -100}):
                begun.set()
        except Cancelled as error:
            raised.append(error)

    thread = threading.Thread(target=listen)
    thread.start()
    assert begun.wait(60)
    session.cancel()
    thread.join(60)
    assert len(raised) == 1
    assert (session.history, session.usage, session.cached_tokens) == before
    assert session.settings.max_tokens is None
    assert session.send("And of Spain?").usage.cached_tokens == before[2]


def test_cancelling_nothing_is_nothing(model):
    session = model.session()
    session.cancel()
    assert session.send(FRANCE).text == PARIS


def test_a_busy_session_refuses(model, tmp_path):
    session = model.session()
    stream = session.stream(FRANCE)
    next(stream)
    for call in (
        lambda: session.send("x"),
        lambda: next(session.stream("x")),
        session.fork,
        session.reset,
        lambda: session.save(tmp_path / "s"),
        lambda: setattr(session, "system", "x"),
    ):
        with pytest.raises(RequestError, match="busy") as caught:
            call()
        assert caught.value.code == "busy"
    assert session.history == []
    assert isinstance([*stream][-1], Finished)
    assert len(session.history) == 2


def test_sessions_in_threads_do_not_mix(model):
    sessions = [model.session(top_logprobs=1) for _ in range(3)]
    questions = [FRANCE, "What is 17 plus 25?", "What is the capital of Spain?"]
    threads = [
        threading.Thread(target=lambda s=s, q=q: [s.send(q), s.send(q)])
        for s, q in zip(sessions, questions, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for session, question in zip(sessions, questions, strict=True):
        alone = model.session()
        alone.send(question)
        alone.send(question)
        assert session.history == alone.history
        assert session.usage == alone.usage


def test_async(model):
    """As docs/conversations.md shows it."""

    async def ask(session, question):
        try:
            return await asyncio.to_thread(session.send, question)
        except asyncio.CancelledError:
            session.cancel()
            raise

    async def main():
        one, two = model.session(), model.session()
        replies = await asyncio.gather(ask(one, FRANCE), ask(two, "What is 17 plus 25?"))
        assert [reply.text for reply in replies] == [PARIS, "17 plus 25 is 42."]
        task = asyncio.create_task(ask(one, "Tell me a story."))
        await asyncio.sleep(
            0
        )  # it has begun; its end would be heard of in a later turn of the loop
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


# --- what is refused


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("", "empty"),
        (None, "must be a mapping"),
        (5, "must be a mapping"),
        ([], "the last must be the user's"),
        ({"role": "system", "content": "x"}, "the last must be"),
        ([{"role": "system", "content": "x"}, {"role": "user", "content": "x"}], "session.system"),
        ({"role": "assistant", "content": "x"}, "the last must be"),
        ({"role": "critic", "content": "x"}, "'critic'"),
        ({"role": "user", "content": [{"type": "image"}]}, "only text"),
        ({"role": "tool", "content": "x"}, "at least one must be the user's"),
        ("\ud800", "not valid Unicode"),
    ],
)
def test_bad_messages(model, message, words):
    session = model.session()
    with pytest.raises(RequestError, match=words) as caught:
        session.send(message)
    assert str(caught.value).isprintable()
    assert session.history == []
    assert session.send(FRANCE).text == PARIS


def test_bad_settings(model):
    with pytest.raises(RequestError, match="one of error, trim"):
        model.session(overflow="ignore")
    with pytest.raises(RequestError, match="must be text"):
        model.session(system=5)
    session = model.session()
    with pytest.raises(RequestError) as caught:
        session.stream("x", temperature=-1)
    assert caught.value.param == "temperature"
    assert session.settings.sampling.temperature == 0
