"""Whole decode steps of a random model in the published geometry, resident and streamed."""

# ruff: noqa: PLC0415 - each part imports what it needs, so that the others run where that is missing
from __future__ import annotations

import os
import shutil
import statistics
import time
from pathlib import Path
from typing import Any, Self

import numpy as np
from gpu_parts import BACKEND, SMALL, Findings, on_owner

_COUNTED = 48
"""Steps that are timed."""

# --- whole steps --------------------------------------------------------------------------------------------------


def decode(found: Findings) -> None:
    """A random model in the published geometry, resident and with a quarter of its experts in the GPU's memory."""
    from dataclasses import replace

    from make_store import PUBLISHED, write_store

    layers = int(os.environ.get("GPU_LAYERS", "8"))
    folder = Path(os.environ.get("GPU_STORE", "/tmp/gpu-store"))
    g = replace(PUBLISHED, layers=layers)
    if SMALL:
        g = replace(g, hidden=256, experts=32, inter=128, top_k=4, vocab=2048, layers=4, lowrank=64)
    begun = time.time()
    if not (folder / "manifest.json").exists() and not any(folder.glob("*.json")):
        write_store(folder, g)
    found["store"] = {"layers": g.layers, "seconds": time.time() - begun}
    records = g.layers * g.experts

    def measure(name: str, where: Path, slots: int, lookahead: str) -> None:
        what = f"{name}, lookahead {lookahead}"
        found.attempt(what, lambda: _steps(where, g.layers, slots, lookahead))

    measure("resident", folder, records, "off")
    memory = Path("/dev/shm/gpu-store")
    try:
        shutil.copytree(folder, memory, dirs_exist_ok=True)
    except OSError as error:
        found["no copy in memory"] = str(error)[:200]
        shutil.rmtree(memory, ignore_errors=True)
    else:
        measure("a quarter, the rest in host memory", memory, records // 4, "off")
        measure("a quarter, the rest in host memory", memory, records // 4, "auto")
        shutil.rmtree(memory)
    measure("a quarter, the rest on disk", folder, records // 4, "off")
    measure("a quarter, the rest on disk", folder, records // 4, "auto")


class _Waits:
    """Counts how often, and how long, the host waits for the GPU while this is open."""

    def __init__(self) -> None:
        self.seconds, self.count = 0.0, 0

    def __enter__(self) -> Self:
        from cherenkov.backends import mlx

        self._plain = plain = mlx.Mlx._show

        def timed(ops: Any, *arrays: Any) -> None:
            begun = time.perf_counter()
            plain(ops, *arrays)
            self.seconds += time.perf_counter() - begun
            self.count += 1

        mlx.Mlx._show = timed
        return self

    def __exit__(self, *_: object) -> None:
        from cherenkov.backends import mlx

        mlx.Mlx._show = self._plain


def _steps(folder: Path, layers: int, slots: int, lookahead: str) -> Any:
    """Steps of one token each, after a prompt of 64."""
    import mlx.core as mx

    from tests.golden.engine import Engine

    with Engine(folder, BACKEND, slots=slots, lookahead=lookahead) as engine:
        state = engine.network.new_state(4096)
        first = _prompt(engine, state)
        whole = slots >= layers * 512 and not SMALL
        if whole:
            _fill(engine, layers)
        token = 1
        for _ in range(16 if whole else 64):
            token = _step(engine, state, token)
        stats = engine.experts.stats
        before, reads, times = stats.misses, stats.read_bytes, []
        with _Waits() as waits:
            for _ in range(_COUNTED):
                begun = time.perf_counter()
                token = _step(engine, state, token)
                times.append(time.perf_counter() - begun)
        median = statistics.median(times)
        return {
            "tokens_s": 1 / median,
            "ms_a_step": median * 1e3,
            "ms_a_block": median * 1e3 / layers,
            "low_ms": min(times) * 1e3,
            "high_ms": max(times) * 1e3,
            "share_waiting_for_the_gpu": waits.seconds / sum(times),
            "synchronisations_a_step": waits.count / _COUNTED,
            "misses_a_step": (stats.misses - before) / _COUNTED,
            "read_mb_a_step": (stats.read_bytes - reads) / _COUNTED / 1e6,
            "stall_s": stats.stall_s,
            "prompt_of_64_s": first,
            "slots": slots,
            "active_bytes": on_owner(mx.get_active_memory),
        }


def _prompt(engine: Any, state: Any) -> float:
    """Seconds that a prompt takes, kernels that are compiled for it included."""
    from cherenkov.state import Rows

    prompt = np.random.default_rng(0).integers(0, 2000, 64).tolist()
    begun = time.perf_counter()
    wide = engine.network.forward(Rows([(state, prompt)]))
    engine.ops.host(engine.network.logits(wide, [len(prompt) - 1]))
    return time.perf_counter() - begun


def _fill(engine: Any, layers: int) -> None:
    """Everything into memory, without waiting for chance."""
    for layer in range(layers):
        for start in range(0, 512, 64):
            some = np.arange(start, start + 64, dtype=np.int32)
            with engine.experts.acquire(layer, some) as lease:
                for _ in lease:
                    pass


def _step(engine: Any, state: Any, token: int) -> int:
    from cherenkov.state import Rows

    wide = engine.network.forward(Rows([(state, [token])]))
    return int(engine.ops.argmax(engine.network.weights.head, wide, [0])[0])
