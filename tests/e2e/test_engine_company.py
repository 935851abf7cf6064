"""Each answer is bit for bit what it would be alone: whoever shares its steps, however its prompt is cut, whatever was cached."""

import itertools
import random
import time

import pytest

from cherenkov import Finished, Model, TextDelta
from cherenkov.chat.options import Settings
from cherenkov.engine import (
    ChatRequest,
    CompletionRequest,
    Echoed,
    Engine,
    Limits,
    Logprobs,
    Started,
    TurnRequest,
)
from cherenkov.errors import BackendError
from tests.gpus import on

LONG = "Tell me about the capital of France. " * 9
CHATS = [
    ("What is the capital of France?", {"max_tokens": 14}),
    ("What is the capital of Spain?", {"max_tokens": 9, "temperature": 0.9, "seed": 3}),
    (LONG, {"max_tokens": 6, "logprobs": True, "top_logprobs": 3}),
    (
        "Count to ten.",
        {"max_tokens": 20, "temperature": 1.1, "seed": 7, "frequency_penalty": 0.7, "top_k": 40},
    ),
    ("Who are you?", {"max_tokens": 16, "repetition_penalty": 1.3, "stop": "the"}),
    ("Hello", {"max_tokens": 5, "thinking": True, "logit_bias": {6838: 5.0}}),
    (
        LONG + "Briefly.",
        {
            "max_tokens": 8,
            "temperature": 0.7,
            "min_p": 0.05,
            "top_p": 0.9,
            "seed": 1,
            "top_logprobs": 0,
        },
    ),
    ("What is 2+2?", {"max_tokens": 1}),
]


def said(text):
    return [{"role": "user", "content": text}]


def asked(text, options):
    return ChatRequest(said(text), Settings().updated(options))


@pytest.fixture(scope="module", params=["resident", "streamed"])
def model(request, glow_store):
    few = {"pool": 0.004} if request.param == "streamed" else {}
    try:
        loaded = Model.load(
            glow_store,
            backend="native",
            context_tokens=256,
            sequences=4,
            speculate="auto",
            **few,
        )
    except BackendError as error:
        pytest.skip(str(error))
    with loaded:
        if request.param == "resident":  # drafts in company too
            loaded.responder.loaded.speculation.most_lanes = 8
            loaded.responder.loaded.speculation.pace.fixed = 2
        yield loaded


@pytest.fixture(scope="module")
def alone(model):
    """What each says alone, without an engine."""
    return [model.chat(said(text), **options) for text, options in CHATS]


@pytest.mark.parametrize(
    ("seed", "limits"),
    [
        (1, Limits()),
        (2, Limits(prefix_cache_bytes=0, prefill_quantum=7)),
        (3, Limits(max_batch=3, prefill_quantum=50, prefix_cache_entries=3)),
        (4, Limits(max_batch=1)),
        (5, Limits(max_batch=8, prefill_quantum=1, prefill_chunk_s=0)),
    ],
)
def test_in_company(model, alone, seed, limits):
    order = list(range(len(CHATS))) * 2
    chance = random.Random(seed)
    chance.shuffle(order)
    with Engine(model, limits) as engine:
        tickets = []
        for which in order:
            tickets.append(engine.submit(asked(*CHATS[which])))
            if chance.random() < 0.5:
                time.sleep(chance.random() * 0.02)
        replies = [ticket.reply() for ticket in tickets]
    assert replies_of(replies) == replies_of(alone[which] for which in order)
    figures = engine.metrics()
    assert figures.completed == len(order)
    assert figures.failed == figures.cancelled == figures.rebuilt == 0
    assert limits.max_batch == 1 or figures.decode_rows > figures.decode_steps


def replies_of(replies):
    """All but the usage, in which cached tokens differ."""
    return [(r.text, r.reasoning, r.tool_calls, r.finish_reason, r.logprobs) for r in replies]


def test_the_pieces_join_to_the_answer(model):
    with Engine(model) as engine:
        tickets = [engine.submit(asked(*chat)) for chat in CHATS]
        for ticket in tickets:
            events = list(ticket)
            reply = events[-1].reply
            assert isinstance(events[-1], Finished)
            assert "".join(e.text for e in events if isinstance(e, TextDelta)) == reply.text
            tokens = tuple(e.token for e in events if isinstance(e, Logprobs))
            assert tokens == reply.logprobs[: len(tokens)]
            assert len(reply.logprobs) - len(tokens) in {0, 1}  # a stop token is no piece
            started = next(e for e in events if isinstance(e, Started))
            assert started.prompt_tokens == reply.usage.prompt_tokens


