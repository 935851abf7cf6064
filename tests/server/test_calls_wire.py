"""Calls as models misspell them: whole answers and streams say the same, and nothing of it is lost or fails."""

import json
import random

import pytest

from cherenkov.text.tool_calls import Dropped, Text, ToolCallParser
from cherenkov.text.tool_schema import ToolSet
from tests.server.served import Served
from tests.server.test_chat_wire import CALL, WEATHER, say

PIECES = [
    *("<tool_call>", "</tool_call>", "<function=", "get_weather>", "</function>", "<parameter="),
    *("city>", "days>", "</parameter>", "\n", "Paris", "many", "<", "é", '"', "{", "]]>"),
]


def misspelt(seed):
    """A call, or two, with something cut out, put in, doubled or broken off."""
    chance = random.Random(seed)
    text = chance.choice([CALL, f"Look: {CALL}", f"{CALL}\n{CALL}", f"{CALL} and then"])
    for _ in range(chance.randrange(1, 4)):
        at, width = chance.randrange(len(text)), chance.randrange(24)
        put = chance.choice(["", chance.choice(PIECES), text[at : at + 2 * width]])
        text = text[:at] + put + text[at + (width if chance.random() < 0.5 else 0) :]
    return text[: chance.randrange(len(text) + 1)] if chance.random() < 0.3 else text


def meant(text):
    """What the parser makes of a text that comes at one go: the words, and the calls."""
    parser = ToolCallParser(ToolSet([WEATHER]))
    events = [*parser.feed(text), *parser.flush()]
    assert "".join(event.raw for event in events) == text or parser.is_done
    calls = [e for e in events if not isinstance(e, Text | Dropped)]
    shown = "".join(e.raw for e in events if isinstance(e, Text))
    return shown, [(call.name, call.arguments) for call in calls]


@pytest.fixture(scope="module")
def server():
    with Served(say) as server:
        yield server


def called(calls):
    return [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in calls]


@pytest.mark.parametrize("seed", range(0, 36, 12))
def test_misspelt_calls(server, seed):
    for number in range(seed, seed + 12):
        text = misspelt(number)
        answer = server.chat(f"say {text}", tools=[WEATHER])
        assert answer.status_code == 200, (text, answer.text)
        choice = answer.json()["choices"][0]
        message = choice["message"]
        found = message["content"] or "", called(message.get("tool_calls", []))
        assert found == meant(text), text
        assert choice["finish_reason"] == ("tool_calls" if found[1] else "stop")
        *chunks, done = server.chat_events(f"say {text}", tools=[WEATHER])
        assert done == "[DONE]"
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        streamed = "".join(d.get("content") or "" for d in deltas)
        calls = [call for d in deltas for call in d.get("tool_calls", [])]
        assert (streamed, called(calls)) == found, text
        assert chunks[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]
