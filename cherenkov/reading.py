"""What a model makes of tokens that it is given: logits, loss, routes. Nothing is sampled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cherenkov.errors import ContextTooLong, RequestError
from cherenkov.prefill import chunks
from cherenkov.state import Rows
from cherenkov.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from cherenkov.chat.responder import Responder
    from cherenkov.state import State

__all__ = ["Reader"]

_LOGITS_BYTES = 8 * MIB


class Reader:
    """Reads tokens, a chunk at a time, and takes turns with whoever else uses the model.

    Args:
        responder: the model.
        vocab: entries of its logits.
    """

    def __init__(self, responder: Responder, vocab: int) -> None:
        self._responder = responder
        self._loaded = responder.loaded
        self._vocab = vocab

    def admit(self, ids: Sequence[int]) -> None:
        """Refuse what cannot be read.

        Raises:
            RequestError: if `ids` is empty, too long for the context, or holds what is no id of the vocabulary.
        """
        if not isinstance(ids, Sequence | np.ndarray):
            raise RequestError(f"the tokens are a {type(ids).__name__}, not a list", param="ids")
        if not len(ids):
            raise RequestError("there are no tokens", param="ids")
        if any(not isinstance(i, int | np.integer) for i in ids):
            raise RequestError("token ids must be whole numbers", param="ids")
        if len(ids) > self._loaded.context_tokens:
            raise ContextTooLong(len(ids), 0, self._loaded.context_tokens)
        if any(not 0 <= i < self._vocab for i in ids):
            raise RequestError(f"token ids must be from 0 to {self._vocab - 1}", param="ids")

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Logits of the token after each of `ids`, `[T, V]`. Raises as `admit`."""
        self.admit(ids)
        result = np.empty((len(ids), self._vocab), dtype=np.float32)
        done = 0
        for rows in self._rows(ids):
            result[done : done + len(rows)] = rows
            done += len(rows)
        return result

    def loss(self, ids: Sequence[int]) -> float:
        """Mean negative log-likelihood, in nats, of each of `ids` but the first. Raises as `admit`."""
        self.admit(ids)
        total, done = 0.0, 0
        for rows in self._rows(ids):
            targets = np.array(ids[done + 1 : done + 1 + len(rows)])
            scored = rows[: len(targets)].astype(np.float64)
            peak = scored.max(axis=1)
            mass = np.log(np.exp(scored - peak[:, None]).sum(axis=1)) + peak
            total += float((mass - scored[np.arange(len(targets)), targets]).sum())
            done += len(rows)
        return total / (len(ids) - 1)

    def routes(self, ids: Sequence[int]) -> NDArray[np.int32]:
        """The experts that each of `ids` uses, `[T, layers, K]`. Raises as `admit`."""
        self.admit(ids)
        state = self._loaded.network.new_state(self._loaded.context_tokens)
        steps = chunks(len(ids), self._loaded.chunk_rows)
        return np.concatenate([self._routed(state, ids[a:b]) for a, b in steps])

    def _routed(self, state: State[Any], ids: Sequence[int]) -> NDArray[np.int32]:
        """The routes of one step, for which `ids` are the next tokens of `state`."""
        found: list[NDArray[np.int32]] = []
        experts = self._responder.experts
        with self._responder.lock:
            self._responder.check_open()
            before = experts.listener
            experts.listener = lambda _layer, routed: found.append(routed.copy())
            try:
                self._loaded.network.forward(Rows([(state, ids)]))
            finally:
                experts.listener = before
        return np.stack(found, axis=1)

    def _rows(self, ids: Sequence[int]) -> Iterator[NDArray[np.float32]]:
        """Logits in order, a few rows at a time: nothing in a model is wider. Holds the turn while a chunk lasts."""
        network = self._loaded.network
        state = network.new_state(self._loaded.context_tokens)
        few = max(1, _LOGITS_BYTES // (self._vocab * 4))
        for start, stop in chunks(len(ids), self._loaded.chunk_rows):
            with self._responder.lock:
                self._responder.check_open()
                wide = network.forward(Rows([(state, ids[start:stop])]))
                for first in range(0, stop - start, few):
                    last = min(first + few, stop - start)
                    yield self._loaded.backend.host(network.logits(wide, range(first, last)))
