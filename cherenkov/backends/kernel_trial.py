"""A short trial of a GPU: what two small kernels compute there, beside what NumPy does, before `auto` trusts it with answers.

To compile them takes seconds on NVIDIA, so what has passed is noted in the cache folder: it holds for this device, system and MLX, and
until a kernel changes.
"""

from __future__ import annotations

import hashlib
import json
import platform
from importlib import metadata
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np

from cherenkov.backends import kernel_calls as calls
from cherenkov.backends import product_calls as products
from cherenkov.backends import tile_calls as tiles
from cherenkov.backends.kernel_catalogue import KERNELS
from cherenkov.backends.mlx_matrices import Matrix
from cherenkov.config import cache_folder
from cherenkov.errors import DiskError
from cherenkov.packing.durable import write_file

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from cherenkov.backends.launches import Launch, Launcher

__all__ = ["misfit", "tried"]

_OUT, _COLUMNS, _BITS, _GROUP = 256, 128, 4, 64
"""A shape that goes through matrix units where there are some."""


def tried(launch: Launcher) -> str:
    """As `misfit`, unless it has passed here before. What fails is tried again the next time."""
    facts = _facts(launch)
    name = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
    try:
        note = cache_folder() / "trials" / f"{name}.json"
        if note.exists():
            return ""
        note.parent.mkdir(parents=True, exist_ok=True)
    except OSError:  # it cannot be kept
        return misfit(launch)
    found = misfit(launch)
    if not found:
        _keep(note, facts)
    return found


def _keep(note: Path, facts: dict[str, str]) -> None:
    try:
        write_file(note, json.dumps(facts, indent=1).encode())
    except DiskError:
        return  # then the next process tries again


def _facts(launch: Launcher) -> dict[str, str]:
    """What a trial's result depends on."""
    device = mx.device_info()
    texts = "".join(kernel.header + kernel.body for kernel in KERNELS.values())
    return {
        "device": f"{device.get('device_name')} {device.get('architecture')}",
        "system": platform.platform(),
        "mlx": metadata.version("mlx"),
        "launcher": f"{type(launch).__name__}, tiles {launch.tiles}",
        "kernels": hashlib.sha256(texts.encode()).hexdigest()[:16],
    }


def misfit(launch: Launcher) -> str:
    """What a GPU computes wrongly: a product through codes, or the place of the largest; empty if neither.

    All numbers are whole and small, so that every sum is exact in any order, and the largest is there twice.
    """
    rng = np.random.default_rng(0)
    half = rng.integers(0, 1 << _BITS, (_OUT // 2, _COLUMNS))
    codes = np.concatenate([half, half])
    scales = np.tile(rng.integers(1, 4, (_OUT // 2, _COLUMNS // _GROUP)), (2, 1))
    x = rng.integers(-8, 9, (1, _COLUMNS))
    values = (codes - 8) * np.repeat(scales, _GROUP, axis=1)
    expected = (x @ values.T).astype(np.float32)
    rows, matrix = mx.array(x.astype(np.float32)), _matrix(codes, scales)
    multiply = tiles.product if launch.tiles else products.product
    if found := _compared(launch, multiply(rows, matrix), expected):
        return found
    best, places = launch(calls.argmax(mx.array(expected)))
    return _compared(launch, calls.argmax(best, places), expected.max(), expected.argmax())


def _compared(launch: Launcher, call: Launch, *expected: Any) -> str:
    for made, wanted in zip(launch(call), expected, strict=True):
        wrong = int((np.array(made) != wanted).sum())
        if wrong:
            return f"kernel {call.kernel.name} gives {wrong} wrong of {made.size} numbers"
    return ""


def _matrix(codes: NDArray[Any], scales: NDArray[Any]) -> Matrix:
    """Codes that mean `(code - 8) * scale`."""
    shifts = np.arange(0, 32, _BITS)
    words = (codes.reshape(len(codes), -1, len(shifts)) << shifts).sum(axis=2).astype(np.uint32)
    step = mx.array(scales).astype(mx.bfloat16)
    return Matrix(codes.shape, _BITS, _GROUP, mx.array(words), step, step * -8)
