"""What people see: progress and notes on standard error, tables, one line for an error."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any, Self

from cherenkov.events import Progress
from cherenkov.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType

    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from cherenkov.chat.replies import Run, Usage
    from cherenkov.events import Event
    from cherenkov.text.tool_calls import ToolCall

__all__ = [
    "Reporter",
    "answer_as_json",
    "call_line",
    "complain",
    "one_line",
    "pace",
    "print_json",
    "say",
    "summary",
    "table",
    "visible",
]

_PLAIN_INTERVAL_S = 5.0


def one_line(text: str) -> str:
    """`text` on a single line, without characters that a terminal obeys; names of files may hold both."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def visible(text: str) -> str:
    """`text` without characters that a terminal obeys, line breaks and tabs apart."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


def say(text: str) -> None:
    """A line on standard error."""
    print(text, file=sys.stderr, flush=True)


def complain(text: str) -> None:
    """An error, on one line of standard error."""
    say(f"cherenkov: {one_line(text)}")


def print_json(value: Any) -> None:
    """A value on standard output, for programs."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def table(rows: Iterable[Sequence[object]], *, indent: str = "  ") -> str:
    """Rows as aligned columns. The last one is as wide as it likes."""
    texts = [[one_line(str(cell)) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return "\n".join(
        (indent + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True))).rstrip()
        for row in texts
    )


def call_line(call: ToolCall) -> str:
    """A call of a tool, on one line: the function's name and its arguments in JSON."""
    return one_line(f"{call.name} {json.dumps(call.arguments, ensure_ascii=False)}")


def answer_as_json(
    text: str,
    finish_reason: str | None,
    usage: Usage,
    *,
    reasoning: str = "",
    calls: Sequence[ToolCall] = (),
) -> dict[str, Any]:
    """An answer for programs."""
    return {
        "text": text,
        "reasoning": reasoning,
        "tool_calls": [{"name": c.name, "arguments": c.arguments} for c in calls],
        "finish_reason": finish_reason,
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "output_tokens": usage.output_tokens,
        },
        "timings": {
            "prefill_s": round(usage.prefill_s, 6),
            "decode_s": round(usage.decode_s, 6),
        },
    }


def pace(usage: Usage) -> str:
    """What a turn of a conversation took, on one line."""
    fresh = usage.prompt_tokens - usage.cached_tokens
    return (
        f"{usage.output_tokens} tokens ({_rate(usage.output_tokens - 1, usage.decode_s)}); "
        f"read {fresh} of {usage.prompt_tokens} in {format_seconds(usage.prefill_s)}"
    )


def summary(run: Run, backend: str) -> str:
    """What an answer took, on one line."""
    asked = run.experts.hits + run.experts.misses
    parts = [
        (
            f"prompt {run.prompt_tokens} tokens in {format_seconds(run.prefill_s)}"
            f" ({_rate(run.prompt_tokens - run.cached_tokens, run.prefill_s)})"
        ),
        # The first token of the answer comes out of the prompt: decoding took its time for the others.
        f"answer {run.output_tokens} tokens ({_rate(run.output_tokens - 1, run.decode_s)})"
        + (", cut off at --max-tokens" if run.finish_reason == "length" else ""),
        f"{run.experts.hits / asked:.0%} of experts found in memory"
        if asked
        else "no experts used",
        f"{format_bytes(run.experts.read_bytes)} read",
        backend,
    ]
    return "; ".join(parts)


def _rate(tokens: int, seconds: float) -> str:
    return f"{tokens / seconds:.1f} tok/s" if tokens > 0 and seconds > 0 else "no rate"


class Reporter:
    """Shows events: a bar on a terminal, a line now and then elsewhere, nothing if quiet.

    Is a listener, and a context manager that clears the bar away.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._total_bytes = 0
        self._told_s = 0.0

    def __call__(self, event: Event) -> None:
        """Show an event."""
        if self._quiet:
            return
        if not isinstance(event, Progress):
            prefix = "warning: " if event.level == "warning" else ""
            say(f"{prefix}{one_line(event.message)}")
        elif sys.stderr.isatty():
            self._advance(event)
        else:
            self._tell(event)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.clear()

    def clear(self) -> None:
        """Take the bar off the screen."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = self._task = None

    def _advance(self, event: Progress) -> None:
        if self._bar is None:
            self._bar = _bar()
            self._bar.start()
        if self._task is None or event.total_bytes != self._total_bytes:  # another piece of work
            self._total_bytes = event.total_bytes
            self._task = self._bar.add_task(event.stage, total=event.total_bytes)
        self._bar.update(self._task, description=event.stage, completed=event.done_bytes)

    def _tell(self, event: Progress) -> None:
        now = time.monotonic()
        done = event.done_bytes >= event.total_bytes
        if not done and now - self._told_s < _PLAIN_INTERVAL_S:
            return
        self._told_s = now
        size = f"{format_bytes(event.done_bytes)} of {format_bytes(event.total_bytes)}"
        left = "" if done else f", {format_seconds(event.left_s)} left"
        say(f"{one_line(event.stage)}: {size} ({format_bytes(event.rate_bytes_s)}/s{left})")


def _bar() -> Bar:
    """A bar that leaves nothing behind."""
    from rich import progress
    from rich.console import Console

    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
