"""The command line: finds the command, turns errors into one line and an exit code.

Exit codes: 0 done, 1 an error of ours or a check that failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import importlib
import io
import os
import sys

import click
from typing_extensions import override

import cherenkov
from cherenkov.errors import Cancelled, CherenkovError
from cherenkov_cli.show import complain

__all__ = ["cli", "run"]

_COMMANDS = (
    "run",
    "chat",
    "serve",
    "prepare",
    "verify",
    "inspect",
    "plot",
    "doctor",
    "kernels",
    "paths",
)

_COMPLETE = "_CHERENKOV_COMPLETE"
_COMPLETION = click.Option(["--complete"], envvar=_COMPLETE)
"""How shells ask what a line may go on with; see `docs/conversations.md`."""

_HELP = """Run Mixture-of-Experts language models far larger than memory.

\b
    cherenkov demo "What is the capital of France?"
    cherenkov prepare path/to/checkpoint --output path/to/store
    cherenkov run path/to/store "What is the capital of France?"
    cherenkov chat path/to/store
    cherenkov serve path/to/store
"""


class Commands(click.Group):
    """Commands that are imported when they are asked for, and `cherenkov MODEL PROMPT` as short for `run`."""

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = importlib.import_module(f"cherenkov_cli.commands.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    @override
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # while completing, nothing is guessed or refused
            return super().parse_args(ctx, args)
        asked = _COMPLETION.resolve_envvar_value(ctx)
        if asked:
            from click.shell_completion import shell_complete

            ctx.exit(shell_complete(self, {}, "cherenkov", _COMPLETE, asked))
        if args and args[0] not in {*_COMMANDS, "--help", "-h", "--version"}:
            self._refuse_slips(ctx, args)
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def _refuse_slips(self, ctx: click.Context, args: list[str]) -> None:
        """What is most likely a command, misspelt: a word alone, which is no model and prompt, or one that is nearly a command."""
        if args[0].startswith("-"):
            return
        import difflib

        near = difflib.get_close_matches(args[0], _COMMANDS, n=1)
        if len(args) == 1 or (near and not os.path.lexists(args[0])):
            hint = f"did you mean {near[0]!r}?" if near else "write MODEL PROMPT, or a command."
            raise click.UsageError(f"No such command {args[0]!r}: {hint}", ctx)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 100},
    options_metavar="",
    subcommand_metavar="COMMAND | MODEL PROMPT",
    epilog="Every command explains itself: cherenkov COMMAND --help",
    help=_HELP,
)
@click.version_option(cherenkov.__version__, "--version", message="cherenkov %(version)s")
def cli() -> None:
    """Run Mixture-of-Experts language models far larger than memory."""


def run(args: list[str]) -> int:
    """Run the command with `args` and return the exit code. Never raises what a user could have caused."""
    _stand_in()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character gets a question mark, not a traceback.
            stream.reconfigure(errors="replace")
    try:
        code = _invoke(args)
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        # The library has its own errors, so without a file's name this is standard output: its reader has gone,
        # which is no news, or its disk is full. Nothing more can be said, not even when Python flushes at exit.
        if error.filename is not None:
            raise
        if not isinstance(error, BrokenPipeError):
            complain(f"cannot write the output: {error.strerror}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _stand_in() -> None:
    """Give standard streams that whoever started us had closed a place to go, so that files do not take theirs."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115


def _invoke(args: list[str]) -> int:
    try:
        with cli.make_context("cherenkov", list(args)) as context:
            result = cli.invoke(context)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort, Cancelled):
        return 130
    except CherenkovError as error:
        complain(str(error))
        return 1
    except MemoryError:
        complain("there is not enough memory, or a limit on it (ulimit -v) is too low")
        return 1
    return result if isinstance(result, int) else 0
