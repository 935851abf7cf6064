"""`/v1/completions`, and the smaller endpoints."""

import json
import threading

import pytest
from pydantic import ValidationError

from cherenkov_server.wire.chat import ChatCompletion
from cherenkov_server.wire.completions import Completion
from cherenkov_server.wire.sessions import Detokenize
from tests.server.served import Served, events, refused


@pytest.fixture(scope="module")
def server():
    with Served(
        lambda request: f"<{request.prompt}>" if request.no_answer is False else ""
    ) as server:
        yield server


def complete(server, prompt="hi", **more):
    return server.post("/v1/completions", {"prompt": prompt} | more)


def test_a_text(server):
    found = complete(server).json()
    assert found["object"] == "text_completion"
    assert found["id"].startswith("cmpl-")
    assert found["choices"] == [
        {"index": 0, "text": "<hi>", "logprobs": None, "finish_reason": "stop"}
    ]
    assert found["usage"]["total_tokens"] == 7


@pytest.mark.parametrize("prompt", [["a", "b"], [[97], [98]]])
def test_several_prompts(server, prompt):
    found = complete(server, prompt, n=2, echo=True).json()
    texts = [choice["text"] for choice in found["choices"]]
    assert [text[0] for text in texts] == ["a", "a", "b", "b"]
    assert [choice["index"] for choice in found["choices"]] == [0, 1, 2, 3]
    assert found["usage"]["prompt_tokens"] == 2


def test_more_prompts_than_the_queue_holds():
    with Served("x", limits__queued_requests=1, limits__active_requests=2) as server:
        found = complete(server, [str(i) for i in range(40)], echo=True).json()
        assert [choice["text"] for choice in found["choices"]] == [f"{i}x" for i in range(40)]


def test_token_ids(server):
    assert complete(server, [104, 105], echo=True).json()["choices"][0]["text"].startswith("hi")


def test_a_stream(server):
    answer = complete(server, stream=True, echo=True, stream_options={"include_usage": True})
    *chunks, last, done = events(answer.text)
    assert done == "[DONE]"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "hi<hi>"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[-2:]] == [None, "stop"]
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 5


def test_echo_and_logprobs_together(server):
    choice = complete(server, echo=True, logprobs=2, max_tokens=2).json()["choices"][0]
    likely = choice["logprobs"]
    assert choice["text"] == "hi<h"
    assert likely["tokens"] == ["h", "i", "<", "h"]
    assert likely["token_logprobs"] == [None, -0.5, -0.5, -0.5]
    assert likely["text_offset"] == [0, 1, 2, 3]
    assert likely["top_logprobs"][0] is None
    assert set(likely["top_logprobs"][1]) == {"i", "j"}


def test_what_evaluation_harnesses_send(server):
    body = {"temperature": 0, "max_tokens": 0, "logprobs": 1, "echo": True, "seed": 1234}
    choices = complete(server, ["ab", "cd"], **body).json()["choices"]
    assert [choice["text"] for choice in choices] == ["ab", "cd"]
    assert [choice["logprobs"]["tokens"] for choice in choices] == [["a", "b"], ["c", "d"]]
    assert [choice["finish_reason"] for choice in choices] == ["length", "length"]


def test_logprobs_leave_out_what_ended_the_text(server):
    likely = complete(server, logprobs=0).json()["choices"][0]["logprobs"]
    assert likely["tokens"] == list("<hi>")
    assert likely["top_logprobs"] is None


def test_logprobs_of_a_stream_are_those_of_the_whole(server):
    asked = {"echo": True, "logprobs": 1}
    whole = complete(server, "é", **asked).json()["choices"][0]["logprobs"]
    parts = events(complete(server, "é", stream=True, **asked).text)[:-1]
    for column in ("tokens", "token_logprobs", "text_offset"):
        joined = [v for p in parts for v in (p["choices"][0]["logprobs"] or {column: []})[column]]
        assert joined == whole[column]


@pytest.mark.parametrize(
    ("kind", "name"),
    [(Completion, "prompt"), (ChatCompletion, "messages"), (Detokenize, "tokens")],
)
def test_of_many_wrong_items_the_first_is_told(kind, name):
    with pytest.raises(ValidationError) as error:
        kind.model_validate({name: [None] * 1000})
    assert error.value.error_count() <= 4  # one for each form that a prompt may have


def test_more_parameters_than_there_are(server):
    refused(complete(server, **{f"k{i}": 0 for i in range(300)}), 400, "invalid_json")


