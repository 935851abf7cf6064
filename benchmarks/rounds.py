"""Measuring in rounds: every engine once a round, in an order that rotates, with the memory's bandwidth in between.

Other programs may share the cores, and clocks drift. Engines that take turns meet the same weather; ratios are taken
within a round, and medians over rounds.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from bandwidth import read_bandwidth
from machine import load_average
from results import measurement

if TYPE_CHECKING:
    from pathlib import Path

    from engines import Engine, Job, Sample

__all__ = ["bandwidth_table", "engine_table", "measure_rounds", "ratio_table"]

Rounds = list[dict[str, "Sample"]]
OURS = "cherenkov"


def measure_rounds(
    engines: list[Engine], job: Job, rounds: int, probe: Path
) -> tuple[Rounds, list[dict[int, tuple[float, float]]], list[float]]:
    """Samples by engine, bandwidths and load averages, of each round."""
    samples: Rounds = []
    bandwidths, loads = [], []
    for number in range(rounds):
        bandwidths.append(read_bandwidth(probe, list(job.threads)))
        loads.append(load_average())
        samples.append({})
        turn = number % len(engines)
        for engine in [*engines[turn:], *engines[:turn]]:
            sample = engine.measure(job)
            samples[-1][engine.name] = sample
            shown = "  ".join(_shown(threads, rates) for threads, rates in sample.rates.items())
            print(
                f"round {number + 1}/{rounds}  {engine.name:18} {shown}",
                file=sys.stderr,
                flush=True,
            )
    return samples, bandwidths, loads


def engine_table(engines: list[Engine], samples: Rounds) -> dict[str, Any]:
    """Measurements by engine, threads and kind."""
    table: dict[str, Any] = {}
    for engine in engines:
        mine = [round_[engine.name] for round_ in samples]
        row: dict[str, Any] = {"weights": engine.weights, "detail": mine[-1].detail}
        for threads, kinds in mine[0].rates.items():
            row[threads] = {
                kind: measurement([s.rates[threads][kind] for s in mine], "tok/s")
                for kind in kinds
                if kind in {"decode", "prefill"}
            }
        row["peak_memory"] = measurement([s.peak_bytes / 1e9 for s in mine], "GB")
        table[engine.name] = row
    return table


def ratio_table(samples: Rounds) -> dict[str, Any]:
    """How many times faster than each other engine we are, round by round."""
    table: dict[str, Any] = {}
    if OURS not in samples[0]:
        return table
    for name in samples[0]:
        if name == OURS:
            continue
        for threads in samples[0][OURS].rates:
            for kind in ("decode", "prefill"):
                pairs = [
                    (s[OURS].rates[threads].get(kind), _of(s[name], threads, kind)) for s in samples
                ]
                factors = [ours / theirs for ours, theirs in pairs if ours and theirs]
                if factors:
                    row = table.setdefault(name, {}).setdefault(threads, {})
                    row[kind] = measurement(factors, "x")
    return table


def bandwidth_table(bandwidths: list[dict[int, tuple[float, float]]]) -> dict[str, Any]:
    """Read bandwidth by threads: the median window, and the 90th percentile, which other programs disturb less."""
    return {
        str(threads): {
            "typical": measurement([b[threads][0] for b in bandwidths], "GB/s"),
            "best": measurement([b[threads][1] for b in bandwidths], "GB/s"),
        }
        for threads in bandwidths[0]
    }


def _of(sample: Sample, threads: str, kind: str) -> float | None:
    rates = sample.rates.get(threads) or sample.rates.get("own") or {}
    return rates.get(kind)


def _shown(threads: str, rates: dict[str, float]) -> str:
    parts = (f"{kind} {rates[kind]:.1f}" for kind in ("decode", "prefill") if kind in rates)
    return f"[{threads}] {' '.join(parts)}"
