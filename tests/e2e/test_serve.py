"""`cherenkov serve demo`, and the examples of the page on serving."""

import importlib.util
import json
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

PAGE = (Path(__file__).parents[2] / "docs/serving.md").read_text(encoding="utf-8")
FRANCE = {"role": "user", "content": "What is the capital of France?"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


@pytest.fixture(scope="module")
def url():
    process = subprocess.Popen(
        [sys.executable, "-m", "cherenkov", "serve", "demo", "--port", "0", "--ctx", "2048"],
        stderr=subprocess.PIPE,
        text=True,
    )
    found, lines = None, []
    while found is None and (line := process.stderr.readline()):
        lines.append(line)
        found = re.fullmatch(r"cherenkov: serving demo at (http://127\.0\.0\.1:\d+)\n", line)
    assert found, lines
    yield found[1]
    process.terminate()
    _, rest = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "Traceback" not in rest
    assert "capital" not in rest


@pytest.fixture(scope="module")
def server(url):
    with httpx.Client(base_url=url, timeout=200) as client:
        yield client


def chat(server, **more):
    answer = server.post("/v1/chat/completions", json={"messages": [FRANCE]} | more)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_it_answers(server):
    found = chat(server)
    choice = found["choices"][0]
    assert choice["message"]["content"] == "The capital of France is Paris."
    assert choice["finish_reason"] == "stop"
    assert found["usage"]["prompt_tokens"] == 22


def test_a_stream_says_the_same(server):
    body = {"messages": [FRANCE], "stream": True, "stream_options": {"include_usage": True}}
    text = server.post("/v1/chat/completions", json=body).text
    *chunks, done = [block.removeprefix("data: ") for block in text.split("\n\n") if block]
    assert done == "[DONE]"
    *chunks, last = map(json.loads, chunks)
    said = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    assert said == "The capital of France is Paris."
    assert last["usage"]["completion_tokens"] == 9


def test_what_was_read_before_is_not_read_again(server):
    first = chat(server)
    again = chat(server)
    assert again["choices"][0]["message"] == first["choices"][0]["message"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_a_call_and_its_result(server):
    question = {"role": "user", "content": "What is the weather in Paris?"}
    body = {"messages": [question], "tools": [WEATHER]}
    choice = server.post("/v1/chat/completions", json=body).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert message["content"] is None
    (call,) = message["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}
    result = {
        "role": "tool",
        "tool_call_id": call["id"],
        "content": '{"temperature": 18, "sky": "clear"}',
    }
    body["messages"] = [question, message, result]
    after = server.post("/v1/chat/completions", json=body).json()["choices"][0]
    assert "18" in after["message"]["content"]


def test_completions_score_a_text(server):
    body = {"prompt": "The capital of France", "max_tokens": 0, "echo": True, "logprobs": 1}
    choice = server.post("/v1/completions", json=body).json()["choices"][0]
    assert choice["text"] == "The capital of France"
    likely = choice["logprobs"]
    assert "".join(likely["tokens"]) == choice["text"]
    assert likely["token_logprobs"][0] is None
    assert all(value < 0 for value in likely["token_logprobs"][1:])
    ids = server.post("/tokenize", json={"prompt": choice["text"]}).json()["tokens"]
    by_ids = server.post("/v1/completions", json=body | {"prompt": ids}).json()["choices"][0]
    assert by_ids["text"] == choice["text"]
    assert by_ids["logprobs"]["tokens"] == likely["tokens"]
    assert by_ids["logprobs"]["token_logprobs"] == likely["token_logprobs"]


def test_logprobs_of_an_answer(server):
    choice = chat(server, logprobs=True, top_logprobs=3)["choices"][0]
    content = choice["logprobs"]["content"]
    assert "".join(one["token"] for one in content) == choice["message"]["content"]
    for one in content:
        assert one["top_logprobs"][0]["token"] == one["token"]  # greedy


def test_several_choices_differ_with_a_seed(server):
    found = chat(server, n=3, temperature=1.5, seed=3, max_tokens=12)
    texts = [choice["message"]["content"] for choice in found["choices"]]
    assert len(set(texts)) > 1
    alone = chat(server, temperature=1.5, seed=4, max_tokens=12)
    assert alone["choices"][0]["message"]["content"] == texts[1]


def test_a_long_prompt_is_refused_with_numbers(server):
    answer = server.post("/v1/completions", json={"prompt": "a b " * 3000})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
    assert "2048" in error["message"]


@pytest.mark.parametrize("stream", [True, False])
def test_hanging_up_while_the_prompt_is_read(url, server, stream):
    host, port = url.removeprefix("http://").split(":")
    long = [{"role": "user", "content": f"{stream} " + "word " * 1500}]
    body = json.dumps({"messages": long, "stream": stream, "max_tokens": 400}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n"
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        while not server.get("/v1/requests").json()["data"]:
            pass
    for _ in range(3000):
        if not server.get("/v1/requests").json()["data"]:
            break
        time.sleep(0.01)
    else:
        raise AssertionError("the request goes on")
    assert chat(server)["choices"][0]["message"]["content"] == "The capital of France is Paris."


def test_what_the_template_refuses(server):
    body = {"messages": [FRANCE, {"role": "system", "content": "late"}]}
    answer = server.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "template_error")


def test_the_examples_in_python(url, capsys):
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(examples) == 2
    has_client = importlib.util.find_spec("openai") is not None
    for example in examples:
        if has_client or "openai" not in example:
            exec(compile(example, "docs/serving.md", "exec"), {"URL": url})
    assert "Paris" in capsys.readouterr().out


def test_the_examples_for_a_shell(url):
    if shutil.which("curl") is None:
        pytest.skip("there is no curl")
    examples = [e for e in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) if "curl" in e]
    assert len(examples) == 2
    said = [
        subprocess.run(
            ["sh", "-euc", f"URL={url}\n{example}"], capture_output=True, text=True, check=True
        ).stdout
        for example in examples
    ]
    assert "The capital of France is Paris." in said[0]
    scored = json.loads(said[1])["choices"]
    assert [choice["text"] for choice in scored] == ["The capital of France is", "The sky is"]


def test_the_example_of_the_command(capsys):
    (example,) = [
        e for e in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) if "--print-config" in e
    ]
    from cherenkov_cli.main import run

    assert run(example.split()[1:]) == 0
    assert "active_requests = 8" in capsys.readouterr().out
