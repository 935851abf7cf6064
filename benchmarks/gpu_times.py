"""How long kernels run on an NVIDIA GPU: by events around a CUDA graph of many launches, over more data than the L2 holds.

Needs CuPy and nvcc besides MLX, and PyTorch for MLX's own products, which its profiler times. The texts are those that MLX
compiles. A launch in a chain begins when the one before has ended, as when decoding; those side by side need not wait, which shows
what the memory would give if launching cost nothing. The same is measured of a kernel that only reads so many bytes.
"""

# ruff: noqa: PLC0415 - each part imports what it needs, so that the others run where that is missing
from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gpu_parts import PEAK, Findings, on_owner

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_FLAGS = ["-std=c++17", "-O3", "-gencode=arch=compute_90a,code=sm_90a", "-cubin"]
_READER = r"""
extern "C" __global__ void reader(const uint4* a, size_t n, unsigned* o) {
  unsigned s = 0;
  const size_t step = (size_t)gridDim.x * blockDim.x;
  size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  for (; i + 3 * step < n; i += 4 * step) {
    const uint4 p = a[i], q = a[i + step], r = a[i + 2 * step], t = a[i + 3 * step];
    s ^= p.x ^ p.y ^ p.z ^ p.w ^ q.x ^ q.y ^ q.z ^ q.w ^ r.x ^ r.y ^ r.z ^ r.w ^ t.x ^ t.y ^ t.z ^ t.w;
  }
  for (; i < n; i += step) s ^= a[i].x ^ a[i].y ^ a[i].z ^ a[i].w;
  if (s == 12345) o[0] = s;
}"""
_HIDDEN, _INTER, _TOP, _SLOTS, _VOCAB = 2560, 640, 10, 512, 248_320
_KINDS = {"float32": "float32", "int32": "int32", "uint32": "uint32", "bfloat16": "uint16"}


def times(found: Findings) -> None:
    launches = on_owner(_launches)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count() or 4) as pool:
        built = dict(pool.map(lambda item: _built(Path(folder), *item), launches.items()))
        _measure(found, launches, built)


# --- what is measured ---------------------------------------------------------------------------------------------


