"""A lane: one answer under way.

A step of the model runs the pending tokens of one lane or of several at once; each lane then takes its rows' logits and
makes tokens of them:

    while not lane.is_over:
        wide = network.forward(Rows([(lane.state, lane.pending)]))
        steps = lane.take(network.logits(wide, range(len(lane.pending))))

Whoever runs the steps, a loop for one caller or an engine for many, the lane is the same, and so is what it says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cherenkov.errors import ContextTooLong, RequestError
from cherenkov.logprobs import TokenLogprobs, logprobs
from cherenkov.sampling import Occurrences, Sampling, choose
from cherenkov.selection import Row, largest_logit

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from cherenkov.architectures import Network
    from cherenkov.backends.base import Backend
    from cherenkov.state import State

__all__ = ["Lane", "Loaded", "Step", "Wanted", "admit"]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A loaded model, as generation sees it."""

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


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked of an answer.

    Attributes:
        sampling: how tokens are chosen.
        stop_ids: tokens that end it; the last step holds the one that did.
        max_tokens: most tokens to sample; None samples until the context is full.
        top_logprobs: alternatives to name beside each token; None is for no log-probabilities at all.
    """

    sampling: Sampling
    stop_ids: frozenset[int]
    max_tokens: int | None = None
    top_logprobs: int | None = None


class Lane:
    """One answer under way.

    Attributes:
        state: the sequence, as far as the model has run it.
        pending: tokens that the next step must run. First what the state lacks of the prompt, which may go in several
            steps; then the token sampled last.
        is_over: there is nothing to come.
    """

    def __init__(
        self,
        loaded: Loaded,
        prompt: Sequence[int],
        wanted: Wanted,
        state: State[Any] | None = None,
        random: np.random.Generator | None = None,
    ) -> None:
        """Begin an answer.

        Args:
            loaded: the model.
            prompt: token ids, at least one.
            wanted: what is asked.
            state: a sequence that `prompt` continues, and that goes on with it; None begins one.
            random: where random numbers come from; None begins with the seed.

        Raises:
            RequestError: if the prompt is empty, or `max_tokens` is less than 1.
            ContextTooLong: if prompt and output do not fit the context.
        """
        self._left = admit(loaded, prompt, wanted.max_tokens)
        self._backend, self._wanted = loaded.backend, wanted
        if state is None:
            state = loaded.network.new_state(loaded.context_tokens)
        assert state.tokens == list(prompt[: state.position]), "the prompt continues the state"
        self.state = state
        self.pending = list(prompt[state.position :])
        self.is_over = False
        sampling = wanted.sampling
        self._random = sampling.generator() if random is None else random
        self._seen = Occurrences(prompt) if sampling.needs_occurrences else None

    def take(self, logits: Any) -> list[Step]:
        """Choose what comes after the rows that were run.

        Args:
            logits: `[n, V]`, of the last n rows that were run; only the last one's matter.

        Raises:
            BackendError: the logits are not numbers.
            RequestError: `logit_bias` names a token beyond the vocabulary.
        """
        token, likely = self._sampled(self._backend.host(logits)[-1])
        self._left -= 1
        stopped = token in self._wanted.stop_ids
        self.is_over = stopped or not self._left
        self.pending = [token]
        if stopped:
            return [Step(token, "stop", likely)]
        if self._seen is not None:
            self._seen.add(token)
        return [Step(token, "length" if self.is_over else None, likely)]

    def _sampled(self, logits: NDArray[np.float32]) -> tuple[int, TokenLogprobs | None]:
        """A token, and how likely it was if that is asked for."""
        name, wanted = self._backend.name, self._wanted
        if wanted.top_logprobs is None:
            token = choose(logits, wanted.sampling, self._random, seen=self._seen, backend=name)
            return token, None
        row = Row(logits, largest_logit(logits, name), 1.0)
        token = choose(
            logits, wanted.sampling, self._random, seen=self._seen, backend=name, row=row
        )
        return token, logprobs(logits, token, wanted.top_logprobs, backend=name, row=row)


def admit(loaded: Loaded, prompt: Sequence[int], max_tokens: int | None) -> int:
    """How many tokens may be sampled.

    Raises:
        RequestError, ContextTooLong: as `Lane`.
    """
    if not prompt:
        raise RequestError("the prompt is empty", param="prompt")
    if max_tokens is None:
        max_tokens = max(1, loaded.context_tokens - len(prompt) + 1)
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
        raise RequestError(
            f"max_tokens = {max_tokens}: must be a whole number, 1 or more", param="max_tokens"
        )
    # The last token that is sampled never enters the model.
    if len(prompt) + max_tokens - 1 > loaded.context_tokens:
        raise ContextTooLong(len(prompt), max_tokens, loaded.context_tokens)
    return max_tokens
