"""Draw a GPU run: python benchmarks/gpu_plot.py RESULT.json [FOLDER]. Needs matplotlib.

RESULT.json holds what the parts of `gpu.py` found, by part: `python benchmarks/gpu_plot.py --gather OUT RESULT.json`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from plots import _OTHERS, _OURS, _STYLE, IMAGES

PARTS = ("probe", "alone", "table", "glow", "times", "speed", "decode")


def gather(out: Path, target: Path) -> None:
    """One document of the parts' files, in a form that one can read differences of."""
    found = {
        p: json.loads((out / f"{p}.json").read_text())
        for p in PARTS
        if (out / f"{p}.json").exists()
    }
    target.write_text(json.dumps(found, indent=1) + "\n")


def shares(times: dict[str, Any]) -> list[tuple[str, list[float]]]:
    """Percent of 4.8 TB/s of each kernel: in a chain, side by side, and of reading alone in either."""
    rows = []
    for name, value in times.items():
        if not isinstance(value, dict) or "in a chain" not in value:
            continue
        ways = [value["in a chain"], value["side by side"]]
        rate = value["bytes"] / 4.8e12 * 1e8  # over microseconds: percent
        rows.append((name, [rate / w[k] for k in ("us", "us_of_reading_alone") for w in ways]))
    return rows


def draw(run: dict[str, Any], folder: Path = IMAGES) -> Path:
    """What each kernel reads a second, as a share of 4.8 TB/s, beside what reading alone gives."""
    rows = shares(run["times"])[::-1]
    places = range(len(rows))
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(8, 1 + 0.42 * len(rows)), layout="constrained")
        axes = figure.subplots()
        for at, (shift, label, color) in enumerate(
            ((-0.2, "one after the other", _OTHERS), (0.2, "side by side", _OURS))
        ):
            where = [p - shift for p in places]
            axes.barh(where, [v[at] for _, v in rows], 0.38, color=color, label=label)
            reads = [v[2 + at] for _, v in rows]
            marks = "reading alone" if at else None
            axes.plot(reads, where, "|", color="black", markersize=9, label=marks)
        axes.set_yticks(list(places), [name for name, _ in rows])
        axes.axvline(60, color="black", linewidth=0.8, linestyle=":")
        axes.set_xlim(0, 100)
        axes.set_xlabel("bytes a second, % of 4.8 TB/s")
        axes.legend(loc="lower right")
        path = folder / "gpu-operations.svg"
        figure.savefig(path, metadata={"Date": None}, facecolor="white")
    path.write_text("\n".join(line.rstrip() for line in path.read_text().split("\n")))
    return path


if __name__ == "__main__":
    if sys.argv[1] == "--gather":
        gather(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        document = json.loads(Path(sys.argv[1]).read_text())
        print(draw(document, Path(sys.argv[2]) if len(sys.argv) > 2 else IMAGES))
