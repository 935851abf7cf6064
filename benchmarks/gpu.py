"""What needs a GPU: are the kernels right, does the demo model answer, how fast is each operation and a step.

    python benchmarks/gpu.py PART OUT

PART is probe, table, glow, times, speed or decode; `benchmarks/gpu.sh` runs several, each in a process of its own. OUT/PART.json is
written after every finding. Without a GPU, `GPU_BACKEND=mlx` tries the script itself on the CPU.
"""
# ruff: noqa: PLC0415 - each part imports what it needs, so that the others run where that is missing

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from gpu_decode import decode
from gpu_parts import BACKEND, HIDDEN, INTER, Findings, backend, copy_rate, on_owner
from gpu_speed import speed
from gpu_times import times

# --- probe --------------------------------------------------------------------------------------------------------


def probe(found: Findings) -> None:
    from importlib import metadata

    from cherenkov.backends import available

    found["mlx"] = metadata.version("mlx")
    found["backends"] = {a.name: [a.usable, a.reason] for a in available()}
    import mlx.core as mx

    def info() -> Any:
        return {k: str(v) for k, v in mx.device_info().items()}

    found.attempt("device", lambda: on_owner(info))
    smi = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.sm", "--format=csv"]
    found.attempt(
        "smi", lambda: subprocess.run(smi, capture_output=True, text=True, check=False).stdout
    )
    found.attempt("copy_bytes_s", lambda: on_owner(copy_rate))
    if BACKEND == "cuda":
        from cherenkov.backends.cuda_memory import Runtime

        found.attempt("free and total bytes", lambda: Runtime().memory())
        found.attempt("pool", lambda: on_owner(_pool_round_trip))
    found.attempt(
        "gather_qmm 4 bfloat16", lambda: on_owner(lambda: _stock(4, "bfloat16", 1, gather=True))
    )
    # Each of 64 rows takes MLX half a minute to compile.
    for bits, rows in ((2, 1), (3, 1), (4, 1), (8, 1), (4, 64)):
        for kind in ("bfloat16", "float32"):
            found.attempt(
                f"quantized_matmul {bits} {kind} {rows}",
                lambda b=bits, k=kind, r=rows: on_owner(lambda: _stock(b, k, r, gather=False)),
            )
    found.attempt(
        "quantized_matmul 4 float32 3, rows of one group",
        lambda: on_owner(lambda: _stock(4, "float32", 3, gather=False, columns=64)),
    )


def _stock(bits: int, kind: str, rows: int, *, gather: bool, columns: int = 512) -> Any:
    """How far MLX's product is from one with the dequantised matrix, at most."""
    import mlx.core as mx

    dtype = getattr(mx, kind)
    w = mx.random.normal((3, 512, columns)).astype(dtype)
    q = mx.quantize(w, group_size=64, bits=bits)
    x = mx.random.normal((rows, columns)).astype(dtype)
    values = mx.dequantize(*q, group_size=64, bits=bits)
    if gather:
        y = mx.gather_qmm(
            x[:, None],
            *q,
            rhs_indices=mx.array([1], mx.uint32),
            transpose=True,
            group_size=64,
            bits=bits,
        )
    else:
        y = mx.quantized_matmul(x, *(p[1] for p in q), transpose=True, group_size=64, bits=bits)
    gap = mx.abs(y.reshape(rows, 512) - x @ values[1].T).astype(mx.float32).max()
    mx.eval(gap)
    return gap.item()


