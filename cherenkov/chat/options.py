"""What a conversation may be asked for, checked before anything runs."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypedDict

from cherenkov.errors import RequestError
from cherenkov.logprobs import checked_top_logprobs
from cherenkov.ranges import check_whole
from cherenkov.sampling import Sampling
from cherenkov.text.stops import StopStrings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["ChatOptions", "SamplingOptions", "Settings", "sampled"]

_SAMPLING = tuple(one.name for one in fields(Sampling))
_OWN = (
    "sampling",
    "max_tokens",
    "stop",
    "thinking",
    "reasoning_effort",
    "preserve_thinking",
    "logprobs",
    "top_logprobs",
)


class SamplingOptions(TypedDict, total=False):
    """The fields of `cherenkov.Sampling`, one by one."""

    temperature: float
    top_k: int
    top_p: float
    seed: int | None
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...]


class ChatOptions(SamplingOptions, total=False):
    """Options of `Model.chat`, `Model.stream_chat`, `Model.session`, `Session.send` and `Session.stream`.

    `sampling` sets all of sampling at once; the fields of `cherenkov.Sampling` may also be given one by one.

        max_tokens: most tokens to answer with, thought included; None, the default, goes on until the model stops or the
            context is full.
        stop: a string, or at most 32, before which the answer ends. Reasoning is not searched.
        thinking: let the model think first, if its template knows how.
        reasoning_effort: how long, if the template knows how.
        preserve_thinking: whether the template repeats old thoughts; None leaves that to it.
        logprobs: report how likely each token was.
        top_logprobs: and how likely so many alternatives were, at most 20.
    """

    sampling: Sampling | None
    max_tokens: int | None
    stop: str | Sequence[str] | None
    thinking: bool
    reasoning_effort: str | None
    preserve_thinking: bool | None
    logprobs: bool
    top_logprobs: int


@dataclass(frozen=True, slots=True)
class Settings:
    """Checked options.

    Attributes:
        sampling: how tokens are chosen.
        max_tokens: most of them, or None.
        stop: strings that end the answer.
        thinking: let the model think first.
        reasoning_effort: for the template, or None.
        preserve_thinking: for the template, or None.
        top_logprobs: alternatives to report; None is for no log-probabilities.
    """

    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    thinking: bool = False
    reasoning_effort: str | None = None
    preserve_thinking: bool | None = None
    top_logprobs: int | None = None

    @property
    def variables(self) -> dict[str, Any]:
        """What the template is told beside the messages."""
        given = {
            "reasoning_effort": self.reasoning_effort,
            "preserve_thinking": self.preserve_thinking,
        }
        return {name: value for name, value in given.items() if value is not None}

    def updated(self, options: Mapping[str, Any]) -> Settings:
        """These settings, with options in their place.

        Args:
            options: see `ChatOptions`.

        Raises:
            RequestError: if there is no such option, or its value makes no sense; `param` names it.
        """
        _check_names(options, (*_OWN, *_SAMPLING))
        own = {name: options[name] for name in _OWN if name in options}
        changes: dict[str, Any] = {"sampling": self._sampled(options)}
        if "max_tokens" in own:
            changes["max_tokens"] = _max_tokens(own["max_tokens"])
        if "stop" in own:
            changes["stop"] = StopStrings(own["stop"]).strings
        if "thinking" in own:
            changes["thinking"] = _flag("thinking", own["thinking"])
        if "reasoning_effort" in own:
            changes["reasoning_effort"] = _effort(own["reasoning_effort"])
        if "preserve_thinking" in own:
            kept = own["preserve_thinking"]
            changes["preserve_thinking"] = (
                None if kept is None else _flag("preserve_thinking", kept)
            )
        if "logprobs" in own or "top_logprobs" in own:
            changes["top_logprobs"] = self._top(own)
        return replace(self, **changes)

    def _sampled(self, options: Mapping[str, Any]) -> Sampling:
        base = options.get("sampling")
        given = {name: options[name] for name in _SAMPLING if name in options}
        return sampled(self.sampling if base is None else base, given)

    def _top(self, own: Mapping[str, Any]) -> int | None:
        count = checked_top_logprobs(own.get("top_logprobs", self.top_logprobs or 0))
        if "logprobs" not in own:
            return count
        wanted = _flag("logprobs", own["logprobs"])
        if not wanted and own.get("top_logprobs"):
            raise RequestError("top_logprobs: only with logprobs", param="top_logprobs")
        return count if wanted else None


def sampled(base: Any, options: Mapping[str, Any]) -> Sampling:
    """A `Sampling`, with options in place of its fields.

    Args:
        base: the `Sampling`.
        options: see `SamplingOptions`.

    Raises:
        RequestError: if the base is none, there is no such option, or its value makes no sense; `param` names it.
    """
    if not isinstance(base, Sampling):
        raise RequestError(f"sampling = {base!r:.80}: must be a Sampling", param="sampling")
    _check_names(options, _SAMPLING)
    return replace(base, **options)


def _check_names(options: Mapping[str, Any], known: Sequence[str]) -> None:
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise RequestError(f"{name:.60}: there is no such option{hint}", param=name)


def _max_tokens(value: Any) -> int | None:
    if value is None:
        return None
    check_whole("max_tokens", value, 1, float("inf"), "a whole number, 1 or more")
    return int(value)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise RequestError(f"{name} = {value!r:.80}: must be True or False", param=name)
    return value


def _effort(value: Any) -> str | None:
    """Which efforts there are is for the template to say."""
    if value is None or (isinstance(value, str) and 0 < len(value) <= 64):
        return value
    raise RequestError(
        f"reasoning_effort = {value!r:.80}: must be a word that the model's template knows",
        param="reasoning_effort",
    )
