"""The `openai` package as a judge: `python tests/judges/openai_client.py URL`, against `cherenkov serve demo`."""

import json
import re
import sys
import time
from pathlib import Path

import httpx
import openai

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
PARIS = "The capital of France is Paris."
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


def creates(client, _url):
    answer = client.chat.completions.create(model="demo", messages=FRANCE)
    assert answer.choices[0].message.content == PARIS
    assert answer.usage.total_tokens == 31
    text = client.completions.create(model="demo", prompt="The capital of France", max_tokens=3)
    assert text.choices[0].text
    assert [model.id for model in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").id == "demo"


def streams(client, _url):
    asked = {"model": "demo", "messages": FRANCE}
    chunks = list(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    said = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert said == PARIS
    assert chunks[-1].usage.completion_tokens == 9
    with client.chat.completions.stream(**asked, logprobs=True) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"content.delta", "content.done", "logprobs.content.done"} <= kinds
    assert final.choices[0].message.content == PARIS


def calls_tools(client, _url):
    asked = {"model": "demo", "tools": [WEATHER]}
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    with client.chat.completions.stream(**asked, messages=messages) as stream:
        streamed = stream.get_final_completion().choices[0]
    whole = client.chat.completions.create(**asked, messages=messages).choices[0]
    for choice in (streamed, whole):
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        (call,) = choice.message.tool_calls
        assert call.function.name == "get_weather"
        assert json.loads(call.function.arguments) == {"city": "Paris"}
    result = {
        "role": "tool",
        "tool_call_id": whole.message.tool_calls[0].id,
        "content": '{"temperature": 18, "sky": "clear"}',
    }
    messages += [whole.message.model_dump(exclude_none=True), result]
    after = client.chat.completions.create(**asked, messages=messages)
    assert "18" in after.choices[0].message.content


def aborts(client, url):
    story = [{"role": "user", "content": "Tell me a story."}]
    stream = client.chat.completions.create(
        model="demo", messages=story, stream=True, logit_bias=dict.fromkeys(stops(url), -100)
    )
    next(iter(stream))
    assert httpx.get(f"{url}/v1/requests").json()["data"]
    stream.close()
    for _ in range(500):
        if not httpx.get(f"{url}/v1/requests").json()["data"]:
            return
        time.sleep(0.02)
    raise AssertionError("the request goes on")


def stops(url):
    text = "<|im_end|><|endoftext|>"
    return httpx.post(f"{url}/tokenize", json={"prompt": text}).json()["tokens"]


def is_refused(client, _url):
    cases = [
        (openai.NotFoundError, "model_not_found", {"model": "gpt-4o"}),
        (openai.BadRequestError, "invalid_value", {"temperature": 3}),
        (openai.BadRequestError, "context_length_exceeded", {"max_tokens": 200_000}),
        (openai.BadRequestError, "unsupported_parameter", {"functions": [{"name": "f"}]}),
    ]
    for kind, code, more in cases:
        for stream in (False, True):
            asked = {"model": "demo", "messages": FRANCE, "stream": stream} | more
            caught = None
            try:
                client.chat.completions.create(**asked)
            except kind as error:
                caught = error
            assert getattr(caught, "code", None) == code, f"{more}: {caught}"


def runs_the_page(_client, url):
    (example,) = [
        e for e in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "openai" in e
    ]
    exec(compile(example, str(PAGE), "exec"), {"URL": url})
    print()


def main():
    url = sys.argv[1]
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        for judge in (creates, streams, calls_tools, aborts, is_refused, runs_the_page):
            judge(client, url)
            print(f"openai {openai.__version__} {judge.__name__.replace('_', ' ')}")


if __name__ == "__main__":
    main()