def _pool_round_trip() -> Any:
    """Records that are written to host memory are what kernels see."""
    import mlx.core as mx

    from cherenkov.backends.cuda_memory import CudaPool, Runtime
    from cherenkov.packing.layout import ExpertLayout

    pool = CudaPool(ExpertLayout(INTER, HIDDEN), 64, Runtime())
    rng = np.random.default_rng(0)
    sums = {}
    begun = time.perf_counter()
    for slot in (3, 60, 0, 17, 3, 9, 11):
        row = rng.integers(0, 1 << 16, pool.memory.shape[1] // 2, dtype=np.uint16)
        pool.memory[slot] = row.view(np.uint8)
        sums[slot] = int(row.view(np.uint32).astype(np.uint64).sum())
        pool.landed(slot)
    pool.settle()
    took = time.perf_counter() - begun
    got = {s: int(pool.words[s].astype(mx.uint64).sum().item()) for s in sums}
    assert got == sums, (got, sums)
    return {"right": True, "seconds": took}


# --- correctness --------------------------------------------------------------------------------------------------


def table(found: Findings) -> None:
    from cherenkov.backends.base import Options
    from tests.backends.layers import WIDE, Geometry
    from tests.backends.table import Pair

    ops = backend(Options(precision="float32"))
    turns = [(1, 2, 5), (1, 1, 1), (7, 0, 9), (2, 30, 1), (1, 1, 1)]
    geometries = {
        "four-bit": Geometry(),
        "wide": WIDE,
        "three-bit": Geometry(bits=3, group=64, inter=64, key_dim=32),
        "two-bit": Geometry(bits=2, hidden=96, streams=2),
        "eight-bit": Geometry(bits=8, group=32, inter=96, gate="silu"),
    }
    for name, geometry in geometries.items():
        pair = Pair(ops, geometry, tolerance=3e-4)
        steps = {
            "residual": lambda p=pair: [p.residual(rows) for rows in (1, 3, 6)],
            "delta": lambda p=pair: p.delta(turns),
            "attention": lambda p=pair: p.attention(turns, biased=True),
            "ple": lambda p=pair: p.ple(turns[:3]),
            "mixture": lambda p=pair: [p.mixture(r, w) for r in (1, 2, 12) for w in (1, 3)],
            "around": lambda p=pair: (p.embed(), p.around()),
        }
        for step, call in steps.items():
            if os.environ.get("GPU_TABLE", step) != step:
                continue

            def checked(c: Any = call) -> str:
                c()
                return "within 3e-4 of the reference"

            found.attempt(f"{name}/{step}", checked)
    failed = [k for k, v in found.data.items() if isinstance(v, dict)]
    found["failed"] = failed


def glow(found: Findings) -> None:
    """The demo model: its answer, its logits beside the reference's, and pools of any size."""
    from cherenkov import prepare

    found.attempt("answer", _answer)
    store = Path("/tmp/gpu-glow/store")
    if not store.exists():
        store.parent.mkdir(parents=True, exist_ok=True)
        prepare("demo", store)
    found.attempt("golden", lambda: _golden(store))
    found.attempt("streaming", lambda: _streaming(store))
    found.attempt("drafts", lambda: _drafts(store))


def _answer() -> Any:
    from cherenkov import Model

    with Model.load("demo", backend=BACKEND, speculate="off") as model:
        begun = time.perf_counter()
        text = model.generate("What is the capital of France?")
        again = time.perf_counter()
        model.generate("What is the capital of France?")
        return {
            "answer": text,
            "backend": model.backend_name,
            "first_s": again - begun,
            "second_s": time.perf_counter() - again,
            "plan": model.plan.sum(),
        }


def _golden(store: Path) -> Any:
    from cherenkov.backends.base import Options
    from tests.golden.engine import Engine
    from tests.golden.recorded import Recorded

    recorded, gaps = Recorded("glow-4bit"), {}
    exact = Options(precision="float32")
    with Engine(store, "reference") as other, Engine(store, BACKEND, exact) as engine:
        for prompt in ("chat", "single", "segments"):
            ids = recorded.ids(prompt)
            gaps[prompt] = _gap(engine.run(ids).logits, other.run(ids).logits)
        ids, expected = recorded.ids("chat"), recorded.greedy("chat")
        gaps["greedy is right"] = engine.greedy(ids, len(expected)) == expected
        one, whole = engine.run(ids, [1] * len(ids)).logits, other.run(ids).logits
        gaps["chat token by token"] = _gap(one, whole)
    return gaps


def _gap(ours: Any, theirs: Any) -> float:
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def _streaming(store: Path) -> Any:
    """Any pool size gives identical output."""
    from tests.golden.engine import Engine
    from tests.golden.recorded import Recorded

    ids = Recorded("glow-4bit").ids("chat")
    with Engine(store, BACKEND) as engine:
        records, whole = engine.experts.slots, engine.run(ids)
        steps = engine.run(ids, [1] * len(ids))
        tokens = engine.greedy(ids, 12)
    same: dict[str, Any] = {}
    for slots in (1, 3, 4, 17, records // 4, records - 1):
        with Engine(store, BACKEND, slots=slots) as engine:
            for turn in ("cold", "warm"):
                a = np.array_equal(engine.run(ids).logits, whole.logits)
                b = np.array_equal(engine.run(ids, [1] * len(ids)).logits, steps.logits)
                c = engine.greedy(ids, 12) == tokens
                same[f"{slots} slots, {turn}"] = [a, b, c]
            same[f"{slots} misses"] = engine.experts.stats.misses
    return same


def _drafts(store: Path) -> Any:
    """Answers with tokens guessed ahead, beside those without, and whether rows depend on how many go together."""
    from cherenkov import Model
    from tests.golden.engine import Engine
    from tests.golden.recorded import Recorded

    said: dict[str, Any] = {}
    for mode in ("off", "mtp"):
        with Model.load(store, backend=BACKEND, speculate=mode) as model:
            speculation = model.responder.loaded.speculation
            speculation.pace.fixed = 3
            found = model.generate("Count to ten.", max_tokens=40)
            said[mode] = {"answer": str(found), "rows": list(speculation.counts.rows)}
    said["the same"] = said["off"]["answer"] == said["mtp"]["answer"]
    ids = Recorded("glow-4bit").ids("chat")
    with Engine(store, BACKEND) as engine:
        alone = engine.run(ids, [1] * len(ids)).logits
        for rows in (2, 3, 4):
            cut = [rows] * (len(ids) // rows) + [1] * (len(ids) % rows)
            said[f"{rows} rows at a time, the same bits"] = np.array_equal(
                engine.run(ids, cut).logits, alone
            )
    return said


if __name__ == "__main__":
    part, out = sys.argv[1], Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    if part == "alone":
        from gpu_alone import run as run_alone

        run_alone(Path(os.environ["PAYLOAD"]) / "alone", out)
    else:
        parts = {
            "probe": probe,
            "table": table,
            "glow": glow,
            "speed": speed,
            "times": times,
            "decode": decode,
        }
        parts[part](Findings(out / f"{part}.json"))
