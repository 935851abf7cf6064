"""What the parts of `gpu.py` share: where findings go, which backend, MLX's own thread."""

# ruff: noqa: PLC0415 - each part imports what it needs, so that the others run where that is missing
from __future__ import annotations

import json
import os
import statistics
import sys
import time
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

BACKEND = os.environ.get("GPU_BACKEND", "cuda")
SMALL = BACKEND not in {"cuda", "metal"}
HIDDEN, INTER, TOP, EXPERTS = (2560, 640, 10, 512) if not SMALL else (256, 64, 4, 16)
VOCAB = 248_320 if not SMALL else 2048
PEAK = 4.8e12


class Findings:
    """A JSON file that is written again after every finding."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data: dict[str, Any] = {}

    def __setitem__(self, key: str, value: Any) -> None:
        self.data[key] = value
        text = json.dumps(self.data, indent=1, default=str)
        self.path.write_text(text.replace(str(ROOT), "."))
        print(f"{key}: {json.dumps(value, default=str)[:600]}", flush=True)

    def attempt(self, key: str, call: Any) -> None:
        """A finding, or why there is none."""
        begun = time.time()
        try:
            self[key] = call()
        except Exception as error:  # noqa: BLE001 - whatever it is, the next part goes on
            traceback.print_exc()
            self[key] = {"failed": f"{type(error).__name__}: {error}"[:600]}
        print(f"   ({key}: {time.time() - begun:.1f} s)", flush=True)


def on_owner(call: Any) -> Any:
    """MLX's thread is the backend's."""
    from cherenkov.backends.mlx_owner import OWNER

    return OWNER.call(call)


def backend(options: Any = None) -> Any:
    if BACKEND == "emulated":
        from tests.kernels.emulated import Emulated

        return Emulated()
    from cherenkov.backends import create

    return create(BACKEND, options)


def copy_rate() -> float:
    import mlx.core as mx

    size = (1 << 30) if not SMALL else 1 << 20
    a = mx.random.uniform(shape=(size // 4,))
    mx.eval(a)
    best = []
    for _ in range(6):
        begun = time.perf_counter()
        b = a
        for _ in range(8):
            b = -b
        mx.eval(b)
        mx.synchronize()
        best.append(8 * 2 * size / (time.perf_counter() - begun))
    return statistics.median(best)
