"""What Python costs in a decode step: 48 layers on kernels that return at once.

    python benchmarks/overhead.py

The model has the published number of layers and of experts used, and is small otherwise. Everything but the arithmetic
runs: the trunk, the expert store, the native backend's own Python, sampling, and text. No expert is read from disk.
Writes `benchmarks/results/<date>-<machine>-overhead.json`.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from peers import Peers, default_folder, model_files
from random_model import Geometry
from results import measurement, new_run, save

from cherenkov import Model

if TYPE_CHECKING:
    from numpy.typing import NDArray

_GEOMETRY = Geometry(
    hidden=128,
    layers=48,
    experts=64,
    top_k=10,
    inter=64,
    vocab=2048,
    ngram_base=1000,
    key_heads=1,
    value_heads=2,
    heads=2,
    kv_heads=1,
    head_dim=64,
    lowrank=32,
    context=4096,
)
_TOKENS = 64
_FIRST = np.arange(_GEOMETRY.top_k, dtype=np.int32)


class _Idle:
    """Stands in for the C++ engine: accepts every call, does nothing, and chooses the first experts."""

    def __getattr__(self, _name: str) -> Any:
        return _nothing

    def stretch(self, *given: Any) -> int:
        (_, first, last), (table, _, ids) = given[:3], given[8:11]
        ids[:] = _FIRST
        lacking = (table[first:last, : len(_FIRST)] < 0).any(axis=1)
        return int(lacking.argmax()) if lacking.any() else last - first

    def expert_wave(self, *_given: object) -> bool:
        return True

    def logits(self, _head: object, _wide: object, _rows: object, out: NDArray[Any]) -> None:
        out[:] = 0

    def argmax(self, _head: object, _wide: object, _rows: object, out: NDArray[Any]) -> None:
        out[:] = 80


def _nothing(*_arguments: object) -> None:
    """A call that costs what a call costs."""


def measure(store: Path, rounds: int) -> list[float]:
    """Milliseconds of processor time of a step, from each of so many answers."""
    options = {"backend": "native", "threads": 1, "pool": 1.0, "speculate": "off"}
    with Model.load(store, context_tokens=_TOKENS + 64, **options) as model:
        backend: Any = model._backend
        engine, backend._engine = backend._engine, _Idle()
        times = []
        for count in range(rounds + 1):
            seconds = [_cpu_seconds(model, tokens) for tokens in (1, _TOKENS + 1)]
            if count:  # the first answer reads the experts
                times.append((seconds[1] - seconds[0]) / _TOKENS * 1e3)
        backend._engine = engine
    return times


def _cpu_seconds(model: Model, tokens: int) -> float:
    """Processor time of an answer: waiting for a core does not count."""
    start = time.process_time()
    model.generate("abcdefgh", max_tokens=tokens, raw=True, ignore_eos=True)
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--peers-dir", type=Path, default=default_folder())
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--output", default="")
    args = parser.parse_args()
    peers = Peers(args.peers_dir.expanduser().resolve())
    files = model_files(peers, "overhead", _GEOMETRY, engines=[])
    times = measure(files.store, args.rounds)
    run = new_run("overhead", {"rounds": args.rounds, "layers": _GEOMETRY.layers})
    run["python"] = {"step": measurement(times, "ms")}
    low, median = run["python"]["step"]["low"], run["python"]["step"]["median"]
    print(f"{_GEOMETRY.layers} layers: {median:.3g} ms a step in the median, {low:.3g} ms at best")
    print(f"kept in {save(run, args.output)}", file=sys.stderr)


if __name__ == "__main__":
    main()
