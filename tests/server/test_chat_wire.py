"""`/v1/chat/completions`, as OpenAI's clients see it."""

import json

import pytest

from cherenkov.errors import BackendError
from cherenkov.testing import Pause
from tests.server.served import Served, refused

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        },
    },
}
CALL = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
    "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>"
)


def say(request):
    """What the user's last message says, without the first word if that is `say`."""
    messages = getattr(request, "messages", None) or request.message
    words = messages[-1]["content"]
    return words.removeprefix("say ") if words.startswith("say ") else "ok"


@pytest.fixture(scope="module")
def server():
    with Served(say) as server:
        yield server


def test_a_whole_answer(server):
    answer = server.chat("say Paris.")
    assert answer.status_code == 200
    found = answer.json()
    assert found["object"] == "chat.completion"
    assert found["id"] == f"chatcmpl-{answer.headers['x-request-id']}"
    assert found["model"] == "org/scripted"
    assert found["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Paris.", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert found["usage"] == {
        "prompt_tokens": len("user: say Paris."),
        "completion_tokens": 7,
        "total_tokens": len("user: say Paris.") + 7,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_a_stream(server):
    *chunks, done = server.chat_events("say ab")
    assert done == "[DONE]"
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas == [
        {"role": "assistant", "content": "", "refusal": None},
        {"content": "a"},
        {"content": "b"},
        {},
    ]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None, None, None, "stop"]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert not any("usage" in chunk for chunk in chunks)


def test_usage_of_a_stream(server):
    *chunks, last, done = server.chat_events("say ab", stream_options={"include_usage": True})
    assert done == "[DONE]"
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 3


def test_stream_options_mean_nothing_without_a_stream(server):
    answer = server.chat(
        "say ab", stream_options={"include_usage": True, "include_obfuscation": True}
    )
    assert answer.json()["usage"]["completion_tokens"] == 3


def test_the_answer_may_not_break_lines_of_events(server):
    text = "a\nb\r\nc\u2028d\u0085e"
    chunks = server.chat_events(f"say {text}")
    said = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks[:-1])
    assert said == text


def test_several_choices(server):
    found = server.chat("say a", n=3, temperature=1, seed=7).json()
    assert [c["index"] for c in found["choices"]] == [0, 1, 2]
    assert found["usage"]["completion_tokens"] == 6
    assert found["usage"]["prompt_tokens"] == len("user: say a")
    seeds = [request.settings.sampling.seed for request in server.engine.seen[-3:]]
    assert seeds == [7, 8, 9]


def test_several_choices_in_a_stream(server):
    *chunks, last, _ = server.chat_events("say abc", n=6, stream_options={"include_usage": True})
    said = dict.fromkeys(range(6), "")
    for chunk in chunks:
        choice = chunk["choices"][0]
        said[choice["index"]] += choice["delta"].get("content", "")
    assert set(said.values()) == {"abc"}
    assert last["usage"]["completion_tokens"] == 24


def test_options_reach_the_model(server):
    server.chat(
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        seed=-1,
        presence_penalty=1,
        frequency_penalty=-1,
        logit_bias={"5": 2, "foo": 0},
        max_completion_tokens=9,
        stop=["x", "y"],
    )
    settings = server.engine.seen[-1].settings
    sampling = settings.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 7)
    assert (sampling.min_p, sampling.seed) == (0.1, 2**64 - 1)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (1, -1)
    assert sampling.logit_bias == ((5, 2.0),)
    assert (settings.max_tokens, settings.stop) == (9, ("x", "y"))


def test_a_null_counts_as_left_out(server):
    names = ("temperature", "top_p", "seed", "stop", "tools", "max_tokens", "n", "response_format")
    answer = server.chat("say a", **dict.fromkeys(names))
    assert answer.json()["choices"][0]["message"]["content"] == "a"


