"""What choosing a token costs, by setting, with a vocabulary of the published size.

    python benchmarks/sampling.py

Each setting chooses tokens from four kinds of logits, with and without log-probabilities, after a prompt of 100,000
tokens that follow Zipf's law. Printed is the costliest kind in processor time, by its median and by its fastest run: neighbours
on the machine only ever add. With the kernels, and without. Writes `benchmarks/results/<date>-<machine>-sampling.json`.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from results import measurement, new_run, save

from cherenkov import Sampling, passes
from cherenkov.logprobs import logprobs
from cherenkov.occurrences import Occurrences
from cherenkov.sampling import choose
from cherenkov.selection import Kept

if TYPE_CHECKING:
    from numpy.typing import NDArray

_VOCABULARY = 248_320
_PROMPT = 100_000
_BIAS = {i * 200: 1.0 for i in range(1000)}

SETTINGS = {
    "greedy": Sampling(),
    "temperature": Sampling(1.0),
    "top-k 20, top-p 0.95": Sampling(0.7, top_k=20, top_p=0.95),
    "top-k 5000": Sampling(1.0, top_k=5000),
    "top-p 0.5": Sampling(1.0, top_p=0.5),
    "top-p 0.95": Sampling(1.0, top_p=0.95),
    "top-p 0.999": Sampling(1.0, top_p=0.999),
    "min-p 0.05": Sampling(1.0, min_p=0.05),
    "min-p 1e-6, top-p 0.95": Sampling(1.0, min_p=1e-6, top_p=0.95),
    "greedy, penalties": Sampling(repetition_penalty=1.1),
    "penalties": Sampling(1.0, presence_penalty=1.0, repetition_penalty=1.1),
    "penalties, top-k 20": Sampling(1.0, top_k=20, presence_penalty=1.0, repetition_penalty=1.1),
    "penalties, top-p 0.95": Sampling(1.0, top_p=0.95, frequency_penalty=0.5),
    "1000 biases, top-p 0.95": Sampling(1.0, top_p=0.95, logit_bias=_BIAS),
    "top-k 50000, top-p 0.95": Sampling(1.0, top_k=50_000, top_p=0.95),
    "everything": Sampling(
        0.7,
        top_k=50_000,
        top_p=0.95,
        min_p=1e-5,
        presence_penalty=1.0,
        frequency_penalty=0.1,
        repetition_penalty=1.1,
        logit_bias=_BIAS,
    ),
}


def kinds() -> dict[str, NDArray[np.float32]]:
    """Rows of logits, `[V]`."""
    normal = np.random.default_rng(0).standard_normal(_VOCABULARY)
    peaked = normal * 2
    peaked[:40] += 14
    made = {"flat": normal, "wide": normal * 3, "peaked": peaked, "equal": normal * 0}
    return {name: row.astype(np.float32) for name, row in made.items()}


def once(
    row: NDArray[np.float32],
    sampling: Sampling,
    random: np.random.Generator,
    seen: Occurrences,
    likely: bool,
) -> float:
    """Milliseconds of processor time."""
    start = time.process_time()
    if likely:
        kept = Kept()
        token = choose(row, sampling, random, seen=seen, kept=kept)
        logprobs(row, token, 20, row=kept.row)
    else:
        choose(row, sampling, random, seen=seen)
    return (time.process_time() - start) * 1e3


def measure(rounds: int) -> dict[str, Any]:
    """Samples by setting, whether log-probabilities were asked for, and kind of logits."""
    zipf = np.random.default_rng(1).zipf(1.2, 4 * _PROMPT)
    seen = Occurrences(zipf[zipf < _VOCABULARY][:_PROMPT].tolist())
    found: dict[str, Any] = {}
    for name, sampling in SETTINGS.items():
        random = np.random.default_rng(2)
        for likely in (False, True):
            for kind, row in kinds().items():
                times = [once(row, sampling, random, seen, likely) for _ in range(rounds + 2)][2:]
                case = found.setdefault(name, {}).setdefault("logprobs" if likely else "plain", {})
                case[kind] = measurement(times, "ms")
    return found


def costliest(cases: dict[str, Any]) -> str:
    median, low = (max(float(one[what]) for one in cases.values()) for what in ("median", "low"))
    return f"{median:.2f} ({low:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--output", default="")
    args = parser.parse_args()
    run = new_run("sampling", {"rounds": args.rounds, "vocabulary": _VOCABULARY})
    if passes._native is not None:
        run["kernels"] = measure(args.rounds)
        passes._native = None
    run["numpy"] = measure(max(3, args.rounds // 4))
    print(
        "| setting | ms a token | with log-probabilities | NumPy alone | with log-probabilities |"
    )
    print("| --- | --- | --- | --- | --- |")
    for name in SETTINGS:
        shown = [
            costliest(run[way][name][case]) if way in run else "-"
            for way in ("kernels", "numpy")
            for case in ("plain", "logprobs")
        ]
        print(f"| {name} | {' | '.join(shown)} |")
    print(f"kept in {save(run, args.output)}", file=sys.stderr)


if __name__ == "__main__":
    main()
