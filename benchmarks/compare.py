"""Print two runs side by side: python benchmarks/compare.py OLD.json NEW.json [PATTERN]

A change counts as more than noise, and is marked, when the ranges of the samples do not touch.
"""

from __future__ import annotations

import argparse
from typing import Any

from report import table
from results import flatten, load, value_of

_MORE_IS_BETTER = {"tok/s", "GB/s", "x", "%"}
"""Every other unit is of time, memory, work, or error."""
_FACTS = ("machine", "versions", "settings")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("pattern", nargs="?", default="", help="only names that contain this")
    args = parser.parse_args()
    try:
        old, new = load(args.old), load(args.new)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    _print_facts(old, new)
    before, after = flatten(old), flatten(new)
    rows = [
        _row(name, before[name], after[name])
        for name in before
        if name in after and args.pattern in name
    ]
    if rows:
        print(table(["what", "old", "new", "unit", "new/old", ""], rows))
    for label, mine, other in (("old", before, after), ("new", after, before)):
        only = [name for name in mine if name not in other and args.pattern in name]
        if only:
            print(f"\nonly in {label}: {', '.join(only)}")


def _row(name: str, old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    before, after, unit = value_of(old), value_of(new), new["unit"]
    factor = after / before if before else float("nan")
    verdict = ""
    if _apart(old, new):
        verdict = "better" if (factor > 1) == (unit in _MORE_IS_BETTER) else "worse"
    return [name, f"{before:g}", f"{after:g}", unit, f"{factor:.3f}", verdict]


def _apart(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """The ranges of samples do not touch; single values are apart beyond 1 %, single samples never."""
    if any(len(one.get("samples", (0, 0))) < 2 for one in (before, after)):
        return False
    if "low" not in before or "low" not in after:
        return bool(abs(after["value"] - before["value"]) > 0.01 * abs(before["value"]))
    return bool(before["high"] < after["low"] or after["high"] < before["low"])


def _print_facts(old: dict[str, Any], new: dict[str, Any]) -> None:
    for run, label in ((old, "old"), (new, "new")):
        print(f"{label}: {run['date']}, revision {run['versions']['revision']}")
    for section in _FACTS:
        for key in old[section] | new[section]:
            a, b = old[section].get(key), new[section].get(key)
            if a != b and key != "revision":
                print(f"  {section}.{key}: {a} -> {b}")
    print()


if __name__ == "__main__":
    main()
