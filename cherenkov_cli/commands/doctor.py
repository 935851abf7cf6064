"""`cherenkov doctor`: what this machine has, and what stands in the way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from cherenkov.units import format_bytes
from cherenkov_cli.completion import names
from cherenkov_cli.options import ISAS, PRECISIONS, load_settings_of
from cherenkov_cli.show import complain, print_json, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cherenkov_cli.diagnosis import Diagnosis

__all__ = ["command"]


@click.command("doctor", short_help="Look at this machine, its backends and the settings.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@click.option("--threads", type=int, metavar="N", help="As for run: 0 is one a core.")
@click.option("--precision", metavar="NAME", shell_complete=names(*PRECISIONS), help="As for run.")
@click.option("--cpu-isa", metavar="NAME", shell_complete=names(*ISAS), help="As for run.")
def command(as_json: bool, **given: Any) -> int:
    """Show what this machine has and what the settings are. Exits with 1 if something stands in the way."""
    from cherenkov_cli.diagnosis import diagnose

    found = diagnose(load_settings_of(given))
    if as_json:
        print_json(found.as_dict())
    else:
        print("\n".join(_report(found)))
        for problem in found.problems:
            complain(problem)
    return 1 if found.problems else 0


def _report(found: Diagnosis) -> Iterator[str]:
    packages = [(name, version or "not installed") for name, version in found.packages.items()]
    yield f"cherenkov {found.version}"
    yield table(
        [
            ("Python", found.python),
            ("platform", found.platform),
            ("cores", found.cores),
            *_memory(found),
            *packages,
        ]
    )
    if found.backends:
        yield "backends"
        yield table([(b["name"], _state(b), _backend(b)) for b in found.backends])
    if found.chosen_backend:
        yield f"  taken: {found.chosen_backend}"
    if found.native:
        yield "CPU kernels"
        yield table(_native(found))
    if found.kernels:
        yield "GPU kernels"
        yield table(_kernels(found))
    if found.data:
        yield "data"
        yield table(_data(found))
    if found.settings:
        yield "settings"
        yield table([(s["key"], _written(s["value"]), f"({s['source']})") for s in found.settings])


def _state(backend: dict[str, Any]) -> str:
    if not backend["usable"]:
        return "not here"
    return "in doubt" if backend["doubt"] else "works"


def _backend(backend: dict[str, Any]) -> str:
    text = str(backend["doubt"] or backend["detail"] or backend["reason"])
    memory = backend["memory_bytes"]
    return text if memory is None else f"{text}, may use {format_bytes(memory)}"


def _memory(found: Diagnosis) -> Iterator[tuple[str, str]]:
    if found.memory:
        free, total = (found.memory[key] for key in ("available_bytes", "total_bytes"))
        source = found.memory["source"]
        yield "memory", f"{format_bytes(free)} available of {format_bytes(total)} ({source})"


def _native(found: Diagnosis) -> Iterator[tuple[str, str]]:
    yield "instruction sets", ", ".join(found.native["instruction_sets"]) or "none"
    rate, threads = found.native["read_bandwidth_bytes_s"], found.native["threads"]
    if rate is None:
        yield "memory is read at", f"not measured: {found.native['not_measured']}"
    else:
        who = f"{threads} threads" if threads > 1 else "1 thread"
        yield "memory is read at", f"{format_bytes(rate)}/s by {who}, measured just now"


def _kernels(found: Diagnosis) -> Iterator[tuple[str, str]]:
    yield "of one source", f"{len(found.kernels['names'])} (cherenkov kernels lists them)"
    ways = {"the emulator": "emulator", "clang": "address_spaces", "nvcc": "nvcc"}
    for way, key in ways.items():
        yield f"compiled by {way}", "yes" if found.kernels[key] else "not here"


def _data(found: Diagnosis) -> Iterator[tuple[str, str]]:
    yield "folder", found.data["path"]
    yield "writable", "yes" if found.data["writable"] else "no"
    yield "free", format_bytes(found.data["free_bytes"])
    for partial in found.partials:
        state = (
            f"process {partial.holder} is at work"
            if partial.holder
            else "unfinished: prepare again to resume, or remove it"
        )
        yield "partial", f"{partial.path} ({format_bytes(partial.size_bytes)}, {state})"


def _written(value: object) -> str:
    """A setting's value as one would write it; a dash for the backend's or model's own choice."""
    return "-" if value in ("", None) else str(value)
