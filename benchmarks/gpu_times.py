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
    from cherenkov.backends import tile_calls as tiles
    from cherenkov.backends.mlx_matrices import Matrix
    from cherenkov.packing.layout import ExpertLayout

    few = mx.zeros((64,), mx.bfloat16)

    def matrix(out: int, columns: int) -> Any:
        return Matrix((out, columns), 4, 64, mx.zeros((64,), mx.uint32), few, few)

    def product(rows: int, weights: Any) -> Any:
        multiply = tiles.product if tiles.fits_dense(weights) else products.product
        return multiply(mx.zeros((rows, weights.shape[1])), weights)

    layout = ExpertLayout(_INTER, _HIDDEN)
    pool = mx.zeros((1, layout.stride_bytes // 4), mx.uint32)
    made: dict[str, Any] = {}
    for rows in (1, 2, 3, 4):
        slots, x = mx.zeros((rows * _TOP,), mx.int32), mx.zeros((rows, _HIDDEN))
        h = mx.zeros((rows * _TOP, _INTER))
        made[f"experts up, {rows} rows"] = tiles.expert_up(layout, pool, slots, slots, x)
        made[f"experts down, {rows} rows"] = tiles.expert_down(layout, pool, slots, h)
    for rows in (1, 2, 3, 4):
        made[f"LM head, {rows} rows"] = product(rows, matrix(_VOCAB, _HIDDEN))
    for out, columns in ((16_480, 2560), (2560, 6144), (324, 10_240), (513, 2560)):
        for rows in (1, 4):
            made[f"product ({out}, {columns}), {rows} rows"] = product(rows, matrix(out, columns))
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
    heads, z = (calls.Columns(mx.zeros((1, n))) for n in (48, 48 * 128))
    return calls.delta_step(w, mx.zeros((1, 10_240)), [heads, heads, z], mx.zeros((48, 128, 128)))


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

    names = launch.kernel.inputs
    grid = tuple(g // t for g, t in zip(launch.grid, launch.threads, strict=True))
    given: dict[str, Any] = {}
    numbers = {k: v for k, v in zip(names, launch.inputs, strict=True) if k in {"dims", "params"}}
    small = on_owner(lambda: {k: np.array(v) for k, v in numbers.items()})
    for key, array in zip(names, launch.inputs, strict=True):
        if key in small:
            given[key] = cp.array(small[key])
        elif str(array.dtype).endswith("float32"):
            given[key] = cp.random.standard_normal(array.size, dtype=cp.float32)
    outputs = [cp.empty(int(np.prod(shape)), _KINDS[kind]) for kind, shape in launch.outputs]
    if "pool" in names:
        pairs = launch.inputs[names.index("slots")].size
        given |= _pool(memory, int(small["dims"][0]), pairs)
        size, changing = _slots(pairs, 2 if "up" in name else 1)
    elif "before" in names:
        size, changing = _states(launch.inputs[names.index("before")].size, memory)
    else:
        size, changing = _matrices(names, small["dims"], memory)

    def call(own: dict[str, Any]) -> Callable[[], None]:
        made = [*outputs[:-1], own.get("after", outputs[-1])]
        arguments = (*((given | own)[key] for key in names), *made)
        return lambda: kernel(grid, launch.threads, arguments)

    return size, [call(own) for own in changing]


def _pool(memory: Any, stride: int, pairs: int) -> dict[str, Any]:
    import cupy as cp

    rows = np.repeat(np.arange(pairs // _TOP), _TOP).astype(np.int32)
    return {"pool": memory[: _SLOTS * stride], "rows": cp.array(rows)}


def _slots(pairs: int, sets: int) -> tuple[int, list[dict[str, Any]]]:
    """Experts that each row draws."""
    import cupy as cp

    rng, changing = np.random.default_rng(0), []
    for _ in range(32):
        drawn = [rng.permutation(_SLOTS)[:_TOP] for _ in range(pairs // _TOP)]
        changing.append({"slots": cp.array(np.concatenate(drawn).astype(np.int32))})
    return pairs * sets * _INTER * _HIDDEN * 9 // 16, changing


def _states(numbers: int, memory: Any) -> tuple[int, list[dict[str, Any]]]:
    """Recurrent states, read and written."""
    import cupy as cp

    before = [memory[i * numbers :].view(cp.float32) for i in range(24)]
    changing = [{"before": b, "after": cp.empty(numbers, cp.float32)} for b in before]
    return 2 * 4 * numbers, changing


def _matrices(names: Sequence[str], dims: Any, memory: Any) -> tuple[int, list[dict[str, Any]]]:
    """Dense matrices, of codes or of values."""
    out, columns = int(dims[2]), int(dims[1])
    whole = "s" not in names and "gs" not in names
    prefixes = ("g", "u") if "gw" in names else ("",)
    one = out * columns // (2 if whole else 8)  # words of codes
    part = one if whole else one + 2 * (out * columns // 128)
    part = -(-part // 4) * 4
    changing = []
    for i in range(max(4, min(128, (1 << 29) // (len(prefixes) * part)))):
        own = {}
        for m, prefix in enumerate(prefixes):
            at = (i * len(prefixes) + m) * part
            own[f"{prefix}w"] = memory[at : at + one]
            if not whole:
                middle = at + one + out * columns // 128
                own[f"{prefix}s"] = memory[at + one : middle]
                own[f"{prefix}b"] = memory[middle : at + part]
        changing.append(own)
    return len(prefixes) * part * 4, changing


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
