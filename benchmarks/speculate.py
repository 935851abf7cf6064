"""What guessing ahead brings: how many drafts are right, and how much faster it is, in memory and from disk.

    python benchmarks/speculate.py
    python benchmarks/speculate.py --rounds 2 --sections acceptance

The first table is of the draft head alone, three drafts in every step, on text that training had not seen: prose that goes on
from passages of `unseen.txt`, and answers to questions. `after` is the share of drafts at that depth that were right, of
those whose predecessors were. The second compares `speculate="auto"` with `"off"`, in one process and in turn,
so that both meet the same weather; ratios are medians over rounds, of seconds between the first token and the last. Texts
are compared too: one that differs is an error. `--clock processor` counts processor time instead, for machines that others use
too; the engine's own decisions go by the same clock. Writes `benchmarks/results/<date>-<machine>-speculate.json`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from report import table
from results import measurement, new_run, save

from cherenkov import Model
from cherenkov.lane import Lane, Wanted
from cherenkov.preparation import prepare
from cherenkov.sampling import Sampling
from cherenkov.speculation import MOST_DRAFTS
from cherenkov.stepping import Stepper

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TEXT = Path(__file__).resolve().parent / "unseen.txt"
QUESTIONS = (
    "Tell me a story about a wolf.",
    "What is the capital of France?",
    "How many days are in a week?",
    "Tell me a story about a clever crow.",
    "Why do birds sing?",
    "What is a ship?",
    "Name three animals.",
    "Tell me about winter.",
)
_TOKENS = 64
_PASSAGES = 8
_POOLS = {"all": 1.0, "50 %": 0.5, "25 %": 0.25, "10 %": 0.1}


def prompts(model: Model) -> dict[str, list[list[int]]]:
    """Token ids of what each kind of text begins with."""
    passages = [p for p in TEXT.read_text(encoding="utf-8").split("\n") if len(p) > 200]
    return {
        "prose": [model.encode_prompt(p[:400], raw=True) for p in passages[:_PASSAGES]],
        "chat": [model.encode_prompt(question) for question in QUESTIONS],
    }


def answer(
    model: Model,
    prompt: Sequence[int],
    sampling: Sampling,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[list[int], float]:
    """Tokens that go on from a prompt, and the seconds from the first to the last."""
    loaded = model.responder.loaded
    stop_ids = model.responder.stop_ids
    lane, stepper = (
        Lane(loaded, prompt, Wanted(sampling, stop_ids, _TOKENS)),
        Stepper(loaded, clock),
    )
    tokens = [step.token for step in stepper.step([lane])[0]]
    begun = clock()
    while not lane.is_over:
        tokens += [step.token for step in stepper.step([lane])[0]]
    return tokens, clock() - begun


def acceptance(store: Path) -> dict[str, Any]:
    """Shares of right drafts by depth, of head and look-up, all drafts tried in every step."""
    found: dict[str, Any] = {}
    for mode in ("mtp", "ngram"):
        for kind in ("prose", "chat"):
            with Model.load(store, speculate=mode, drafts=MOST_DRAFTS) as model:
                speculation = model.responder.loaded.speculation
                speculation.pace.fixed = MOST_DRAFTS
                for prompt in prompts(model)[kind]:
                    answer(model, prompt, Sampling())
                counts = speculation.counts
                found[f"{kind}, {mode}"] = {
                    "drafted": counts.drafted[mode],
                    "accepted": counts.accepted[mode],
                    "steps": counts.steps,
                    "tokens_per_step": counts.tokens / max(1, counts.steps),
                }
    return found


def speed(store: Path, records_gb: float, given: argparse.Namespace) -> dict[str, Any]:
    """On and off in turn, by residency and kind of text.

    Of two models in one process, that which was loaded first is often faster by a tenth when experts stream. So all is done
    twice, with either first.
    """
    found: dict[str, Any] = {}
    clock = time.process_time if given.clock == "processor" else time.perf_counter
    for name, share in _POOLS.items():
        options = {"pool": None if share == 1 else records_gb * share, "threads": given.threads}
        each = {kind: Compared() for kind in ("prose", "chat")}
        for first, second in (("off", "auto"), ("auto", "off")):
            models = {
                mode: Model.load(store, speculate=mode, drafts=given.drafts, **options)
                for mode in (first, second)
            }
            with models["off"] as off, models["auto"] as on:
                on.responder.loaded.speculation.clock = clock
                for kind, compared in each.items():
                    compared.run(off, on, kind, given.rounds, clock)
        found |= {f"{name}, {kind}": compared.figures() for kind, compared in each.items()}
    return found


class Compared:
    """Seconds a token with drafts and without, and what drafts did meanwhile."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {"off": [], "on": []}
        self.rows = [0] * (MOST_DRAFTS + 1)
        self.tokens = self.read_bytes = 0

    def run(
        self, off: Model, on: Model, kind: str, rounds: int, clock: Callable[[], float]
    ) -> None:
        """Both in turn, after a round that warms up."""
        counts = on.responder.loaded.speculation.counts
        for turn in range(rounds + 1):
            if turn == 1:
                before = counts.tokens, counts.read_bytes, list(counts.rows)
            for prompt in prompts(on)[kind]:
                texts = {}
                for name, model in (("off", off), ("on", on)):
                    texts[name], took = answer(model, prompt, Sampling(), clock)
                    if turn:
                        self.seconds[name].append(took / max(1, len(texts[name]) - 1))
                if texts["off"] != texts["on"]:
                    raise SystemExit(f"{kind}: drafts changed what was said")
        self.tokens += counts.tokens - before[0]
        self.read_bytes += counts.read_bytes - before[1]
        self.rows = [
            so_far + now - then
            for so_far, now, then in zip(self.rows, counts.rows, before[2], strict=True)
        ]

    def figures(self) -> dict[str, Any]:
        """For the table and the file."""
        ratios = [a / b for a, b in zip(self.seconds["off"], self.seconds["on"], strict=True)]
        return {
            "ratio": measurement(ratios, "1"),
            "off": measurement([1 / s for s in self.seconds["off"]], "tok/s"),
            "on": measurement([1 / s for s in self.seconds["on"]], "tok/s"),
            "tokens_per_step": self.tokens / max(1, sum(self.rows)),
            "rows": self.rows,
            "bytes_per_token": self.read_bytes / max(1, self.tokens),
        }


