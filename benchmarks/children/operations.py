"""Time products of one library in a process of its own: operations.py LIBRARY JOB. Prints one JSON object.

LIBRARY is cherenkov, numpy, torch-bf16 or torch-int4. Weights rotate through copies that no cache holds, as they do
when a model decodes. JOB: {"threads", "seconds", "copies_bytes", "cases": [{"name", "rows", "cols", "batches"}]}.
"""

import json
import sys
import time

import numpy as np


class Cherenkov:
    """4-bit codes in groups of 64, through the C++ kernels."""

    def __init__(self, job: dict) -> None:
        from cherenkov import _native  # noqa: PLC0415

        self.native = _native
        self.engine = _native.Engine(job.get("isa", ""), job.get("precision", ""), job["threads"])
        self.detail = f"{self.engine.isa}, {self.engine.precision}"
        self.rng = np.random.default_rng(0)

    def weight_bytes(self, rows: int, cols: int) -> int:
        return rows * cols * 9 // 16

    def matrix(self, rows: int, cols: int) -> object:
        codes = self.rng.integers(0, 1 << 32, (rows, cols // 8), dtype=np.uint32)
        scales = np.full((rows, cols // 64), 0x3C00, np.uint16)
        biases = np.full((rows, cols // 64), 0xBD80, np.uint16)
        return self.native.Matrix(codes, scales, biases, rows, cols, 4, 64)

    def product(self, batch: int, rows: int, cols: int):
        x = self.rng.standard_normal((batch, cols)).astype(np.float32)
        out = np.empty((batch, rows), np.float32)
        return lambda w: self.engine.linear(w, x, out)


class NumPy:
    """float32 weights, through its BLAS."""

    def __init__(self, _job: dict) -> None:
        self.detail = "float32"
        self.rng = np.random.default_rng(0)

    def weight_bytes(self, rows: int, cols: int) -> int:
        return 4 * rows * cols

    def matrix(self, rows: int, cols: int) -> np.ndarray:
        return self.rng.standard_normal((rows, cols), dtype=np.float32)

    def product(self, batch: int, rows: int, cols: int):
        x = self.rng.standard_normal((batch, cols)).astype(np.float32)
        out = np.empty((batch, rows), np.float32)
        return lambda w: np.matmul(x, w.T, out=out)


class Torch:
    """BF16 weights and activations, or its own 4-bit product with BF16 activations."""

    def __init__(self, job: dict, bits: int) -> None:
        import torch  # noqa: PLC0415

        torch.set_num_threads(job["threads"])
        torch.set_grad_enabled(False)
        self.torch, self.bits = torch, bits
        self.detail = "int4pack, groups of 64" if bits == 4 else "BF16"

    def weight_bytes(self, rows: int, cols: int) -> int:
        return 2 * rows * cols if self.bits == 16 else rows * cols * 9 // 16

    def matrix(self, rows: int, cols: int) -> object:
        torch = self.torch
        if self.bits == 16:
            return torch.randn(rows, cols, dtype=torch.bfloat16)
        codes = torch.randint(0, 16, (rows, cols), dtype=torch.int32)
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
        return packed, torch.randn(cols // 64, rows, 2, dtype=torch.bfloat16)

    def product(self, batch: int, _rows: int, cols: int):
        torch = self.torch
        x = torch.randn(batch, cols, dtype=torch.bfloat16)
        if self.bits == 16:
            return lambda w: torch.nn.functional.linear(x, w)
        return lambda w: torch.ops.aten._weight_int4pack_mm_for_cpu(x, w[0], 64, w[1])


LIBRARIES = {
    "cherenkov": Cherenkov,
    "numpy": NumPy,
    "torch-bf16": lambda job: Torch(job, 16),
    "torch-int4": lambda job: Torch(job, 4),
}


def lower_quartile_us(call, weights: list, seconds: float) -> float:
    """Microseconds of a call that few others disturb: a quarter of the calls are faster."""
    for weight in weights[:2]:
        call(weight)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        weight = weights[len(times) % len(weights)]
        start = time.perf_counter()
        call(weight)
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 4] * 1e6


def main() -> None:
    job = json.loads(sys.argv[2])
    library = LIBRARIES[sys.argv[1]](job)
    results: dict = {}
    for case in job["cases"]:
        rows, cols = case["rows"], case["cols"]
        copies = max(1, job["copies_bytes"] // library.weight_bytes(rows, cols))
        weights = [library.matrix(rows, cols) for _ in range(copies)]
        for batch in case["batches"]:
            call = library.product(batch, rows, cols)
            us = lower_quartile_us(call, weights, job["seconds"])
            results.setdefault(case["name"], {})[str(batch)] = us
    print(json.dumps({"detail": library.detail, "us": results}))


main()
