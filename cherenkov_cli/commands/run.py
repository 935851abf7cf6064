"""`cherenkov run`: answer a prompt."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from cherenkov.errors import RequestError
from cherenkov_cli.completion import files, models
from cherenkov_cli.options import (
    engine_options,
    load_settings_of,
    read_tools,
    sampling_of,
    sampling_options,
    stats_options,
)
from cherenkov_cli.show import Reporter, answer_as_json, call_line, say, summary, table
from cherenkov_cli.statistics import Statistics

if TYPE_CHECKING:
    from cherenkov.comparison import Difference
    from cherenkov.model import Model
    from cherenkov.sampling import Sampling

__all__ = ["command"]

_STDIN_LIMIT_BYTES = 64 << 20
_TOLERANCE = {"float32": 1e-4}
_DEFAULT_TOLERANCE = 1e-2


@dataclass(frozen=True, slots=True)
class _Options:
    """The command line, parsed and checked."""

    prompt: str
    max_tokens: int
    system: str | None
    raw: bool
    think: bool
    no_eos: bool
    json: bool
    quiet: bool
    sampling: Sampling
    stop: tuple[str, ...]
    tools: list[Any] | None
    settings: dict[str, Any]

    @classmethod
    def of(cls, given: dict[str, Any]) -> _Options:
        """Check what can be checked without a model, which may take long to load."""
        from cherenkov.sampling import Sampling
        from cherenkov.text.stops import StopStrings
        from cherenkov.text.tool_schema import ToolSet

        tools = read_tools(given["tools"])
        ToolSet(tools)
        if tools is not None and (given["raw"] or given["no_eos"]):
            raise RequestError("tools: not together with --raw or --no-eos", param="tools")
        return cls(
            prompt=_read_prompt(given["prompt"]),
            sampling=Sampling(**sampling_of(given)),
            stop=StopStrings(given["stop"]).strings,
            tools=tools,
            settings=load_settings_of(given),
            **{
                name: given[name]
                for name in ("max_tokens", "system", "raw", "think", "no_eos", "json", "quiet")
            },
        )

    @property
    def messages(self) -> list[dict[str, Any]]:
        opening = [{"role": "system", "content": self.system}] if self.system else []
        return [*opening, {"role": "user", "content": self.prompt}]


@click.command("run", short_help="Answer a prompt.")
@click.argument("model", shell_complete=models)
@click.argument("prompt")
@click.option("--max-tokens", type=int, default=64, show_default=True, help="Longest answer.")
@click.option("--system", metavar="TEXT", help="System message.")
@click.option("--raw", is_flag=True, help="Continue the prompt as it is, without chat template.")
@click.option("--think", is_flag=True, help="Let the model think before it answers.")
@click.option("--no-eos", is_flag=True, help="Go on to --max-tokens, whatever the model says.")
@click.option(
    "--tools",
    metavar="FILE",
    shell_complete=files,
    help="Functions to offer, as a JSON list of schemas.",
)
@click.option("--json", is_flag=True, help="Print the answer as one JSON object, on one line.")
@click.option("--repeat", type=click.IntRange(1), default=1, metavar="N", help="Answer N times.")
@click.option("--check", is_flag=True, help="Compare with the reference backend, layer by layer.")
@sampling_options
@engine_options
@stats_options
def command(model: str, repeat: int, check: bool, **given: Any) -> int:
    """Answer PROMPT with MODEL.

    MODEL is "demo", or the folder of a store or checkpoint; a checkpoint is prepared first, once. PROMPT is text, or
    "-" to read standard input.
    """
    options = _Options.of(given)
    statistics = Statistics.of(given)

    from cherenkov.model import Model

    with Reporter(quiet=options.quiet) as report:
        loaded = Model.load(model, on_event=report, **options.settings)
    with loaded:
        for _ in range(repeat):
            _answer(loaded, options)
        statistics.give(loaded)
        return _check(loaded, options) if check else 0


def _read_prompt(given: str) -> str:
    """The prompt, checked as far as it can be without a model, which may take long to load."""
    prompt = _read_stdin() if given == "-" else given
    if not prompt:
        raise RequestError("the prompt is empty", param="prompt")
    return prompt


def _read_stdin() -> str:
    if sys.stdin is None:
        raise RequestError("there is no standard input to read the prompt from", param="prompt")
    data = sys.stdin.buffer.read(_STDIN_LIMIT_BYTES + 1)
    if len(data) > _STDIN_LIMIT_BYTES:
        raise RequestError("standard input holds more than 64 MiB", param="prompt")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise RequestError(
            f"standard input is not UTF-8: byte {error.start} is 0x{data[error.start]:02x}",
            param="prompt",
        ) from error


def _answer(model: Model, options: _Options) -> None:
    if options.tools is not None or (options.json and not options.raw and not options.no_eos):
        _converse(model, options)
    else:
        _continue(model, options)
    if model.last_run is not None and not options.quiet:
        say(summary(model.last_run, model.backend_name))


def _continue(model: Model, options: _Options) -> None:
    """Answer with text alone, thoughts included."""
    pieces = model.stream(
        options.prompt,
        max_tokens=options.max_tokens,
        sampling=options.sampling,
        system=options.system,
        thinking=options.think,
        raw=options.raw,
        ignore_eos=options.no_eos,
        stop=options.stop,
    )
    if options.json:
        text = "".join(pieces)
        run = model.last_run
        assert run is not None
        print(json.dumps(answer_as_json(text, run.finish_reason, run.usage), ensure_ascii=False))
        return
    for piece in pieces:
        print(piece, end="", flush=True)
    print(flush=True)


def _converse(model: Model, options: _Options) -> None:
    """Answer with thoughts, text and calls apart."""
    from cherenkov.chat.replies import Finished, TextDelta, ToolCallEvent

    shown = ""
    for event in model.stream_chat(
        options.messages,
        tools=options.tools,
        sampling=options.sampling,
        max_tokens=options.max_tokens,
        thinking=options.think,
        stop=options.stop,
    ):
        if isinstance(event, Finished):
            reply = event.reply
            if options.json:
                line = answer_as_json(
                    reply.text,
                    reply.finish_reason,
                    reply.usage,
                    reasoning=reply.reasoning,
                    calls=reply.tool_calls,
                )
                print(json.dumps(line, ensure_ascii=False), flush=True)
            elif not shown.endswith("\n"):
                print(flush=True)
        elif options.json:
            continue
        elif isinstance(event, TextDelta):
            shown = event.text
            print(shown, end="", flush=True)
        elif isinstance(event, ToolCallEvent):
            before = "\n" if shown and not shown.endswith("\n") else ""
            shown = f"{before}{call_line(event.call)}\n"
            print(shown, end="", flush=True)


def _check(model: Model, options: _Options) -> int:
    """Compare with the reference. What was asked for is shown even if quiet."""
    from cherenkov.config import load_settings

    precision = load_settings(**options.settings).precision
    tolerance = _TOLERANCE.get(precision, _DEFAULT_TOLERANCE)
    ids = model.encode_prompt(
        options.prompt, system=options.system, thinking=options.think, raw=options.raw
    )
    differences = model.check(ids, margin=tolerance)
    say(f"largest difference from the reference over {len(ids)} prompt tokens:")
    say(
        table(
            [
                (d.place, f"{d.largest:.3g}", f"{d.relative:.3g} of the largest value")
                for d in differences
            ]
        )
    )
    failures = [line for d in differences if (line := _verdict(d, tolerance))]
    for line in failures:
        say(f"check failed: {line}")
    return 1 if failures else 0


def _verdict(difference: Difference, tolerance: float) -> str:
    """What is wrong with the logits; layers are shown, but only what they lead to is judged."""
    if difference.place != "logits":
        return ""
    # Written so that NaN fails.
    if not difference.relative <= tolerance:
        return f"logits differ by {difference.relative:.3g}, more than {tolerance:g}"
    if difference.argmax_differs:
        return f"the most likely token differs in {difference.argmax_differs} places"
    return ""
