"""`cherenkov prepare`: make a store of a checkpoint."""

from __future__ import annotations

import click

from cherenkov_cli.show import Reporter

__all__ = ["command"]


@click.command("prepare", short_help="Make a store of a checkpoint.")
@click.argument("source")
@click.option("--output", "-o", required=True, metavar="DIR", help="The store's folder, a new one.")
@click.option(
    "--bits",
    type=int,
    default=None,
    help="Bits per weight: 4, 8, or 16 to leave BF16 as it is. Default: as the checkpoint comes, or else 4.",
)
@click.option("--threads", type=int, default=0, metavar="N", help="Workers; 0 is one a core.")
@click.option("--quiet", "-q", is_flag=True, help="No progress or notes.")
def command(source: str, output: str, bits: int | None, threads: int, quiet: bool) -> None:
    """Make a store of SOURCE, a checkpoint folder in Hugging Face or MLX layout.

    May be stopped at any time: run it again and it goes on where it was.
    """
    from cherenkov.preparation import prepare

    with Reporter(quiet=quiet) as report:
        path = prepare(source, output, bits=bits, threads=threads, on_event=report)
    print(path)
