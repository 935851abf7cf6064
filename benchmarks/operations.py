"""Products at the published model's geometry, one by one, against ggml, NumPy and torch.

    python benchmarks/operations.py

Cases are an expert's matrices (2560 x 640) and the head (248,320 rows), for one row (decode) up to 512 (prefill).
Weights are cold. Writes `benchmarks/results/<date>-<machine>-operations.json`.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bandwidth import build, compile_program, read_bandwidth
from engines import CHILDREN, run_child
from machine import load_average
from peers import Peers, default_folder
from report import table
from results import measurement, median_of, new_run, save

LIBRARIES = ("cherenkov", "ggml", "numpy", "torch-bf16", "torch-int4")
_COPIES_BYTES = 256_000_000
_SOURCE = Path(__file__).resolve().parent / "ggml_operations.cpp"


@dataclass(frozen=True, slots=True)
class Case:
    """Products of a matrix `[rows, cols]` with `batch` vectors."""

    name: str
    rows: int
    cols: int
    batches: tuple[int, ...]

    def job(self) -> dict[str, Any]:
        """For the children."""
        return {
            "name": self.name,
            "rows": self.rows,
            "cols": self.cols,
            "batches": self.batches,
        }


CASES = (
    Case("expert gate or up", 640, 2560, (1, 2, 4, 8, 32, 128, 512)),
    Case("expert down", 2560, 640, (1, 2, 4, 8, 32, 128, 512)),
    Case("head", 248_320, 2560, (1, 4)),
)


def main() -> None:
    args = _arguments()
    peers = Peers(args.peers_dir.expanduser().resolve())
    probe = build(peers.programs)
    keys = ("rounds", "seconds", "threads", "libraries", "precision", "isa")
    run = new_run("operations", {k: getattr(args, k) for k in keys})
    run["versions"] |= {f"peer {name}": text for name, text in peers.versions().items()}
    samples: dict[str, dict[int, list[dict[str, Any]]]] = {}
    loads, rates = [], []
    for number in range(args.rounds):
        loads.append(load_average())
        rates.append(read_bandwidth(probe, args.threads))
        for threads in args.threads:
            for library in args.libraries:
                result = _measure(library, threads, args, peers)
                samples.setdefault(library, {}).setdefault(threads, []).append(result)
        print(f"round {number + 1}/{args.rounds}", file=sys.stderr, flush=True)
    run["load"] = measurement(loads, "processes")
    run["bandwidth"] = {
        str(t): measurement([rate[t][1] for rate in rates], "GB/s") for t in args.threads
    }
    run["operations"] = _collect(samples)
    run["details"] = {name: by[args.threads[0]][0]["detail"] for name, by in samples.items()}
    _print(run, args.threads)
    print(f"\nkept in {save(run, args.output)}", file=sys.stderr)


def _measure(library: str, threads: int, args: argparse.Namespace, peers: Peers) -> dict[str, Any]:
    """One library at one number of threads, every case."""
    if library == "ggml":
        program = _ggml_program(peers)
        cases = [f"{c.name}:{c.rows}:{c.cols}:{','.join(map(str, c.batches))}" for c in CASES]
        command = [str(program), str(threads), str(args.seconds), str(_COPIES_BYTES), *cases]
    else:
        job = {
            "threads": threads,
            "seconds": args.seconds,
            "copies_bytes": _COPIES_BYTES,
            "cases": [case.job() for case in CASES],
            "precision": args.precision,
            "isa": args.isa,
        }
        python = peers.transformers if library.startswith("torch") else Path(sys.executable)
        command = [str(python), str(CHILDREN / "operations.py"), library, json.dumps(job)]
    count = str(threads)
    printed, _ = run_child(command, OPENBLAS_NUM_THREADS=count, OMP_NUM_THREADS=count)
    result: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return result


def _ggml_program(peers: Peers) -> Path:
    libraries = peers.llama_build / "ggml/src"
    names = ("libggml.a", "libggml-cpu.a", "libggml-base.a")
    links = [str(libraries / name) for name in names]
    include = f"-I{peers.llama_source / 'ggml/include'}"
    return compile_program(_SOURCE, peers.programs, include, *links, "-fopenmp", "-ldl")


def _collect(samples: dict[str, dict[int, list[dict[str, Any]]]]) -> dict[str, Any]:
    """Measurements by case, batch, threads and library."""
    collected: dict[str, Any] = {}
    for case in CASES:
        for batch in map(str, case.batches):
            for library, by_threads in samples.items():
                for threads, results in by_threads.items():
                    place = collected.setdefault(case.name, {}).setdefault(batch, {})
                    times = [result["us"][case.name][batch] for result in results]
                    place.setdefault(str(threads), {})[library] = measurement(times, "us")
    return collected


def _print(run: dict[str, Any], threads: list[int]) -> None:
    libraries = list(run["details"])
    for count in map(str, threads):
        rows = []
        for case in CASES:
            for batch in map(str, case.batches):
                times = [
                    median_of(run, "operations", case.name, batch, count, n) for n in libraries
                ]
                rows.append([f"{case.name} x{batch}", *map(_microseconds, times)])
        print(f"\n{count} threads, microseconds")
        print(table(["product", *libraries], rows))
    print(", ".join(f"{name}: {detail}" for name, detail in run["details"].items()))


def _microseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--peers-dir", type=Path, default=default_folder())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.2, help="of each product in a round")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--libraries", nargs="+", choices=LIBRARIES)
    parser.add_argument("--precision", default="")
    parser.add_argument("--isa", default="")
    parser.add_argument("--output", default="")
    args = parser.parse_args()
    if args.libraries is None:
        installed = Peers(args.peers_dir.expanduser().resolve()).installed()
        args.libraries = ["cherenkov", "numpy"]
        args.libraries += ["ggml"] if "llama.cpp" in installed else []
        args.libraries += ["torch-bf16", "torch-int4"] if "transformers" in installed else []
    return args


if __name__ == "__main__":
    main()
