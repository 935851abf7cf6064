"""`cherenkov inspect`: what a folder holds, without loading it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from cherenkov.units import format_bytes
from cherenkov_cli.completion import folders
from cherenkov_cli.show import one_line, print_json, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["command"]


@click.command("inspect", short_help="Describe a checkpoint or store.")
@click.argument("path", shell_complete=folders)
@click.option("--bits", type=int, help="Width that preparing would take. Default: as `prepare`.")
@click.option("--pool-gb", metavar="GB", help="Plan with this pool: a size, adaptive or max.")
@click.option("--max-ctx", type=int, metavar="TOKENS", help="Plan for this context.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def command(
    path: str, bits: int | None, pool_gb: str | None, max_ctx: int | None, as_json: bool
) -> None:
    """Describe the checkpoint or store in PATH: what it is, how large, what preparing and running it takes."""
    from cherenkov.inspection import inspect

    found = inspect(path, bits=bits, pool=pool_gb, context_tokens=max_ctx)
    if as_json:
        print_json(found)
    else:
        print("\n".join(_report(found)))


def _report(found: Mapping[str, Any]) -> Iterator[str]:
    yield one_line(f"{found['kind']} {found['path']}")
    yield table([*_model(found), *_source(found)])
    yield "bytes"
    yield table([(name, format_bytes(size)) for name, size in found["bytes"].items()])
    yield "memory to run it, with a context of one token"
    yield from _memory(found["memory"])
    if "preparing" in found:
        cost = found["preparing"]
        yield "preparing it"
        yield table(
            [
                ("writes", format_bytes(cost["output_bytes"])),
                ("weights", _width(cost["bits"], cost["group"])),
            ]
        )
    for note in found.get("source", {}).get("notes", ()):
        yield one_line(f"note: {note}")


def _memory(memory: Mapping[str, Any]) -> Iterator[str]:
    from cherenkov.budget import gigabytes

    least = memory["smallest_pool_bytes"]
    yield table(
        [
            ("smallest pool", f"{format_bytes(least)} (--pool-gb {gigabytes(least)})"),
            ("smallest in all", format_bytes(memory["smallest_total_bytes"])),
            ("with every expert", format_bytes(memory["everything_resident_bytes"])),
            ("each further token", format_bytes(memory["token_state_bytes"])),
        ]
    )
    size = format_bytes(memory["available_bytes"])
    yield f"with the {size} that {memory['available_in']} has"
    plan = memory["plan"]
    if plan is None:
        yield f"  {one_line(memory['refusal'])}"
        return
    slots, records = plan["slots"], plan["records"]
    yield table(
        [
            (
                "pool",
                f"{format_bytes(plan['pool_bytes'])}: {slots} of {records} experts ({plan['share']:.1%})",
            ),
            ("context", f"{plan['context_tokens']:,} tokens"),
            ("prompts", f"in chunks of {plan['chunk_rows']:,} tokens"),
            ("in all", format_bytes(plan["total_bytes"])),
        ]
    )


def _model(found: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    experts = found["experts"]
    width = _width(experts["bits"], experts["group"])
    yield "architecture", found["architecture"]
    yield "parameters", f"{found['parameters']:,}"
    head = int(found["draft_head"])  # its records are one more layer
    yield "tensors", f"{found['tensors']} dense"
    yield "layers", f"{found['layers'] - head} of {experts['per_layer']} experts"
    yield "draft head", f"yes, with {experts['per_layer']} experts of its own" if head else "no"
    yield "experts", f"{experts['used_per_token']} of {experts['per_layer']} a token, {width}"
    yield "record", f"{format_bytes(experts['record_bytes'])}"
    yield "longest context", f"{found['max_context_tokens']:,} tokens"
    if "verifiable" in found:
        yield "checksums", "yes" if found["verifiable"] else "no"
    for lower in found.get("lower_experts", ()):
        how = lower.get("problem") or (
            f"{lower['derivation']} from {lower['origin']}, {format_bytes(lower['bytes'])}"
        )
        yield f"in {lower['bits']} bits", how


def _source(found: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    source = found.get("source")
    if source:
        size = format_bytes(source["bytes"])
        yield "layout", f"{source['dialect']}, {source['expert_bits']} bits"
        yield "shards", f"{source['shards']} ({size})"


def _width(bits: int, group: int) -> str:
    return "BF16" if bits == 16 else f"{bits} bits in groups of {group}"
