"""Plots of a run, as SVG: python benchmarks/plots.py RESULT.json [FOLDER]. Needs matplotlib."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure
from results import load, median_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["IMAGES", "write"]

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
_OURS, _OTHERS, _SECOND = "#1f6feb", "#9aa4b2", "#d9822b"
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "cherenkov",  # the same run gives the same file
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.axisbelow": True,
}


def write(run: dict[str, Any], folder: Path = IMAGES) -> list[Path]:
    """Draw what the run has. Returns the files written."""
    makers = {"engines": _engines, "context": _context, "experts": _experts, "rates": _rates}
    written = []
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(_STYLE):
        for section, draw in makers.items():
            if section not in run:
                continue
            path = folder / f"{run['kind']}-{section}.svg"
            figure = draw(run)
            figure.savefig(path, metadata={"Date": None}, facecolor="white")
            path.write_text("\n".join(line.rstrip() for line in path.read_text().split("\n")))
            written.append(path)
    return written


def _engines(run: dict[str, Any]) -> Figure:
    """Bars of decode and prefill at the most threads that were measured."""
    threads = str(max(run["settings"]["threads"]))
    figure = Figure(figsize=(8, 0.5 + 0.4 * len(run["engines"])), layout="constrained")
    for axes, kind in zip(figure.subplots(1, 2, sharey=True), ("decode", "prefill"), strict=True):
        _bars(axes, run, threads, kind)
    return figure


def _bars(axes: Axes, run: dict[str, Any], threads: str, kind: str) -> None:
    names, rates = [], []
    for name, row in reversed(run["engines"].items()):
        names.append(f"{name}, {row['weights']}" if row["weights"] not in name else name)
        rates.append(median_of(row, threads if threads in row else "own", kind) or 0.0)
    colours = [_OURS if name.startswith("cherenkov") else _OTHERS for name in names]
    bars = axes.barh(names, rates, color=colours)
    axes.bar_label(bars, [f"{r:.0f}" if r >= 10 else f"{r:.1f}" for r in rates], padding=3)
    axes.margins(x=0.15)
    axes.set_title(f"{kind}, tokens per second, {threads} threads", fontsize=10)
    axes.grid(visible=False, axis="y")


def _context(run: dict[str, Any]) -> Figure:
    """Rates against the tokens already in context."""
    rows = {int(count): row for count, row in run["context"].items() if count.isdigit()}
    figure = Figure(figsize=(8, 3), layout="constrained")
    for axes, kind in zip(figure.subplots(1, 2), ("decode", "prefill"), strict=True):
        axes.plot(list(rows), [median_of(r, kind) or 0.0 for r in rows.values()], "o-", color=_OURS)
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(rows), [_thousands(count) for count in rows])
        axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
        axes.set_xlabel("tokens in context")
        axes.set_title(f"{kind}, tokens per second", fontsize=10)
    return figure


def _experts(run: dict[str, Any]) -> Figure:
    """Decode rate against experts a layer, one line an engine."""
    threads = str(max(run["settings"]["threads"]))
    rows = {int(count): row for count, row in run["experts"].items()}
    figure = Figure(figsize=(8, 3), layout="constrained")
    axes = figure.subplots()
    for name, colour in zip(next(iter(rows.values())), (_OURS, _SECOND), strict=False):
        rates = [median_of(row, name, threads, "decode") or 0.0 for row in rows.values()]
        axes.plot(list(rows), rates, "o-", color=colour, label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(rows), list(map(str, rows)))
    axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
    axes.set_xlabel("experts a layer, of which 8 are used")
    axes.set_title("decode, tokens per second", fontsize=10)
    axes.legend(frameon=False)
    return figure


def _rates(run: dict[str, Any]) -> Figure:
    """Hit rate against the size of the pool: a panel a workload, a line a policy, the optimum on top."""
    colours = {"optimum": "#24292f", "periodic": _OURS, "frequency": _SECOND, "lru": _OTHERS}
    panels = len(run["rates"])
    figure = Figure(figsize=(10, 2.6 * -(-panels // 4)), layout="constrained")
    grid = figure.subplots(-(-panels // 4), min(panels, 4), sharex=True, sharey=True, squeeze=False)
    # A column a kind of work, a row a number of requests.
    for axes, (workload, sizes) in zip(grid.T.flat, run["rates"].items(), strict=True):
        percents = [int(percent) for percent in sizes]
        for name, colour in colours.items():
            rates = [row[name]["hit_rate"]["value"] for row in sizes.values()]
            style = "--" if name == "optimum" else "-"
            axes.plot(percents, rates, "o" + style, color=colour, label=name, markersize=3)
        axes.set_xticks(percents)
        axes.set_ylim(0, 100)
        axes.set_title(workload, fontsize=9)
    grid[0][0].legend(frameon=False, fontsize=8)
    figure.supxlabel("experts in memory, %", fontsize=9)
    figure.supylabel("hits of decoding, %", fontsize=9)
    return figure


def _thousands(count: int) -> str:
    return f"{count // 1024}k" if count >= 1024 else str(count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run")
    parser.add_argument("folder", nargs="?", type=Path, default=IMAGES)
    args = parser.parse_args()
    for path in write(load(args.run), args.folder):
        print(path)


if __name__ == "__main__":
    main()
