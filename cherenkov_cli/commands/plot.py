"""`cherenkov plot`: pictures of what was measured."""

from __future__ import annotations

from pathlib import Path

import click

from cherenkov.errors import RequestError
from cherenkov_cli.completion import files
from cherenkov_cli.statistics import check_target

__all__ = ["command"]

_FORMATS = {".svg": "svg", ".png": "png"}


@click.group("plot", short_help="Draw what was measured.")
def command() -> None:
    """Draw what was measured. Needs matplotlib: pip install 'cherenkov[plot]'."""


@command.command("stats", short_help="Expert use by layer, hit rate and bytes over time.")
@click.argument("file", shell_complete=files)
@click.option(
    "--output",
    "-o",
    metavar="PICTURE",
    shell_complete=files,
    help="x.svg or x.png. Default: FILE with .png.",
)
def stats(file: str, output: str | None) -> None:
    """Draw FILE, which `run --stats-json FILE` or `chat --stats-json FILE` wrote.

    The picture shows which experts each layer uses, how many it found in memory over time, and what it read.
    """
    from cherenkov.experts.report import Report
    from cherenkov.packing.durable import write_file
    from cherenkov_cli.plots import draw, require_matplotlib

    target = _target(file, output)
    require_matplotlib()
    report = Report.read(file)
    write_file(target, draw(report, _FORMATS[target.suffix.lower()]))
    print(target)


def _target(file: str, output: str | None) -> Path:
    """The picture's file.

    Raises:
        RequestError: if it is of another kind.
        DiskError: if it could not be written.
    """
    target = Path(file).with_suffix(".png") if output is None and Path(file).name else None
    target = target or Path(output or "")
    if target.suffix.lower() not in _FORMATS:
        raise RequestError(f"--output {output!r:.80}: must end in .svg or .png", param="output")
    check_target(target)
    return target