def show(run: dict[str, Any]) -> None:
    """Print the tables."""
    if "acceptance" in run:
        rows = []
        for name, each in run["acceptance"].items():
            pairs = zip(each["accepted"], each["drafted"], strict=True)
            shares = [f"{a / d:.3f} of {d}" if d else "-" for a, d in pairs]
            rows.append([name, *shares, f"{each['tokens_per_step']:.2f}"])
        print(table(["drafts", "first", "second after", "third after", "tokens/step"], rows))
        print()
    if "speed" in run:
        rows = []
        for name, each in run["speed"].items():
            counted = "/".join(map(str, each["rows"]))
            cells = [f"{each[which]['median']:.0f}" for which in ("off", "on")]
            ratio = f"{each['ratio']['median']:.2f}"
            read = f"{each['bytes_per_token'] / 1e3:.0f}"
            rows.append([name, *cells, ratio, f"{each['tokens_per_step']:.2f}", counted, read])
        head = ["in memory", "off tok/s", "on tok/s", "ratio", "tokens/step", "steps by rows"]
        print(table([*head, "kB read a token"], rows))


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sections", nargs="+", default=["acceptance", "speed"])
    parser.add_argument("--clock", choices=("wall", "processor"), default="wall")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--drafts", type=int, default=2)
    parser.add_argument("--no-file", action="store_true", help="print only")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = prepare("demo", Path(folder) / "store")
        records_gb = (store / "experts.bin").stat().st_size / 1e9
        run = new_run("speculate", vars(given) | {"tokens": _TOKENS})
        if "acceptance" in given.sections:
            run["acceptance"] = acceptance(store)
        if "speed" in given.sections:
            run["speed"] = speed(store, records_gb, given)
    show(run)
    if not given.no_file:
        print(save(run))
    return 0


if __name__ == "__main__":
    sys.exit(main())
