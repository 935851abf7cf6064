"""Decoding when the experts do not fit: this engine beside others, under limits that count the page cache.

    python benchmarks/peers.py install
    python benchmarks/streaming.py                        # the table, the results file, the plot
    python benchmarks/streaming.py --limits 700 --rounds 1 --engines cherenkov

Every sample begins with its files out of the page cache, in a control group with that much memory. We choose the pool
ourselves, from the memory that the group leaves (`pool="adaptive"` would keep a quarter for the rest of a
machine, which is not there). The bound is what the disk gives for the bytes that were missing, or what the processor
does with all experts in memory, whichever is less. Writes `benchmarks/results/<date>-<machine>-streaming.json`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines import CHILDREN, run_child
from limited import forget, limit, within
from machine import load_average
from peers import Peers, default_folder, gguf_of, model_files
from random_model import GEOMETRIES
from report import table
from results import measurement, new_run, save

from cherenkov.packing.store import PackedStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from peers import ModelFiles

_LIMITS = (700, 1000, 1400)
_BUDGETS = {
    700: 0.1,
    1000: 0.3,
    1400: 0.6,
}  # of mlx-vlm's expert cache in GB, as much as it survives
_ELSE_MB = 300  # what this engine needs beside the pool, 190 at its peak, with room for the reads of a prompt
_TOKENS = {"cherenkov": 64, "llama.cpp": 8, "mlx-vlm": 16}
NAMES = tuple(_TOKENS)


def ours(
    _peers: Peers, files: ModelFiles, megabytes: int, group: Path, options: dict[str, Any]
) -> dict[str, Any]:
    forget(files.store)
    job = {"model": str(files.store), "threads": 2, "prompt": 32, "decode": _TOKENS["cherenkov"]}
    job |= {"pool": (megabytes - _ELSE_MB) / 1000, "options": options}
    command = [sys.executable, str(CHILDREN / "streaming_engine.py"), json.dumps(job)]
    printed, _ = run_child(within(group, command))
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return found


def llama(
    peers: Peers, files: ModelFiles, _megabytes: int, group: Path, _options: dict[str, Any]
) -> dict[str, Any]:
    gguf = gguf_of(peers, files, "Q8_0")
    forget(gguf)
    words = ["-m", str(gguf), "-t", "2", "-r", "1", "-o", "json", "-p", "0", "--no-warmup"]
    tokens = ["-n", str(_TOKENS["llama.cpp"]), "-d", "8"]
    printed, _ = run_child(within(group, [str(peers.llama_bench), *words, *tokens]))
    return {"cold": {"decode": json.loads(printed)[0]["avg_ts"]}}


def mlx(
    peers: Peers, files: ModelFiles, megabytes: int, group: Path, _options: dict[str, Any]
) -> dict[str, Any]:
    forget(files.mlx)
    job = {"model": str(files.mlx), "threads": [2], "prompt": 32, "prefill": 0}
    job |= {"decode": _TOKENS["mlx-vlm"], "expert_cache_gb": _BUDGETS.get(megabytes, 0.1)}
    command = [str(peers.mlx), str(CHILDREN / "mlx_engine.py"), json.dumps(job)]
    printed, _ = run_child(within(group, command))
    return {"cold": {"decode": json.loads(printed.splitlines()[-1])["own"]["decode"]}}


_ENGINES: dict[str, Callable[..., dict[str, Any]]] = {
    "cherenkov": ours,
    "llama.cpp": llama,
    "mlx-vlm": mlx,
}


def resident(files: ModelFiles, options: dict[str, Any]) -> float:
    """Tokens a second with every expert in memory."""
    job = {"model": str(files.store), "threads": 2, "prompt": 32, "decode": 64, "pool": "max"}
    command = [
        sys.executable,
        str(CHILDREN / "streaming_engine.py"),
        json.dumps(job | {"options": options}),
    ]
    printed, _ = run_child(command)
    rate: float = json.loads(printed.splitlines()[-1])["warm"]["decode"]
    return rate


def disk(files: ModelFiles) -> dict[str, float]:
    """Rate of reads of records in random order, and the processor time they take."""
    store = PackedStore.open(files.store)
    forget(files.store)
    job = {"file": str(store.experts_path), "stride": store.expert_layout.stride_bytes}
    job |= {"threads": 3, "bytes": 10**9}
    printed, _ = run_child([sys.executable, str(CHILDREN / "disk.py"), json.dumps(job)])
    found: dict[str, float] = json.loads(printed.splitlines()[-1])
    return found


def measure(args: argparse.Namespace, peers: Peers, files: ModelFiles) -> dict[str, Any]:
    """Samples by limit and engine, and what bounds ours."""
    options = {"check_records": "never"} if args.unchecked else {}
    found: dict[str, Any] = {}
    for number in range(args.rounds):
        sample = {"resident": resident(files, options), "disk": disk(files)}
        for key, value in (("resident", sample["resident"]), *sample["disk"].items()):
            found.setdefault("machine", {}).setdefault(key, []).append(value)
        for megabytes in args.limits:
            names = (
                args.engines[number % len(args.engines) :]
                + args.engines[: number % len(args.engines)]
            )
            for name in names:
                one = _sample(name, peers, files, megabytes, options)
                if one is None:
                    continue
                if name == "cherenkov":
                    for case in ("cold", "warm"):
                        one[case]["bound_share"] = one[case]["decode"] / _bound(one[case], sample)
                found.setdefault(str(megabytes), {}).setdefault(name, []).append(one)
                rate = one.get("warm", one["cold"])["decode"]
                print(
                    f"round {number + 1}/{args.rounds} {megabytes} MB {name:10} {rate:.2f} tok/s",
                    file=sys.stderr,
                    flush=True,
                )
    return found


def _sample(
    name: str, peers: Peers, files: ModelFiles, megabytes: int, options: dict[str, Any]
) -> dict[str, Any] | None:
    """One process under a limit; None if it did not survive, which is told, and makes no row of the table."""
    try:
        with limit(megabytes) as group:
            return _ENGINES[name](peers, files, megabytes, group, options)
    except SystemExit as error:
        if name == "cherenkov":
            raise
        print(f"{megabytes} MB {name}: {str(error).splitlines()[0]}", file=sys.stderr, flush=True)
        return None


def _bound(one: dict[str, float], sample: dict[str, Any]) -> float:
    """Tokens a second that the disk, or the processor, allows at most."""
    reading = one["missing_bytes"] / (sample["disk"]["rate"] * 1e9)
    return 1 / max(reading, 1 / sample["resident"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--peers-dir", type=Path, default=default_folder())
    parser.add_argument("--engines", nargs="+", choices=NAMES, default=None)
    parser.add_argument("--limits", nargs="+", type=int, default=list(_LIMITS), help="in MB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", choices=sorted(GEOMETRIES), default="m2")
    parser.add_argument("--unchecked", action="store_true", help="do not compare checksums")
    parser.add_argument("--output", default="")
    args = parser.parse_args()
    peers = Peers(args.peers_dir.expanduser().resolve())
    args.engines = args.engines or [n for n in NAMES if n == "cherenkov" or n in peers.installed()]
    files = model_files(
        peers,
        args.model,
        GEOMETRIES[args.model],
        engines=[n for n in args.engines if n == "mlx-vlm"],
    )
    run = new_run(
        "streaming", {"rounds": args.rounds, "limits_mb": args.limits, "unchecked": args.unchecked}
    )
    run["load"] = measurement([load_average()], "processes")
    run["streaming"] = summary(measure(args, peers, files))
    print(printed(run["streaming"]))
    print(f"\nkept in {save(run, args.output)}", file=sys.stderr)


_UNITS = {
    "decode": "tok/s",
    "first_s": "s",
    "hit_rate": "",
    "missing_bytes": "B/token",
    "read_bytes": "B/token",
    "stall_s": "s/token",
    "cpu_s": "s/token",
    "bound_share": "",
}


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """Medians of the samples."""
    units = {"resident": "tok/s", "rate": "GB/s", "cpu_s_per_gb": "s/GB"}
    made: dict[str, Any] = {
        "machine": {k: measurement(v, units[k]) for k, v in found["machine"].items()}
    }
    for megabytes, engines in found.items():
        if megabytes == "machine":
            continue
        for name, samples in engines.items():
            for case in samples[0].keys() & {"cold", "warm"}:
                row = {
                    k: measurement([s[case][k] for s in samples], _UNITS[k])
                    for k in samples[0][case]
                }
                made.setdefault(megabytes, {}).setdefault(name, {})[case] = row
        for name in engines.keys() - {"cherenkov"}:
            pairs = zip(engines.get("cherenkov", []), engines[name], strict=False)
            ratios = [a["cold"]["decode"] / b["cold"]["decode"] for a, b in pairs]
            if ratios:
                made[megabytes][name]["ratio"] = measurement(ratios, "x")
    return made


def printed(found: dict[str, Any]) -> str:
    """The tables, for people."""
    rows = []
    for megabytes, engines in found.items():
        if megabytes == "machine":
            continue
        for name, cases in engines.items():
            for case in sorted(cases.keys() & {"cold", "warm"}):
                row = cases[case]
                ratio = f"{cases['ratio']['median']:.3g}x" if "ratio" in cases else ""
                more = ["", "", "", ""]
                if name == "cherenkov":
                    value = {k: v["median"] for k, v in row.items()}
                    more = [
                        f"{value['hit_rate']:.0%}",
                        f"{value['missing_bytes'] / 1e6:.1f}",
                        f"{value['read_bytes'] / 1e6:.1f}",
                        f"{value['bound_share']:.0%}",
                    ]
                rows.append(
                    [f"{megabytes} MB", name, case, f"{row['decode']['median']:.3g}", ratio, *more]
                )
    head = [
        "limit",
        "engine",
        "files and pool",
        "decode tok/s",
        "we are faster",
        "hits",
        "missing MB/token",
        "read MB/token",
        "of the bound",
    ]
    machine = {k: v["median"] for k, v in found["machine"].items()}
    facts = f"all experts in memory: {machine['resident']:.3g} tok/s; disk, random records: {machine['rate']:.3g} GB/s, {machine['cpu_s_per_gb']:.3g} s of processor time a GB"
    return f"{table(head, rows)}\n\n{facts}"


if __name__ == "__main__":
    main()
