"""What a session is, apart from the model's memory of it: a value that turns replace as a whole, and that a file can hold."""

from __future__ import annotations

import copy
import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cherenkov.chat.options import Settings
from cherenkov.chat.replies import Usage
from cherenkov.checkpoint.documents import parse_object, read_bytes
from cherenkov.errors import CorruptModel, RequestError, UnsupportedModel
from cherenkov.packing.durable import write_file
from cherenkov.packing.integrity import check_seal, sealed
from cherenkov.ranges import check_real, check_whole
from cherenkov.text.messages import MAX_DEPTH, checked_message
from cherenkov.text.tool_schema import ToolSet
from cherenkov.units import MIB

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cherenkov.chat.replies import Reply

__all__ = ["OVERFLOWS", "Record", "checked_system", "read_record", "state_of", "write_record"]

OVERFLOWS = ("error", "trim")
KIND = "cherenkov session"
VERSION = 1
LIMIT_BYTES = 256 * MIB
_DEEPEST = MAX_DEPTH + 8
"""Arguments of calls may be as deep as messages allow, and lie seven deep themselves."""


@dataclass(frozen=True, slots=True)
class Record:
    """A conversation between two turns.

    Attributes:
        system: system message, or None.
        messages: all others, in plain form; never written to.
        first: which of them is the first that the model is shown.
        tools: functions offered.
        settings: how answers are made.
        random: state of the generator of random numbers.
        usage: all turns together.
        overflow: what to do when the context is full, one of `OVERFLOWS`.
    """

    system: str | None
    tools: ToolSet
    settings: Settings
    random: dict[str, Any]
    overflow: str = "error"
    messages: tuple[dict[str, Any], ...] = ()
    first: int = 0
    usage: Usage = field(default_factory=Usage)

    @property
    def opening(self) -> list[dict[str, Any]]:
        """The system message, if there is one."""
        return [{"role": "system", "content": self.system}] if self.system else []

    @classmethod
    def begin(
        cls,
        *,
        system: str | None,
        tools: Sequence[Mapping[str, Any]] | None,
        settings: Settings,
        overflow: str,
    ) -> Record:
        """A conversation of no turns.

        Raises:
            RequestError: something makes no sense; `param` says what.
        """
        if overflow not in OVERFLOWS:
            raise RequestError(
                f"overflow = {overflow!r:.80}: must be one of {', '.join(OVERFLOWS)}",
                param="overflow",
            )
        random = state_of(settings.sampling.generator())
        return cls(checked_system(system), ToolSet(tools), settings, random, overflow)

    def after(
        self, said: Sequence[dict[str, Any]], reply: Reply, random: np.random.Generator
    ) -> Record:
        """What a turn makes of it: all that changes, in one value."""
        return replace(
            self,
            messages=(*self.messages, *said, checked_message("reply", reply.message)),
            random=state_of(random),
            usage=self.usage + reply.usage,
        )

    def numbers(self, options: Mapping[str, Any]) -> np.random.Generator:
        """The random numbers of a turn with these options: those of the session, unless a seed begins them anew."""
        if "seed" in options or getattr(options.get("sampling"), "seed", None) is not None:
            return self.settings.sampling.generator()
        return self.generator()

    def generator(self) -> np.random.Generator:
        """Random numbers from where the last turn stopped."""
        bits = np.random.PCG64(0)
        state: Any = self.random
        bits.state = state
        return np.random.Generator(bits)


def checked_system(text: object) -> str | None:
    """A system message, or None.

    Raises:
        RequestError: if it is no text.
    """
    if text is not None and not isinstance(text, str):
        raise RequestError(
            f"system: must be text; it is of type {type(text).__name__}", param="system"
        )
    return text or None


def state_of(random: np.random.Generator) -> dict[str, Any]:
    """Where random numbers are, to go on from."""
    return copy.deepcopy(dict(random.bit_generator.state))


def write_record(path: str | os.PathLike[str], record: Record, store: str) -> None:
    """Write a session, in one step: the file is as it was, or complete.

    Args:
        path: of the file.
        record: the session.
        store: fingerprint of the store that it belongs to.

    Raises:
        RequestError: if the path can name no file.
        DiskError: if it cannot be written.
    """
    document = {
        "kind": KIND,
        "version": VERSION,
        "store": store,
        "system": record.system,
        "overflow": record.overflow,
        "tools": [dict(definition) for definition in record.tools.definitions],
        "settings": asdict(record.settings),
        "random": record.random,
        "usage": asdict(record.usage),
        "first": record.first,
        "messages": record.messages,
    }
    write_file(_file(path), sealed(document))


def _file(path: object) -> Path:
    if not isinstance(path, str | os.PathLike) or not Path(path).name:
        raise RequestError(f"path = {path!r:.80}: must be the path of a file", param="path")
    return Path(path)


def read_record(path: str | os.PathLike[str], store: str) -> Record:
    """Read a session that belongs to a store.

    Args:
        path: of the file.
        store: fingerprint of the store that is to go on with it.

    Raises:
        CorruptModel: if the file is missing or damaged.
        UnsupportedModel: if a later release wrote it, or it belongs to another store.
        DiskError: if the system refuses to read it.
    """
    path = _file(path)
    text = read_bytes(path, LIMIT_BYTES)
    document = parse_object(path, text, _DEEPEST)
    if document.get("kind") != KIND:
        raise CorruptModel(path, "is no saved session")
    if document.get("version") != VERSION:
        raise UnsupportedModel(
            f"{path}: a session of version {document.get('version')!r:.40}",
            known=f"version {VERSION}",
        )
    check_seal(path, text, document)
    if document.get("store") != store:
        raise UnsupportedModel(
            f"{path}: a session of another model: it belongs to store {document.get('store')!r:.40}, this is {store}"
        )
    try:
        return _record(document)
    except (
        RequestError,
        LookupError,
        TypeError,
        ValueError,
        ArithmeticError,
        AttributeError,
    ) as error:
        raise CorruptModel(path, f"malformed: {error!r:.200}") from error


def _record(document: dict[str, Any]) -> Record:
    settings = dict(document["settings"])
    sampling = settings.pop("sampling")
    top = settings.pop("top_logprobs")
    settings |= {} if top is None else {"top_logprobs": top}
    usage = dict(document["usage"])
    for name, value in usage.items():
        check_real(f"usage.{name}", value, 0, float("inf"), "a number, 0 or more")
    listed = document["messages"]
    messages = tuple(checked_message(f"messages[{i}]", one) for i, one in enumerate(listed))
    check_whole("first", document["first"], 0, len(messages), "a place in the messages")
    if document["overflow"] not in OVERFLOWS or not isinstance(document["system"], str | None):
        raise ValueError("overflow or system")
    record = Record(
        system=document["system"],
        tools=ToolSet(document["tools"]),
        settings=Settings().updated(settings | sampling),
        random=document["random"],
        overflow=document["overflow"],
        messages=messages,
        first=document["first"],
        usage=Usage(**usage),
    )
    record.generator()  # takes only a state that can be one
    return record
