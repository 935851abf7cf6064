"""Count the instructions of one decode step of Glow, under callgrind: a figure that no other program disturbs.

    python benchmarks/instructions.py

Two runs that differ by 16 steps are subtracted, so loading and the prompt cancel. One thread, and an instruction set
that valgrind knows. Counts are kept by shared object: the kernels, the interpreter, NumPy, the rest. Writes
`benchmarks/results/<date>-<machine>-instructions.json`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines import CHILDREN, run_child
from peers import default_folder
from report import table
from results import new_run, save

if TYPE_CHECKING:
    from collections.abc import Iterable

_FEW, _MANY = 8, 24
_SETS = ("avx2", "portable")
_GROUPS = (
    ("kernels", re.compile(r"/_native[^/]*$")),
    ("numpy", re.compile(r"/numpy|numpy\.libs|openblas")),
    ("python", re.compile(r"/(lib)?python3?[^/]*$")),
    ("system", re.compile(r"/(libc|libm|libpthread|libstdc|libgcc|ld-)[^/]*$")),
)
_NAMED = re.compile(r"\((\d+)\)(?: (.*))?")


def count_by_object(lines: Iterable[str]) -> Counter[str]:
    """Instructions of a callgrind profile, by the object file that they belong to."""
    names: dict[str, str] = {}
    counts: Counter[str] = Counter()
    current = ""
    inclusive = False
    for line in lines:
        if line.startswith(("ob=", "cob=")):
            found = _NAMED.match(line.partition("=")[2].strip())
            assert found is not None
            number, name = found.groups()
            names.setdefault(number, name or "")
            if line.startswith("ob="):
                current = names[number]
        elif line.startswith("calls="):
            inclusive = True  # the next line repeats what the callee's own lines say
        elif line[:1].isdigit() or line[:1] in "+-*":
            if not inclusive:
                counts[current] += int(line.split()[1])
            inclusive = False
    return counts


def _profile(steps: int, options: dict[str, str], data: Path) -> Counter[str]:
    """Instructions of a whole process that decodes so many steps, by group."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "profile"
        tool = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", "--dump-line=no"]
        script = [sys.executable, str(CHILDREN / "decode_steps.py")]
        run_child(
            [*tool, *script, str(steps), json.dumps(options)],
            PYTHONHASHSEED="0",
            OPENBLAS_NUM_THREADS="1",
            CHERENKOV_DATA_DIR=str(data),
        )
        with out.open(encoding="utf-8", errors="replace") as file:
            by_object = count_by_object(file)
    groups: Counter[str] = Counter()
    for name, count in by_object.items():
        group = next((label for label, pattern in _GROUPS if pattern.search(name)), "other")
        groups[group] += count
    return groups


def decode_step(options: dict[str, str], data: Path) -> dict[str, Any]:
    """Instructions of one step, by group and in all."""
    few, many = (_profile(steps, options, data) for steps in (_FEW, _MANY))
    steps = _MANY - _FEW
    parts = {g: (many[g] - few[g]) // steps for g in sorted(many)}
    parts["total"] = sum(parts.values())
    return {g: {"value": count, "unit": "instructions"} for g, count in parts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--peers-dir", type=Path, default=default_folder())
    parser.add_argument("--isa", nargs="+", choices=_SETS, default=list(_SETS))
    parser.add_argument("--backend", default="native")
    parser.add_argument("--output", default="")
    args = parser.parse_args()
    data = args.peers_dir.expanduser().resolve() / "data"
    run = new_run("instructions", {"few": _FEW, "many": _MANY, "backend": args.backend})
    # Outside valgrind, so that a store is there and counted runs do not prepare it.
    script = [sys.executable, str(CHILDREN / "decode_steps.py"), "1", "{}"]
    run_child(script, CHERENKOV_DATA_DIR=str(data))
    run["instructions"] = {}
    for isa in args.isa:
        options = {"backend": args.backend} | ({"isa": isa} if args.backend == "native" else {})
        run["instructions"][isa] = decode_step(options, data)
    groups = list(run["instructions"][args.isa[0]])
    rows = [
        [g, *(f"{run['instructions'][i].get(g, {'value': 0})['value']:,}" for i in args.isa)]
        for g in groups
    ]
    print("Instructions of one decode step of Glow, one thread")
    print(table(["where", *args.isa], rows))
    print(f"\nkept in {save(run, args.output)}", file=sys.stderr)


if __name__ == "__main__":
    main()
