"""Measure this engine on the CPU, beside others, and keep the figures.

    python benchmarks/peers.py install                 # once; without peers we are measured alone
    python benchmarks/cpu.py                           # everything: table, results file, plots
    python benchmarks/cpu.py --sections engines --rounds 1
    python benchmarks/compare.py OLD.json NEW.json

Writes `benchmarks/results/<date>-<machine>.json` and, if matplotlib is there, `docs/images/*.svg`.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import growth
from bandwidth import build
from engines import Job, make_engines
from machine import load_average
from peers import NAMES, Peers, default_folder, model_files
from random_model import GEOMETRIES
from report import print_run
from results import measurement, new_run, save
from rounds import bandwidth_table, engine_table, measure_rounds, ratio_table
from traffic import decode_bytes

SECTIONS = ("engines", "glow", "context", "experts")


def main() -> None:
    args = _arguments()
    peers = Peers(args.peers_dir.expanduser().resolve())
    options = {k: getattr(args, k) for k in ("backend", "precision", "isa") if getattr(args, k)}
    run = new_run("cpu", _settings(args, options))
    run["versions"] |= {f"peer {name}": text for name, text in peers.versions().items()}
    run["load"] = measurement([load_average()], "processes")
    if "engines" in args.sections:
        _engines(run, args, peers, options)
    threads = max(args.threads)
    if "glow" in args.sections:
        run["glow"] = growth.glow(peers, threads, options, max(args.rounds, 1))
    if "context" in args.sections:
        run["context"] = growth.contexts(peers, args.model, threads, options, args.contexts)
    if "experts" in args.sections:
        names = [n for n in ("cherenkov", "llama.cpp") if n in args.engines]
        job = Job((threads,), prefill=0)
        run["experts"] = growth.experts(peers, names, job, options, args.experts, args.rounds)
    path = save(run, args.output)
    print_run(run)
    print(f"\nkept in {path}", file=sys.stderr)
    if args.plots:
        _plot(run)


def _engines(
    run: dict[str, Any], args: argparse.Namespace, peers: Peers, options: dict[str, str]
) -> None:
    """The table: every engine on the same random weights."""
    files = model_files(peers, args.model, GEOMETRIES[args.model], engines=args.engines)
    engines = make_engines(args.engines, peers, files, options)
    job = Job(tuple(args.threads), args.prompt, args.decode, args.prefill)
    samples, bandwidths, loads = measure_rounds(engines, job, args.rounds, build(peers.programs))
    run["load"] = measurement(loads, "processes")
    run["bandwidth"] = bandwidth_table(bandwidths)
    run["engines"] = engine_table(engines, samples)
    run["ratios"] = ratio_table(samples)
    if "cherenkov" in args.engines:
        run["traffic"] = _traffic(run, decode_bytes(files.store), job.threads)


def _traffic(
    run: dict[str, Any], moved: dict[str, int], threads: tuple[int, ...]
) -> dict[str, Any]:
    """Bytes of a decode step, and what moving them at the measured rate amounts to."""
    table: dict[str, Any] = {
        "bytes_per_token": {k: {"value": v, "unit": "B"} for k, v in moved.items()}
    }
    for count in map(str, threads):
        rates = run["engines"]["cherenkov"][count]["decode"]["samples"]
        achieved = [moved["total"] * rate / 1e9 for rate in rates]
        limits = run["bandwidth"][count]["best"]["samples"]
        shares = [100 * a / b for a, b in zip(achieved, limits, strict=True)]
        table[count] = {
            "achieved": measurement(achieved, "GB/s"),
            "share_of_bandwidth": measurement(shares, "%"),
        }
    return table


def _settings(args: argparse.Namespace, options: dict[str, str]) -> dict[str, Any]:
    keys = ("model", "rounds", "threads", "prompt", "decode", "prefill", "sections", "engines")
    geometry = asdict(replace(GEOMETRIES[args.model]))
    return {k: getattr(args, k) for k in keys} | {"options": options, "geometry": geometry}


def _plot(run: dict[str, Any]) -> None:
    try:
        import plots  # noqa: PLC0415 (matplotlib may be absent)
    except ImportError as error:
        print(f"no plots: {error}", file=sys.stderr)
        return
    for path in plots.write(run):
        print(f"wrote {path}", file=sys.stderr)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--peers-dir", type=Path, default=default_folder())
    parser.add_argument("--model", choices=GEOMETRIES, default="m2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--prompt", type=int, default=32, help="tokens before those decoded")
    parser.add_argument("--decode", type=int, default=64, help="tokens decoded")
    parser.add_argument("--prefill", type=int, default=512, help="tokens of the long prompt")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--engines", nargs="+", choices=("cherenkov", *NAMES))
    parser.add_argument("--contexts", type=int, nargs="+", default=growth.CONTEXTS)
    parser.add_argument("--experts", type=int, nargs="+", default=growth.EXPERTS)
    parser.add_argument("--backend", default="", help="of our own engine; also these two")
    parser.add_argument("--precision", default="")
    parser.add_argument("--isa", default="")
    parser.add_argument("--output", default="", help="file for the run")
    parser.add_argument("--no-plots", dest="plots", action="store_false")
    args = parser.parse_args()
    installed = Peers(args.peers_dir.expanduser().resolve()).installed()
    if args.engines is None:
        args.engines = ["cherenkov", *installed]
    absent = [n for n in args.engines if n in NAMES and n not in installed]
    if absent:
        parser.error(f"not installed: {', '.join(absent)} (python benchmarks/peers.py install)")
    return args


if __name__ == "__main__":
    main()
