"""Time to the first token of a long prompt when a part of the experts is in memory: beside computing alone and reading alone.

    python benchmarks/first_token.py STORE --share 0.25 --tokens 2000 --rounds 5

One process, two models: all experts in memory, and a share of them. In turn: the prompt by the first, which only computes;
reads of as many records as the second will miss, in random order, which only reads; the prompt by the second. Each round is
another prompt, and the order of the two models turns. The ratio is the second's time to the larger of the other two, within a round.
Writes `benchmarks/results/<date>-<machine>-first-token.json`.
"""

from __future__ import annotations

import argparse
import random
import string
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from machine import load_average
from report import table
from results import measurement, new_run, save

from cherenkov import Model
from cherenkov.backends.pages import huge_pages
from cherenkov.experts.reader import RecordReader
from cherenkov.packing.store import PackedStore
from cherenkov.units import GB

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SLOTS = 32
_SHOWN = ("computing", "reading", "both", "waited", "ratio", "missing", "cpu_ratio")
_UNITS = dict(zip(_SHOWN, ("s", "s", "s", "s", "x", "B", "x"), strict=True))
_WARMING = 256


def first_token(model: Model, prompt: str) -> tuple[float, float]:
    """Seconds from the call to the first token, and processor time."""
    begun, cpu = time.perf_counter(), time.process_time()
    model.generate(prompt, max_tokens=1, raw=True, ignore_eos=True)
    return time.perf_counter() - begun, time.process_time() - cpu


def reading(reader: RecordReader, memory: NDArray[np.uint8], records: list[int]) -> float:
    """Seconds that it takes to read records, slot after slot."""
    reads = reader.start(memory)
    begun, waiting, left = time.perf_counter(), records[_SLOTS:], len(records)
    first = records[:_SLOTS]
    reads.submit(first, list(range(len(first))), True)
    while left:
        for slot, _, _ in reads.landed(True):
            left -= 1
            if waiting:
                reads.submit([waiting.pop()], [slot], True)
    seconds = time.perf_counter() - begun
    reads.close()
    return seconds


def measure(args: argparse.Namespace, store: PackedStore) -> dict[str, list[float]]:
    """Samples by name."""
    layout, section = store.expert_layout, store.manifest.experts
    stride, found = layout.stride_bytes, dict[str, list[float]]()
    pool = max(1, int(args.share * store.records)) * stride / GB
    options: dict[str, Any] = {"threads": args.threads, "context_tokens": args.tokens + 8}
    memory = huge_pages(_SLOTS * stride).reshape(_SLOTS, stride)
    reader = RecordReader(store.experts_path, stride, section.experts, None)
    with (
        Model.load(store.path, pool="max", speculate="off", **options) as whole,
        Model.load(store.path, pool=pool, speculate="off", **options) as part,
    ):
        draw = random.Random(0)
        for model in (whole, part):
            model.generate("".join(draw.choices(string.ascii_letters, k=_WARMING)), max_tokens=1)
        for number in range(args.rounds):
            prompt = "".join(draw.choices(string.ascii_letters, k=args.tokens))
            before = part.experts.stats.copy()
            taken = {}
            for name in ("whole", "part")[:: 1 - 2 * (number % 2)]:
                taken[name] = first_token(whole if name == "whole" else part, prompt)
            (computing, cpu), (both, both_cpu) = taken["whole"], taken["part"]
            stats = part.experts.stats.since(before)
            missing = stats.misses
            records = [draw.randrange(store.records) for _ in range(missing)]
            alone = reading(reader, memory, records)
            ratio, size = both / max(computing, alone), missing * stride
            values = (computing, alone, both, stats.stall_s, ratio, size, both_cpu / cpu)
            for name, value in zip(_SHOWN, values, strict=True):
                found.setdefault(name, []).append(value)
            print(" ".join(f"{v:.3g}" for v in values), file=sys.stderr, flush=True)
    reader.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("store", type=Path)
    parser.add_argument("--share", type=float, default=0.25, help="of the experts in memory")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", default="")
    args = parser.parse_args()
    store = PackedStore.open(args.store.expanduser().resolve())
    settings = {"tokens": args.tokens, "share": args.share, "rounds": args.rounds}
    run = new_run("first-token", settings)
    run["load"] = measurement([load_average()], "processes")
    found = measure(args, store)
    run["first_token"] = {name: measurement(found[name], _UNITS[name]) for name in _SHOWN}
    medians = {name: run["first_token"][name]["median"] for name in _SHOWN}
    row = [f"{medians[name]:.3g} s" for name in _SHOWN[:4]]
    row += [f"{medians['ratio']:.2f}", f"{medians['missing'] / 1e9:.2f} GB"]
    print(table([*_SHOWN[:4], "ratio", "read"], [row]))
    print(f"\nkept in {save(run, args.output)}", file=sys.stderr)


if __name__ == "__main__":
    main()
