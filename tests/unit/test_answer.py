"""From tokens to events, with tokens of single characters and of any pieces."""

import random

import pytest

from cherenkov.chat.answer import Answer
from cherenkov.chat.options import Settings
from cherenkov.chat.replies import ReasoningDelta, TextDelta, ToolCallEvent, Usage
from cherenkov.lane import Step
from cherenkov.logprobs import TokenLogprobs
from cherenkov.text.tool_schema import ToolSet

TOOLS = ToolSet(
    [{"name": "add", "parameters": {"properties": {"a": {"type": "integer"}}, "required": ["a"]}}]
)
CALL = "<tool_call>\n<function=add>\n<parameter=a>\n{}\n</parameter>\n</function>\n</tool_call>"


class Pieces:
    """A tokenizer whose tokens are the pieces of one text."""

    def __init__(self, pieces):
        self.pieces = pieces

    def decoder(self):
        return self

    def feed(self, token):
        return self.pieces[token]

    def flush(self):
        return ""


def answered(pieces, *, tools=TOOLS, opened=False, ended="stop", **options):
    """The reply and the events of a stream of pieces, and how many of them were taken."""
    answer = Answer(Pieces(pieces), Settings().updated(options), tools, opened=opened)
    events, taken = [], 0
    for i in range(len(pieces)):
        last = "length" if ended == "length" and i == len(pieces) - 1 else None
        events += answer.feed(Step(i, last, TokenLogprobs(i, -1.0, ())))
        taken += 1
        if answer.is_over:
            break
    else:
        if ended == "stop":
            events += answer.feed(Step(-1, "stop", TokenLogprobs(-1, -1.0, ())))
    events += answer.flush()
    return answer.reply(Usage(1, 0, taken)), events, taken


def split(text, seed):
    """A text cut anywhere."""
    cuts = sorted(random.Random(seed).choices(range(len(text) + 1), k=len(text) // 3))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@pytest.mark.parametrize("seed", [None, *range(12)])
def test_all_parts_whatever_the_pieces(seed):
    text = f"two and two\n</think>\n\nLet me add. {CALL.format(2)}\n{CALL.format('x')}"
    reply, events, _ = answered(list(text) if seed is None else split(text, seed), opened=True)
    assert reply.reasoning == "two and two"
    assert reply.text == "Let me add."
    first, second = reply.tool_calls
    assert (first.name, first.arguments) == ("add", {"a": 2})
    assert (second.arguments, second.mismatched) == ({"a": "x"}, ("a",))
    assert reply.finish_reason == "tool_calls"
    assert "".join(e.text for e in events if isinstance(e, ReasoningDelta)) == reply.reasoning
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == reply.text
    calls = [e for e in events if isinstance(e, ToolCallEvent)]
    assert [(e.index, e.call) for e in calls] == [(0, first), (1, second)]


@pytest.mark.parametrize("seed", range(6))
def test_a_stop_string_ends_the_text_and_not_the_thought(seed):
    reply, _, taken = answered(
        split("a STOP b</think>before STOP after", seed), opened=True, stop="STOP"
    )
    assert (reply.reasoning, reply.text) == ("a STOP b", "before ")
    assert reply.finish_reason == "stop"
    assert taken <= len(split("a STOP b</think>before STOP after", seed))


def test_nothing_is_taken_after_a_stop_string():
    _, _, taken = answered(list("one STOP and on and on"), stop=["STOP"])
    assert taken == len("one STOP")


def test_the_end_releases_what_was_held():
    reply, _, _ = answered(["a ST"], stop="STOP")
    assert (reply.text, reply.finish_reason) == ("a ST", "stop")
    reply, _, _ = answered(["a <tool_", "call"], ended="length")
    assert (reply.text, reply.finish_reason) == ("a <tool_call", "length")


def test_text_after_a_call_ends_the_answer():
    reply, _, taken = answered([CALL.format(1), "\n", "And", " so"])
    assert reply.finish_reason == "tool_calls"
    assert reply.text == ""
    assert taken == 3


def test_calls_cut_off_are_no_tool_calls():
    reply, _, _ = answered([CALL.format(1)], ended="length")
    assert len(reply.tool_calls) == 1
    assert reply.finish_reason == "length"


def test_without_tools_a_call_is_text():
    text = CALL.format(1)
    reply, _, _ = answered([text], tools=ToolSet())
    assert (reply.text, reply.tool_calls, reply.finish_reason) == (text, (), "stop")


def test_stopping_inside_the_thought():
    reply, _, _ = answered(["still thinki", "ng</thi"], opened=True, ended="length")
    assert (reply.reasoning, reply.text, reply.finish_reason) == (
        "still thinking</thi",
        "",
        "length",
    )


def test_logprobs_of_every_token():
    reply, _, _ = answered(["a", "b"])
    assert [one.token for one in reply.logprobs] == [0, 1, -1]


def test_the_message_goes_into_the_next_prompt():
    from cherenkov.text.messages import checked_messages

    reply, _, _ = answered(["hm</think>ok ", CALL.format(3)], opened=True)
    message = reply.message
    assert message == {
        "role": "assistant",
        "content": "ok",
        "reasoning_content": "hm",
        "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 3}}}],
    }
    assert checked_messages([{"role": "user", "content": "x"}, message])[1] == message


def test_usages_add_up():
    total = Usage(10, 4, 3, 1.0, 2.0) + Usage(1, 1, 1, 0.5, 0.5)
    assert total == Usage(11, 5, 4)
    assert (total.prefill_s, total.decode_s, total.total_tokens) == (1.5, 2.5, 15)


@pytest.mark.parametrize(
    "value",
    [
        "[" * 59 + "]" * 59,
        "[" * 63 + "]" * 63,
        '{"a":' * 61 + "1" + "}" * 61,
        '{"a": "\\ud800"}',
        '{"\\udfff": 1}',
        '["\\ud83d\\ude80"]',
        "[1e999]",
        "9" * 4000,
    ],
)
def test_whatever_the_arguments_hold_the_next_prompt_can_hold(value):
    """What came of the model goes into the history: if it could not, the conversation would be stuck."""
    import json

    from cherenkov.text.messages import checked_messages

    tools = ToolSet(
        [{"name": "add", "parameters": {"properties": {"a": {}, "b": {"type": "number"}}}}]
    )
    text = (
        "<tool_call>\n<function=add>\n"
        f"<parameter=a>\n{value}\n</parameter>\n<parameter=b>\n{value}\n</parameter>\n"
        "</function>\n</tool_call>"
    )
    reply, _, _ = answered([text], tools=tools)
    assert len(reply.tool_calls) == 1
    history = checked_messages([{"role": "user", "content": "x"}, reply.message])
    json.dumps(history, ensure_ascii=False, allow_nan=False).encode()
