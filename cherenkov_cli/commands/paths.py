"""`cherenkov paths`: where things are."""

from __future__ import annotations

import click

from cherenkov_cli.show import print_json, table

__all__ = ["command"]


@click.command("paths", short_help="Show where things are kept.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def command(as_json: bool) -> None:
    """Show every path that is used, and what decided it."""
    from cherenkov.config import places

    found = places()
    if as_json:
        print_json({p.name: {"path": str(p.path), "source": p.source} for p in found})
    else:
        print(table([(p.name, p.path, f"({p.source})") for p in found], indent=""))