def test_where_an_answer_ends(server):
    by_stop = server.chat("say one two three", stop=" t").json()["choices"][0]
    assert (by_stop["message"]["content"], by_stop["finish_reason"]) == ("one", "stop")
    by_length = server.chat("say one two", max_tokens=5).json()["choices"][0]
    assert (by_length["message"]["content"], by_length["finish_reason"]) == ("one t", "length")


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_no_tokens_at_all(server, name):
    found = server.chat("say a", **{name: 0}).json()
    choice = found["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "length")
    assert found["usage"]["completion_tokens"] == 0


def test_logprobs(server):
    found = server.chat("say aé", logprobs=True, top_logprobs=2).json()["choices"][0]
    content = found["logprobs"]["content"]
    assert [one["token"] for one in content] == ["a", "é"]  # and not the token that ends it
    assert content[1]["bytes"] == [0xC3, 0xA9]
    assert [len(one["top_logprobs"]) for one in content] == [2, 2]


def test_logprobs_of_a_stream_are_those_of_the_whole(server):
    whole = server.chat(f"say a {CALL}", logprobs=True, tools=[WEATHER]).json()["choices"][0]
    chunks = server.chat_events(f"say a {CALL}", logprobs=True, tools=[WEATHER])[:-1]
    content = []
    for chunk in chunks:
        content += (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    assert content == whole["logprobs"]["content"]
    assert len(content) == len(f"a {CALL}")


def test_reasoning_apart(server):
    message = server.chat("say <think>\nhm\n</think>\n\nyes").json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm", "yes")
    chunks = server.chat_events("say <think>\nhm\n</think>\n\nyes")
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    assert "".join(d.get("reasoning_content", "") for d in deltas) == "hm"
    assert "".join(d.get("content", "") for d in deltas) == "yes"


def test_how_thinking_is_asked_for(server):
    asked = [
        ({"reasoning_effort": "none"}, False, None),
        ({"reasoning_effort": "low"}, True, "low"),
        ({"chat_template_kwargs": {"enable_thinking": True}}, True, None),
        ({}, False, None),
    ]
    for more, thinking, effort in asked:
        server.chat(**more)
        settings = server.engine.seen[-1].settings
        assert (settings.thinking, settings.reasoning_effort) == (thinking, effort)


# --- tools


def test_a_call(server):
    choice = server.chat(f"say {CALL}", tools=[WEATHER]).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "function"
    assert call["id"].startswith("call_")
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris", "days": 2}


def test_calls_in_a_stream(server):
    chunks = server.chat_events(f"say {CALL}\n{CALL}", tools=[WEATHER])
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    first, second, last = deltas
    assert first["role"] == "assistant"
    assert first["content"] is None
    assert [c["tool_calls"][0]["index"] for c in (first, second)] == [0, 1]
    assert first["tool_calls"][0]["id"] != second["tool_calls"][0]["id"]
    assert last == {}
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"


def test_text_and_a_call_in_a_stream(server):
    chunks = server.chat_events(f"say Look: {CALL}", tools=[WEATHER])
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    assert "".join(d.get("content") or "" for d in deltas) == "Look:"
    assert sum("tool_calls" in d for d in deltas) == 1


def test_a_result_goes_back(server):
    call = server.chat(f"say {CALL}", tools=[WEATHER]).json()["choices"][0]["message"]
    messages = [
        {"role": "user", "content": "?"},
        call,
        {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": "say 18"},
    ]
    body = {"messages": messages, "tools": [WEATHER]}
    answer = server.post("/v1/chat/completions", body)
    assert answer.json()["choices"][0]["message"]["content"] == "18"


def test_without_tools_a_call_is_text(server):
    message = server.chat(f"say {CALL}", tools=[WEATHER], tool_choice="none").json()["choices"][0]
    assert message["message"]["content"] == CALL
    assert message["finish_reason"] == "stop"


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_weather"}}]
)
def test_calls_cannot_be_forced(server, choice):
    answer = server.chat(tools=[WEATHER], tool_choice=choice)
    refused(answer, 400, "unsupported_parameter", "tool_choice")


def test_a_call_in_the_old_style(server):
    messages = [
        {"role": "user", "content": "?"},
        {
            "role": "assistant",
            "content": None,
            "function_call": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
        },
        {"role": "user", "content": "go on"},
    ]
    assert server.post("/v1/chat/completions", {"messages": messages}).status_code == 200
    call = server.engine.seen[-1].messages[1]["tool_calls"][0]
    assert call["function"]["name"] == "get_weather"


# --- what is refused, and what is not


REFUSED = [
    ({"audio": {}, "modalities": ["text", "audio"]}, "unsupported_parameter", "modalities"),
    ({"functions": [{"name": "f"}]}, "unsupported_parameter", "functions"),
    ({"response_format": {"type": "json_object"}}, "unsupported_parameter", "response_format"),
    ({"web_search_options": {}}, "unsupported_parameter", "web_search_options"),
    ({"moderation": {"model": "m"}}, "unsupported_parameter", "moderation"),
    (
        {"tools": [WEATHER], "parallel_tool_calls": False},
        "unsupported_parameter",
        "parallel_tool_calls",
    ),
    ({"temprature": 1}, "unknown_parameter", "temprature"),
    ({"messages": [{"role": ["user"], "content": "x"}]}, "invalid_value", "messages"),
    ({"repetition_penalty": 5e-324}, "invalid_value", "repetition_penalty"),
    ({"chat_template": "{{ 1 }}"}, "unknown_parameter", "chat_template"),
    (
        {"chat_template_kwargs": {"chat_template": "x"}},
        "unknown_parameter",
        "chat_template_kwargs.chat_template",
    ),
    ({"temperature": "1"}, "invalid_type", "temperature"),
    ({"temperature": 3}, "invalid_value", "temperature"),
    ({"temperature": -0.1}, "invalid_value", "temperature"),
    ({"top_p": 0}, "invalid_value", "top_p"),
    ({"n": 0}, "invalid_value", "n"),
    ({"n": 10**9}, "invalid_value", "n"),
    ({"n": True}, "invalid_type", "n"),
    ({"max_tokens": -1}, "invalid_value", "max_tokens"),
    ({"max_tokens": 10**9}, "invalid_value", "max_tokens"),
    ({"max_tokens": 10**30}, "invalid_value", "max_tokens"),
    ({"max_tokens": 8192}, "context_length_exceeded", None),
    ({"logprobs": True, "top_logprobs": 21}, "invalid_value", "top_logprobs"),
    ({"top_logprobs": 2}, "invalid_value", "top_logprobs"),
    ({"stop": ["x"] * 33}, "invalid_value", "stop"),
    ({"stop": [1]}, "invalid_type", "stop[0]"),
    ({"logit_bias": {"5": 101}}, "invalid_value", "logit_bias.5"),
    ({"logit_bias": {"x": 1}}, "invalid_value", "logit_bias"),
    ({"seed": 1.5}, "invalid_type", "seed"),
    ({"messages": []}, "invalid_value", "messages"),
    ({"messages": "hi"}, "invalid_type", "messages"),
    ({"messages": [1]}, "invalid_type", "messages[0]"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "invalid_value", "messages"),
    ({"messages": [{"role": "assistant", "content": "x"}]}, "invalid_value", "messages"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "unsupported_parameter",
        "messages[0].content[0]",
    ),
    ({"tools": [{"type": "function"}]}, "invalid_value", "tools"),
    ({"request_id": "no spaces"}, "invalid_value", "request_id"),
    ({"request_id": "x" * 81}, "invalid_value", "request_id"),
    ({"request_id": "x\n"}, "invalid_value", "request_id"),
    ({"model": "gpt-4o"}, "model_not_found", "model"),
]


@pytest.mark.parametrize(("more", "code", "param"), REFUSED, ids=lambda v: json.dumps(v)[:40])
def test_refusals(server, more, code, param):
    status = 404 if code == "model_not_found" else 400
    for stream in (False, True):
        answer = server.chat(**{"stream": stream, **more})
        error = refused(answer, status, code, param)
        assert error["type"] == "invalid_request_error"


def test_a_slip_is_answered_with_a_suggestion(server):
    error = refused(server.chat(temprature=1), 400, "unknown_parameter", "temprature")
    assert "did you mean temperature?" in error["message"]


def test_refusals_speak_of_the_parameter_not_of_types(server):
    error = refused(server.chat(messages=[]), 400, "invalid_value", "messages")
    assert error["message"] == "messages: must have at least 1 item"


def test_a_missing_parameter_is_named(server):
    answer = server.post("/v1/chat/completions", {"model": "org/scripted"})
    refused(answer, 400, "missing_required_parameter", "messages")


def test_what_has_no_effect_is_accepted(server):
    answer = server.chat(
        "say a",
        metadata={"a": "b"},
        store=True,
        user="u",
        service_tier="auto",
        safety_identifier="s",
        prompt_cache_key="k",
        verbosity="low",
        prediction={"type": "content", "content": "a"},
        audio={"voice": "alloy", "format": "wav"},
        modalities=["text"],
        response_format={"type": "text"},
        functions=[{"name": "f"}],
        function_call="none",
        parallel_tool_calls=False,
    )
    assert answer.json()["choices"][0]["message"]["content"] == "a"


def test_system_messages_alone_are_answered(server):
    body = {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "developer", "content": "say a"},
        ]
    }
    answer = server.post("/v1/chat/completions", body)
    assert answer.json()["choices"][0]["message"]["content"] == "a"
    roles = [message["role"] for message in server.engine.seen[-1].messages]
    assert roles == ["system", "user"]


