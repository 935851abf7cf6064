"""Run `pack` once for every system call it makes, and let that call kill the process, or fail.

A child is forked for every point; it has `strace` attach to it and inject the fault. Prints a summary as JSON.
Usage: fault_points.py SOURCE FOLDER FAULT SYSCALLS STEP, where FAULT is `signal=SIGKILL` or `error=EIO`, and every STEP-th
call is tried.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from cherenkov.architectures import family_of
from cherenkov.checkpoint.source import open_checkpoint
from cherenkov.errors import CherenkovError
from cherenkov.packing import plan
from cherenkov.packing.pack import pack
from cherenkov.packing.verify import verify

ANYONE = ctypes.c_ulong(-1)
PR_SET_PTRACER = 0x59616D61
DONE, REFUSED, BROKEN = 0, 10, 11


def attach(fault: str, calls: str, when: int) -> None:
    """Have a tracer of our own attach to this process, and wait until it has."""
    ctypes.CDLL(None).prctl(PR_SET_PTRACER, ANYONE, 0, 0, 0)
    inject = f"inject={calls}:{fault}:when={when}"
    command = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={calls}", "-e", inject]
    subprocess.Popen([*command, "-p", str(os.getpid())], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while "TracerPid:\t0\n" in Path("/proc/self/status").read_text():
        if time.monotonic() > deadline:
            os._exit(BROKEN)
        time.sleep(0.001)


def attempt(source: Path, target: Path) -> None:
    config = json.loads((source / "config.json").read_text())
    checkpoint = open_checkpoint(source, family_of(config).inventory(config), config)
    pack(checkpoint, target, threads=1, at_risk_bytes=0)


def tree(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def one(source: Path, target: Path, fault: str, calls: str, when: int) -> int:
    """One child. Returns its exit code, negative if a signal ended it."""
    child = os.fork()
    if child == 0:
        code = BROKEN
        with contextlib.suppress(BaseException):
            attach(fault, calls, when)
            try:
                attempt(source, target)
                code = DONE
            except CherenkovError:
                code = REFUSED
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(source: Path, folder: Path, fault: str, calls: str, step: int) -> dict[str, Any]:
    attempt(source, folder / "expected")
    expected = tree(folder / "expected")
    seen: dict[str, Any] = {"points": 0, "absent": 0, "complete": 0, "problems": []}
    for when in range(1, 500, step):
        home = folder / f"{calls.partition(',')[0]}-{when}"
        home.mkdir()
        target = home / "store"
        code = one(source, target, fault, calls, when)
        left = sorted(p.name for p in home.iterdir())
        if code == DONE:
            return seen
        seen["points"] += 1
        if code == BROKEN:
            seen["problems"].append(f"{calls} {when}: broken child")
        if target.exists():
            seen["complete"] += 1
            if not verify(target).ok or tree(target) != expected:
                seen["problems"].append(f"{calls} {when}: half a store")
        else:
            seen["absent"] += 1
            if code == REFUSED and left:
                seen["problems"].append(f"{calls} {when}: left behind {left}")
        attempt(source, target)
        if tree(target) != expected or [p.name for p in home.iterdir()] != ["store"]:
            seen["problems"].append(f"{calls} {when}: the next attempt did not end well")
    seen["problems"].append("no end")
    return seen


if __name__ == "__main__":
    # small parts, so that there are several of each kind
    plan._RECORDS, plan._BLOCK_BYTES, plan._BLOCKS = 1, 2048, 1
    places, options = [Path(a) for a in sys.argv[1:3]], sys.argv[3:5]
    print(json.dumps(main(*places, *options, int(sys.argv[5]))))
