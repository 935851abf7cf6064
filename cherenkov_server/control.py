"""What all routes share: the engine, the settings, and where in its life the server is."""

from __future__ import annotations

import asyncio
import functools
import time
from typing import TYPE_CHECKING, Any

from cherenkov.errors import CapacityError
from cherenkov.version import __version__
from cherenkov_server.wire.refusals import Refusal, refusal_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cherenkov.engine import Request, Ticket
    from cherenkov_server.answering import Answering, Loaded
    from cherenkov_server.config import ServerConfig
    from cherenkov_server.guard import Traffic
    from cherenkov_server.work import Work

__all__ = ["Service"]


class Service:
    """A server's state.

    Attributes:
        config: its settings.
        engine: who answers.
        name: what clients call the model.
        created: when it began, seconds since 1970.
        fingerprint: of the server, for clients that compare answers.
        traffic: what passed the guard.
    """

    def __init__(self, config: ServerConfig, engine: Answering, *, name: str) -> None:
        self.config = config
        self.engine = engine
        self.name = config.server.served_name or name
        self.created = int(time.time())
        self.fingerprint = f"cherenkov-{__version__}"
        self.traffic: Traffic | None = None
        self._loaded: Loaded | None = None
        self._draining = False
        self._groups: dict[tuple[str, str], Work] = {}

    @property
    def state(self) -> str:
        """`loading`, `ready`, `draining`, or what else the engine is."""
        return "draining" if self._draining else self.engine.state

    async def load(self) -> None:
        """Load the model, while requests are told to wait. Raises what loading raises."""
        self.engine.start()
        self._loaded = await asyncio.to_thread(self.engine.wait_ready)

    async def drain(self) -> bool:
        """Let nobody in any more, and wait for what is under way. False if something had to be cancelled."""
        self._draining = True
        wait = functools.partial(self.engine.drain, self.config.limits.shutdown_seconds)
        return await asyncio.to_thread(wait)

    @property
    def context_tokens(self) -> int | None:
        """Most tokens of a prompt and its answer; None until the model is loaded."""
        return None if self._loaded is None else self._loaded.plan.context_tokens

    @property
    def loaded(self) -> Loaded:
        """The model.

        Raises:
            Refusal: 503, while it is loading, and once the server is going down.
        """
        if self._loaded is None or self._draining:
            words = f"the server is {self.state}: try again"
            headers = {"retry-after": "1"}
            raise Refusal(503, words, "server_error", code="unavailable", headers=headers)
        return self._loaded

    def check_model(self, named: str | None) -> None:
        """Refuse a model that is not the one that is served.

        Raises:
            Refusal: 404.
        """
        if named in {None, "", self.name} or self.config.server.any_model:
            return
        raise Refusal(
            404,
            f"the model {named!r:.100} is not served here, but {self.name!r} is",
            param="model",
            code="model_not_found",
        )

    def work(
        self, requests: Sequence[Request], make: Callable[..., Work], *, owner: str, request_id: str
    ) -> Work:
        """Answers for one HTTP request, which can be cancelled by its id.

        Args:
            requests: what to ask for.
            make: `Work`.
            owner: whose they are.
            request_id: of the HTTP request.
        """
        key = (owner, request_id)
        if key in self._groups:
            words = f"request_id: {request_id!r} is under way already"
            raise Refusal(409, words, param="request_id", code="duplicate_request_id")
        work = make(
            self.submit,
            requests,
            most=self.config.limits.active_requests,
            on_end=lambda: self._forget(key),
        )
        self._groups[key] = work
        return work

    def _forget(self, key: tuple[str, str]) -> None:
        self._groups.pop(key, None)

    def submit(self, request: Request) -> Ticket:
        """Ask the engine.

        Raises:
            Refusal: 503, if it takes nobody now.
            CherenkovError: as `Engine.submit`.
        """
        try:
            return self.engine.submit(request)
        except CapacityError as error:
            if self.state == "ready" or error.retry_after_s is None:
                raise
            raise refusal_of(error, is_unavailable=True) from None

    def cancel(self, request_id: str, owner: str) -> None:
        """End a request.

        Raises:
            Refusal: 404, if there is none of that id.
        """
        work = self._groups.get((owner, request_id))
        if work is not None:
            work.cancel()
        elif not self.engine.cancel(request_id, owner):
            words = f"there is no request {request_id!r:.100} under way"
            raise Refusal(404, words, param="id", code="request_not_found")

    def default_options(self) -> dict[str, Any]:
        """Options that hold unless a request says."""
        defaults = self.config.defaults
        return defaults.sampling.options() | {"thinking": defaults.thinking}