def _launches() -> dict[str, Any]:
    """Calls in the published geometry, with the shapes of their inputs but not the data."""
    import mlx.core as mx

    from cherenkov.backends import kernel_calls as calls
    from cherenkov.backends import product_calls as products
    from cherenkov.backends.mlx_matrices import Matrix
    from cherenkov.packing.layout import ExpertLayout

    few = mx.zeros((64,), mx.bfloat16)

    def matrix(out: int, columns: int) -> Any:
        return Matrix((out, columns), 4, 64, mx.zeros((64,), mx.uint32), few, few)

    layout = ExpertLayout(_INTER, _HIDDEN)
    pool = mx.zeros((1, layout.stride_bytes // 4), mx.uint32)
    tags = mx.zeros((8,), mx.int32)
    made: dict[str, Any] = {}
    for rows in (1, 2, 3, 4):
        slots, x = mx.zeros((rows * _TOP,), mx.int32), mx.zeros((rows, _HIDDEN))
        h = mx.zeros((rows * _TOP, _INTER))
        made[f"experts up, {rows} rows"] = products.expert_up(layout, pool, tags, slots, slots, x)
        made[f"experts down, {rows} rows"] = products.expert_down(layout, pool, tags, slots, h)
    for rows in (1, 4):
        head = matrix(_VOCAB, _HIDDEN)
        made[f"LM head, {rows} rows"] = products.product(mx.zeros((rows, _HIDDEN)), head)
    for out, columns in ((10_240, 2560), (2560, 6144), (320, 10_240), (512, 2560)):
        x = mx.zeros((1, columns))
        made[f"product ({out}, {columns})"] = products.product(x, matrix(out, columns))
    gate = matrix(_INTER, _HIDDEN)
    made["shared expert up"] = products.swiglu(mx.zeros((1, _HIDDEN)), gate, gate)
    router = Matrix((512, _HIDDEN), 16, 0, mx.zeros((8,), mx.bfloat16))
    made["router (512, 2560) in BF16"] = products.product(mx.zeros((1, _HIDDEN)), router)
    made["DeltaNet recurrence"] = _delta(calls)
    return made


def _delta(calls: Any) -> Any:
    import mlx.core as mx

    from cherenkov.backends.mlx import Mlx
    from tests.backends.layers import Geometry, Layers

    w = Layers(Mlx(), Geometry(key_heads=16, value_heads=48, key_dim=128, value_dim=128)).delta()
    heads, z = mx.zeros((1, 48)), mx.zeros((1, 48 * 128))
    return calls.delta_step(w, mx.zeros((1, 10_240)), heads, heads, z, mx.zeros((48, 128, 128)))


def _built(folder: Path, name: str, launch: Any) -> tuple[str, Path]:
    from cherenkov.backends.shader_builds import BEFORE_CUDA

    kernel, call = launch.kernel, launch.signature
    own = f"__global__ void {kernel.cuda_name(call.template)}("
    text = kernel.cuda_text(call).replace(own, 'extern "C" __global__ void k(')
    source = folder / f"{abs(hash(name))}.cu"
    source.write_text(BEFORE_CUDA + text)
    target = source.with_suffix(".cubin")
    subprocess.run(["nvcc", *_FLAGS, str(source), "-o", str(target)], check=True)
    return name, target


# --- how ----------------------------------------------------------------------------------------------------------


def _graph(calls: Sequence[Callable[[], None]], branches: int, rounds: int = 15) -> float:
    """Microseconds a call, the median of graphs that hold all of them: in one chain, or in so many side by side."""
    import cupy as cp

    stream = cp.cuda.Stream(non_blocking=True)
    others = [cp.cuda.Stream(non_blocking=True) for _ in range(branches if branches > 1 else 0)]
    with stream:
        calls[0]()
        stream.synchronize()
        stream.begin_capture()
        fork = cp.cuda.Event(disable_timing=True)
        fork.record(stream)
        for other in others:
            other.wait_event(fork)
        for i, call in enumerate(calls):
            with others[i % branches] if others else stream:
                call()
        for other in others:
            join = cp.cuda.Event(disable_timing=True)
            join.record(other)
            stream.wait_event(join)
        graph = stream.end_capture()
        samples = []
        for _ in range(rounds + 3):
            begun, ended = cp.cuda.Event(), cp.cuda.Event()
            begun.record(stream)
            graph.launch(stream)
            ended.record(stream)
            ended.synchronize()
            samples.append(cp.cuda.get_elapsed_time(begun, ended) * 1e3 / len(calls))
    return float(statistics.median(samples[3:]))


def _bits(count: int) -> Any:
    import cupy as cp

    a = cp.arange(count, dtype=cp.uint32)
    for factor, shift in ((2654435761, 15), (2246822519, 13), (3266489917, 16)):
        a *= cp.uint32(factor)
        a ^= a >> cp.uint32(shift)
    return a


def _measure(found: Findings, launches: dict[str, Any], built: dict[str, Path]) -> None:
    import cupy as cp

    reader, sink = cp.RawKernel(_READER, "reader"), cp.zeros(8, cp.uint32)
    memory = _bits(1 << 29)
    memory = (memory & cp.uint32(0x807F807F)) | cp.uint32(0x3C003C00)  # finite as BF16 and float32
    total = memory.nbytes

    def read(first: int, size: int) -> Callable[[], None]:
        part = cp.ndarray((size // 4,), cp.uint32, memory.data + first)
        return lambda: reader((132 * 8,), (256,), (part, np.uint64(size // 16), sink))

    found["bytes a second, reading 2 GB"] = total / (_graph([read(0, total)], 1) * 1e-6)
    for name, launch in launches.items():
        kernel = cp.RawModule(path=str(built[name])).get_function("k")
        size, calls = _calls(name, launch, kernel, memory)
        step = max(size // 4096 * 4096, 4096)
        count = min(len(calls), total // step)
        reads = [read(i * step, step) for i in range(count)]
        entry: dict[str, Any] = {"bytes": size, "template": dict(launch.template)}
        for how, branches in (("in a chain", 1), ("side by side", 8)):
            us, alone = _graph(calls, branches), _graph(reads, branches)
            entry[how] = {
                "us": us,
                "share_of_4.8e12": size / (us * 1e-6) / PEAK,
                "us_of_reading_alone": alone,
            }
        found[name] = entry
    found.attempt("MLX's own products", lambda: on_owner(_stock))


def _calls(
    name: str, launch: Any, kernel: Any, memory: Any
) -> tuple[int, list[Callable[[], None]]]:
    """Bytes that a launch must move, and launches over different data, together far more than the L2."""
    import cupy as cp

    names, grid = (
        launch.kernel.inputs,
        tuple(g // t for g, t in zip(launch.grid, launch.threads, strict=True)),
    )
    given: dict[str, Any] = {}
    numbers = {k: v for k, v in zip(names, launch.inputs, strict=True) if k in {"dims", "params"}}
    small = on_owner(lambda: {k: np.array(v) for k, v in numbers.items()})
    for key, array in zip(names, launch.inputs, strict=True):
        if key in small:
            given[key] = cp.array(small[key])
        elif str(array.dtype).endswith("float32"):
            given[key] = cp.random.standard_normal(array.size, dtype=cp.float32)
    outputs = [cp.empty(int(np.prod(shape)), _KINDS[kind]) for kind, shape in launch.outputs]
    rng, dims = np.random.default_rng(0), small["dims"]
    if "pool" in names:
        given["tags"] = cp.full(_SLOTS, 4, cp.int32)
        pairs, stride = launch.inputs[2].size, int(dims[0])
        given["pool"] = memory[: _SLOTS * stride]
        given["rows"] = cp.array(np.repeat(np.arange(pairs // _TOP), _TOP).astype(np.int32))
        sets = 2 if "up" in name else 1
        size = pairs * sets * _INTER * _HIDDEN * 9 // 16

        def some(_: int) -> dict[str, Any]:
            drawn = [rng.permutation(_SLOTS)[:_TOP] for _ in range(pairs // _TOP)]
            return {"slots": cp.array(np.concatenate(drawn).astype(np.int32))}

        count = 32
    elif "before" in names:
        size = 2 * 4 * launch.inputs[names.index("before")].size
        count = 24
        after = [cp.empty(size // 8, cp.float32) for _ in range(count)]

        def some(i: int) -> dict[str, Any]:
            return {"before": memory[i * (size // 8) :].view(cp.float32), "after": after[i]}
    else:
        out, columns = int(dims[2]), int(dims[1])
        whole = "s" not in names and "gs" not in names
        matrices = 2 if "gw" in names else 1
        one = out * columns // (2 if whole else 8)  # words of codes
        part = one if whole else one + 2 * (out * columns // 128)
        size = matrices * part * 4
        count = max(4, min(128, (1 << 29) // (matrices * part)))

        def some(i: int) -> dict[str, Any]:
            made = {}
            for m, prefix in enumerate(("g", "u") if matrices == 2 else ("",)):
                at = (i * matrices + m) * part
                made[f"{prefix}w"] = memory[at : at + one]
                if not whole:
                    middle = at + one + out * columns // 128
                    made[f"{prefix}s"] = memory[at + one : middle]
                    made[f"{prefix}b"] = memory[middle : at + part]
            return made

    def call(i: int) -> Callable[[], None]:
        own = given | some(i)
        made = [*outputs[:-1], own.get("after", outputs[-1])]
        arguments = (*(own[key] for key in names), *made)
        return lambda: kernel(grid, launch.threads, arguments)

    return size, [call(i) for i in range(count)]


# --- MLX's own products -------------------------------------------------------------------------------------------


def _stock() -> dict[str, Any]:
    """Microseconds of MLX's kernels, as PyTorch's profiler sees them; several calls in one evaluation, over different data."""
    import mlx.core as mx

    gate, down = _quantised(_INTER, _HIDDEN, _SLOTS), _quantised(_HIDDEN, _INTER, _SLOTS)
    heads = [_quantised(_VOCAB, _HIDDEN) for _ in range(3)]
    stack = [
        mx.random.normal((_TOP, _HIDDEN, _INTER)).astype(mx.bfloat16) * 0.02 for _ in range(16)
    ]
    mx.eval(stack)
    found: dict[str, Any] = {}
    for rows in (1, 4):
        found |= _of_rows(rows, (gate, down), heads, stack)
    return found


def _of_rows(
    rows: int, experts: tuple[Any, Any], heads: list[Any], stack: list[Any]
) -> dict[str, Any]:
    import mlx.core as mx

    (gate, down), found = experts, {}
    rng = np.random.default_rng(rows)
    places = [
        mx.array(np.concatenate([rng.permutation(_SLOTS)[:_TOP] for _ in range(rows)]), mx.uint32)
        for _ in range(16)
    ]
    which = mx.array(np.repeat(np.arange(rows, dtype=np.uint32), _TOP))
    every = mx.arange(rows * _TOP).astype(mx.uint32)
    x = mx.random.normal((rows, 1, _HIDDEN)).astype(mx.bfloat16)
    h = mx.random.normal((rows * _TOP, 1, _INTER)).astype(mx.bfloat16)

    def gathered(x: Any, m: Any, lhs: Any, rhs: Any) -> Any:
        return mx.gather_qmm(
            x, m.codes, m.scales, m.biases, lhs, rhs, transpose=True, group_size=64, bits=4
        )

    def one(x: Any, m: Any) -> Any:
        return mx.quantized_matmul(
            x, m.codes, m.scales, m.biases, transpose=True, group_size=64, bits=4
        )

    size = rows * _TOP * _INTER * _HIDDEN * 9 // 16
    found[f"gather_qmm gate, {rows} rows"] = _profiled(
        lambda: [gathered(x, gate, which, p) for p in places], size
    )
    found[f"gather_qmm down, {rows} rows"] = _profiled(
        lambda: [gathered(h, down, every, p) for p in places], size
    )
    found[f"quantized_matmul LM head, {rows} rows"] = _profiled(
        lambda: [one(x[:, 0], m) for m in heads], _VOCAB * _HIDDEN * 9 // 16
    )
    found[f"BF16 matmul of 10, {rows} rows"] = _profiled(
        lambda: [x.reshape(1, rows, -1) @ m for m in stack], _TOP * _INTER * _HIDDEN * 2
    )
    return found


def _quantised(out: int, columns: int, count: int = 0) -> Any:
    """Random codes, small scales: a matrix, or a stack."""
    import mlx.core as mx

    from cherenkov.backends.mlx_matrices import Matrix

    lead = (count,) if count else ()
    low, high = -(1 << 31), (1 << 31) - 1
    codes = mx.random.randint(low, high, (*lead, out, columns // 8), mx.int32).view(mx.uint32)
    shape = (*lead, out, columns // 64)
    scales = (mx.random.uniform(0.5, 1.5, shape) * (0.2 / columns**0.5)).astype(mx.bfloat16)
    biases = (-7.5 * scales).astype(mx.bfloat16)
    mx.eval(codes, scales, biases)
    return Matrix((out, columns), 4, 64, codes, scales, biases)


def _profiled(made: Callable[[], list[Any]], size: int) -> dict[str, Any]:
    import mlx.core as mx
    import torch

    for _ in range(3):
        mx.eval(made())
    mx.synchronize()
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as seen:
        mx.eval(lazy := made())
        mx.synchronize()
        torch.cuda.synchronize()
    spans = [e.time_range for e in seen.events() if str(e.device_type).endswith("CUDA")]
    us = sum(s.elapsed_us() for s in spans) / len(lazy)
    return {"us": us, "share_of_4.8e12": size / (us * 1e-6) / PEAK if us else None}
