"""Make experts of fewer bits once for every call that changes the disk, and be killed there; then go on.

A child is forked for every point; it kills itself before the call. Prints a summary as JSON.
Usage: lowbit_points.py STORE FOLDER STEP, where every STEP-th call is tried.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cherenkov.errors import CherenkovError
from cherenkov.packing import lower as lower_module
from cherenkov.packing.lowbit import open_lowbit
from cherenkov.packing.lower import lower
from cherenkov.packing.store import PackedStore
from cherenkov.packing.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable

CALLS = ("pwrite", "write", "fsync", "ftruncate", "unlink", "replace", "open")


def attempt(store: Path) -> None:
    lower(store, [3, 2], threads=1, at_risk_bytes=0)


def tree(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def die_at(when: int) -> None:
    """Kill this process before the call of that number."""
    count = 0

    def counting(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count == when:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **options)

        return counted

    for name in CALLS:
        setattr(os, name, counting(getattr(os, name)))


def one(store: Path, when: int) -> int:
    child = os.fork()
    if child == 0:
        die_at(when)
        attempt(store)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def usable(store: Path) -> list[int]:
    opened, found = PackedStore.open(store), []
    for bits in (3, 2):
        try:
            open_lowbit(opened, bits)
        except CherenkovError:
            continue
        found.append(bits)
    return found


def main(store: Path, folder: Path, step: int) -> dict[str, Any]:
    """Kill at every point; what then counts as there must be right, and the next call must end well."""
    lower_module._RECORDS = 2
    seen: dict[str, Any] = {"points": 0, "usable": 0, "resumed": 0, "problems": []}
    expected: dict[str, bytes] = {}
    for when in range(1, 100_000, step):
        target = folder / str(when)
        shutil.copytree(store, target)
        code = one(target, when)
        if code == 0:
            if tree(target) != expected:
                seen["problems"].append(f"{when}: another result")
            return seen
        if not expected:
            shutil.copytree(store, folder / "expected")
            attempt(folder / "expected")
            expected = tree(folder / "expected")
        seen["points"] += 1
        for bits in usable(target):
            seen["usable"] += 1
            for name in (f"experts{bits}.bin", f"integrity{bits}.json"):
                if (target / name).read_bytes() != expected[name]:
                    seen["problems"].append(f"{when}: {name} counts, but is not what it should be")
        notes: list[object] = []
        lower(target, [3, 2], threads=1, on_event=notes.append)
        seen["resumed"] += any("resuming" in str(note) for note in notes)
        if tree(target) != expected or not verify(target).ok:
            found = tree(target)
            other = [n for n in found | expected if found.get(n) != expected.get(n)]
            seen["problems"].append(f"{when}: the next attempt did not end well: {other}")
        shutil.rmtree(target)
    return seen


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))))
