"""Decoding with pools of several sizes, with and without reading ahead: what the disk allows, and what comes of it.

    python benchmarks/pools.py STORE --pools 4 8                      # a store of make_store.py
    python benchmarks/pools.py ~/.cache/cherenkov-benchmarks/models/m2/store --pools 0.1 0.25 0.4 0.6 --together

Every sample is a process of its own that gives two answers of `--decode` tokens; the second, which finds the pool filled, is
what is shown. With `--together` one process has a model for each way, and they answer in turn: that takes more memory, and tells small
differences. The order rotates, and a ratio is taken within a round. Bytes are missing
that neither were in memory nor would have been without reading ahead. The bound is what random reads of records give for them, or what
computing alone takes, whichever is slower: the rate with every expert in memory (`--resident`), or else, what a step without reading
ahead does not wait. Writes
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


def samples(store: Path, pool: float, args: argparse.Namespace) -> dict[str, Any]:
    """Samples by way: from one process each, or all from one in turn."""
    job: dict[str, Any] = {"model": str(store), "threads": args.threads, "prompt": args.prompt}
    job |= {"decode": args.decode, "pool": pool}
    if args.together:
        return _child("streaming_engine.py", job | {"ways": args.ways, "rounds": args.rounds})
    ways: dict[str, list[Any]] = {way: [] for way in args.ways}
    share = 0.0
    for number in range(args.rounds):
        turn = number % len(args.ways)
        for way in args.ways[turn:] + args.ways[:turn]:
            found = _child("streaming_engine.py", job | {"options": {"lookahead": way}})
            ways[way].append(found["warm"])
            share = found["share"]
    return {"ways": ways, "share": share}


def _child(script: str, job: dict[str, Any]) -> dict[str, Any]:
    command = [sys.executable, str(CHILDREN / script), json.dumps(job)]
    found: dict[str, Any] = json.loads(run_child(command)[0].splitlines()[-1])
    return found


Samples = dict[str, list[float]]


def measure(args: argparse.Namespace, store: PackedStore) -> tuple[Samples, dict[str, Any]]:
    """Samples of the machine, and by pool and way."""
    pools: dict[str, dict[str, Samples]] = {}
    machine: Samples = {}
    for pool in args.pools:
        facts = _disk(store, args)
        if args.resident:
            facts["resident"] = args.resident
        for key, value in facts.items():
            machine.setdefault(key, []).append(value)
        found = samples(store.path, pool, args)
        for number in range(args.rounds):
            ones = {way: found["ways"][way][number] for way in args.ways}
            computing = 1 / facts["resident"] if args.resident else 0.0
            if not args.resident and "off" in ones:
                computing = 1 / ones["off"]["decode"] - ones["off"]["stall_s"]
            for way, one in ones.items():
                one |= {"share": found["share"]}
                one["bound_share"] = one["decode"] / _bound(one, facts["rate"], computing)
                if way != "off" and "off" in ones:
                    one["ratio"] = one["decode"] / ones["off"]["decode"]
                kept = pools.setdefault(f"{pool:g}", {}).setdefault(way, {})
                for key in one.keys() & {"share", "ratio", *_UNITS}:
                    kept.setdefault(key, []).append(one[key])
        print(f"{pool:g} GB done", file=sys.stderr, flush=True)
    return machine, pools


def _disk(store: PackedStore, args: argparse.Namespace) -> dict[str, float]:
    """Rate of reads of records in random order, and the processor time they take."""
    forget(store.path)
    job = {"file": str(store.experts_path), "stride": store.expert_layout.stride_bytes}
    return _child("disk.py", job | {"threads": 3, "bytes": args.disk_bytes})


def _bound(one: dict[str, float], rate: float, computing: float) -> float:
    """Tokens a second at most, by the disk's GB a second and seconds of computing."""
    return 1 / max(one["missing_bytes"] / (rate * 1e9), computing)


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
    parser.add_argument("--resident", type=float, default=0.0, help="tok/s with all in memory")
    parser.add_argument("--together", action="store_true", help="all ways in one process, in turn")
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
