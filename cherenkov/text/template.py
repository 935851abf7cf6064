"""Messages to prompt, through the model's own chat template.

A template is a Jinja program that came with the model, so it is not trusted: it renders in a helper process
(`template_worker.py`) under limits, and a template that breaks them costs its render and nothing more. The helper starts
with the first render.

Nor are messages trusted to be free of control tokens. Every string of theirs is cut inside control spellings before the
template sees it (`cherenkov.text.controls`), with a character that occurs nowhere in the conversation; the rendered text
is taken apart there, and the pieces are encoded one by one. So the control tokens of a prompt are those that the template
wrote. A template that compares strings sees a cut spelling as different from a whole one: a user cannot pass a message off
as a tool's response either. In what the assistant said, only special tokens are cut: its thinking and its tool calls are
spelt in markup tokens that templates look for.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from cherenkov.checkpoint.documents import is_there, read_bytes, read_object
from cherenkov.checkpoint.shards import vetted
from cherenkov.errors import CorruptModel, RequestError, TemplateError
from cherenkov.text.template_process import Limits, TemplateProcess

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from types import TracebackType

    from cherenkov.text.controls import Controls

__all__ = ["ChatTemplate", "Rendered"]

TEMPLATE_LIMIT_BYTES = 1 << 20
CONFIG_LIMIT_BYTES = 16 << 20

_VARIABLES = frozenset({"add_vision_id", "preserve_thinking", "reasoning_effort"})
"""What a request may set besides messages, tools and thinking."""
_JSON = json.JSONEncoder(ensure_ascii=False, check_circular=False)  # a circle is too deep
_UNUSED = (range(0xFDD0, 0xFDF0), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
"""Noncharacters, and the private planes."""
_NAMED_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt.

    Attributes:
        pieces: the text taken apart inside every control spelling that a message brought along; to be encoded with
            `Tokenizer.encode_pieces`.
    """

    pieces: tuple[str, ...]

    @property
    def text(self) -> str:
        """The prompt as a string."""
        return "".join(self.pieces)


