"""Generation: prefill, then step, sample, stop, yield."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cherenkov.errors import ContextTooLong, RequestError
from cherenkov.logprobs import TokenLogprobs, logprobs
from cherenkov.prefill import prefill
from cherenkov.sampling import Occurrences, Sampling, choose
from cherenkov.selection import Row, largest_logit
from cherenkov.state import Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np

    from cherenkov.architectures import Network
    from cherenkov.backends.base import Backend
    from cherenkov.state import State

__all__ = ["Engine", "Step", "admit", "generate"]


@dataclass(frozen=True, slots=True)
class Engine:
    """A loaded model, as the loop sees it."""

    network: Network[Any]
    backend: Backend[Any, Any]
    context_tokens: int
    chunk_rows: int


@dataclass(frozen=True, slots=True)
class Step:
    """One sampled token.

    Attributes:
        token: its id.
        finish_reason: set on the last one: `stop` or `length`.
        logprobs: how likely it was, if that was asked for.
    """

    token: int
    finish_reason: str | None
    logprobs: TokenLogprobs | None = None


def generate(  # noqa: PLR0913 - settings, each by its name
    engine: Engine,
    prompt: Sequence[int],
    *,
    max_tokens: int | None,
    sampling: Sampling,
    stop_ids: frozenset[int],
    check: Callable[[], None],
    state: State[Any] | None = None,
    random: np.random.Generator | None = None,
    top_logprobs: int | None = None,
) -> Iterator[Step]:
    """Continue a prompt.

    Args:
        engine: the model.
        prompt: token ids, at least one.
        max_tokens: most tokens to sample; None samples until the context is full.
        sampling: how.
        stop_ids: tokens that end the answer; the last step holds the one that did.
        check: called between steps; raises to stop.
        state: a sequence that `prompt` continues, and that goes on with it; None begins one.
        random: where random numbers come from; None begins with the seed.
        top_logprobs: alternatives to name beside each token; None is for no log-probabilities at all.

    Raises:
        RequestError: if the prompt is empty, or `max_tokens` is less than 1.
        ContextTooLong: if prompt and output do not fit the context.
    """
    max_tokens = admit(engine, prompt, max_tokens)
    network = engine.network
    if state is None:
        state = network.new_state(engine.context_tokens)
    assert state.tokens == list(prompt[: state.position]), "the prompt continues the state"
    random = sampling.generator() if random is None else random
    seen = Occurrences(prompt) if sampling.needs_occurrences else None
    logits = prefill(network, state, prompt[state.position :], engine.chunk_rows, check)
    for count in range(1, max_tokens + 1):
        token, likely = _sampled(engine, logits, sampling, random, seen, top_logprobs)
        if token in stop_ids:
            yield Step(token, "stop", likely)
            return
        if seen is not None:
            seen.add(token)
        yield Step(token, "length" if count == max_tokens else None, likely)
        if count < max_tokens:
            check()
            wide = network.forward(Rows([(state, [token])]))
            logits = network.logits(wide, [0])


def _sampled(
    engine: Engine,
    logits: Any,
    sampling: Sampling,
    random: np.random.Generator,
    seen: Occurrences | None,
    top: int | None,
) -> tuple[int, TokenLogprobs | None]:
    """A token, and how likely it was if that is asked for."""
    host, name = engine.backend.host(logits)[0], engine.backend.name  # [V]
    if top is None:
        return choose(host, sampling, random, seen=seen, backend=name), None
    row = Row(host, largest_logit(host, name), 1.0)
    token = choose(host, sampling, random, seen=seen, backend=name, row=row)
    return token, logprobs(host, token, top, backend=name, row=row)


def admit(engine: Engine, prompt: Sequence[int], max_tokens: int | None) -> int:
    """How many tokens may be sampled.

    Raises:
        RequestError, ContextTooLong: as `generate`.
    """
    if not prompt:
        raise RequestError("the prompt is empty", param="prompt")
    if max_tokens is None:
        max_tokens = max(1, engine.context_tokens - len(prompt) + 1)
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
        raise RequestError(
            f"max_tokens = {max_tokens}: must be a whole number, 1 or more", param="max_tokens"
        )
    # The last token that is sampled never enters the model.
    if len(prompt) + max_tokens - 1 > engine.context_tokens:
        raise ContextTooLong(len(prompt), max_tokens, engine.context_tokens)
    return max_tokens
