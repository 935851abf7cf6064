"""What rendering a conversation costs, and which part of it is the template's own.

    python benchmarks/templates.py [FOLDER]...

Six messages, by the chat template of each folder (the demo model's by default): through the helper process; the template alone,
in this process; and the exchange with the helper process alone, whose template says nothing. In turns, since clocks vary.
Writes `benchmarks/results/<date>-<machine>-templates.json`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results import measurement, new_run, save

from cherenkov.text.template import ChatTemplate
from cherenkov.text.template_worker import Renderer
from cherenkov.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable

_DEMO = Path(__file__).resolve().parent.parent / "cherenkov" / "demo"
_OUTPUT_CHARS = 8 << 20
_AT_ONCE = 20
MESSAGES = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "What is the capital of France, and why is it there?"},
    {"role": "assistant", "content": "Paris. An island in the Seine made crossing easy."},
    {"role": "user", "content": "And of Japan?"},
    {"role": "assistant", "content": "Tokyo. It was the seat of the shoguns before."},
    {"role": "user", "content": "Thank you. What did I ask first?"},
]


def _microseconds(act: Callable[[], object]) -> list[float]:
    found = []
    for _ in range(_AT_ONCE):
        begun = time.perf_counter()
        act()
        found.append((time.perf_counter() - begun) * 1e6)
    return found


def measure(folder: Path, rounds: int) -> dict[str, Any]:
    """Samples of each part, in microseconds."""
    controls = Tokenizer.open(folder).controls
    with ChatTemplate.open(folder, controls) as template, ChatTemplate("", controls) as nothing:
        inside = Renderer(_OUTPUT_CHARS)
        inside.answer({"source": template._source})
        values = json.loads(json.dumps({"documents": None, "tools": None, "messages": MESSAGES}))
        own = {**template._tokens, "add_generation_prompt": True, "enable_thinking": False}
        request = {"own": own, "cut": "\ufdd0", "values": values}
        assert inside.answer(request)["text"] == template.render(MESSAGES).text
        parts: dict[str, Callable[[], object]] = {
            "render": lambda: template.render(MESSAGES),
            "template": lambda: inside.answer(request),
            "exchange": lambda: nothing.render(MESSAGES),
        }
        samples: dict[str, list[float]] = {name: [] for name in parts}
        for _ in range(rounds):
            for name, act in parts.items():
                samples[name] += _microseconds(act)
    return {name: measurement(values, "us") for name, values in samples.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folders", nargs="*", type=Path, default=[_DEMO])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--output", default="")
    args = parser.parse_args()
    run = new_run("templates", {"rounds": args.rounds, "messages": len(MESSAGES)})
    print(
        "| template | render, us | template alone | exchange alone |\n| --- | ---: | ---: | ---: |"
    )
    for folder in args.folders:
        found = run[f"templates_{folder.name}"] = measure(folder, args.rounds)
        shown = [f"{found[part]['median']:.0f} ({found[part]['low']:.0f})" for part in found]
        print(f"| {folder.name} | {' | '.join(shown)} |")
    print(f"medians, and the fastest; kept in {save(run, args.output)}", file=sys.stderr)


if __name__ == "__main__":
    main()