class ChatTemplate:
    """The chat template of one model folder. Safe for several threads; close it, or use it as a context manager."""

    def __init__(
        self,
        source: str,
        controls: Controls,
        *,
        tokens: Mapping[str, str] | None = None,
        limits: Limits | None = None,
    ) -> None:
        """Take a template.

        Args:
            source: Jinja.
            controls: spellings that messages must not smuggle in, from `Tokenizer.controls`.
            tokens: variables that name tokens, such as `bos_token`.
            limits: what rendering may use.
        """
        self._source = source
        self._controls = controls
        self._tokens = dict(tokens or {})
        self._own: dict[tuple[bool, bool], str] = {}  # as JSON, by whether to answer and to think
        self._process = TemplateProcess(source, limits)
        self._lock = threading.Lock()

    @classmethod
    def open(cls, folder: str | os.PathLike[str], controls: Controls) -> Self:
        """Read a folder's template: `chat_template.jinja`, else the one in `tokenizer_config.json`.

        Args:
            folder: a checkpoint or store.
            controls: of the folder's tokenizer.

        Raises:
            TemplateError: if the folder has no chat template.
            CorruptModel: if a file is too large or malformed.
            DiskError: if a file cannot be read.
        """
        path = Path(folder) / "tokenizer_config.json"
        config = (
            read_object(vetted(path.parent, path.name), CONFIG_LIMIT_BYTES)
            if is_there(path)
            else {}
        )
        source = _separate_source(Path(folder) / "chat_template.jinja")
        if source is None:
            source = _configured_source(path, config.get("chat_template"))
        return cls(source, controls, tokens=_named_tokens(config))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        thinking: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        answer: bool = True,
        **variables: str | bool,
    ) -> Rendered:
        """Render a conversation.

        Args:
            messages: each with a `role` and, mostly, a `content`.
            thinking: let the model think first.
            tools: function schemas; none is the same as an empty list.
            answer: end with the beginning of the assistant's next message.
            variables: `reasoning_effort`, `preserve_thinking`, `add_vision_id`.

        Raises:
            RequestError: if the messages are no messages, or a variable is not allowed.
            TemplateError: if the template fails, refuses the messages, or breaks its limits.
        """
        for name, value in variables.items():
            if name not in _VARIABLES:
                raise RequestError(f"{name}: not a variable for chat templates", param=name)
            if not isinstance(value, str | bool):
                raise RequestError(
                    f"{name} = {value!r:.60}: must be a string or a bool", param=name
                )
        _check_messages(messages)
        # Templates expect these two to be there, if only as nothing.
        values = {"documents": None, **variables, "tools": tools or None, "messages": messages}
        text = _as_json(values)
        cut = _absent_character(text)
        if self._controls.may_occur_in_json(text):
            values = self._marked(values | {"messages": []}, cut)
            values["messages"] = [self._marked_message(m, cut) for m in messages]
            text = _as_json(values)
        own = self._own_values(bool(answer), bool(thinking))
        with self._lock:
            rendered = self._process.render(text, own, cut)
        return Rendered(tuple(rendered.split(cut)))

    def _own_values(self, answer: bool, thinking: bool) -> str:
        known = self._own.get((answer, thinking))
        if known is None:
            flags = {"add_generation_prompt": answer, "enable_thinking": thinking}
            known = self._own[answer, thinking] = _JSON.encode(self._tokens | flags)
        return known

    def close(self) -> None:
        """End the helper process. A later render starts a new one."""
        with self._lock:
            self._process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _marked_message(self, message: Mapping[str, Any], cut: str) -> Any:
        return self._marked(message, cut, markup=message["role"] != "assistant")

    def _marked(self, value: Any, cut: str, *, markup: bool = True) -> Any:
        """A JSON value with every string in it cut, keys included."""
        if isinstance(value, str):
            return self._controls.mark(value, cut, markup=markup)
        if isinstance(value, Mapping):
            return {
                self._marked(k, cut, markup=markup): self._marked(v, cut, markup=markup)
                for k, v in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._marked(v, cut, markup=markup) for v in value]
        return value


def _check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    if not isinstance(messages, list | tuple) or not messages:
        raise RequestError("messages: must be a list of at least one message", param="messages")
    for i, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise RequestError(f"message {i}: must be a dict with a role", param="messages")


def _as_json(values: Mapping[str, Any]) -> str:
    try:
        return _JSON.encode(values)
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(
            f"messages: cannot be written as JSON: {error}", param="messages"
        ) from error


def _absent_character(text: str) -> str:
    """A character that occurs nowhere in a text."""
    for codes in _UNUSED:
        for code in codes:
            if chr(code) not in text:
                return chr(code)
    raise RequestError("messages: they use every character there is", param="messages")


def _separate_source(path: Path) -> str | None:
    if not is_there(path):
        return None
    try:
        return read_bytes(vetted(path.parent, path.name), TEMPLATE_LIMIT_BYTES).decode()
    except UnicodeDecodeError as error:
        raise CorruptModel(path, "is not UTF-8", offset=error.start) from error


def _configured_source(path: Path, value: object) -> str:
    """The template in a tokenizer configuration: a string, or the one named default of a list."""
    if isinstance(value, list):
        named = [t for t in value if isinstance(t, dict) and t.get("name") == "default"]
        value = named[-1].get("template") if named else None
    if value is None:
        raise TemplateError(
            f"{path.parent} has no chat template: pass the prompt as it is, with --raw (raw=True)"
        )
    if not isinstance(value, str) or len(value) > TEMPLATE_LIMIT_BYTES:
        raise CorruptModel(path, "must be a string of at most 1 MiB", item="chat_template")
    return value


def _named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The spellings of named tokens: strings, or objects with their `content`."""
    found = {}
    for name in _NAMED_TOKENS:
        value = config.get(name)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            found[name] = value
    return found
