"""The helper process of a chat template: started when first needed, ended when it misbehaves, never left behind."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import subprocess
import sys
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cherenkov.errors import TemplateError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Limits", "TemplateProcess"]

_WORKER = Path(__file__).with_name("template_worker.py")
_CHUNK_BYTES = 1 << 16
_LEAST_WAIT_S = 0.05
_HEAD_BYTES = 16
"""What the first line of an answer fits in."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a template may use.

    Attributes:
        deadline_s: of processor time, for compiling the template, and for each render.
        patience_s: how long a busy machine may take over it.
        start_s: for starting the process, which a busy machine may delay.
        memory_bytes: address space of the process, or resident memory where `watch` is set.
        output_chars: longest prompt.
        watch: enforce memory by a thread of the process, for systems that do not enforce `RLIMIT_AS`.
    """

    deadline_s: float = 2.0
    patience_s: float = 30.0
    start_s: float = 20.0
    memory_bytes: int = 512 << 20
    output_chars: int = 8 << 20
    watch: bool = sys.platform == "darwin"

    @property
    def answer_bytes(self) -> int:
        """The longest answer that honest work can give."""
        return 4 * self.output_chars + 4096


class TemplateProcess:
    """Renders one template in a process of its own. Not for several threads at once."""

    def __init__(self, source: str, limits: Limits | None = None) -> None:
        self._source = source
        self._limits = limits or Limits()
        self._process: subprocess.Popen[bytes] | None = None
        self._poll = select.poll()
        self._outbox = -1
        self._end: weakref.finalize[..., Any] | None = None

    @property
    def pid(self) -> int | None:
        """The process's id, or None while there is none."""
        return self._process.pid if self._process else None

    def render(self, values: str, own: str, cut: str) -> str:
        """Render the template.

        Args:
            values: the template's variables, a JSON object.
            own: further variables, which win, another.
            cut: the character that `tojson` must pass through, one that JSON does not escape.

        Raises:
            TemplateError: if the template fails, refuses the values, or breaks its limits.
        """
        if self._process is None or self._process.poll() is not None:
            self._start()
        # The character's code, since the character itself would make a wide string of one that is ASCII.
        request = f'{{"own": {own}, "cut": {ord(cut)}, "values": {values}}}'
        return self._ask(request, self._limits.deadline_s)

    def close(self) -> None:
        """End the process, whatever it is doing. A later render starts a new one."""
        if self._end is not None:
            self._end()
        self._process = self._end = None

    def _start(self) -> None:
        self.close()
        if not sys.executable:
            raise TemplateError(
                "chat templates need a Python interpreter to run in: pass the prompt raw instead"
            )
        try:
            # No site packages, no environment, no current folder: only the worker and, by path, Jinja. A process group
            # of its own keeps the terminal's Ctrl-C away.
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and file
                [sys.executable, "-I", "-S", str(_WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                process_group=0,
            )
        except OSError as error:
            raise TemplateError(f"cannot start the process for chat templates: {error}") from error
        self._process = process
        self._end = weakref.finalize(self, _end, process)
        assert process.stdin is not None
        assert process.stdout is not None
        self._outbox, inbox = process.stdin.fileno(), process.stdout.fileno()
        for pipe in (self._outbox, inbox):
            os.set_blocking(pipe, False)
        self._poll = select.poll()
        self._poll.register(inbox, select.POLLIN)
        try:
            self._ask(json.dumps(self._opening()), self._limits.start_s)
            self._ask(json.dumps({"source": self._source}), self._limits.deadline_s)
        except TemplateError:
            self.close()
            raise

    def _opening(self) -> dict[str, Any]:
        limits = self._limits
        return {
            "path": _jinja_folders(),
            "deadline_s": limits.deadline_s + 1,
            "memory_bytes": limits.memory_bytes,
            "output_limit_chars": limits.output_chars,
            "watch": limits.watch,
        }

    def _ask(self, request: str, deadline_s: float) -> str:
        """Exchange a line of JSON for a text; on any doubt about the process, end it."""
        said: str | dict[str, Any] | None = None
        try:
            # A lone surrogate passes: what it may mean is for the tokenizer to say.
            line = (request + "\n").encode("utf-8", "surrogatepass")
            said = _understood(self._exchange(line, deadline_s))
        except (TimeoutError, BrokenPipeError, EOFError, OverflowError, ValueError) as error:
            raise TemplateError(f"the chat template was stopped: {error}") from error
        finally:
            if said is None:
                self.close()
        if not isinstance(said, str):
            raise TemplateError(_explain(said))
        return said

    def _exchange(self, request: bytes, deadline_s: float) -> bytearray:
        """Send a line and receive an answer. Neither side can block the other beyond the deadline."""
        assert self._process is not None
        allowed = _Allowance(self._process.pid, deadline_s, self._limits.patience_s)
        left = memoryview(request)
        left = left[_write(self._outbox, left) :]  # mostly all of it
        if left:
            self._poll.register(self._outbox, select.POLLOUT)
        answer = bytearray()  # grows in place: a long one comes in hundreds of pieces
        while not answer or not _is_whole(answer):
            ready = self._poll.poll(allowed.wait_s() * 1000)
            if not ready:
                allowed.extend()
            for pipe, _ in ready:
                if pipe == self._outbox:
                    left = left[_write(pipe, left) :]
                    if not left:
                        self._poll.unregister(pipe)
                    continue
                chunk = os.read(pipe, _CHUNK_BYTES)
                if not chunk:
                    raise EOFError("it broke its limits of memory or time, or crashed")
                answer += chunk
                if len(answer) > self._limits.answer_bytes:
                    raise OverflowError("its output is too large")
        if left:
            raise ValueError("it answered before it was asked")
        return answer


def _is_whole(answer: bytearray) -> bool:
    """Whether an answer is complete: a letter and a length in digits, a line feed, so many bytes.

    Raises:
        ValueError: if it is no answer, or longer than it says.
    """
    start = answer.find(b"\n", 0, _HEAD_BYTES) + 1
    if not start:
        if len(answer) >= _HEAD_BYTES:
            raise ValueError("it gave no answer")
        return False
    missing = start + int(answer[1 : start - 1]) - len(answer)
    if missing < 0:
        raise ValueError("it said more than its answer")
    return not missing


def _understood(answer: bytearray) -> str | dict[str, Any]:
    """The text, or what is said of an error.

    Raises:
        ValueError: if it is neither.
    """
    body = answer[answer.index(b"\n") + 1 :]
    if answer.startswith(b"T"):
        try:
            return body.decode()
        except UnicodeDecodeError:
            # Surrogates. Two that belong together are one character, as in JSON.
            words = body.decode("utf-8", "surrogatepass").encode("utf-16", "surrogatepass")
            return words.decode("utf-16", "surrogatepass")
    said = json.loads(body)
    if not isinstance(said, dict):
        raise ValueError("it gave no answer")  # noqa: TRY004 - of the process, not of a caller
    return said


class _Allowance:
    """How long a process may take: what counts is its processor time, and the clock only in the end."""

    def __init__(self, pid: int, most_s: float, patience_s: float) -> None:
        self._pid = pid
        self._most_s = most_s
        self._worked_s = _worked_s(pid)
        begun = time.monotonic()
        self._end = begun + most_s
        self._last = begun + max(most_s, patience_s)

    def wait_s(self) -> float:
        """For how long to wait for it now."""
        return max(0.0, self._end - time.monotonic())

    def extend(self) -> None:
        """That was in vain: go on for as long as others had the processor. Raises TimeoutError if that is no excuse."""
        left_s = self._most_s - (_worked_s(self._pid) - self._worked_s)
        if left_s <= 0 or self._end >= self._last:
            raise TimeoutError(f"it ran longer than {self._most_s:g} s")
        self._end = min(self._last, self._end + max(left_s, _LEAST_WAIT_S))


def _worked_s(pid: int) -> float:
    """Processor time that a process has taken. Where the system does not tell, the clock's."""
    try:
        return time.clock_gettime(~pid << 3 | 2)  # what clock_getcpuclockid(3) gives on Linux
    except (OSError, OverflowError):
        return time.monotonic()


def _write(pipe: int, data: memoryview) -> int:
    """Write what a pipe that does not block takes at once."""
    try:
        return os.write(pipe, data[:_CHUNK_BYTES])
    except BlockingIOError:
        return 0


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill and collect. Killing is enough: the process owns nothing but its memory."""
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    process.wait()


def _jinja_folders() -> list[str]:
    """Where the packages are that the worker needs, without importing them here."""
    folders = set()
    for name in ("jinja2", "markupsafe"):
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise TemplateError(f"chat templates need the package {name}, which is not installed")
        folders.add(str(Path(spec.origin).parents[1]))
    return sorted(folders)


def _explain(answer: Mapping[str, Any]) -> str:
    """One line for people. The words of a template are foreign: no line breaks, no control characters, no novels."""
    words = "".join(c if c.isprintable() else " " for c in str(answer.get("message")))
    message = " ".join(words.split())
    message = message if len(message) <= 300 else message[:299] + "…"
    kind = answer.get("error")
    if kind == "TemplateError":
        return f"the chat template refused the messages: {message}"
    line = answer.get("line")
    where = f" at line {line}" if isinstance(line, int) else ""
    return f"the chat template failed{where}: {kind}: {message}"
