"""What rendering a conversation costs, and which part of it is the template's own.

    python benchmarks/templates.py [FOLDER]...

Six messages, by the chat template of each folder (the demo model's by default): through the helper process, one render after the
other; after a pause; after work that fills the caches; the template alone, in this process; the exchange with the helper
process alone, whose template says nothing; and one byte to another process and back, which is the system's own share. In turns,
since clocks vary. Writes `benchmarks/results/<date>-<machine>-templates.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from results import measurement, new_run, save

from cherenkov.text.template import ChatTemplate
from cherenkov.text.template_worker import Renderer
from cherenkov.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_DEMO = Path(__file__).resolve().parent.parent / "cherenkov" / "demo"
_OUTPUT_CHARS = 8 << 20
_AT_ONCE = 20
_APART = 4
_PAUSE_S = 0.05
_ECHO = "import os\nwhile os.write(1, os.read(0, 1)): pass"
MESSAGES = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "What is the capital of France, and why is it there?"},
    {"role": "assistant", "content": "Paris. An island in the Seine made crossing easy."},
    {"role": "user", "content": "And of Japan?"},
    {"role": "assistant", "content": "Tokyo. It was the seat of the shoguns before."},
    {"role": "user", "content": "Thank you. What did I ask first?"},
]


def _microseconds(
    act: Callable[[], object], before: Callable[[], object] | None = None
) -> list[float]:
    found = []
    for _ in range(_APART if before else _AT_ONCE):
        if before:
            before()
        begun = time.perf_counter()
        act()
        found.append((time.perf_counter() - begun) * 1e6)
    return found


@contextmanager
def _echo() -> Iterator[Callable[[], object]]:
    """What sends a byte to a process and waits for it to come back."""
    command = [sys.executable, "-I", "-S", "-c", _ECHO]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        outbox, inbox = process.stdin.fileno(), process.stdout.fileno()

        def once() -> None:
            os.write(outbox, b".")
            os.read(inbox, 1)

        once()
        yield once


def measure(folder: Path, rounds: int) -> dict[str, Any]:
    """Samples of each part, in microseconds."""
    controls = Tokenizer.open(folder).controls
    many = np.ones(8 << 20)
    with (
        ChatTemplate.open(folder, controls) as template,
        ChatTemplate("", controls) as nothing,
        _echo() as echo,
    ):
        inside = Renderer(_OUTPUT_CHARS)
        inside.answer({"source": template._source})
        values = json.loads(json.dumps({"documents": None, "tools": None, "messages": MESSAGES}))
        own = {**template._tokens, "add_generation_prompt": True, "enable_thinking": False}
        request = {"own": own, "cut": 0xFDD0, "values": values}
        assert inside.answer(request)["text"] == template.render(MESSAGES).text

        def render() -> object:
            return template.render(MESSAGES)

        parts: dict[str, tuple[Callable[[], object], Callable[[], object] | None]] = {
            "render": (render, None),
            "after a pause": (render, lambda: time.sleep(_PAUSE_S)),
            "after work": (render, many.sum),
            "template": (lambda: inside.answer(request), None),
            "exchange": (lambda: nothing.render(MESSAGES), None),
            "echo": (echo, None),
        }
        samples: dict[str, list[float]] = {name: [] for name in parts}
        for _ in range(rounds):
            for name, (act, before) in parts.items():
                samples[name] += _microseconds(act, before)
    return {name: measurement(values, "us") for name, values in samples.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folders", nargs="*", type=Path, default=[_DEMO])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--output", default="")
    args = parser.parse_args()
    run = new_run("templates", {"rounds": args.rounds, "messages": len(MESSAGES)})
    print(
        "| template | render, us | after a pause | after work | template alone | exchange alone | echo |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    )
    for folder in args.folders:
        found = run[f"templates_{folder.name}"] = measure(folder, args.rounds)
        shown = [f"{found[part]['median']:.0f} ({found[part]['low']:.0f})" for part in found]
        print(f"| {folder.name} | {' | '.join(shown)} |")
    print(f"medians, and the fastest; kept in {save(run, args.output)}", file=sys.stderr)


if __name__ == "__main__":
    main()
