"""`POST /v1/completions`: what may be asked."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from cherenkov.errors import UnsupportedParam
from cherenkov_server.wire.generation import FIRST, Generation, Whole, without_unsupported
from cherenkov_server.wire.reading import validated
from cherenkov_server.wire.refusals import Refusal

__all__ = ["Completion", "read_completion"]

MAX_PROMPTS = 2048
MAX_ANSWERS = 2048
"""To one request: each takes memory before its turn comes."""

_UNSUPPORTED: dict[str, tuple[tuple[Any, ...], str]] = {
    "suffix": ((), "is not supported: this model cannot fill in"),
    "tools": (([],), "belong to /v1/chat/completions"),
}


class Completion(Generation):
    """A text to continue, or several."""

    prompt: (
        str
        | Annotated[list[str], FIRST]
        | Annotated[list[Whole], FIRST]
        | Annotated[list[Annotated[list[Whole], FIRST]], FIRST]
    )
    echo: bool | None = None
    ignore_eos: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    best_of: Annotated[int, Field(ge=0, le=128)] | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """The texts to continue, one after the other."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [[one for one in self.prompt if isinstance(one, int)]]
        return [one for one in self.prompt if not isinstance(one, int)]

    def options(self) -> dict[str, Any]:
        """The `ChatOptions` that were given, all but `max_tokens`."""
        options = self.sampled()
        if self.logprobs is not None:
            options["top_logprobs"] = self.logprobs
        return options


def read_completion(body: dict[str, Any], *, is_lenient: bool = False) -> Completion:
    """A checked request. Arguments and errors as for `read_chat`."""
    asked = validated(Completion, without_unsupported(body, _UNSUPPORTED, is_lenient=is_lenient))
    if (asked.best_of or 1) > (asked.n or 1) and not is_lenient:
        raise UnsupportedParam("best_of", "may not be more than n: answers are not ranked")
    if not 0 < len(asked.prompts) <= MAX_PROMPTS:
        words = f"prompt: {len(asked.prompts)} prompts, but it must be 1 to {MAX_PROMPTS}"
        raise Refusal(400, words, param="prompt", code="invalid_value")
    answers = len(asked.prompts) * (asked.n or 1)
    if answers > MAX_ANSWERS:
        words = f"n: {answers} answers, but at most {MAX_ANSWERS} to a request are allowed"
        raise Refusal(400, words, param="n", code="invalid_value")
    return asked
