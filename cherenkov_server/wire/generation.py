"""What chat completions and completions are both asked with."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from cherenkov.errors import UnsupportedParam
from cherenkov.sampling import LEAST_REPETITION, MAX_BIASES
from cherenkov_server.wire.refusals import Refusal

__all__ = ["Generation", "StreamOptions", "Wire", "checked_count", "without_unsupported"]

MAX_CHOICES = 128

Whole = Annotated[int, Field(ge=0, le=2**63 - 1)]
FIRST = Field(fail_fast=True)
"""Of a list: the first wrong item is told, and others are not looked for, which would take seconds."""


class Wire(BaseModel):
    """A type of the wire: nothing is guessed, and unknown keys are refused."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class StreamOptions(Wire):
    """How to stream."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Generation(Wire):
    """Parameters of every answer. A null counts as left out."""

    model: Annotated[str, Field(max_length=512)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: Whole | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**64 - 1)] | None = None
    stop: str | Annotated[list[str], FIRST] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(ge=LEAST_REPETITION, le=10)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    request_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,80}$")] | None = None
    user: str | None = None

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _few_biases(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > MAX_BIASES:
            raise ValueError(f"more than {MAX_BIASES} tokens")
        return value

    @field_validator("stop", mode="before")
    @classmethod
    def _no_empty_stop(cls, value: Any) -> Any:
        return None if value in ("", []) else value

    @property
    def includes_usage(self) -> bool | None:
        """Whether a stream ends with what it took; None if that was left out."""
        return None if self.stream_options is None else self.stream_options.include_usage

    def sampled(self) -> dict[str, Any]:
        """Options of sampling and stopping that were given, by the library's names."""
        names = (
            "temperature",
            "top_p",
            "min_p",
            "presence_penalty",
            "frequency_penalty",
            "repetition_penalty",
            "stop",
        )
        options = {name: getattr(self, name) for name in names}
        options["top_k"] = None if self.top_k is None else max(0, self.top_k)
        options["seed"] = None if self.seed is None else self.seed % 2**64
        if self.logit_bias is not None:  # a bias of nothing does nothing, whatever it is for
            options["logit_bias"] = {key: bias for key, bias in self.logit_bias.items() if bias}
        return {name: value for name, value in options.items() if value is not None}


def without_unsupported(
    body: dict[str, Any], unsupported: dict[str, tuple[tuple[Any, ...], str]], *, is_lenient: bool
) -> dict[str, Any]:
    """A request without parameters that cannot be honoured.

    Args:
        body: the request.
        unsupported: by name, values that ask for nothing (None always does), and why others are refused.
        is_lenient: leave the others away, too.

    Raises:
        UnsupportedParam: if one asks for something.
    """
    for name, (harmless, reason) in unsupported.items():
        value = body.get(name)
        if value is None or any(value is one or value == one for one in harmless):
            continue
        if not is_lenient:
            raise UnsupportedParam(name, reason)
    return {name: value for name, value in body.items() if name not in unsupported}


def checked_count(name: str, value: int | None, most: int) -> int | None:
    """A number of tokens, within what the server allows.

    Raises:
        Refusal: 400, if it is more.
    """
    if value is not None and value > most:
        words = f"{name}: {value}, but this server answers with at most {most} tokens"
        raise Refusal(400, words, param=name, code="invalid_value")
    return value
