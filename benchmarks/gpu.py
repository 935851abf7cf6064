"""What needs a GPU: are the kernels right, does the demo model answer, how fast is each operation and a step.

    python benchmarks/gpu.py PART OUT

PART is probe, table, glow, speed or decode; `benchmarks/gpu.sh` runs several, each in a process of its own. OUT/PART.json is
written after every finding. Without a GPU, `GPU_BACKEND=mlx` tries the script itself on the CPU.
"""
# ruff: noqa: PLC0415 - each part imports what it needs, so that the others run where that is missing

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

BACKEND = os.environ.get("GPU_BACKEND", "cuda")
SMALL = BACKEND != "cuda"
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
        self.path.write_text(json.dumps(self.data, indent=1, default=str))
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


def _backend(options: Any = None) -> Any:
    if BACKEND == "emulated":
        from tests.kernels.emulated import Emulated

        return Emulated()
    from cherenkov.backends import create

    return create(BACKEND, options)


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
    found.attempt("copy_bytes_s", lambda: on_owner(_copy_rate))
    for bits in (2, 3, 4, 8):
        for kind in ("bfloat16", "float32"):
            for rows in (1, 64):
                found.attempt(
                    f"quantized_matmul {bits} {kind} {rows}",
                    lambda b=bits, k=kind, r=rows: on_owner(lambda: _stock(b, k, r, gather=False)),
                )
    found.attempt(
        "gather_qmm 4 bfloat16", lambda: on_owner(lambda: _stock(4, "bfloat16", 1, gather=True))
    )
    if not SMALL:
        from cherenkov.backends.cuda_memory import Runtime

        found.attempt("free and total bytes", lambda: Runtime().memory())
        found.attempt("pool", lambda: on_owner(_pool_round_trip))


def _copy_rate() -> float:
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


def _stock(bits: int, kind: str, rows: int, *, gather: bool) -> Any:
    import mlx.core as mx

    dtype = getattr(mx, kind)
    w = mx.random.normal((3, 512, 512)).astype(dtype)
    q = mx.quantize(w, group_size=64, bits=bits)
    x = mx.random.normal((rows, 512)).astype(dtype)
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

    ops = _backend(Options(precision="float32"))
    turns = [(1, 2, 5), (1, 1, 1), (7, 0, 9), (2, 30, 1), (1, 1, 1)]
    geometries = {
        "four-bit": Geometry(),
        "wide": WIDE,
        "three-bit": Geometry(bits=3, group=64, inter=64, key_dim=32),
        "two-bit": Geometry(bits=2, hidden=96, streams=2),
        "eight-bit": Geometry(bits=8, group=32, inter=96, gate="silu"),
    }
    for name, geometry in geometries.items():
        pair = Pair(ops, geometry, tolerance=3e-4)  # the GPU's products of many rows are TF32
        steps = {
            "residual": lambda p=pair: [p.residual(rows) for rows in (1, 3, 6)],
            "delta": lambda p=pair: p.delta(turns),
            "attention": lambda p=pair: p.attention(turns, biased=True),
            "ple": lambda p=pair: p.ple(turns[:3]),
            "mixture": lambda p=pair: [p.mixture(r, w) for r in (1, 2, 12) for w in (1, 3)],
            "around": lambda p=pair: (p.embed(), p.around()),
        }
        for step, call in steps.items():

            def checked(c: Any = call) -> str:
                c()
                return "within 3e-4 of the reference"

            found.attempt(f"{name}/{step}", checked)
    failed = [k for k, v in found.data.items() if isinstance(v, dict)]
    found["failed"] = failed


