"""The one thread that calls MLX.

MLX ties its streams to threads: what one thread began to compute, another cannot finish. Models may be used from any
thread, so every operation of an MLX backend is carried out by a thread that does nothing else, one for the process.
"""

from __future__ import annotations

import functools
import os
import queue
import re
import threading
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from cherenkov.errors import BackendError, CapacityError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["OWNER", "Owner", "owned"]

P = ParamSpec("P")
T = TypeVar("T")

_NO_MEMORY = ("unable to allocate", "out of memory", "memory allocation", "insufficient memory")

_OUR_KERNEL = re.compile(r"\w+\.metal:\d+")
"""What a compiler's line about one of our kernels begins with."""


class _Named(Protocol):
    name: str


S = TypeVar("S", bound=_Named)


class _Job:
    """A call, and what became of it."""

    __slots__ = ("call", "done", "error", "has_ended", "result")

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call
        self.done = threading.Lock()
        self.done.acquire()
        self.has_ended = False
        self.error: BaseException | None = None
        self.result: Any = None


class Owner:
    """A thread that carries out calls, one after the other. Started by the first."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._process = 0

    def call(self, function: Callable[[], T]) -> T:
        """Carry out a call there and wait for it; from that thread itself, at once.

        Ctrl-C, and whatever else a signal raises, is heard when the call has ended: whoever went on before would find a
        sequence's memory torn.

        Raises:
            BackendError: in a child of `os.fork()`, where neither the thread nor the GPU is.
        """
        thread = self._thread or self._start()
        if threading.current_thread() is thread:
            return function()
        if self._process != os.getpid():
            raise BackendError("mlx", "call", "MLX cannot be used in a forked process")
        job = _Job(function)
        self._jobs.put(job)
        interruption: BaseException | None = None
        while not job.has_ended:  # a signal may be heard when the lock has just been taken
            try:
                job.done.acquire()
            except BaseException as error:  # noqa: BLE001 - raised again below
                interruption = error
        if job.error is not None:
            raise job.error
        if interruption is not None:
            raise interruption
        result: T = job.result
        return result

    def _start(self) -> threading.Thread:
        with self._lock:
            if self._thread is None:
                self._process = os.getpid()
                self._thread = threading.Thread(target=self._serve, name="mlx", daemon=True)
                self._thread.start()
            return self._thread

    def _serve(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                job.result = job.call()
            except BaseException as error:  # noqa: BLE001 - raised again where the call came from
                job.error = error
            job.has_ended = True
            job.done.release()
            del job


OWNER = Owner()


def owned(
    method: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[S, P], T]:
    """A method of a backend that the owner carries out. What MLX raises becomes an error of ours."""

    @functools.wraps(method)
    def hop(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return OWNER.call(functools.partial(method, self, *args, **kwargs))
        except (RuntimeError, ValueError, MemoryError) as error:
            raise _ours(self.name, method.__name__, error) from error

    return hop


def _ours(backend: str, operation: str, error: Exception) -> BackendError | CapacityError:
    lines = str(error).strip().splitlines()
    first = next((line for line in lines if "error" in line.lower()), lines[0] if lines else "")
    first = first or type(error).__name__
    if isinstance(error, MemoryError) or any(sign in str(error).lower() for sign in _NO_MEMORY):
        return CapacityError(
            f"backend {backend}: {operation}: no device memory: {first}; choose a smaller pool or context"
        )
    if _OUR_KERNEL.match(first):
        first += "; backend mlx does without our kernels"
    return BackendError(backend, operation, first)
