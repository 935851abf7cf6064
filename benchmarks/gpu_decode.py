"""Whole decode steps of a random model in the published geometry, resident and streamed."""

# ruff: noqa: PLC0415 - each part imports what it needs, so that the others run where that is missing
from __future__ import annotations

import os
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from gpu_parts import BACKEND, SMALL, Findings, on_owner

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


def _steps(folder: Path, layers: int, slots: int, lookahead: str) -> Any:
    import mlx.core as mx

    from cherenkov.backends import mlx as backend_module
    from cherenkov.state import Rows
    from tests.golden.engine import Engine

    spent = {"s": 0.0, "n": 0}
    plain = backend_module.Mlx._show

    def timed(self: Any, *arrays: Any) -> None:
        begun = time.perf_counter()
        plain(self, *arrays)
        spent["s"] += time.perf_counter() - begun
        spent["n"] += 1

    backend_module.Mlx._show = timed
    try:
        with Engine(folder, BACKEND, slots=slots, lookahead=lookahead) as engine:
            state = engine.network.new_state(4096)
            prompt = np.random.default_rng(0).integers(0, 2000, 64).tolist()
            begun = time.perf_counter()
            wide = engine.network.forward(Rows([(state, prompt)]))
            engine.ops.host(engine.network.logits(wide, [len(prompt) - 1]))
            first = time.perf_counter() - begun

            def step(token: int) -> int:
                wide = engine.network.forward(Rows([(state, [token])]))
                head = engine.network.weights.head
                return int(engine.ops.argmax(head, wide, [0])[0])

            token, warm, count = 1, 64, 48
            if (
                slots >= layers * 512 and not SMALL
            ):  # everything into memory, without waiting for chance
                for layer in range(layers):
                    for start in range(0, 512, 64):
                        with engine.experts.acquire(
                            layer, np.arange(start, start + 64, dtype=np.int32)
                        ) as lease:
                            for _ in lease:
                                pass
                warm = 16
            for _ in range(warm):
                token = step(token)
            stats = engine.experts.stats
            before, reads = stats.misses, stats.read_bytes
            spent.update(s=0.0, n=0)
            times = []
            for _ in range(count):
                begun = time.perf_counter()
                token = step(token)
                times.append(time.perf_counter() - begun)
            median = statistics.median(times)
            return {
                "tokens_s": 1 / median,
                "ms_a_step": median * 1e3,
                "ms_a_block": median * 1e3 / layers,
                "low_ms": min(times) * 1e3,
                "high_ms": max(times) * 1e3,
                "share_waiting_for_the_gpu": spent["s"] / sum(times),
                "synchronisations_a_step": spent["n"] / count,
                "misses_a_step": (stats.misses - before) / count,
                "read_mb_a_step": (stats.read_bytes - reads) / count / 1e6,
                "stall_s": stats.stall_s,
                "prompt_of_64_s": first,
                "slots": slots,
                "active_bytes": on_owner(mx.get_active_memory),
            }
    finally:
        backend_module.Mlx._show = plain