REFUSED = [
    ({"suffix": "x"}, "unsupported_parameter", "suffix"),
    ({"best_of": 2}, "unsupported_parameter", "best_of"),
    ({"tools": [{}]}, "unsupported_parameter", "tools"),
    ({"messages": []}, "unknown_parameter", "messages"),
    ({"prompt": []}, "invalid_value", "prompt"),
    ({"prompt": 5}, "invalid_type", "prompt"),
    ({"prompt": [[1, "a"]]}, "invalid_type", "prompt[0][1]"),
    ({"prompt": [-1]}, "invalid_value", "prompt[0]"),
    ({"prompt": ["x"] * 2049}, "invalid_value", "prompt"),
    ({"prompt": ["x"] * 20, "n": 128}, "invalid_value", "n"),
    ({"logprobs": 21}, "invalid_value", "logprobs"),
    ({"logprobs": True}, "invalid_type", "logprobs"),
    ({"best_of": 0, "n": 0}, "invalid_value", "n"),
    ({"prompt": "\ud800"}, "invalid_value", "prompt"),
]


@pytest.mark.parametrize(("more", "code", "param"), REFUSED, ids=lambda v: json.dumps(v)[:40])
def test_refusals(server, more, code, param):
    body = json.dumps({"prompt": "hi"} | more)
    answer = server.client.post(
        "/v1/completions", content=body, headers={"content-type": "application/json"}
    )
    refused(answer, 400, code, param)


def test_best_of_nothing_is_nothing(server):
    assert complete(server, best_of=0).status_code == 200


# --- the smaller ones


def test_models(server):
    (model,) = server.get("/v1/models").json()["data"]
    assert model["id"] == "org/scripted"
    assert model["max_model_len"] > 0
    assert server.get("/v1/models/org/scripted").json() == model
    assert server.get("/v1/models/org%2Fscripted").json() == model
    for other in ("gpt-4o", "a" * 600, "%00", "~", "a%5cb"):
        refused(server.get(f"/v1/models/{other}"), 404, "model_not_found", "model")
    for other in ("../etc/passwd", "%2e%2e/x", "/etc/passwd"):
        assert server.get(f"/v1/models/{other}").status_code == 404


def test_tokens_there_and_back(server):
    found = server.post("/tokenize", {"prompt": "héy"}).json()
    assert found == {"count": 3, "max_model_len": 8192, "tokens": [104, 233, 121]}
    assert server.post("/tokenize", {"content": "a"}).json()["tokens"] == [97]
    back = server.post("/detokenize", {"tokens": [104, 233, 121]}).json()
    assert back == {"prompt": "héy", "content": "héy"}
    refused(server.post("/tokenize", {}), 400, "missing_required_parameter", "prompt")
    refused(server.post("/detokenize", {"tokens": [-1]}), 400, "invalid_value", "tokens[0]")
    assert server.post("/detokenize", {"tokens": [2**63 - 1]}).json()["prompt"] == ""


def test_long_texts_are_taken_apart_beside_the_event_loop(server, monkeypatch):
    spelling = server.service.loaded.tokenizer
    threads = []

    def noted(method):
        def call(*args, **more):
            threads.append(threading.current_thread())
            return method(*args, **more)

        return call

    for name in ("encode", "decode"):
        monkeypatch.setattr(spelling, name, noted(getattr(spelling, name)))
    assert server.post("/tokenize", {"prompt": "hi"}).json()["tokens"] == [104, 105]
    assert server.post("/detokenize", {"tokens": [104]}).json()["prompt"] == "h"
    assert len(threads) == 2
    assert server.thread not in threads


def test_health_and_figures(server):
    assert server.get("/health").json() == {"status": "ok"}
    complete(server)
    text = server.get("/metrics").text
    assert "cherenkov_ready 1\n" in text
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    names = [line.split(" ")[0] for line in lines]
    assert len(set(names)) == len(names)
    assert all(float(line.split(" ")[1]) >= 0 for line in lines)
    assert "cherenkov_output_tokens_total" in names
    assert 'cherenkov_http_responses_total{status="200"}' in names


def test_the_schema_holds_every_route(server):
    found = server.get("/schema").json()
    assert found["openapi"].startswith("3.1")
    guard = server.running._server.config.app
    routes = {(route.path, tuple(sorted(route.methods))) for route in guard._app.routes}
    listed = {(path, method.upper()) for path, item in found["paths"].items() for method in item}
    served = {
        (path.replace("{id:path}", "{id}").replace("{id:str}", "{id}"), method)
        for path, methods in routes
        for method in methods
        if method not in {"OPTIONS", "HEAD"}
    }
    assert listed == served


def test_addresses_and_methods_that_are_not_there(server):
    refused(server.get("/nothing"), 404, "not_found")
    refused(server.get("/"), 404, "not_found")
    refused(server.get("/v1/chat/completions"), 405, "method_not_allowed")
    refused(server.client.request("PUT", "/v1/models"), 405, "method_not_allowed")
    refused(server.client.request("STRANGE", "/v1/models"), 405, "method_not_allowed")
    refused(server.client.options("/v1/models"), 405, "method_not_allowed")
