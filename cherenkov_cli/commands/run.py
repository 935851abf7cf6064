"""`cherenkov run`: answer a prompt."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from cherenkov.errors import RequestError
from cherenkov_cli.show import Reporter, say, summary, table

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
    """The command line, parsed."""

    model: str
    prompt: str
    max_tokens: int
    max_ctx: int | None
    system: str | None
    raw: bool
    think: bool
    no_eos: bool
    repeat: int
    check: bool
    temperature: float
    top_k: int
    top_p: float
    seed: int | None
    backend: str | None
    threads: int | None
    pool_gb: str | None
    precision: str | None
    cpu_isa: str | None
    quiet: bool

    def sampling(self) -> Sampling:
        from cherenkov.sampling import Sampling

        return Sampling(self.temperature, self.top_k, self.top_p, self.seed)

    def settings(self) -> dict[str, Any]:
        given = {
            "backend": self.backend,
            "context_tokens": self.max_ctx,
            "pool": self.pool_gb,
            "threads": self.threads,
            "precision": self.precision,
            "isa": self.cpu_isa,
        }
        return {key: value for key, value in given.items() if value is not None}


@click.command("run", short_help="Answer a prompt.")
@click.argument("model")
@click.argument("prompt")
@click.option("--max-tokens", type=int, default=64, show_default=True, help="Longest answer.")
@click.option("--max-ctx", type=int, metavar="TOKENS", help="Longest prompt and answer together.")
@click.option("--system", metavar="TEXT", help="System message.")
@click.option("--raw", is_flag=True, help="Continue the prompt as it is, without chat template.")
@click.option("--think", is_flag=True, help="Let the model think before it answers.")
@click.option("--no-eos", is_flag=True, help="Go on to --max-tokens, whatever the model says.")
@click.option("--repeat", type=click.IntRange(1), default=1, metavar="N", help="Answer N times.")
@click.option("--check", is_flag=True, help="Compare with the reference backend, layer by layer.")
@click.option("--temperature", type=float, default=0.0, help="0, the default, is greedy.")
@click.option("--top-k", type=int, default=0, help="Keep the K most likely tokens; 0 keeps all.")
@click.option("--top-p", type=float, default=1.0, help="Keep the likeliest of this probability.")
@click.option("--seed", type=int, help="Same seed, same answer.")
@click.option("--backend", metavar="NAME", help="auto, native or reference.")
@click.option("--threads", type=int, metavar="N", help="Compute threads; 0 is one a core.")
@click.option("--pool-gb", metavar="GB", help="Memory for experts: a size, adaptive or max.")
@click.option("--precision", metavar="NAME", help="Of activations: float32, bf16, int16, int8.")
@click.option("--cpu-isa", metavar="NAME", help="avx512_bf16, avx512_vnni, avx2 or portable.")
@click.option("--quiet", "-q", is_flag=True, help="No timings, progress or notes.")
def command(**given: Any) -> int:
    """Answer PROMPT with MODEL.

    MODEL is "demo", or the folder of a store or checkpoint; a checkpoint is prepared first, once. PROMPT is text, or
    "-" to read standard input.
    """
    options = _Options(**given)
    prompt = _read_prompt(options.prompt)
    sampling = options.sampling()

    from cherenkov.model import Model

    with Reporter(quiet=options.quiet) as report:
        model = Model.load(options.model, on_event=report, **options.settings())
    with model:
        for _ in range(options.repeat):
            _answer(model, prompt, sampling, options)
        return _check(model, prompt, options) if options.check else 0


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


def _answer(model: Model, prompt: str, sampling: Sampling, options: _Options) -> None:
    pieces = model.stream(
        prompt,
        max_tokens=options.max_tokens,
        sampling=sampling,
        system=options.system,
        thinking=options.think,
        raw=options.raw,
        ignore_eos=options.no_eos,
    )
    for piece in pieces:
        print(piece, end="", flush=True)
    print(flush=True)
    if model.last_run is not None and not options.quiet:
        say(summary(model.last_run, model.backend_name))


def _check(model: Model, prompt: str, options: _Options) -> int:
    """Compare with the reference. What was asked for is shown even if quiet."""
    from cherenkov.config import load_settings

    precision = load_settings(**options.settings()).precision
    tolerance = _TOLERANCE.get(precision, _DEFAULT_TOLERANCE)
    ids = model.encode_prompt(
        prompt, system=options.system, thinking=options.think, raw=options.raw
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
