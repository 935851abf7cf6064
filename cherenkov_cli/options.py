"""Options that several commands share, and what they mean to the library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cherenkov.errors import DiskError, RequestError
from cherenkov_cli.completion import files, names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "BACKENDS",
    "GUESSERS",
    "ISAS",
    "PRECISIONS",
    "engine_options",
    "load_settings_of",
    "read_tools",
    "sampling_of",
    "sampling_options",
    "stats_options",
]

_TOOLS_LIMIT_BYTES = 16 << 20
BACKENDS = ("auto", "native", "mlx", "metal", "cuda", "reference")
PRECISIONS = ("float32", "bf16", "int16", "int8")
ISAS = ("avx512_bf16", "avx512_vnni", "avx2", "portable")
GUESSERS = ("auto", "mtp", "ngram", "off")


def _either(known: tuple[str, ...]) -> str:
    return f"{', '.join(known[:-1])} or {known[-1]}"


_ENGINE = (
    click.option("--max-ctx", type=int, metavar="TOKENS", help="Longest prompt and answer."),
    click.option(
        "--backend",
        metavar="NAME",
        shell_complete=names(*BACKENDS),
        help=f"{_either(BACKENDS)}.",
    ),
    click.option("--threads", type=int, metavar="N", help="Compute threads; 0 is one a core."),
    click.option("--pool-gb", metavar="GB", help="Memory for experts: a size, adaptive or max."),
    click.option("--experts", type=int, metavar="BITS", help="3 or 2: experts that prepare made."),
    click.option("--miss-experts", type=int, metavar="BITS", help="Read misses in 3 or 2 bits."),
    click.option("--cut-weak", type=float, metavar="W", help="Skip misses of less weight than W."),
    click.option(
        "--precision",
        metavar="NAME",
        shell_complete=names(*PRECISIONS),
        help=f"Of activations: {', '.join(PRECISIONS)}.",
    ),
    click.option(
        "--cpu-isa",
        metavar="NAME",
        shell_complete=names(*ISAS),
        help=f"{_either(ISAS)}.",
    ),
    click.option(
        "--drafts", type=int, metavar="N", help="Tokens to guess ahead, 0 to 3; 2 by default."
    ),
    click.option(
        "--speculate",
        metavar="HOW",
        shell_complete=names(*GUESSERS),
        help=f"{_either(GUESSERS)}: who guesses. By default auto.",
    ),
    click.option("--quiet", "-q", is_flag=True, help="No timings, progress or notes."),
)
_SAMPLING = (
    click.option("--temperature", type=float, default=0.0, help="0, the default, is greedy."),
    click.option("--top-k", type=int, default=0, help="Keep the K most likely tokens; 0 is all."),
    click.option(
        "--top-p",
        type=float,
        default=1.0,
        help="Keep the likeliest that together have this probability.",
    ),
    click.option(
        "--min-p",
        type=float,
        default=0.0,
        help="Keep what has this share of the likeliest's probability.",
    ),
    click.option("--presence-penalty", type=float, default=0.0, help="Once for each used token."),
    click.option("--frequency-penalty", type=float, default=0.0, help="For each use of a token."),
    click.option(
        "--repetition-penalty",
        type=float,
        default=1.0,
        help="Above 1: divides logits of used tokens.",
    ),
    click.option("--logit-bias", multiple=True, metavar="ID=BIAS", help="Favour a token; repeats."),
    click.option("--seed", type=int, help="Same seed, same answer."),
    click.option("--stop", multiple=True, metavar="TEXT", help="End before this text; repeats."),
)
_STATS = (
    click.option("--stats", is_flag=True, help="Show what the experts did, on standard error."),
    click.option(
        "--stats-json",
        metavar="FILE",
        shell_complete=files,
        help="Write it to FILE; `plot stats` draws it.",
    ),
)
_SETTINGS = {
    "backend": "backend",
    "max_ctx": "context_tokens",
    "pool_gb": "pool",
    "experts": "experts",
    "miss_experts": "miss_experts",
    "cut_weak": "cut_weak",
    "threads": "threads",
    "precision": "precision",
    "cpu_isa": "isa",
    "drafts": "drafts",
    "speculate": "speculate",
}


def engine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """How the model is loaded."""
    return _with(_ENGINE, command)


def sampling_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """How tokens are chosen, and where the answer ends."""
    return _with(_SAMPLING, command)


def stats_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What to report when all is done."""
    return _with(_STATS, command)


def load_settings_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `Model.load`, from options as they were parsed."""
    return {
        ours: given[theirs] for theirs, ours in _SETTINGS.items() if given.get(theirs) is not None
    }


def sampling_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `Sampling`, from options as they were parsed.

    Raises:
        RequestError: if a bias is not `ID=BIAS`.
    """
    names = (
        "temperature",
        "top_k",
        "top_p",
        "seed",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
    )
    return {name: given[name] for name in names} | {"logit_bias": _biases(given["logit_bias"])}


def read_tools(path: str | None) -> list[Any] | None:
    """The tools in a file: a JSON list of them, or an object that holds it under `tools`.

    Raises:
        RequestError: if it holds anything else.
        DiskError: if it cannot be read.
    """
    if path is None:
        return None
    try:
        with Path(path).open("rb") as file:
            data = file.read(_TOOLS_LIMIT_BYTES + 1)
    except OSError as error:
        raise DiskError.wrap(error, path, "read") from error
    if len(data) > _TOOLS_LIMIT_BYTES:
        raise RequestError(f"{path}: longer than 16 MiB", param="tools")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{path}: not JSON: {error}", param="tools") from error
    found = found.get("tools") if isinstance(found, dict) and "tools" in found else found
    if not isinstance(found, list):
        raise RequestError(f"{path}: must hold a list of tools", param="tools")
    return found


def _with(
    options: tuple[Callable[..., Any], ...], command: Callable[..., Any]
) -> Callable[..., Any]:
    for option in reversed(options):
        command = option(command)
    return command


def _biases(given: tuple[str, ...]) -> dict[int, float]:
    biases = {}
    for text in given:
        token, _, bias = text.partition("=")
        try:
            biases[int(token)] = float(bias)
        except ValueError:
            raise RequestError(
                f"logit_bias = {text!r:.60}: must be ID=BIAS, such as 42=-5", param="logit_bias"
            ) from None
    return biases
