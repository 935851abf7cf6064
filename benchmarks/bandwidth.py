"""Build and run the read-bandwidth probe."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

__all__ = ["build", "compile_program", "read_bandwidth"]

_SOURCE = Path(__file__).resolve().parent / "bandwidth.cpp"
_MEGABYTES = 1024


def compile_program(source: Path, folder: Path, *extra: str) -> Path:
    """Compile one C++ file for this very machine, once per content and flags. Returns the program."""
    flags = ["-std=c++20", "-O3", "-march=native", "-pthread"]
    key = hashlib.sha256(source.read_bytes() + " ".join([*flags, *extra]).encode()).hexdigest()
    program = folder / f"{source.stem}-{key[:12]}"
    if not program.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["c++", *flags, str(source), "-o", str(program), *extra], check=True)
    return program


def build(folder: Path) -> Path:
    """The probe, compiled."""
    return compile_program(_SOURCE, folder)


def read_bandwidth(
    program: Path, threads: list[int], seconds: float = 0.5
) -> dict[int, tuple[float, float]]:
    """GB/s at each number of threads: median and 90th percentile of windows of 32 MB, each read from memory."""
    command = [str(program), str(_MEGABYTES), str(seconds), *map(str, threads)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = (line.split() for line in printed.splitlines())
    return {int(count): (float(median), float(high)) for count, median, high in rows}
