"""Where the `cherenkov` command begins. Imports only what a base install has, to say what is missing."""

from __future__ import annotations

import importlib.util
import sys

__all__ = ["main"]

_NEEDED = ("click", "rich")


def main() -> None:
    """Run the command and exit with its code."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"cherenkov: the command needs {' and '.join(missing)}: pip install 'cherenkov[cli]'",
            file=sys.stderr,
        )
        sys.exit(1)
    try:
        from cherenkov_cli.main import run

        sys.exit(run(sys.argv[1:]))
    except KeyboardInterrupt:  # before or after the command's own handling of it
        sys.exit(130)
