"""Decoding with pools of several sizes, with and without reading ahead: what the disk allows, and what comes of it.

    python benchmarks/pools.py STORE --pools 4 8                      # a store of make_store.py
    python benchmarks/pools.py ~/.cache/cherenkov-benchmarks/models/m2/store --pools 0.1 0.2 0.35 0.5 0.7 --resident

Every sample is a process of its own that gives two answers of `--decode` tokens; the second, which finds the pool filled, is
what is shown. In a round each pool runs all ways in turn, the order rotates, and a ratio is taken within the round. The
disk's bound is what random reads of records give for the bytes that were missing, as if reading were all there is to do;
with `--resident`, the rate with every expert in memory bounds as well. Writes
`benchmarks/results/<date>-<machine>-pools-<name>.json`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from engines import CHILDREN, run_child
from limited import forget
from machine import load_average
from report import table
from results import measurement, new_run, save

from cherenkov.packing.store import PackedStore

WAYS = ("off", "on", "auto")
_UNITS = {
    "decode": "tok/s",
    "hit_rate": "",
    "missing_bytes": "B/token",
    "read_bytes": "B/token",
    "stall_s": "s/token",
    "bound_share": "",
}


def sample(store: Path, pool: float | str, way: str, args: argparse.Namespace) -> dict[str, Any]:
    """One process."""
    job: dict[str, Any] = {"model": str(store), "threads": args.threads, "prompt": args.prompt}
    job |= {"decode": args.decode, "pool": pool, "options": {"lookahead": way}}
    command = [sys.executable, str(CHILDREN / "streaming_engine.py"), json.dumps(job)]
    found: dict[str, Any] = json.loads(run_child(command)[0].splitlines()[-1])
    return found


def disk(store: PackedStore, args: argparse.Namespace) -> dict[str, float]:
    """Rate of reads of records in random order, and the processor time they take."""
    job = {"file": str(store.experts_path), "stride": store.expert_layout.stride_bytes}
    job |= {"threads": 3, "bytes": args.disk_bytes}
    command = [sys.executable, str(CHILDREN / "disk.py"), json.dumps(job)]
    found: dict[str, float] = json.loads(run_child(command)[0].splitlines()[-1])
    return found


Samples = dict[str, list[float]]


def measure(args: argparse.Namespace, store: PackedStore) -> tuple[Samples, dict[str, Any]]:
    """Samples of the machine, and by pool and way."""
    pools: dict[str, dict[str, Samples]] = {}
    machine: Samples = {}
    for number in range(args.rounds):
        forget(store.path)
        facts = disk(store, args)
        if args.resident:
            facts["resident"] = sample(store.path, "max", "off", args)["warm"]["decode"]
        for key, value in facts.items():
            machine.setdefault(key, []).append(value)
        turn = number % len(args.ways)
        for pool in args.pools:
            rates: dict[str, float] = {}
            ways = pools.setdefault(f"{pool:g}", {})
            for way in args.ways[turn:] + args.ways[:turn]:
                found = sample(store.path, pool, way, args)
                one = found["warm"] | {"share": found["share"]}
                rates[way] = one["decode"]
                one["bound_share"] = one["decode"] / _bound(one, facts)
                kept = ways.setdefault(way, {})
                for key in ("share", *_UNITS):
                    kept.setdefault(key, []).append(one[key])
                print(f"{pool:g} GB {way:4} {one['decode']:.2f} tok/s", file=sys.stderr, flush=True)
            for way in rates.keys() - {"off"} if "off" in rates else ():
                ways[way].setdefault("ratio", []).append(rates[way] / rates["off"])
    return machine, pools


def _bound(one: dict[str, float], facts: dict[str, float]) -> float:
    """Tokens a second at most."""
    reading = one["missing_bytes"] / (facts["rate"] * 1e9)
    return 1 / max(reading, 1 / facts["resident"] if "resident" in facts else 0.0)


def summary(machine: Samples, pools: dict[str, Any]) -> dict[str, Any]:
    """Medians of the samples."""
    units = {"resident": "tok/s", "rate": "GB/s", "cpu_s_per_gb": "s/GB", "ratio": "x off"} | _UNITS
    made: dict[str, Any] = {"machine": {k: measurement(v, units[k]) for k, v in machine.items()}}
    for pool, ways in pools.items():
        for way, rows in ways.items():
            row = {k: measurement(v, units.get(k, "")) for k, v in rows.items()}
            made.setdefault(f"{pool} GB", {})[way] = row
    return made


def printed(found: dict[str, Any]) -> str:
    """The table, for people."""
    rows = []
    for pool, ways in found.items():
        if pool == "machine":
            continue
        for way, row in ways.items():
            value = {k: v["median"] for k, v in row.items()}
            ratio = f"{value['ratio']:.3f}" if "ratio" in value else ""
            rows.append([pool, f"{value['share']:.0%}", way, f"{value['decode']:.3g}", ratio])
            rows[-1] += [f"{value['hit_rate']:.0%}", f"{value['missing_bytes'] / 1e6:.1f}"]
            rows[-1] += [f"{value['read_bytes'] / 1e6:.1f}", f"{value['stall_s'] * 1e3:.1f}"]
            rows[-1] += [f"{value['bound_share']:.0%}"]
    head = ["pool", "of all", "ahead", "tok/s", "to off", "hits"]
    head += ["missing MB/token", "read MB/token", "stall ms/token", "of the bound"]
    facts = {k: v["median"] for k, v in found["machine"].items()}
    text = f"disk, random records: {facts['rate']:.3g} GB/s, {facts['cpu_s_per_gb']:.3g} s of processor time a GB"
    if "resident" in facts:
        text += f"; all experts in memory: {facts['resident']:.3g} tok/s"
    return f"{table(head, rows)}\n\n{text}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("store", type=Path)
    parser.add_argument("--pools", nargs="+", type=float, required=True, help="in GB")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=32, help="tokens before them")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--disk-bytes", type=int, default=10**9)
    parser.add_argument("--resident", action="store_true", help="bound by computing as well")
    parser.add_argument("--name", default="", help="of the results file; the folder's if left out")
    parser.add_argument("--output", default="")
    args = parser.parse_args()
    store = PackedStore.open(args.store.expanduser().resolve())
    name = args.name or store.path.parent.name
    run = new_run(f"pools-{name}", {"rounds": args.rounds, "decode": args.decode})
    run["load"] = measurement([load_average()], "processes")
    run["streaming"] = summary(*measure(args, store))
    print(printed(run["streaming"]))
    print(f"\nkept in {save(run, args.output)}", file=sys.stderr)


if __name__ == "__main__":
    main()