def test_cached_and_fresh_are_the_same(model):
    """Twelve turns that grow; every one is asked again with nothing cached, and by another owner."""
    options = {"max_tokens": 7, "temperature": 0.8, "seed": 5, "top_logprobs": 1}
    messages, cached = [], []
    with Engine(model) as engine:
        for turn in range(5):
            messages += said(f"Question {turn}: what is the capital of France?")
            request = ChatRequest(list(messages), Settings().updated(options), owner="a")
            reply = engine.submit(request).reply()
            stranger = ChatRequest(list(messages), Settings().updated(options), owner="b")
            other = engine.submit(stranger).reply()
            again = engine.submit(request).reply()
            assert replies_of([reply]) == replies_of([other]) == replies_of([again])
            assert replies_of([reply]) == replies_of([model.chat(messages, **options)])
            assert again.usage.cached_tokens == again.usage.prompt_tokens  # its logits were kept
            assert turn or other.usage.cached_tokens == 0
            cached.append((reply.usage.cached_tokens, reply.usage.prompt_tokens))
            messages.append(reply.message)
    for (_, before), (found, total) in itertools.pairwise(cached):
        assert before <= found < total


def test_a_session_says_what_a_session_says(model):
    options = {"max_tokens": 9, "temperature": 0.9, "seed": 4}
    lines = ["Hello", "What is the capital of France?", "And of Spain?", "Thanks"]
    plain = model.session(system="Be brief.", **options)
    with Engine(model) as engine:
        mine = engine.open_session(system="Be brief.", **options)
        busy = [engine.submit(asked(*chat)) for chat in CHATS[:3]]
        for line in lines:
            reply = engine.submit(TurnRequest(mine.id, line)).reply()
            assert replies_of([reply]) == replies_of([plain.send(line)])
        info = engine.session(mine.id)
        assert info.turns == len(lines)
        assert info.messages == len(plain.history)
        for ticket in busy:
            ticket.reply()


def test_completions(model):
    tokenizer = model.tokenizer
    text = "The capital of France is"
    ids = tokenizer.encode(text, special=True)
    options = {"max_tokens": 6, "top_logprobs": 2}
    plain = model.generate(text, raw=True, max_tokens=6)
    rows = model.logits(ids)
    with Engine(model) as engine:
        for prompt in (text, ids):
            for echo in (False, True):
                ticket = engine.submit(
                    CompletionRequest(prompt, Settings().updated(options), echo=echo)
                )
                events = list(ticket)
                assert events[-1].reply.text == plain
                echoed = [e for e in events if isinstance(e, Echoed)]
                assert len(echoed) == echo
                for one in echoed:
                    assert one.ids == tuple(ids)
                    assert one.text == text
                    assert one.logprobs[0] is None
                    for row, token, likely in zip(rows, ids[1:], one.logprobs[1:], strict=False):
                        assert likely.token == token
                        assert likely.top[0][0] == int(row.argmax())
        request = CompletionRequest(
            text, Settings().updated({"top_logprobs": 0}), echo=True, no_answer=True
        )
        *_, echoed, finished = engine.submit(request)
        assert len(echoed.logprobs) == len(ids)
        assert finished.reply.text == ""
        assert finished.reply.finish_reason == "length"
        nothing = engine.submit(ChatRequest(said("Hello"), no_answer=True)).reply()
        assert nothing.usage.output_tokens == 0


def test_what_was_read_survives_a_restart(model, tmp_path):
    limits = Limits(prefix_cache_dir=str(tmp_path / "prefixes"))
    request = asked("What is the capital of France?", {"max_tokens": 6, "top_logprobs": 1})
    with Engine(model, limits) as engine:
        first = engine.submit(request).reply()
    with Engine(model, limits) as engine:
        second = engine.submit(request).reply()
        assert engine.metrics().prefix.loaded == 1
    assert second.usage.cached_tokens == second.usage.prompt_tokens
    assert replies_of([first]) == replies_of([second])
    with Engine(model, Limits(prefix_cache_dir=limits.prefix_cache_dir)) as engine:
        longer = ChatRequest(
            [*said("What is the capital of France?"), first.message, *said("Why?")]
        )
        assert engine.submit(longer).started().cached_tokens > 0


