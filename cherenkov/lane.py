"""A lane: one answer under way.

A step of the model runs the pending tokens of one lane or of several at once, each followed by what was guessed to come
next; each lane then takes its rows' logits and makes tokens of them. `cherenkov.stepping` makes such steps. Whoever asks
for them, a loop for one caller or an engine for many, the lane is the same, and so is what it says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from cherenkov.errors import ContextTooLong, RequestError
from cherenkov.logprobs import TokenLogprobs, logprobs
from cherenkov.sampling import Occurrences, Sampling, choose
from cherenkov.selection import Kept, likeliest
from cherenkov.state import Rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from cherenkov.architectures import Network
    from cherenkov.backends.base import Backend
    from cherenkov.speculation import Speculation
    from cherenkov.state import Snapshot, State

__all__ = ["Lane", "Loaded", "Step", "Wanted", "admit"]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A loaded model, as generation sees it."""

    network: Network[Any]
    backend: Backend[Any, Any]
    context_tokens: int
    chunk_rows: int
    speculation: Speculation


class Step(NamedTuple):
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
        drafter: guesses what comes, and holds what it guessed for the step under way.
        is_over: there is nothing to come.
        asks: rows of the step under way whose logits are wanted, the last ones; 0 while the prompt is not through.
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
        self._loaded, self._wanted = loaded, wanted
        self._backend = loaded.backend
        if state is None:
            state = loaded.network.new_state(loaded.context_tokens)
        assert state.tokens == list(prompt[: state.position]), "the prompt continues the state"
        self.state = state
        self.pending = list(prompt[state.position :])
        self.drafter = loaded.speculation.drafter()
        if not self.drafter.keeps:
            state.trail.close()
        self.is_over = False
        self.asks = 0
        self._decides = False  # the step under way is one behind whose token drafts may go
        self._before: Snapshot[Any] | None = None
        sampling = wanted.sampling
        self._random = sampling.generator() if random is None else random
        self._seen = Occurrences(prompt) if sampling.needs_occurrences else None
        # The logits are taken as they are, and the largest is all that is asked.
        self._takes_largest = (
            sampling.is_greedy
            and self._seen is None
            and not sampling.logit_bias
            and wanted.top_logprobs is None
        )

    @property
    def is_deciding(self) -> bool:
        """The next step is that of a single token, behind which drafts may go."""
        return len(self.pending) == 1

    @property
    def room(self) -> int:
        """Drafts that would be of use: so many tokens may still come beyond the next one, and fit the context."""
        context = self.state.context_tokens - self.state.position - len(self.pending)
        return max(0, min(self._left - 1, context))

    def restart(self, state: State[Any], pending: Sequence[int]) -> None:
        """Go on from another state of the same sequence: a step was lost.

        Args:
            state: a sequence that the lane's began with.
            pending: what it lacks of it.
        """
        self.state, self.pending = state, list(pending)
        self.asks, self.drafter.tokens, self._before = 0, [], None

    def prepare(self, count: int) -> list[int]:
        """Begin a step that runs `count` of the pending tokens. Returns all that it runs."""
        if count < len(self.pending):
            running, self.pending = self.pending[:count], self.pending[count:]
            self.asks, self.drafter.tokens = 0, []
            return running
        drafts = self.drafter.tokens
        self.asks, self._decides = 1 + len(drafts), self.is_deciding
        # A state that cannot take rows back is kept as it is.
        can = len(drafts) <= self._backend.most_back
        self._before = None if can else self.state.snapshot(self._backend)
        return [*self.pending, *drafts]

    def take(self, logits: NDArray[np.float32]) -> Iterator[Step]:
        """Choose what comes after the rows that were run, and as long as that was guessed right, what comes then.

        Tokens are chosen as they are asked for. Whoever stops asking leaves the lane as if the rest had not been tried.

        Args:
            logits: `[asks, V]`, on the host.

        Raises:
            BackendError: the logits are not numbers.
            RequestError: `logit_bias` names a token beyond the vocabulary.
        """
        drafts, self.drafter.tokens = self.drafter.tokens, []
        if self._before is not None:
            steps = list(self._decided(logits, drafts))
            if len(steps) <= len(drafts):
                self._rerun(self._before, len(steps))
            yield from steps
            return
        if drafts:
            self.state.go_back(self.state.position - len(drafts))
        for step in self._decided(logits, drafts):
            yield step
            if self.asks:  # it was guessed: its row stays
                self.state.stay(step.token)

    def _decided(self, logits: NDArray[np.float32], drafts: list[int]) -> Iterator[Step]:
        """Tokens from the rows' logits, as far as the drafts go along. `asks` is 0 when nothing more comes."""
        for depth in range(len(drafts) + 1):
            step = self._decide(logits[depth])
            if self._decides:
                self.drafter.decided()
            if depth < len(drafts):
                right = step.token == drafts[depth]
                self.drafter.judged(depth, accepted=right)
                if right and not self.is_over:
                    yield step
                    continue
            self.asks = 0
            yield step
            return

    def _rerun(self, before: Snapshot[Any], count: int) -> None:
        """Run the rows that stay again, from the state before them."""
        state, speculation = self.state, self._loaded.speculation
        running = state.tokens[before.position : before.position + count]
        state.restore(before, self._backend)
        wide = self._loaded.network.forward(Rows([(state, running)]))
        speculation.ran(state, len(running), wide, certain=True)

    def _decide(self, logits: NDArray[np.float32]) -> Step:
        """The next token of the answer."""
        token, likely = self._sampled(logits)
        self._left -= 1
        stopped = token in self._wanted.stop_ids
        self.is_over = stopped or not self._left
        self.pending = [token]
        if stopped:
            return Step(token, "stop", likely)
        if self._seen is not None:
            self._seen.add(token)
        return Step(token, "length" if self.is_over else None, likely)

    def _sampled(self, logits: NDArray[np.float32]) -> tuple[int, TokenLogprobs | None]:
        """A token, and how likely it was if that is asked for."""
        name, wanted = self._backend.name, self._wanted
        if self._takes_largest:
            return likeliest(logits, name), None
        if wanted.top_logprobs is None:
            token = choose(logits, wanted.sampling, self._random, seen=self._seen, backend=name)
            return token, None
        kept = Kept()
        token = choose(
            logits, wanted.sampling, self._random, seen=self._seen, backend=name, kept=kept
        )
        return token, logprobs(logits, token, wanted.top_logprobs, backend=name, row=kept.row)


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
