"""Tool calls in what a model says, found while it streams.

A call is spelt

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    value
    </parameter>
    </function>
    </tool_call>

with any blanks between the tags; one line break after `<parameter=KEY>` and one before `</parameter>` belong to the
markup. Nothing of the stream is lost: every character comes out in exactly one event, in order.

What is no proper call:

- A value ends at a `</parameter>` that a tag of the call follows; any other is part of the value.
- `</tool_call>` may be missing, and `</function>` before it. If the stream ends after a closed parameter, the call
  counts, unless an argument that its schema requires is missing, or there are earlier calls.
- A call of an unknown function, and one that was closed inside a value, is text, verbatim.
- What begins like a call and goes on differently, or just ends, is text, verbatim.
- After a call only calls count. Text that follows one is dropped to the end, and so is a last, unfinished call: a model
  that goes on talking there has begun to imagine the answer.
- No message holds more than `MAX_CALLS` calls: with the last of them the calls are over. A call whose arguments are more
  than a message holds is text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cherenkov.text.markers import BLANKS, held_from
from cherenkov.text.messages import MAX_CALLS, MAX_DEPTH, MAX_VALUES
from cherenkov.text.nesting import is_within
from cherenkov.text.tool_values import declared, value_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from cherenkov.text.tool_schema import Tool, ToolSet

__all__ = ["Dropped", "Text", "ToolCall", "ToolCallParser", "ToolEvent"]

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_KEY = re.compile(r"[^<>\r\n]{1,256}")
_CHUNK = 4096
"""Characters parsed at a time, so that one long piece costs no more than many short ones."""


@dataclass(frozen=True, slots=True)
class Text:
    """Text to show.

    Attributes:
        raw: the text.
        problem: why something that looked like a call is text; None for plain text.
    """

    raw: str
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call.

    Attributes:
        name: of the function, one of those offered.
        arguments: by name, typed as `cherenkov.text.tool_values` says.
        raw: as the model wrote it.
        mismatched: arguments that are not what their schema declares, and were left as strings.
        omitted: arguments left out because they came empty, and their type is not a string.
    """

    name: str
    arguments: dict[str, Any]
    raw: str
    mismatched: tuple[str, ...] = ()
    omitted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Dropped:
    """What is neither text nor call: blanks around calls, and what follows the last one."""

    raw: str
    reason: str


ToolEvent = Text | ToolCall | Dropped


@dataclass(slots=True)
class _Call:
    """A call in the making. `blanks` stood before it; `read` is what came of it so far."""

    blanks: str = ""
    read: list[str] = field(default_factory=list)
    name: str = ""
    key: str = ""
    value: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def raw(self) -> str:
        return "".join(self.read)

    def close_value(self) -> None:
        self.texts[self.key] = "".join(self.value).removeprefix("\n").removesuffix("\n")
        self.value, self.after = [], []

    def continue_value(self) -> None:
        """The end of the value was none: it belongs to it."""
        self.value += self.after
        self.after = []

    def was_closed_inside_value(self) -> bool:
        """The value ends with `</function>`: then a `</tool_call>` closes the call, not just a quotation."""
        tail = ""
        for part in reversed(self.value):
            tail = (part + tail).rstrip(BLANKS)
            if len(tail) >= len(_FUNCTION_END):
                break
        return tail.endswith(_FUNCTION_END)


