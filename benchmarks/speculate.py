"""What guessing ahead brings: how many drafts are right, and how much faster it is, in memory and from disk.

    python benchmarks/speculate.py
    python benchmarks/speculate.py --sections speed --pools all --rounds 20

The first table is of the draft head alone, three drafts in every step, on text that training had not seen: prose that goes on
from passages of `unseen.txt`, and answers to questions. `after` is the share of drafts at that depth that were right, of
those whose predecessors were. The second compares `speculate="auto"` with `"off"`, and where all experts are in memory with one
draft in every step. One loaded model serves them in turn, with the same weights and the same pool: of two models in one process,
that which was loaded first is faster by a tenth when experts stream. A turn is all answers with one setting; turns
go forth and back, and a ratio is that of two neighbours, of seconds between the first token and the last of all answers
together. Texts are compared too: one that differs is an error. `--clock processor` counts processor time instead, for machines
that others use too; the engine's own decisions go by the same clock. Writes `benchmarks/results/<date>-<machine>-speculate.json`.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from report import table
from results import measurement, new_run, save

from cherenkov import Model
from cherenkov.lane import Lane, Loaded, Wanted
from cherenkov.preparation import prepare
from cherenkov.sampling import Sampling
from cherenkov.speculation import MOST_DRAFTS, Speculation
from cherenkov.stepping import Stepper

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cherenkov.speculation import DraftCounts

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
_POOLS = {"all": 1.0, "50": 0.5, "25": 0.25, "10": 0.1}
_MORE = 4  # as many rounds where all experts are in memory: they are short


def prompts(model: Model) -> dict[str, list[list[int]]]:
    """Token ids of what each kind of text begins with."""
    passages = [p for p in TEXT.read_text(encoding="utf-8").split("\n") if len(p) > 200]
    return {
        "prose": [model.encode_prompt(p[:400], raw=True) for p in passages[:_PASSAGES]],
        "chat": [model.encode_prompt(question) for question in QUESTIONS],
    }


def answer(
    loaded: Loaded,
    stop_ids: frozenset[int],
    prompt: Sequence[int],
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[list[int], float]:
    """Tokens that go on from a prompt, and the seconds from the first to the last."""
    lane = Lane(loaded, prompt, Wanted(Sampling(), stop_ids, _TOKENS))
    stepper = Stepper(loaded, clock)
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
                loaded, stop_ids = model.responder.loaded, model.responder.stop_ids
                speculation = loaded.speculation
                speculation.pace.fixed = MOST_DRAFTS
                for prompt in prompts(model)[kind]:
                    answer(loaded, stop_ids, prompt)
                counts = speculation.counts
                found[f"{kind}, {mode}"] = {
                    "drafted": counts.drafted[mode],
                    "accepted": counts.accepted[mode],
                    "steps": counts.steps,
                    "tokens_per_step": counts.tokens / max(1, counts.steps),
                }
    return found


def speed(store: Path, records_gb: float, given: argparse.Namespace) -> dict[str, Any]:
    """Settings in turn, by residency and kind of text."""
    found: dict[str, Any] = {}
    clock = time.process_time if given.clock == "processor" else time.perf_counter
    for name in given.pools:
        share = _POOLS[name]
        pool = None if share == 1 else records_gb * share
        options = {"pool": pool, "threads": given.threads, "drafts": given.drafts}
        with Model.load(store, speculate="auto", **options) as model:
            for kind, starts in prompts(model).items():
                turns = Turns(model, starts, clock, one=share == 1)
                turns.run(given.rounds * (_MORE if share == 1 else 1))
                found[f"{name}, {kind}"] = turns.figures()
    return found


class Turns:
    """All answers with one setting, then with the next, on one model.

    Args:
        model: loaded with drafts.
        starts: what the answers go on from.
        clock: seconds.
        one: measure one draft in every step as well.
    """

    def __init__(
        self,
        model: Model,
        starts: Sequence[Sequence[int]],
        clock: Callable[[], float],
        *,
        one: bool,
    ) -> None:
        loaded = model.responder.loaded
        loaded.speculation.clock = clock
        self._starts, self._clock = starts, clock
        self._stop_ids = model.responder.stop_ids
        self._settings = {"off": _with(loaded, "off", clock), "auto": loaded}
        if one:
            self._settings["one"] = _with(loaded, "mtp", clock)
            self._settings["one"].speculation.pace.fixed = 1
        self.seconds: dict[str, list[float]] = {name: [] for name in self._settings}
        self._before = _counted(loaded.speculation.counts)
        self._counts = loaded.speculation.counts
        self._tokens = 0

    def run(self, rounds: int) -> None:
        """Twice as many turns of each setting, after one that warms up."""
        names = list(self._settings)
        texts = {name: self._turn(name)[0] for name in names}
        if any(text != texts["off"] for text in texts.values()):
            raise SystemExit("drafts changed what was said")
        self._before = _counted(self._counts)
        for _ in range(rounds):
            for name in (*names, *reversed(names)):
                text, seconds = self._turn(name)
                if text != texts["off"]:
                    raise SystemExit(f"{name}: drafts changed what was said")
                self.seconds[name].append(seconds)
        self._tokens = sum(len(each) - 1 for each in texts["off"])

    def _turn(self, name: str) -> tuple[list[list[int]], float]:
        texts, total = [], 0.0
        for start in self._starts:
            text, seconds = answer(self._settings[name], self._stop_ids, start, self._clock)
            texts.append(text)
            total += seconds
        return texts, total

    def figures(self) -> dict[str, Any]:
        """For the table and the file."""
        tokens, read_bytes, *rows = (
            now - then for now, then in zip(_counted(self._counts), self._before, strict=True)
        )
        found: dict[str, Any] = {
            name: measurement([self._tokens / each for each in seconds], "tok/s")
            for name, seconds in self.seconds.items()
        }
        for name, seconds in self.seconds.items():
            if name != "off":
                pairs = zip(self.seconds["off"], seconds, strict=True)
                found[f"{name} to off"] = measurement([off / on for off, on in pairs], "1")
        return found | {
            "tokens_per_step": tokens / max(1, sum(rows)),
            "rows": rows,
            "bytes_per_token": read_bytes / max(1, tokens),
        }


def _with(loaded: Loaded, mode: str, clock: Callable[[], float]) -> Loaded:
    """The same model, guessing in another way."""
    other = Speculation(loaded.network, loaded.backend, mode, 1, clock)
    return dataclasses.replace(loaded, speculation=other)


def _counted(counts: DraftCounts) -> tuple[int, ...]:
    return counts.tokens, counts.read_bytes, *counts.rows


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
            cells = [f"{each[which]['median']:.0f}" for which in ("off", "auto")]
            for which in ("auto", "one"):
                ratio = each.get(f"{which} to off")
                cells.append(f"{ratio['median']:.2f}" if ratio else "")
            read = f"{each['bytes_per_token'] / 1e3:.0f}"
            rows.append([name, *cells, f"{each['tokens_per_step']:.2f}", counted, read])
        head = ["in memory", "off tok/s", "auto tok/s", "ratio", "one draft", "tokens/step"]
        print(table([*head, "steps by rows", "kB read a token"], rows))


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sections", nargs="+", default=["acceptance", "speed"])
    parser.add_argument("--pools", nargs="+", choices=list(_POOLS), default=list(_POOLS))
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