def glow(found: Findings) -> None:
    from cherenkov import Model, prepare
    from cherenkov.backends.base import Options

    def answer() -> Any:
        with Model.load("demo", backend=BACKEND) as model:
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

    found.attempt("answer", answer)
    from tests.golden.engine import Engine
    from tests.golden.recorded import Recorded

    store = Path("/tmp/gpu-glow/store")
    if not store.exists():
        store.parent.mkdir(parents=True, exist_ok=True)
        prepare("demo", store)
    recorded = Recorded("glow-4bit")

    def golden() -> Any:
        gaps = {}
        with (
            Engine(store, "reference") as other,
            Engine(store, BACKEND, Options(precision="float32")) as engine,
        ):
            for prompt in ("chat", "single", "segments"):
                ids = recorded.ids(prompt)
                theirs, ours = other.run(ids).logits, engine.run(ids).logits
                gaps[prompt] = float(np.abs(ours - theirs).max() / np.abs(theirs).max())
            expected = recorded.greedy("chat")
            gaps["greedy is right"] = engine.greedy(recorded.ids("chat"), len(expected)) == expected
            one = engine.run(recorded.ids("chat"), [1] * len(recorded.ids("chat")))
            theirs = other.run(recorded.ids("chat"))
            gaps["chat token by token"] = float(
                np.abs(one.logits - theirs.logits).max() / np.abs(theirs.logits).max()
            )
        return gaps

    found.attempt("golden", golden)

    def streaming() -> Any:
        """Any pool size gives identical output."""
        ids = recorded.ids("chat")
        with Engine(store, BACKEND) as engine:
            records, whole = engine.experts.slots, engine.run(ids)
            steps = engine.run(ids, [1] * len(ids))
            tokens = engine.greedy(ids, 12)
        same = {}
        for slots in (1, 3, 4, 17, records // 4, records - 1):
            with Engine(store, BACKEND, slots=slots) as engine:
                for turn in ("cold", "warm"):
                    a = np.array_equal(engine.run(ids).logits, whole.logits)
                    b = np.array_equal(engine.run(ids, [1] * len(ids)).logits, steps.logits)
                    c = engine.greedy(ids, 12) == tokens
                    same[f"{slots} slots, {turn}"] = [a, b, c]
                same[f"{slots} misses"] = engine.experts.stats.misses
        return same

    found.attempt("streaming", streaming)


# --- speed --------------------------------------------------------------------------------------------------------


def _median_s(chain: Any, steps: int, rounds: int = 7) -> dict[str, Any]:
    """Seconds of a step of a chain in which each needs the one before: `chain(n)` makes n, lazily."""
    import mlx.core as mx

    samples = []
    for _ in range(rounds + 2):
        begun = time.perf_counter()
        mx.eval(chain(steps))
        mx.synchronize()
        samples.append((time.perf_counter() - begun) / steps)
    samples = samples[2:]
    return {
        "us": statistics.median(samples) * 1e6,
        "samples_us": [round(s * 1e6, 2) for s in samples],
    }


def _with_share(timing: dict[str, Any], size: int) -> dict[str, Any]:
    rate = size / (timing["us"] * 1e-6)
    return timing | {"bytes": size, "bytes_s": rate, "share_of_4.8e12": rate / PEAK}


def speed(found: Findings) -> None:
    ops = _backend()
    found["backend"] = ops.detail
    found.attempt("copy_bytes_s", lambda: on_owner(_copy_rate))
    for rows in (1, 2, 3, 4):
        found.attempt(f"experts, {rows} rows", lambda r=rows: on_owner(lambda: _experts(ops, r)))
    for rows in (1, 4):
        found.attempt(f"gather_qmm bf16, {rows} rows", lambda r=rows: on_owner(lambda: _gather(r)))
    found.attempt(
        "bf16 matmul of 10 experts, dequantised", lambda: on_owner(lambda: _dense_bf16(1))
    )
    found.attempt("bf16 matmul of 10 experts, 4 rows", lambda: on_owner(lambda: _dense_bf16(4)))
    for rows in (1, 4):
        found.attempt(f"LM head, {rows} rows", lambda r=rows: on_owner(lambda: _head(ops, r)))
    for shape in ((16384, 2560), (2560, 6144), (320, 10240)):
        found.attempt(f"product {shape}", lambda s=shape: on_owner(lambda: _product(ops, s)))
    found.attempt("DeltaNet step", lambda: on_owner(lambda: _delta(ops)))
    for context in (4096, 65536):
        found.attempt(f"QSA at {context}", lambda c=context: on_owner(lambda: _qsa(ops, c)))
    found.attempt("argmax", lambda: on_owner(lambda: _argmax(ops)))


def _bits(*shape: int) -> Any:
    """Random words."""
    import mlx.core as mx

    return mx.random.randint(-(1 << 31), (1 << 31) - 1, shape, mx.int32).view(mx.uint32)


def _quantised(out: int, columns: int, count: int = 0) -> Any:
    """Random codes, small scales: a matrix, or a stack."""
    import mlx.core as mx

    from cherenkov.backends.mlx_matrices import Matrix

    lead = (count,) if count else ()
    codes = _bits(*lead, out, columns // 8)
    shape = (*lead, out, columns // 64)
    scales = (mx.random.uniform(0.5, 1.5, shape) * (0.2 / columns**0.5)).astype(mx.bfloat16)
    biases = (-7.5 * scales).astype(mx.bfloat16)
    mx.eval(codes, scales, biases)
    return Matrix((out, columns), 4, 64, codes, scales, biases)


def _random_words(layout: Any, slots: int) -> Any:
    """A pool of random records, made on the device."""
    import mlx.core as mx

    codes = 3 * layout.codes_bytes // 4
    total = layout.stride_bytes // 4
    words = mx.concatenate(
        [
            _bits(slots, codes),
            # both BF16 halves of a word near 0.01, of either sign
            (_bits(slots, total - codes) & 0x807F807F) | 0x3C003C00,
        ],
        axis=1,
    )
    mx.eval(words)
    return words


def _experts(ops: Any, rows: int) -> Any:
    import mlx.core as mx

    from cherenkov.backends import kernel_calls as calls
    from cherenkov.packing.layout import ExpertLayout

    layout = ExpertLayout(INTER, HIDDEN)
    words = _random_words(layout, EXPERTS)
    tags = mx.full((EXPERTS,), 4, mx.int32)
    rng = np.random.default_rng(rows)
    places = [
        mx.array(
            np.concatenate([rng.permutation(EXPERTS)[:TOP] for _ in range(rows)]).astype(np.int32)
        )
        for _ in range(32)
    ]
    listed = mx.array(np.repeat(np.arange(rows, dtype=np.int32), TOP))
    x0 = mx.random.normal((rows, HIDDEN))
    launch = ops._launch if hasattr(ops, "_launch") else None
    if launch is None:
        return "no kernels here"

    def chain(steps: int) -> Any:
        x = x0
        for i in range(steps):
            (h,) = launch(calls.expert_up(layout, words, tags, places[i % 32], listed, x))
            (y,) = launch(calls.expert_down(layout, words, tags, places[i % 32], h))
            x = y[:rows]
        return x

    size = rows * TOP * layout.record_bytes
    both = _with_share(_median_s(chain, 32), size)

    def only_up(steps: int) -> Any:
        x = x0
        for i in range(steps):
            (h,) = launch(calls.expert_up(layout, words, tags, places[i % 32], listed, x))
            x = mx.concatenate([h[:rows]] * (HIDDEN // INTER), axis=1)
        return x

    up = _with_share(_median_s(only_up, 32), rows * TOP * layout.record_bytes * 2 // 3)
    # experts that every row shares, as a tile: each record is read once
    if rows > 1:
        tiled = mx.array(np.tile(np.array([*range(rows), *[-1] * (4 - rows)], np.int32), TOP))

        def tile(steps: int) -> Any:
            x = x0
            for i in range(steps):
                slots = places[i % 32][:TOP]
                (h,) = launch(calls.expert_up(layout, words, tags, slots, tiled, x))
                (y,) = launch(calls.expert_down(layout, words, tags, slots, h))
                x = y[:rows]
            return x

        return {
            "up and down": both,
            "up": up,
            "tile": _with_share(_median_s(tile, 32), TOP * layout.record_bytes),
        }
    return {"up and down": both, "up": up}


def _gather(rows: int) -> Any:
    import mlx.core as mx

    gate, up, down = (
        _quantised(INTER, HIDDEN, EXPERTS),
        _quantised(INTER, HIDDEN, EXPERTS),
        _quantised(HIDDEN, INTER, EXPERTS),
    )
    rng = np.random.default_rng(rows)
    places = [
        mx.array(
            np.concatenate([rng.permutation(EXPERTS)[:TOP] for _ in range(rows)]).astype(np.uint32)
        )
        for _ in range(32)
    ]
    which = mx.array(np.repeat(np.arange(rows, dtype=np.uint32), TOP))
    every = mx.arange(rows * TOP).astype(mx.uint32)
    x0 = mx.random.normal((rows, 1, HIDDEN)).astype(mx.bfloat16)

    def through(x: Any, m: Any, lhs: Any, rhs: Any) -> Any:
        return mx.gather_qmm(
            x, m.codes, m.scales, m.biases, lhs, rhs, transpose=True, group_size=64, bits=4
        )

    def chain(steps: int) -> Any:
        x = x0
        for i in range(steps):
            g, u = through(x, gate, which, places[i % 32]), through(x, up, which, places[i % 32])
            x = through(g * mx.sigmoid(g) * u, down, every, places[i % 32])[:rows]
        return x

    size = rows * TOP * 3 * INTER * HIDDEN * 9 // 16
    return _with_share(_median_s(chain, 32), size)


def _dense_bf16(rows: int) -> Any:
    import mlx.core as mx

    stack = mx.random.normal((24, TOP, INTER, HIDDEN)).astype(mx.bfloat16) * 0.02
    mx.eval(stack)
    x0 = mx.random.normal((1, rows, HIDDEN)).astype(mx.bfloat16)

    def chain(steps: int) -> Any:
        x = x0
        for i in range(steps):
            h = x @ mx.swapaxes(stack[i % 8], -1, -2)
            u = x @ mx.swapaxes(stack[8 + i % 8], -1, -2)
            x = ((h * mx.sigmoid(h) * u) @ stack[16 + i % 8])[:1]
        return x

    return _with_share(_median_s(chain, 32), TOP * 3 * INTER * HIDDEN * 2)


def _head(ops: Any, rows: int) -> Any:
    import mlx.core as mx

    matrix = _quantised(VOCAB, HIDDEN)
    x0 = mx.random.normal((rows, HIDDEN))

    def chain(steps: int) -> Any:
        x = x0
        for _ in range(steps):
            x = ops.times(x, matrix)[:, :HIDDEN] + 0
        return x

    return _with_share(_median_s(chain, 8), VOCAB * HIDDEN * 9 // 16)


def _product(ops: Any, shape: tuple[int, int]) -> Any:
    import mlx.core as mx

    out, columns = shape if not SMALL else (256, 256)
    matrices = [_quantised(out, columns) for _ in range(16)]
    x0 = mx.random.normal((1, columns))

    def chain(steps: int) -> Any:
        x = x0
        for i in range(steps):
            y = ops.times(x, matrices[i % 16])
            x = x0 + y[:, :1]
        return x

    return _with_share(_median_s(chain, 32), out * columns * 9 // 16)


def _weights(ops: Any) -> Any:
    """Layers in the published geometry."""
    sys.path.insert(0, str(ROOT))
    from tests.backends.layers import Geometry, Layers

    if SMALL:
        return Layers(ops, Geometry())
    g = Geometry(
        hidden=HIDDEN,
        streams=4,
        rank=320,
        key_heads=16,
        value_heads=48,
        key_dim=128,
        value_dim=128,
        heads=24,
        kv_heads=2,
        head_dim=256,
        rotary=64,
        index_heads=4,
        index_dim=128,
        block=4,
        budget=2048,
        group=64,
        gate="sigmoid",
    )
    return Layers(ops, g)


def _delta(ops: Any) -> Any:
    import mlx.core as mx

    from cherenkov.backends import kernel_calls as calls
    from cherenkov.backends.base import Span

    layers = _weights(ops)
    g, w = layers.g, layers.delta()
    state = ops.delta_state(w)
    out = {}
    x0 = mx.random.normal((1, g.hidden))

    def whole(steps: int) -> Any:
        x = x0
        for i in range(steps):
            x = ops.delta_net(w, x, [Span(0, 1, i, state)])
        return x, state.matrix

    out["layer"] = _median_s(whole, 32)
    if hasattr(ops, "_launch"):
        channels = 2 * g.key_heads * g.key_dim + g.value_heads * g.value_dim
        conv, a = mx.random.normal((1, channels)), mx.random.normal((1, g.value_heads))
        z = mx.random.normal((1, g.value_heads * g.value_dim))
        start = mx.zeros((g.value_heads, g.key_dim, g.value_dim))
        copies = [mx.random.normal(start.shape) for _ in range(24)]
        mx.eval(copies)

        def recurrence(steps: int) -> Any:
            zz = z
            for i in range(steps):
                y, _ = ops._launch(calls.delta_step(w, conv, a, a, zz, copies[i % 24]))
                zz = y
            return zz

        out["recurrence"] = _with_share(_median_s(recurrence, 24), 2 * start.size * 4)
    return out


def _qsa(ops: Any, context: int) -> Any:
    import mlx.core as mx

    from cherenkov.backends.base import AttentionState, Span

    context = context if not SMALL else 60
    layers = _weights(ops)
    g, w = layers.g, layers.attention()
    room = context + 64
    state = AttentionState(
        mx.random.normal((room, g.kv_heads, g.head_dim)),
        mx.random.normal((room, g.kv_heads, g.head_dim)),
        mx.random.normal((room, g.index_dim)),
        mx.random.normal((room // g.block, g.index_dim)),
        length=context,
    )
    mx.eval(state.keys, state.values, state.index_keys, state.block_keys)
    x0 = mx.random.normal((1, g.hidden))

    def chain(steps: int) -> Any:
        x = x0
        for i in range(steps):
            x = ops.sparse_attention(w, x, [Span(0, 1, context + i, state)])
        return x

    size = (
        context // g.block * g.index_dim * 4
        + 2 * min(context, g.budget) * g.kv_heads * g.head_dim * 4
    )
    timing = _median_s(chain, 32)
    return timing | {"cache_bytes_read": size}


def _argmax(ops: Any) -> Any:
    import mlx.core as mx

    from cherenkov.backends import kernel_calls as calls

    if not hasattr(ops, "_launch"):
        return "no kernels here"
    logits = mx.random.normal((1, VOCAB))

    def chain(steps: int) -> Any:
        x = logits
        for _ in range(steps):
            best, places = ops._launch(calls.argmax(x))
            value, _ = ops._launch(calls.argmax(best, places))
            x = logits + value
        return x

    return _median_s(chain, 16)


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
    for name, slots in (("resident", records), ("quarter", records // 4)):
        for lookahead in ("off",) if name == "resident" else ("off", "auto"):
            found.attempt(
                f"{name}, lookahead {lookahead}",
                lambda s=slots, a=lookahead: _steps(folder, g.layers, s, a),
            )


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

            token, warm, count = 1, 128, 64
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


if __name__ == "__main__":
    part, out = sys.argv[1], Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    if part == "alone":
        from gpu_alone import run as run_alone

        run_alone(Path(os.environ["PAYLOAD"]) / "alone", out)
    else:
        parts = {"probe": probe, "table": table, "glow": glow, "speed": speed, "decode": decode}
        parts[part](Findings(out / f"{part}.json"))