class ToolCallParser:
    """Parses one answer. Never raises; the events are the same however the stream is split, adjacent texts apart.

    Attributes:
        calls: complete calls so far.
    """

    def __init__(self, tools: ToolSet) -> None:
        """Begin.

        Args:
            tools: those offered. If there are none, everything is text.
        """
        self.calls = 0
        self._tools = tools
        self._pending = ""
        self._blanks: list[str] = []  # before what is pending: a call's, if one follows, else text
        self._call = _Call()
        self._events: list[ToolEvent] = []
        # A state takes what it can from the pending text. It says whether to go on at once, or to wait for more.
        self._state: Callable[[], bool] = self._in_text if tools else self._in_plain

    @property
    def is_done(self) -> bool:
        """The calls are over: whatever may still come will be dropped."""
        return self._state == self._in_suffix

    def feed(self, text: str) -> list[ToolEvent]:
        """Take a piece of the answer; give what is certain."""
        for start in range(0, len(text), _CHUNK):
            self._pending += text[start : start + _CHUNK]
            while self._pending and self._state():
                pass
        events, self._events = self._events, []
        return events

    def flush(self) -> list[ToolEvent]:
        """The answer is over: what was held back."""
        rest, self._pending = self._pending, ""
        call, state = self._call, self._state
        closing = (_FUNCTION_END + _CLOSE).startswith(rest) or _CLOSE.startswith(rest)
        if state in {self._in_text, self._in_plain}:
            self._show(self._with_blanks(rest))
        elif state in {self._after_calls, self._in_suffix}:
            self._drop(rest, "text after a call")
        elif state == self._after_function:
            call.read.append(rest)
            self._finish()
        elif state == self._after_value and closing and self._is_whole():
            call.close_value()
            call.read.append(rest)
            self._finish()
        elif self.calls:
            self._drop(call.blanks + call.raw + rest, "unfinished call")
        else:
            self._show(call.blanks + call.raw + rest, "unfinished call")
        events, self._events = self._events, []
        return events

    # --- what comes out

    def _show(self, text: str, problem: str | None = None) -> None:
        last = self._events[-1] if self._events else None
        if isinstance(last, Text) and last.problem == problem:
            self._events[-1] = Text(last.raw + text, problem)
        elif text:
            self._events.append(Text(text, problem))

    def _drop(self, text: str, reason: str) -> None:
        if text:
            self._events.append(Dropped(text, reason))

    def _finish(self) -> bool:
        """The call is complete: give it out, if there is such a function."""
        call, tool = self._call, self._tools.get(self._call.name)
        if tool is None:
            return self._refuse(f"unknown function {call.name}")
        made = _made(call, tool)
        if not is_within(made.arguments, MAX_DEPTH, MAX_VALUES):
            return self._refuse("too large arguments")
        self._drop(call.blanks, "blanks")
        self._events.append(made)
        self.calls += 1
        self._state = self._after_calls if self.calls < MAX_CALLS else self._in_suffix
        return True

    def _refuse(self, problem: str) -> bool:
        """A closed call that cannot be used is text."""
        self._show(self._call.blanks + self._call.raw, problem)
        self._state = self._after_calls if self.calls else self._in_text
        return True

    def _give_up(self) -> bool:
        """It is no call: text, or something that follows a call."""
        if not self.calls:
            return self._refuse("not a call")
        self._drop(self._call.blanks + self._call.raw, "text after a call")
        self._state = self._in_suffix
        return True

    def _is_whole(self) -> bool:
        """A first call without its closing tags has all it needs."""
        tool = self._tools.get(self._call.name)
        given = {*self._call.texts, self._call.key}
        return not self.calls and tool is not None and tool.required <= given

    # --- states outside a call

    def _in_plain(self) -> bool:
        self._show(self._take(len(self._pending)))
        return False

    def _in_text(self) -> bool:
        begin = self._pending.find(_OPEN)
        if begin < 0:
            text = self._take(held_from(self._pending, _OPEN))
            if text:
                self._show(self._with_blanks(text))
            self._blanks.append(self._take_blanks())
            return False
        text = self._with_blanks(self._take(begin))
        shown = text.rstrip(BLANKS)
        self._show(shown)
        self._begin(text[len(shown) :])
        return True

    def _after_calls(self) -> bool:
        self._drop(self._take_blanks(), "blanks")
        if self._pending.startswith(_OPEN):
            self._begin("")
        elif _OPEN.startswith(self._pending):
            return False
        else:
            self._state = self._in_suffix
        return True

    def _in_suffix(self) -> bool:
        self._drop(self._take(len(self._pending)), "text after a call")
        return False

    def _begin(self, blanks: str) -> None:
        self._call = _Call(blanks)
        self._read(len(_OPEN))
        self._state = self._before_function

    # --- states inside a call

    def _before_function(self) -> bool:
        return self._expect({_FUNCTION: self._in_name})

    def _in_name(self) -> bool:
        return self._word(_NAME, self._named)

    def _named(self, name: str) -> None:
        self._call.name = name
        self._state = self._before_parameter

    def _before_parameter(self) -> bool:
        return self._expect(
            {_PARAMETER: self._in_key, _FUNCTION_END: self._after_function, _CLOSE: None}
        )

    def _in_key(self) -> bool:
        return self._word(_KEY, self._keyed)

    def _keyed(self, key: str) -> None:
        self._call.key = key
        self._state = self._in_value

    def _in_value(self) -> bool:
        call, text = self._call, self._pending
        found = [at for mark in (_PARAMETER_END, _CLOSE) if (at := text.find(mark)) >= 0]
        if not found:
            certain = _tag_from(text)
            call.value.append(self._read(certain))
            return False
        call.value.append(self._read(min(found)))
        if self._pending.startswith(_PARAMETER_END):
            call.after.append(self._read(len(_PARAMETER_END)))
            self._state = self._after_value
            return True
        closed = call.was_closed_inside_value()
        call.value.append(self._read(len(_CLOSE)))
        return self._refuse("unfinished value") if closed else True

    def _after_value(self) -> bool:
        call = self._call
        call.after.append(self._read_blanks())
        tags = (_PARAMETER, _FUNCTION_END, _CLOSE, _OPEN)
        if self._pending.startswith(tags):
            call.close_value()
            if self._pending.startswith(_OPEN):
                return self._finish()
            return self._before_parameter()
        if any(tag.startswith(self._pending) for tag in tags):
            return False
        call.continue_value()
        self._state = self._in_value
        return True

    def _after_function(self) -> bool:
        self._call.read.append(self._take_blanks())
        if self._pending.startswith(_CLOSE):
            self._read(len(_CLOSE))
        elif _CLOSE.startswith(self._pending):
            return False
        return self._finish()

    def _expect(self, tags: dict[str, Callable[[], bool] | None]) -> bool:
        """Read blanks and one of the tags, and go where it leads: to a state, or to the end of the call."""
        self._read_blanks()
        for tag, state in tags.items():
            if self._pending.startswith(tag):
                self._read(len(tag))
                if state is None:
                    return self._finish()
                self._state = state
                return True
        if any(tag.startswith(self._pending) for tag in tags):
            return False
        return self._give_up()

    def _word(self, pattern: re.Pattern[str], then: Callable[[str], None]) -> bool:
        """Read a word and the `>` after it."""
        word, end, _ = self._pending.partition(">")
        if not pattern.fullmatch(word) and (word or end):
            return self._give_up()
        if not end:
            return False
        self._read(len(word) + 1)
        then(word)
        return True

    # --- the pending text

    def _take(self, count: int) -> str:
        taken, self._pending = self._pending[:count], self._pending[count:]
        return taken

    def _with_blanks(self, text: str) -> str:
        """The blanks that were held back, and what follows them."""
        if self._blanks:
            text = "".join([*self._blanks, text])
            self._blanks.clear()
        return text

    def _take_blanks(self) -> str:
        return self._take(len(self._pending) - len(self._pending.lstrip(BLANKS)))

    def _read(self, count: int) -> str:
        """Take as part of the call."""
        taken = self._take(count)
        self._call.read.append(taken)
        return taken

    def _read_blanks(self) -> str:
        taken = self._take_blanks()
        self._call.read.append(taken)
        return taken


def _tag_from(text: str) -> int:
    """Where a closing tag may begin at the end of `text`; its length if none does."""
    begin = text.rfind("<", max(0, len(text) - len(_PARAMETER_END) + 1))
    tail = text[begin:]
    if begin < 0 or not (_PARAMETER_END.startswith(tail) or _CLOSE.startswith(tail)):
        return len(text)
    return begin


def _made(call: _Call, tool: Tool) -> ToolCall:
    arguments, mismatched, omitted = {}, [], []
    others = tool.parameters.get("additionalProperties")
    for key, text in call.texts.items():
        what = declared(tool.properties.get(key, others), tool.parameters)
        if not text.strip() and not what.takes_text and key not in tool.required:
            omitted.append(key)
            continue
        arguments[key], fits = value_of(text, what)
        if not fits:
            mismatched.append(key)
    return ToolCall(call.name, arguments, call.raw, tuple(mismatched), tuple(omitted))
