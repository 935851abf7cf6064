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

PARTS = ("probe", "alone", "table", "glow", "speed", "decode")


def gather(out: Path, target: Path) -> None:
    """One document of the parts' files, in a form that one can read differences of."""
    found = {
        p: json.loads((out / f"{p}.json").read_text())
        for p in PARTS
        if (out / f"{p}.json").exists()
    }
    target.write_text(json.dumps(found, indent=1) + "\n")


def shares(speed: dict[str, Any]) -> list[tuple[str, float, float]]:
    """Name, share of the roofline and microseconds of everything that has one."""
    rows = []
    for name, value in speed.items():
        if not isinstance(value, dict):
            continue
        for part, timing in (("", value), *((f", {k}", v) for k, v in value.items())):
            if isinstance(timing, dict) and "share_of_4.8e12" in timing:
                rows.append((name + part, 100 * timing["share_of_4.8e12"], timing["us"]))
    return rows


def draw(run: dict[str, Any], folder: Path = IMAGES) -> Path:
    """Bars of what each operation reads a second, as a share of 4.8 TB/s."""
    rows = shares(run["speed"])[::-1]
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(8, 0.6 + 0.3 * len(rows)), layout="constrained")
        axes = figure.subplots()
        stock = [name.startswith(("gather_qmm", "bf16")) for name, _, _ in rows]
        bars = axes.barh(
            [name for name, _, _ in rows],
            [share for _, share, _ in rows],
            color=[_OTHERS if each else _OURS for each in stock],
        )
        axes.bar_label(bars, [f"{us:.0f} µs" for _, _, us in rows], padding=3)
        axes.axvline(60, color="black", linewidth=0.8, linestyle=":")
        axes.set_xlim(0, 100)
        axes.set_xlabel("bytes a second, % of 4.8 TB/s; grey: MLX's own operations")
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
