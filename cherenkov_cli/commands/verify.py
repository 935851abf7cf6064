"""`cherenkov verify`: compare a store with its checksums."""

from __future__ import annotations

import click

from cherenkov.units import format_bytes
from cherenkov_cli.completion import folders
from cherenkov_cli.show import Reporter, complain, one_line, say

__all__ = ["command"]

_SHOWN = 20


@click.command("verify", short_help="Check every byte of a store.")
@click.argument("path", metavar="DIR", shell_complete=folders)
@click.option("--quiet", "-q", is_flag=True, help="No progress or notes.")
def command(path: str, quiet: bool) -> int:
    """Compare every byte of the store in DIR with its checksums, and name what differs."""
    from cherenkov.preparation import verify

    with Reporter(quiet=quiet) as report:
        found = verify(path, report)
    for problem in found.problems[:_SHOWN]:
        complain(problem.describe())
    if len(found.problems) > _SHOWN:
        complain(f"and {len(found.problems) - _SHOWN} more")
    if not found.ok:
        return 1
    if not found.verifiable:
        say(f"warning: {one_line(path)}: has no checksums; only its lengths could be checked")
        return 0
    print(f"{one_line(path)}: all {format_bytes(found.checked_bytes)} are as they were written")
    return 0
