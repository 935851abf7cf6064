"""Run kernels on an NVIDIA GPU without MLX, plainly and under NVIDIA's compute-sanitizer.

    python benchmarks/gpu_alone.py dump FOLDER          # here: texts, inputs, and what the emulator makes of them
    python benchmarks/gpu_alone.py run FOLDER OUT       # on the machine with the GPU: needs nvcc and NumPy alone

Every case of `tests/kernels/cases.py` becomes a shared library of its own: the text that MLX would compile, and a launcher.
"""
# ruff: noqa: PLC0415 - each part imports what it needs, so that the others run where that is missing

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

_BUILT = Path("/tmp/gpu-alone")
_BEFORE = """#include <cstdint>
#include <cstdio>
#include <cstring>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
"""
_LAUNCHER = """
extern "C" int run(void* const* host, const size_t* sizes, const int* written, int count, const unsigned* grid,
                   const unsigned* threads, char* error, size_t room) {
  void* d[32] = {};
  auto bad = [&](cudaError_t code, const char* what) {
    if (code != cudaSuccess) snprintf(error, room, "%%s: %%s", what, cudaGetErrorString(code));
    return code != cudaSuccess;
  };
  int failed = 0;
  for (int i = 0; i < count && !failed; i++) {
    failed = bad(cudaMalloc(&d[i], sizes[i]), "allocate") || bad(cudaMemcpy(d[i], host[i], sizes[i], cudaMemcpyHostToDevice), "copy in");
  }
  if (!failed) {
    mlx::core::cu::%s<<<dim3(grid[0] / threads[0], grid[1] / threads[1], grid[2] / threads[2]), dim3(threads[0], threads[1], threads[2])>>>(%s);
    failed = bad(cudaGetLastError(), "launch") || bad(cudaDeviceSynchronize(), "run");
  }
  for (int i = 0; i < count && !failed; i++) {
    if (written[i]) failed = bad(cudaMemcpy(host[i], d[i], sizes[i], cudaMemcpyDeviceToHost), "copy out");
  }
  for (void* p : d) cudaFree(p);
  return failed;
}
"""

_PLANTED = {
    "memcheck": "out[i == 63 ? 64 : i] = in[i];",
    "racecheck": "__shared__ float s[64]; s[i] = in[i]; out[i] = s[63 - i];",
}
"""Faults that the sanitizer's tools must find, or else their silence about the kernels says nothing."""


def dump(folder: Path) -> None:
    import mlx.core as mx

    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from cherenkov.backends.shaders import CUDA_TYPES
    from tests.kernels.cases import cases
    from tests.kernels.emulated import EMULATION

    folder.mkdir(parents=True, exist_ok=True)
    listed = {}
    for name, launch in cases().items():
        kernel, call = launch.kernel, launch.signature
        inputs = []
        for array in launch.inputs:
            bits = array.view(mx.uint16) if array.dtype == mx.bfloat16 else array
            inputs.append((str(array.dtype).rsplit(".", 1)[-1], np.array(bits)))
        made = EMULATION(
            kernel, launch.template, inputs, launch.outputs, launch.grid, launch.threads
        )
        arguments = [f"(const {CUDA_TYPES[kind]}*)d[{i}]" for i, (kind, _) in enumerate(inputs)]
        arguments += [
            f"({CUDA_TYPES[kind]}*)d[{len(inputs) + i}]" for i, kind in enumerate(call.outputs)
        ]
        launcher = _LAUNCHER % (kernel.cuda_name(call.template), ", ".join(arguments))
        (folder / f"{name}.cu").write_text(_BEFORE + kernel.cuda_text(call) + launcher)
        arrays = {f"in{i}": array for i, (_, array) in enumerate(inputs)}
        arrays |= {f"out{i}": array for i, array in enumerate(made)}
        np.savez_compressed(folder / f"{name}.npz", **arrays)
        listed[name] = {"kernel": kernel.name, "grid": launch.grid, "threads": launch.threads}
    for tool, body in _PLANTED.items():
        name, zeros = f"planted-{tool}", np.zeros(64, np.float32)
        text = f"""namespace mlx::core::cu {{
__global__ void planted(const float* in, float* out) {{ const int i = threadIdx.x; {body} }}
}}
"""
        launcher = _LAUNCHER % ("planted", "(const float*)d[0], (float*)d[1]")
        (folder / f"{name}.cu").write_text(_BEFORE + text + launcher)
        np.savez_compressed(folder / f"{name}.npz", in0=zeros, out0=zeros)
        listed[name] = {"kernel": "", "grid": (64, 1, 1), "threads": (64, 1, 1)}
    (folder / "cases.json").write_text(json.dumps(listed, indent=1))