def test_what_was_read_with_experts_left_out_is_not_gone_on_from_exactly(glow_store, tmp_path):
    limits = Limits(prefix_cache_dir=str(tmp_path / "prefixes"))
    request = asked("What is the capital of France?", {"max_tokens": 6})
    cached = []
    for weak in (1.0, None, 1.0):
        with (
            Model.load(glow_store, context_tokens=256, pool=0.004, cut_weak=weak) as model,
            Engine(model, limits) as engine,
        ):
            engine.wait_ready()
            cached.append(engine.submit(request).reply().usage.cached_tokens > 0)
    assert cached == [False, False, True]


@pytest.mark.parametrize("mode", ["mtp", "ngram"])
def test_drafts_go_on_in_company_and_after_a_hit(glow_store, tmp_path, mode):
    """Tokens are guessed ahead for several answers at once, from points of the cache and of the disk too; the text is the same."""
    texts = ["Count to ten.", "What is the capital of France?", "Who are you?"]
    options = {"max_tokens": 24, "temperature": 0.6, "seed": 2, "top_logprobs": 1}
    try:
        plain = Model.load(glow_store, backend="native", context_tokens=256, speculate="off")
    except BackendError as error:
        pytest.skip(str(error))
    with plain:
        wanted = replies_of([plain.chat(said(text), **options) for text in texts])
    loading = {"backend": "native", "context_tokens": 256, "speculate": mode, "drafts": 2}
    limits = Limits(prefix_cache_dir=str(tmp_path / "prefixes"))
    with Model.load(glow_store, sequences=4, **loading) as model:
        speculation = model.responder.loaded.speculation
        speculation.pace.fixed, counts = 2, speculation.counts
        for _ in range(2):  # the second time all of it comes from the files
            with Engine(model, limits) as engine:
                for cached in (False, True):
                    before = sum(counts.rows[1:])
                    replies = [t.reply() for t in [engine.submit(asked(t, options)) for t in texts]]
                    assert replies_of(replies) == wanted
                    assert sum(counts.rows[1:]) > before
                    if cached:
                        assert all(r.usage.cached_tokens == r.usage.prompt_tokens for r in replies)
                figures = engine.metrics()
        assert figures.prefix.loaded == len(texts)


@pytest.fixture(params=["mlx", on("metal"), on("cuda")])
def of_mlx(request):
    """A backend of MLX's."""
    pytest.importorskip("mlx.core")
    return request.param


@pytest.mark.timeout(600)  # a GPU compiles first
@pytest.mark.parametrize("count", [2, 20])
def test_a_hit_on_mlx(glow_store, tmp_path, of_mlx, count):
    limits = Limits(prefix_cache_bytes=64 << 20, prefix_cache_dir=str(tmp_path))
    options = {"backend": of_mlx, "context_tokens": 64, "sequences": 2}
    request = CompletionRequest(list(range(50, 50 + count)), Settings().updated({"max_tokens": 3}))
    found = []
    for _ in range(2):  # the second engine reads what the first has written
        with Model.load(glow_store, **options) as model, Engine(model, limits) as engine:
            engine.wait_ready()
            found += [engine.submit(request).reply() for _ in range(2)]
    assert [reply.usage.cached_tokens for reply in found] == [0, count, count, count]
    assert len({reply.text for reply in found}) == 1


@pytest.mark.timeout(600)
def test_drafts_in_company_on_mlx(glow_store, monkeypatch, of_mlx):
    """Rows that were guessed wrong are taken back, not run again, and the text is what it is without guesses."""
    monkeypatch.delattr("cherenkov.lane.Lane._rerun")
    prompts = list(range(50, 56)) * 3, list(range(90, 95)) * 3
    wanted, settings = [], Settings().updated({"max_tokens": 8})
    for mode in ("off", "mtp"):
        loading = {"backend": of_mlx, "context_tokens": 64, "sequences": 2, "speculate": mode}
        with Model.load(glow_store, **loading) as model, Engine(model) as engine:
            speculation = model.responder.loaded.speculation
            speculation.pace.fixed = 2
            tickets = [engine.submit(CompletionRequest(p, settings)) for p in prompts]
            wanted.append([ticket.reply().text for ticket in tickets])
            assert (sum(speculation.counts.rows[1:]) > 0) == (mode != "off")
    assert wanted[0] == wanted[1]
