"""Runs a server until a signal ends it: the first lets answers end, the second does not wait."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
from typing_extensions import override

from cherenkov.errors import ConfigError, DiskError
from cherenkov_server.app import make_app
from cherenkov_server.control import Service
from cherenkov_server.guard import Keys, is_loopback
from cherenkov_server.log import logging_to_stderr
from cherenkov_server.protocol import guarded_protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cherenkov_server.answering import Answering
    from cherenkov_server.config import ServerConfig

__all__ = ["Running", "affordable", "read_keys", "serve"]

_log = logging.getLogger("cherenkov.server")

_KEY_FILE_BYTES = 1 << 20
_GRACE_S = 2.0
"""How long connections may take to end once their answers have."""
_OWN_DESCRIPTORS = 32
"""Descriptors that are no connections: the model's files, the template's process, the log."""
_BACKLOG = 1024
"""Connections that may wait to be accepted, and are then accepted at one go."""
_REPEATED_S = 10.0
"""The same failure of the event loop is logged once in so long."""


def read_keys(config: ServerConfig) -> Keys:
    """Who may call.

    Raises:
        ConfigError: if anybody could call from anywhere, and nobody said so.
        DiskError: if the file of keys cannot be read.
    """
    server = config.server
    if not server.api_key_file:
        if not is_loopback(server.host) and not server.no_auth:
            reason = "listens to other machines: give an --api-key-file, or say --no-auth"
            raise ConfigError("server.host", server.host, reason, source="settings")
        return Keys([])
    path = Path(server.api_key_file).expanduser()
    try:
        with path.open("rb") as file:
            lines = file.read(_KEY_FILE_BYTES).decode("ascii").splitlines()
    except OSError as error:
        raise DiskError.wrap(error, path, "read") from error
    except UnicodeDecodeError:
        raise ConfigError(
            "server.api_key_file", str(path), "must be ASCII, one key a line", source="settings"
        ) from None
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise ConfigError(
            "server.api_key_file", str(path), "holds no key: one a line", source="settings"
        )
    return Keys(keys)


def serve(config: ServerConfig, engine: Answering, *, name: str, say: Callable[[str], None]) -> int:
    """Serve until a signal comes.

    Args:
        config: the settings.
        engine: who answers; it is closed at the end.
        name: of the model.
        say: told where the server is, for people.

    Returns:
        The exit code: 0 after SIGTERM, 130 after SIGINT, 1 if answers had to be cut off.

    Raises:
        CherenkovError: the model cannot be loaded, or the address cannot be had.
    """
    keys = read_keys(config)
    try:
        with logging_to_stderr(as_json=config.server.log_json), _listening(config) as listener:
            running = Running(config, engine, keys, listener, name=name)
            return asyncio.run(running.until_signalled(say))
    finally:
        engine.close()


class Running:
    """A server on one socket.

    Attributes:
        url: where it is.
        service: its state.
    """

    def __init__(
        self,
        config: ServerConfig,
        engine: Answering,
        keys: Keys,
        listener: socket.socket,
        *,
        name: str,
    ) -> None:
        limits = config.limits
        self.service = Service(config, engine, name=name)
        self._listener = listener
        self._server = _Server(
            uvicorn.Config(
                make_app(self.service, keys),
                http=guarded_protocol(limits, affordable(limits.connections)),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                h11_max_incomplete_event_size=limits.header_bytes,
                timeout_keep_alive=max(1, round(limits.idle_seconds)),
                timeout_graceful_shutdown=max(1, round(_GRACE_S)),
                backlog=_BACKLOG,
            )
        )
        host, port = listener.getsockname()[:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def until_signalled(self, say: Callable[[str], None]) -> int:
        """Serve until a signal comes; see `serve`."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_Failures())
        signals: asyncio.Queue[int] = asyncio.Queue()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled, number, signals)
        serving = asyncio.create_task(self.run())
        coming = asyncio.create_task(signals.get())
        loading = asyncio.create_task(self.service.load())
        say(f"listening at {self.url}, loading {self.service.name}")
        try:
            await asyncio.wait([loading, coming, serving], return_when=asyncio.FIRST_COMPLETED)
            if loading.done():
                loading.result()
                say(f"serving {self.service.name} at {self.url}")
                await asyncio.wait([coming, serving], return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
            # By the log, not by `say`: it must not wait for a reader.
            _log.info("going down: answers under way may end, a second signal cuts them off")
            ended = await self.service.drain()
        finally:
            self.stop()
            await serving
            for task in (coming, loading):
                task.cancel()
        interrupted = coming.done() and not coming.cancelled() and coming.result() == signal.SIGINT
        return 1 if not ended else 130 if interrupted else 0

    async def run(self) -> None:
        """Serve until `stop`."""
        await self._server.serve([self._listener])

    def stop(self) -> None:
        """Close all connections; safe to call twice."""
        self._server.should_exit = True

    def _signalled(self, number: int, signals: asyncio.Queue[int]) -> None:
        if self.service.state == "draining" or not signals.empty():
            # At once: nothing may hold this up, not even threads that still compute.
            os._exit(128 + number)
        signals.put_nowait(number)


def affordable(connections: int) -> int:
    """So many connections, or as many as the system has descriptors for; its soft limit is raised where that helps.

    Without a descriptor for the next one, nobody could be sent away to make room.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _BACKLOG + _OWN_DESCRIPTORS
    endless = resource.RLIM_INFINITY
    if soft != endless and soft < wanted:
        most = wanted if hard == endless else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
    return connections if soft == endless else max(1, min(connections, soft - _OWN_DESCRIPTORS))


class _Failures:
    """Logs what failed in the event loop, in a line. Where no descriptor is left, asyncio tells so a thousand times a second."""

    def __init__(self) -> None:
        self._told: dict[str, float] = {}

    def __call__(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        message, error = str(context.get("message")), context.get("exception")
        now = time.monotonic()
        if now - self._told.get(message, -_REPEATED_S) >= _REPEATED_S:
            self._told[message] = now
            _log.error("%s: %s", message, type(error).__name__)


class _Server(uvicorn.Server):
    """uvicorn's server, without its signals: a drain comes before its end."""

    @contextlib.contextmanager
    @override
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.contextmanager
def _listening(config: ServerConfig) -> Iterator[socket.socket]:
    """A socket at the address that was asked for; had before anything is loaded.

    Raises:
        ConfigError: if the address is none of this machine's, or taken.
    """
    host, port = config.server.host, config.server.port
    listener = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except (OSError, UnicodeError) as error:
        if listener is not None:
            listener.close()
        reason = getattr(error, "strerror", None) or "is no address"
        raise ConfigError(
            "server.port", port, f"cannot listen at {host}: {reason}", source="settings"
        ) from None
    with listener:
        yield listener