def test_lenient():
    with Served("ok", server__lenient=True, server__any_model=True) as server:
        answer = server.chat(
            model="gpt-4o", web_search_options={}, functions=[{}], tool_choice="required"
        )
        assert answer.status_code == 200
        assert answer.json()["model"] == "gpt-4o"
        refused(server.chat(temperature=3), 400, "invalid_value", "temperature")


def test_defaults_come_from_the_settings():
    flags = {
        "defaults__max_tokens": 3,
        "defaults__sampling__temperature": 0.25,
        "defaults__sampling__top_k": 9,
        "defaults__thinking": True,
        "defaults__stream": True,
        "defaults__include_usage": True,
        "limits__max_output_tokens": 5,
    }
    with Served("abcdefgh", **flags) as server:
        chunks = server.chat().text
        assert chunks.endswith("data: [DONE]\n\n")
        assert '"completion_tokens":3' in chunks
        settings = server.engine.seen[-1].settings
        assert (settings.sampling.temperature, settings.sampling.top_k) == (0.25, 9)
        assert settings.thinking
        refused(server.chat(max_tokens=6), 400, "invalid_value", "max_tokens")


def test_going_on_whatever_the_model_says():
    with Served("ok") as server:
        for asked, goes_on in (
            ({}, False),
            ({"ignore_eos": True}, True),
            ({"ignore_eos": None}, False),
        ):
            assert server.chat(**asked).status_code == 200
            assert server.engine.seen[-1].ignore_eos is goes_on
        body = {"prompt": "a", "ignore_eos": True}
        assert server.post("/v1/completions", body).status_code == 200
        assert server.engine.seen[-1].ignore_eos is True
        session = server.post("/v1/sessions", {}).json()["id"]
        assert server.chat(session_id=session, ignore_eos=True).status_code == 200
        assert server.engine.seen[-1].ignore_eos is True
        refused(
            server.post("/v1/sessions", {"ignore_eos": True}),
            400,
            "unknown_parameter",
            "ignore_eos",
        )
        refused(server.chat(ignore_eos=1), 400, "invalid_type", "ignore_eos")
    with Served("ok", defaults__no_eos=True) as server:
        server.chat()
        assert server.engine.seen[-1].ignore_eos is True
        server.chat(ignore_eos=False)
        assert server.engine.seen[-1].ignore_eos is False


@pytest.mark.parametrize("cause", [None, ValueError("secret")])
def test_an_error_on_the_way_ends_the_stream(cause):
    """What others' code says in its errors stays here."""
    error = BackendError("scripted", "step", "broke" if cause is None else str(cause))
    error.__cause__ = cause
    with Served(lambda request: ["ab", error]) as server:
        chunks = server.chat_events()
        assert chunks[-1]["error"]["code"] == "internal_error"
        assert chunks[-1]["error"]["type"] == "server_error"
        found = refused(server.chat(), 500, "internal_error")
        assert ("broke" in found["message"]) is (cause is None)
        assert "secret" not in str([chunks, found])


def test_an_error_of_one_choice_ends_the_others():
    def script(request):
        is_first = not server.engine.seen[1:]
        return [Pause(30)] if is_first else [ValueError("secret words")]

    with Served(script) as server:
        error = refused(server.chat(n=2), 500, "internal_error")
        assert "secret" not in error["message"]
        server.until(lambda: not server.engine.requests())
