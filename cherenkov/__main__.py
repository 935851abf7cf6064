"""`python -m cherenkov`: the command, which is a package of its own that the library does not know."""

from __future__ import annotations

import importlib

__all__ = ["main"]


def main() -> None:
    """Run the command and exit with its code."""
    importlib.import_module("cherenkov_cli.entry").main()


if __name__ == "__main__":
    main()
