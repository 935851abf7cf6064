"""Facts about the machine and the software that a run was made with. No host names, no paths."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

__all__ = ["clean_environment", "facts", "load_average", "slug", "versions"]

_SETS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "asimd", "bf16", "i8mm")
_PACKAGES = ("cherenkov", "numpy", "mlx", "mlx-vlm", "torch", "transformers")
_SET_FOR_OLD_LIBRARIES = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


def clean_environment(**changes: str) -> dict[str, str]:
    """The environment for a child that is measured: ours, less what would pin NumPy to a slower kernel."""
    kept = {k: v for k, v in os.environ.items() if k not in _SET_FOR_OLD_LIBRARIES}
    return kept | changes


def facts() -> dict[str, object]:
    """Processor, cores, memory, kernel and compiler."""
    cpu = _cpu()
    return {
        "cpu": cpu.get("model name") or platform.processor() or platform.machine(),
        "family": _number(cpu.get("cpu family")),
        "model": _number(cpu.get("model")),
        "instruction_sets": [s for s in _SETS if s in _words(cpu)],
        "cores": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": platform.system(),
        "kernel": re.split(r"[-+]", platform.release())[0],
        "compiler": _first_line("c++", "--version"),
    }


def versions() -> dict[str, str]:
    """Python, the packages beside us, and the revision of the working tree (`+` if it has changes)."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    root = Path(__file__).resolve().parent.parent
    revision = _first_line("git", "-C", str(root), "rev-parse", "--short=12", "HEAD")
    changed = _first_line("git", "-C", str(root), "status", "--porcelain", "-uno")
    found["revision"] = revision + ("+" if changed else "")
    return found


def slug() -> str:
    """A short name for a kind of machine, for file names."""
    cpu = _cpu()
    name = re.sub(r"\(r\)|\(tm\)|cpu|processor|@.*", "", str(facts()["cpu"]).lower())
    words = [*name.split(), f"f{cpu['cpu family']}m{cpu['model']}" if "model" in cpu else ""]
    return "-".join(re.sub(r"[^a-z0-9]+", "", w) for w in words if w) + f"-{facts()['cores']}c"


def load_average() -> float:
    """Runnable processes over the last minute."""
    return round(os.getloadavg()[0], 2)


def _cpu() -> dict[str, str]:
    """The first processor of /proc/cpuinfo; empty where there is none."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _words(cpu: dict[str, str]) -> set[str]:
    return set((cpu.get("flags") or cpu.get("Features") or "").split())


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


def _first_line(*command: str) -> str:
    """What a command prints first; empty if there is no such command."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.partition("\n")[0].strip()
