"""How many experts each eviction policy finds in memory, and how far that is from the optimum.

    python benchmarks/policies.py [--traces FOLDER] [--no-plots]

Records what Glow's routers ask for while it writes prose, talks, and calls tools, and what those of a random model ask for;
then replays it against every policy at several sizes of the pool, and against Belady's optimum, which knows the
future. Nothing here depends on time or on the machine: the same build gives the same figures. Four requests at once
are four recordings whose steps are laid side by side, which is what serving them together asks for.
Writes `benchmarks/results/<date>-<machine>-policies.json` and, if matplotlib is there, `docs/images/policies-rates.svg`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from random_model import GEOMETRIES, write_model
from report import table
from results import new_run, save

from cherenkov import Model
from cherenkov.experts.policy import DEFAULT, POLICIES
from cherenkov.experts.simulator import Belady, simulate
from cherenkov.experts.traces import Recorder, Trace, interleaved
from cherenkov.preparation import prepare
from cherenkov.sampling import Sampling

if TYPE_CHECKING:
    from collections.abc import Callable

TEXT = Path(__file__).resolve().parent / "unseen.txt"
RESIDENCY = (10, 25, 50, 75)
OPTIMUM = "optimum"
_LANES = 4
_QUESTIONS = (
    "What is the capital of France?",
    "Tell me a story about a wolf.",
    "How many days are in a week?",
    "Why do birds sing?",
    "What is a ship?",
    "Name three animals.",
    "Who was the first king?",
    "Tell me about winter.",
)
_ERRANDS = (
    "What is the weather in Paris?",
    "Add 12 and 30.",
    "Is it raining in London?",
    "Sum 4 and 9.",
)


def _function(name: str, **kinds: str) -> dict[str, Any]:
    properties = {key: {"type": kind} for key, kind in kinds.items()}
    schema = {"type": "object", "properties": properties, "required": list(kinds)}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


_TOOLS = [_function("get_weather", city="string"), _function("add", a="number", b="number")]


def _write(model: Model, lane: int, tokens: int) -> None:
    """Go on with three passages of the text, one after the other."""
    passages = [p for p in TEXT.read_text(encoding="utf-8").split("\n") if len(p) > 60]
    for i in range(3):
        start = 6 * lane + 2 * i
        prompt = "\n".join(passages[start : start + 1 + (lane + i) % 3])
        sampling = Sampling(temperature=0.8, seed=10 * lane + i)
        model.generate(prompt, max_tokens=tokens, raw=True, ignore_eos=True, sampling=sampling)


def _talk(model: Model, lane: int, tokens: int) -> None:
    """A conversation of eight turns."""
    sampling = Sampling(temperature=0.7, seed=lane)
    session = model.session(sampling=sampling, max_tokens=tokens // 2)
    for i in range(len(_QUESTIONS)):
        session.send(_QUESTIONS[(i + 2 * lane) % len(_QUESTIONS)])


def _call(model: Model, lane: int, tokens: int) -> None:
    """Errands, each in a conversation of its own."""
    for i in range(len(_ERRANDS)):
        text = _ERRANDS[(i + lane) % len(_ERRANDS)]
        sampling = Sampling(temperature=0.7, seed=10 * lane + i)
        messages = [{"role": "user", "content": text}]
        model.chat(messages, tools=_TOOLS, max_tokens=tokens // 2, sampling=sampling)


def _babble(model: Model, lane: int, tokens: int) -> None:
    """Whatever a random model says."""
    sampling = Sampling(temperature=1.0, seed=lane)
    model.generate("abc" * 30, max_tokens=tokens, raw=True, ignore_eos=True, sampling=sampling)


def recorded(
    model: Model, work: Callable[[Model, int, int], None], lane: int, tokens: int
) -> Trace:
    """What one request, or one after the other, asks of the experts."""
    recorder = Recorder(model.experts.layers, model.experts.experts)
    model.experts.listener = recorder
    try:
        work(model, lane, tokens)
    finally:
        model.experts.listener = None
    return recorder.trace()


def workloads(tokens: int) -> dict[str, Trace]:
    """Every trace, by what is done and how many requests do it."""
    found: dict[str, Trace] = {}

    def add(name: str, model: Model, work: Callable[[Model, int, int], None]) -> None:
        lanes = [recorded(model, work, lane, tokens) for lane in range(_LANES)]
        found[f"{name}, 1 request"] = lanes[0]
        found[f"{name}, {_LANES} requests"] = interleaved(lanes)

    with Model.load("demo", pool="max", speculate="off") as model:
        for name, work in (("prose", _write), ("chat", _talk), ("tools", _call)):
            add(name, model, work)
    with tempfile.TemporaryDirectory() as folder:
        geometry = replace(GEOMETRIES["tiny"], experts=64)
        source = write_model(Path(folder) / "random", geometry)
        store = prepare(source, Path(folder) / "store")
        with Model.load(store, pool="max", context_tokens=1024, speculate="off") as model:
            add("random weights", model, _babble)
    return found


def judge(trace: Trace) -> dict[str, Any]:
    """Of each size of the pool and each policy: hit rate of decoding, and misses over those of the optimum."""
    used = len({layer for layer, _ in trace}) * trace.experts  # a draft head may never run
    found: dict[str, Any] = {}
    for percent in RESIDENCY:
        slots = max(1, used * percent // 100)
        best = simulate(trace, Belady(slots, trace), slots)
        row = {OPTIMUM: {"hit_rate": _value(100 * best.hit_rate, "%")}}
        for name, policy in POLICIES.items():
            outcome = simulate(trace, policy(slots, trace.layers, trace.experts), slots)
            row[name] = {
                "hit_rate": _value(100 * outcome.hit_rate, "%"),
                "reads": _value(outcome.misses / max(1, best.misses), "of the optimum's"),
            }
        found[str(percent)] = row
    return found


def rows(rates: dict[str, Any]) -> list[list[str]]:
    """Of the table: a workload and size a line."""
    lines = []
    for workload, sizes in rates.items():
        for percent, row in sizes.items():
            cells = [
                f"{row[name]['hit_rate']['value']:.1f} ({row[name]['reads']['value']:.2f}x)"
                for name in POLICIES
            ]
            lines.append(
                [workload, f"{percent} %", *cells, f"{row[OPTIMUM]['hit_rate']['value']:.1f}"]
            )
    means = [f"{_mean(rates, name):.1f}" for name in (*POLICIES, OPTIMUM)]
    return [*lines, ["mean", "", *means]]


def _mean(rates: dict[str, Any], name: str) -> float:
    values = [row[name]["hit_rate"]["value"] for sizes in rates.values() for row in sizes.values()]
    return float(sum(values) / len(values))


def _value(value: float, unit: str) -> dict[str, Any]:
    return {"value": round(value, 3), "unit": unit}


def _plot(run: dict[str, Any]) -> None:
    try:
        import plots  # noqa: PLC0415 (matplotlib may be absent)
    except ImportError as error:
        print(f"no plots: {error}", file=sys.stderr)
        return
    for path in plots.write(run):
        print(f"wrote {path}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tokens", type=int, default=128, help="longest answer")
    parser.add_argument("--traces", type=Path, help="folder to keep the traces in")
    parser.add_argument("--output", default="", help="file for the run")
    parser.add_argument("--no-plots", dest="plots", action="store_false")
    args = parser.parse_args()
    traces = workloads(args.tokens)
    for name, trace in traces.items() if args.traces else ():
        args.traces.mkdir(parents=True, exist_ok=True)
        trace.save(args.traces / f"{name.replace(', ', '-').replace(' ', '-')}.trace")
    run = new_run("policies", {"tokens": args.tokens, "default": DEFAULT})
    run["events"] = {name: len(trace) for name, trace in traces.items()}
    run["rates"] = {name: judge(trace) for name, trace in traces.items()}
    path = save(run, args.output)
    print(table(["hits of decoding, %", "resident", *POLICIES, OPTIMUM], rows(run["rates"])))
    print(f"\nIn brackets, reads as a multiple of the optimum's.\nKept in {path}")
    if args.plots:
        _plot(run)


if __name__ == "__main__":
    main()
