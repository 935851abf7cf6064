"""`cherenkov chat`: a conversation in a terminal, or line by line through pipes."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from cherenkov.errors import Cancelled, CherenkovError, RequestError
from cherenkov_cli.completion import files, models
from cherenkov_cli.lines import Lines
from cherenkov_cli.options import (
    engine_options,
    load_settings_of,
    read_tools,
    sampling_of,
    sampling_options,
    stats_options,
)
from cherenkov_cli.show import Reporter, call_line, complain, pace, say, visible
from cherenkov_cli.statistics import Statistics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from cherenkov.chat.replies import Reply
    from cherenkov.chat.session import Session
    from cherenkov.model import Model
    from cherenkov.text.tool_calls import ToolCall

__all__ = ["Chat", "command"]

_SETTLED = {"system", "tools", "overflow", "max_tokens", "think", "stop", "seed", "logit_bias"} | {
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
}
"""Options that a saved conversation brings its own of."""
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_HELP = """\
  /help          this list
  /system TEXT   another system message, or none without TEXT; the conversation stays
  /reset         forget the conversation
  /save FILE     write the conversation to a file
  /load FILE     go on with one
  /exit          leave; so does the end of the input
Several lines: end a line with a backslash, or write them between two lines of three quotes (\"\"\").
A line that begins with two slashes is said with one. Ctrl-C ends an answer, which then does not count."""


@click.command("chat", short_help="Hold a conversation.")
@click.argument("model", shell_complete=models)
@click.option("--max-tokens", type=int, help="Longest answer. Default: until the context is full.")
@click.option("--system", metavar="TEXT", help="System message.")
@click.option("--think", is_flag=True, help="Let the model think before it answers.")
@click.option(
    "--tools",
    metavar="FILE",
    shell_complete=files,
    help="Functions to offer, as a JSON list of schemas.",
)
@click.option(
    "--load",
    metavar="FILE",
    shell_complete=files,
    help="Go on with what /save wrote, which settles the rest.",
)
@click.option(
    "--overflow",
    type=click.Choice(["trim", "error"]),
    default="trim",
    show_default=True,
    help="When the context is full: forget the oldest turns, or refuse.",
)
@sampling_options
@engine_options
@stats_options
def command(model: str, load: str | None, *, quiet: bool, **given: Any) -> int:
    """Hold a conversation with MODEL: "demo", or the folder of a store or checkpoint.

    Say something on each line; /help lists what else can be written. Answers go to standard output, all else to standard
    error, so that it works with pipes as well.
    """
    from cherenkov.chat.options import Settings
    from cherenkov.text.tool_schema import ToolSet

    if load is not None:
        _check_settled(click.get_current_context())
    tools = read_tools(given["tools"])
    ToolSet(tools)
    options = sampling_of(given) | {
        "max_tokens": given["max_tokens"],
        "thinking": given["think"],
        "stop": given["stop"],
    }
    Settings().updated(options)
    statistics = Statistics.of(given)

    from cherenkov.model import Model

    with Reporter(quiet=quiet) as report:
        loaded = Model.load(model, on_event=report, **load_settings_of(given))
    with loaded:
        if load is not None:
            session = loaded.load_session(load)
        else:
            session = loaded.session(
                system=given["system"], tools=tools, overflow=given["overflow"], **options
            )
        code = Chat(loaded, session, Lines(), quiet=quiet).run()
        statistics.give(loaded)
        return code


def _check_settled(context: click.Context) -> None:
    """Refuse what the file of a conversation settles already."""
    names = [
        option.opts[0]
        for option in context.command.params
        if option.name in _SETTLED
        and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
    ]
    if names:
        raise RequestError(
            f"--load: the file settles {', '.join(names)} already: leave that out, or begin without it",
            param="load",
        )


class Chat:
    """The conversation.

    Args:
        model: the model.
        session: where it stands.
        lines: what is written.
        quiet: no figures and hints.
    """

    def __init__(self, model: Model, session: Session, lines: Lines, *, quiet: bool) -> None:
        self._model = model
        self._session = session
        self._lines = lines
        self._quiet = quiet
        self._failed = False
        self._commands: dict[str, Callable[[str], None]] = {
            "help": lambda _: say(_HELP),
            "system": self._system,
            "reset": self._reset,
            "save": self._save,
            "load": self._load,
        }

    def run(self) -> int:
        """Talk until there is nothing more to read. 1 if anything failed that no person at a terminal could see."""
        self._hint("/help lists the commands, Ctrl-D leaves")
        while True:
            try:
                said = self._lines.read("> ")
                if said is None or said.strip() == "/exit":
                    return int(self._failed and not self._lines.is_terminal)
                if said.strip():
                    self._take(said)
            except KeyboardInterrupt:
                say("")

    def _take(self, said: str) -> None:
        """One thing that was written. Whatever goes wrong with it, the conversation goes on."""
        try:
            if said.startswith("//"):
                self._answer(said[1:])
            elif said.startswith("/"):
                self._obey(said)
            else:
                self._answer(said)
        except (Cancelled, KeyboardInterrupt):  # the second Ctrl-C does not wait for the step
            say("\n(cancelled: neither the question nor the answer counts)")
        except CherenkovError as error:
            self._failed = True
            complain(str(error))

    def _obey(self, said: str) -> None:
        name, _, rest = said[1:].strip().partition(" ")
        known = self._commands.get(name)
        if known is None:
            raise RequestError(f"there is no command /{name:.40}: /help lists them")
        known(rest.strip())

    def _answer(self, said: str) -> None:
        """One turn, and as many more as the model calls tools."""
        forgotten = self._session.forgotten
        reply = self._turn(said)
        while reply.tool_calls:
            results = self._results(reply.tool_calls)
            if results is None:
                break
            reply = self._turn(results)
        if self._session.forgotten > forgotten:
            self._hint(f"(the context is full: {self._session.forgotten} messages are forgotten)")

    def _turn(self, said: str | list[dict[str, Any]]) -> Reply:
        from cherenkov.chat.replies import Finished, ReasoningDelta, TextDelta

        dim = sys.stderr.isatty()
        reply, thinking, end = None, False, "\n"
        with _interrupts(self._session.cancel) as asked:
            try:
                for event in self._session.stream(said):
                    if asked():  # perhaps before there was an answer to cancel
                        self._session.cancel()
                    if isinstance(event, ReasoningDelta):
                        begin = _DIM if dim and not thinking else ""
                        print(begin + visible(event.text), end="", file=sys.stderr, flush=True)
                        thinking = True
                        continue
                    if thinking:
                        say(_PLAIN if dim else "")
                        thinking = False
                    if isinstance(event, TextDelta):
                        end = event.text[-1:] or end
                        print(visible(event.text), end="", flush=True)
                    elif isinstance(event, Finished):
                        reply = event.reply
            finally:
                if thinking:
                    say(_PLAIN if dim else "")
                if end != "\n":  # also where an answer was cut off: the next begins a line
                    print(flush=True)
        assert reply is not None
        self._hint(f"[{pace(reply.usage)}{', cut off' * (reply.finish_reason == 'length')}]")
        return reply

    def _results(self, calls: tuple[ToolCall, ...]) -> list[dict[str, Any]] | None:
        """What the tools say, from whoever is there; None if nobody is."""
        results = []
        for call in calls:
            say(f"the model calls {call_line(call)}: write the result")
            try:
                result = self._lines.read(f"{call.name}> ")
            except KeyboardInterrupt:
                result = None
            if result is None:
                say("(not called)")
                return None
            results.append({"role": "tool", "content": result})
        return results

    def _system(self, text: str) -> None:
        self._session.system = text or None
        self._hint(f"system message: {visible(self._session.system or 'none')}")

    def _reset(self, _: str) -> None:
        self._session.reset()
        self._hint("(forgotten)")

    def _save(self, path: str) -> None:
        if not path:
            raise RequestError("/save needs the name of a file")
        path = os.path.expanduser(path)  # noqa: PTH111 - `expanduser` of paths fails for unknown users
        self._session.save(path)
        self._hint(f"(saved to {path})")

    def _load(self, path: str) -> None:
        if not path:
            raise RequestError("/load needs the name of a file")
        self._session = self._model.load_session(os.path.expanduser(path))  # noqa: PTH111
        self._hint(f"({len(self._session.history)} messages)")

    def _hint(self, text: str) -> None:
        if not self._quiet:
            say(text)


@contextmanager
def _interrupts(cancel: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C cancels, so that the step is finished first; the second one interrupts. Yields whether there was one."""
    pressed = 0

    def handle(_number: int, _frame: FrameType | None) -> None:
        nonlocal pressed
        pressed += 1
        if pressed == 1:
            cancel()
        elif pressed == 2:  # more of them would only disturb the clearing up
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, handle)
    try:
        yield lambda: pressed > 0
    finally:
        signal.signal(signal.SIGINT, before)