def run(folder: Path, out: Path) -> None:
    """Build every case, compare it with the emulator, then run all of them under each of the sanitizer's tools."""
    cases = json.loads((folder / "cases.json").read_text())
    result: dict[str, dict[str, object]] = {"built": {}, "checked": {}, "sanitizer": {}}

    def save() -> None:
        (out / "alone.json").write_text(json.dumps(result, indent=1))

    begun = time.time()
    with ThreadPoolExecutor(os.cpu_count() or 4) as pool:
        result["built"] = dict(pool.map(lambda name: _build(folder, name), cases))
    save()
    built = [name for name in cases if result["built"][name]["rc"] == 0]
    print(f"built {len(built)} of {len(cases)} in {time.time() - begun:.0f} s")
    start = [sys.executable, __file__, "cases", str(folder)]
    one = start + [name for name in built if not name.startswith("planted-")]
    done = subprocess.run(one, capture_output=True, text=True, check=False, timeout=100)
    print(done.stderr[-500:])
    result["checked"] = json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}
    save()
    wrong = {n: c for n, c in result["checked"].items() if c.get("error") or c["worst"] > 2e-4}
    print(f"checked {len(result['checked'])}, wrong: {wrong or 'none'}")
    for tool in ("memcheck", "racecheck", "initcheck", "synccheck"):
        found = result["sanitizer"][tool] = _sanitized(tool, one)
        print(tool, found["rc"], found["ran"], found["tail"][-1:])
        if tool in _PLANTED:
            planted = _sanitized(tool, [*start, f"planted-{tool}"])
            result["sanitizer"][f"{tool}, a planted fault"] = planted
            print(tool, "planted", planted["rc"], planted["tail"][-1:])
        save()


def _build(folder: Path, name: str) -> tuple[str, dict[str, object]]:
    """A case's library, with the registers that it takes."""
    command = ["nvcc", "-std=c++17", "-O3", "-gencode=arch=compute_90a,code=sm_90a", "-lineinfo"]
    command += ["-Xptxas", "-v", "-shared", "-Xcompiler", "-fPIC", "-cudart", "static"]
    _BUILT.mkdir(exist_ok=True)
    command += [str(folder / f"{name}.cu"), "-o", str(_BUILT / f"{name}.so")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    report = {
        "rc": done.returncode,
        "registers": re.findall(r"Used (\d+) registers", done.stderr),
        "spills": re.findall(r"(\d+) bytes spill", done.stderr),
    }
    return name, report if not done.returncode else report | {"error": done.stderr[-800:]}


def _sanitized(tool: str, command: list[str]) -> dict[str, object]:
    """What a tool of compute-sanitizer says of a command."""
    begun = time.time()
    whole = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", *command]
    try:
        done = subprocess.run(whole, capture_output=True, text=True, check=False, timeout=75)
    except (subprocess.TimeoutExpired, OSError) as error:
        return {"rc": None, "tail": [str(error)[:300]], "seconds": time.time() - begun}
    lines = done.stdout.splitlines()
    tail = [line for line in lines if line.startswith("=========")]
    ran = [len(json.loads(line)) for line in lines if line.startswith("{")]
    return {
        "rc": done.returncode,
        "ran": sum(ran),
        "tail": tail[-12:],
        "seconds": time.time() - begun,
    }


def check(folder: Path, names: list[str]) -> None:
    """Run cases that are built; prints the largest difference of each from the emulator's results, as JSON."""
    cases = json.loads((folder / "cases.json").read_text())
    found = {}
    for name in names:
        library = ctypes.CDLL(str(_BUILT / f"{name}.so"))
        with np.load(folder / f"{name}.npz") as data:
            inputs = [np.ascontiguousarray(data[f"in{i}"]) for i in range(32) if f"in{i}" in data]
            expected = [data[f"out{i}"] for i in range(8) if f"out{i}" in data]
        outputs = [np.empty_like(array) for array in expected]
        for array in outputs:
            array.view(np.uint8).fill(0xFF)
        arrays = [*inputs, *outputs]
        count = len(arrays)
        error = ctypes.create_string_buffer(500)
        code = library.run(
            (ctypes.c_void_p * count)(*(a.ctypes.data for a in arrays)),
            (ctypes.c_size_t * count)(*(a.nbytes for a in arrays)),
            (ctypes.c_int * count)(*([0] * len(inputs) + [1] * len(outputs))),
            count,
            (ctypes.c_uint * 3)(*cases[name]["grid"]),
            (ctypes.c_uint * 3)(*cases[name]["threads"]),
            error,
            ctypes.c_size_t(500),
        )
        if code:
            found[name] = {"error": error.value.decode()}
            continue
        worst = 0.0
        np.seterr(invalid="ignore")  # where both are infinite
        for made, wanted in zip(outputs, expected, strict=True):
            one, other = made.astype(np.float64), wanted.astype(np.float64)
            scale = max(1.0, float(np.abs(other[np.isfinite(other)]).max(initial=0)))
            gap = np.where(one == other, 0, np.abs(one - other)).max() / scale
            worst = max(worst, float(gap) if np.isfinite(gap) else 1e9)
        found[name] = {"worst": worst}
    print(json.dumps(found))


if __name__ == "__main__":
    what, folder = sys.argv[1], Path(sys.argv[2])
    if what == "dump":
        dump(folder)
    elif what == "run":
        run(folder, Path(sys.argv[3]))
    else:
        check(folder, sys.argv[3:])
