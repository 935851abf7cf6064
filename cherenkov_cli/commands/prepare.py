"""`cherenkov prepare`: make a store of a checkpoint."""

from __future__ import annotations

import click

from cherenkov.errors import ConfigError
from cherenkov_cli.completion import folders
from cherenkov_cli.show import Reporter

__all__ = ["command"]


@click.command("prepare", short_help="Make a store of a checkpoint.")
@click.argument("source", shell_complete=folders)
@click.option(
    "--output", "-o", metavar="DIR", shell_complete=folders, help="The store's folder, a new one."
)
@click.option(
    "--bits",
    type=int,
    default=None,
    help="Bits per weight: 4, 8, or 16 to leave BF16 as it is. Default: as the checkpoint comes, or else 4.",
)
@click.option(
    "--experts",
    metavar="BITS",
    help="Widths that experts should be there in, such as 4,3,2. Without --output, they are added to SOURCE.",
)
@click.option(
    "--lowbit",
    default="refit",
    show_default=True,
    help="How 3 and 2 bits are made: refit for the least error, truncate as the Rust engine of this name does.",
)
@click.option("--no-draft-head", is_flag=True, help="Leave the draft head out.")
@click.option("--threads", type=int, default=0, metavar="N", help="Workers; 0 is one a core.")
@click.option("--quiet", "-q", is_flag=True, help="No progress or notes.")
def command(
    source: str,
    output: str | None,
    bits: int | None,
    experts: str | None,
    lowbit: str,
    no_draft_head: bool,
    threads: int,
    quiet: bool,
) -> None:
    """Make a store of SOURCE, a checkpoint folder in Hugging Face or MLX layout.

    With --experts, also experts of fewer bits beside the store's own, for run --experts; SOURCE may then be a store.

    May be stopped at any time: run it again and it goes on where it was.
    """
    from cherenkov.preparation import prepare

    widths = _widths(experts)
    if output is None and not widths:
        raise click.UsageError("Missing option '--output' / '-o'.")
    with Reporter(quiet=quiet) as report:
        path = prepare(
            source,
            output,
            bits=bits,
            experts=widths,
            lowbit=lowbit,
            draft_head=not no_draft_head,
            threads=threads,
            on_event=report,
        )
    print(path)


def _widths(given: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in given.split(",")) if given is not None else ()
    except ValueError:
        raise ConfigError("experts", given, "must be widths such as 4,3,2") from None
