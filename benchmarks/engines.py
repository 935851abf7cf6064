"""The engines that are compared. Each sample is a process of its own, so that no engine's threads disturb another's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from machine import clean_environment

if TYPE_CHECKING:
    from collections.abc import Callable

    from peers import ModelFiles, Peers

__all__ = ["Engine", "Job", "Sample", "make_engines", "run_child"]

CHILDREN = Path(__file__).resolve().parent / "children"
_ROOT = CHILDREN.parent.parent


@dataclass(frozen=True, slots=True)
class Job:
    """What a sample measures: `decode` tokens after `prompt` tokens, and a first token after `prefill` tokens.

    `decode` or `prefill` may be 0: not measured.
    """

    threads: tuple[int, ...]
    prompt: int = 32
    decode: int = 64
    prefill: int = 512


@dataclass(frozen=True, slots=True)
class Sample:
    """Tokens per second by threads (`"1"`, `"2"`, or `"own"`) and by `decode` and `prefill`, and peak memory."""

    rates: dict[str, dict[str, float]]
    peak_bytes: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Engine:
    """One row of the table."""

    name: str
    weights: str
    measure: Callable[[Job], Sample]


def make_engines(
    names: list[str], peers: Peers, files: ModelFiles, options: dict[str, str]
) -> list[Engine]:
    """The rows asked for. `options` go to our own engine: backend, precision, isa, pool."""
    python = Path(sys.executable)

    def ours(job: Job) -> Sample:
        given = _given(job, model=str(files.store), **options)
        return _python_sample(python, "cherenkov_engine.py", given)

    def transformers(dtype: str) -> Callable[[Job], Sample]:
        def measure(job: Job) -> Sample:
            given = _given(_shorter(job, 4, 32), model=str(files.checkpoint), dtype=dtype)
            return _python_sample(peers.transformers, "transformers_engine.py", given)

        return measure

    def mlx(job: Job) -> Sample:
        given = _given(_shorter(job, 4, 8, prompt=8), model=str(files.mlx))
        return _python_sample(peers.mlx, "mlx_engine.py", given)

    made = {
        "cherenkov": [Engine("cherenkov", "4-bit", ours)],
        "llama.cpp": [Engine("llama.cpp", "Q4_0", lambda job: _llama_sample(peers, files, job))],
        "transformers": [
            Engine("transformers BF16", "BF16", transformers("bfloat16")),
            Engine("transformers F32", "F32", transformers("float32")),
        ],
        "mlx-vlm": [Engine("mlx-vlm", "4-bit", mlx)],
    }
    return [engine for name in names for engine in made[name]]


def run_child(command: list[str], **environment: str) -> tuple[str, int]:
    """Run a program to its end. Returns what it printed, and its peak resident memory in bytes.

    Raises:
        SystemExit: it failed; says with what.
    """
    path = os.pathsep.join(p for p in (str(_ROOT), os.environ.get("PYTHONPATH")) if p)
    # What is guessed ahead is `speculate.py`'s to measure; random weights guess nothing right.
    given = {"PYTHONPATH": path, "CHERENKOV_SPECULATE": "off", "TRANSFORMERS_VERBOSITY": "error"}
    env = clean_environment(**given, **environment)
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=out, stderr=errors, env=env)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        if process.returncode:
            errors.seek(0)
            tail = "\n".join(errors.read().splitlines()[-15:])
            raise SystemExit(f"{Path(command[0]).name} failed with {process.returncode}:\n{tail}")
        unit = 1 if sys.platform == "darwin" else 1024
        return out.read(), usage.ru_maxrss * unit


def _shorter(job: Job, decode: int, prefill: int, prompt: int = 32) -> Job:
    """For an engine that would take minutes: fewer tokens."""
    return replace(
        job,
        prompt=min(job.prompt, prompt),
        decode=min(job.decode, decode),
        prefill=min(job.prefill, prefill),
    )


def _given(job: Job, **more: str) -> dict[str, Any]:
    return {
        "threads": job.threads,
        "prompt": job.prompt,
        "decode": job.decode,
        "prefill": job.prefill,
    } | more


def _python_sample(python: Path, script: str, given: dict[str, Any]) -> Sample:
    command = [str(python), str(CHILDREN / script), json.dumps(given)]
    printed, peak = run_child(command)
    result = json.loads(printed.splitlines()[-1])
    rates = {key: value for key, value in result.items() if isinstance(value, dict)}
    return Sample(rates, peak, result.get("engine", ""))


def _llama_sample(peers: Peers, files: ModelFiles, job: Job) -> Sample:
    """Two runs of llama-bench, one repetition each after its own warm-up."""
    rates: dict[str, dict[str, float]] = {str(t): {} for t in job.threads}
    threads = ",".join(map(str, job.threads))
    common = [str(peers.llama_bench), "-m", str(files.gguf), "-t", threads, "-r", "1", "-o", "json"]
    runs = {
        "decode": ["-p", "0", "-n", str(job.decode), "-d", str(job.prompt)],
        "prefill": ["-p", str(job.prefill), "-n", "0"],
    }
    most = 0
    for what, words in runs.items():
        if not getattr(job, what):
            continue
        printed, peak = run_child([*common, *words])
        most = max(most, peak)
        for row in json.loads(printed):
            rates[str(row["n_threads"])][what] = row["avg_ts"]
    return Sample(rates, most)
