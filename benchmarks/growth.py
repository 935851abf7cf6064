"""Sections of a run about this engine itself: a cold start, and how time grows with context and with experts."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engines import CHILDREN, Job, make_engines, run_child
from machine import clean_environment
from peers import Peers, model_files
from random_model import GEOMETRIES
from results import measurement
from rounds import engine_table

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["CONTEXTS", "EXPERTS", "contexts", "experts", "glow"]

CONTEXTS = [1024, 2048, 4096, 8192, 16_384, 32_768]
EXPERTS = [8, 16, 32, 64, 128, 256, 512]
_LAYERS = 4  # of the models with many experts: enough for every kind of layer
_ROOT = CHILDREN.parent.parent


def glow(peers: Peers, threads: int, options: dict[str, str], rounds: int) -> dict[str, Any]:
    """The model that ships with the package: first token of a cold process, and decoding, at first and from then on.

    The first process, which prepares the store if there is none and fills the page cache, does not count.
    """
    _cold_start(peers.folder, threads, options)
    rows = [_cold_start(peers.folder, threads, options) for _ in range(rounds)]
    return {
        "first_token": measurement([r["first_s"] for r in rows], "s"),
        "load": measurement([r["load_s"] for r in rows], "s"),
        "answer": measurement([r["answer_s"] for r in rows], "s"),
        "first_decode": measurement([r["cold"] for r in rows], "tok/s"),
        "decode": measurement([r["decode"] for r in rows], "tok/s"),
    }


def _cold_start(folder: Path, threads: int, options: dict[str, str]) -> dict[str, float]:
    given = {"model": "demo", "threads": threads, "tokens": 256, "options": options}
    command = [sys.executable, str(CHILDREN / "first_token.py"), json.dumps(given)]
    env = clean_environment(PYTHONPATH=str(_ROOT), CHERENKOV_DATA_DIR=str(folder / "data"))
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        first_s = time.perf_counter() - start
        rest = process.stdout.read()
    if process.returncode or line != "first\n":
        raise SystemExit(f"first_token.py failed with {process.returncode}")
    result: dict[str, float] = json.loads(rest)
    return result | {"first_s": first_s}


def contexts(
    peers: Peers, model: str, threads: int, options: dict[str, str], counts: list[int]
) -> dict[str, Any]:
    """Prefill and decode rates after so many tokens, one sample each."""
    files = model_files(peers, model, GEOMETRIES[model], engines=["cherenkov"])
    counts = [c for c in counts if c + 64 <= GEOMETRIES[model].context]
    given = {
        "model": str(files.store),
        "threads": threads,
        "contexts": counts,
        "decode": 32,
        "options": options,
    }
    command = [sys.executable, str(CHILDREN / "cherenkov_contexts.py"), json.dumps(given)]
    printed, peak = run_child(command)
    rates = json.loads(printed.splitlines()[-1])
    table: dict[str, Any] = {
        count: {kind: measurement([rate], "tok/s") for kind, rate in row.items()}
        for count, row in rates.items()
    }
    return table | {"peak_memory": measurement([peak / 1e9], "GB")}


def experts(
    peers: Peers,
    names: list[str],
    job: Job,
    options: dict[str, str],
    counts: list[int],
    rounds: int,
) -> dict[str, Any]:
    """Decode rates of models that differ only in how many experts a layer has. Work per token is the same."""
    table: dict[str, Any] = {}
    for count in counts:
        geometry = replace(GEOMETRIES["m2"], experts=count, layers=_LAYERS)
        name = f"m2-layers{_LAYERS}-experts{count}"
        files = model_files(peers, name, geometry, engines=names, keep=False)
        engines = make_engines(names, peers, files, options)
        samples = [{e.name: e.measure(job) for e in engines} for _ in range(rounds)]
        print(f"{count} experts measured", file=sys.stderr, flush=True)
        table[str(count)] = engine_table(engines, samples)
    return table
