"""`cherenkov plot`: pictures of what a run did."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cherenkov.errors import ConfigError, CorruptModel, DiskError, UnsupportedModel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["command"]

_WINDOW = 16
"""Samples that a point of the line over time averages."""
_FORMATS = (".png", ".svg")


@click.group("plot", short_help="Draw what a run did.")
def command() -> None:
    """Draw what a run did. Needs matplotlib: pip install 'cherenkov[plot]'."""


@command.command("stats", short_help="Use of experts by layer, and hits over time.")
@click.argument("file")
@click.option("--output", "-o", metavar="FILE", help="A .png or .svg; by default FILE with .png.")
def stats(file: str, output: str | None) -> None:
    """Draw FILE, which run --stats-json wrote: how often each expert of each layer was used, and hits over time."""
    source = Path(file)
    if output is not None and Path(output).suffix not in _FORMATS:
        raise ConfigError("output", output, "must end in .png or .svg")
    found = _read(source)  # so it is a file, and has a name
    target = Path(output) if output is not None else source.with_suffix(".png")
    _draw(found, target)
    print(target)


def _read(path: Path) -> dict[str, Any]:
    """The report in a file.

    Raises:
        CorruptModel: if it is none.
        UnsupportedModel: if a later release wrote it.
        DiskError: if it cannot be read.
    """
    from cherenkov.checkpoint.documents import parse_object, read_bytes
    from cherenkov.experts.report import KIND, VERSION

    found = parse_object(path, read_bytes(path))
    if found.get("kind") != KIND:
        raise CorruptModel(path, "not what run --stats-json writes")
    if found.get("version") != VERSION:
        raise UnsupportedModel(
            f"{path}: version {found.get('version')!r:.20}", known=f"version {VERSION}"
        )
    return found


def _draw(found: Mapping[str, Any], target: Path) -> None:
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise click.ClickException("plots need matplotlib: pip install 'cherenkov[plot]'") from None
    # The same figures give the same file.
    with mpl.rc_context({"svg.hashsalt": "cherenkov", "font.size": 9}):
        figure = Figure(figsize=(9, 6), layout="constrained")
        use, time = figure.subplots(2, 1, height_ratios=[2, 1])
        try:
            _use(figure, use, found)
            _time(time, found)
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            raise ConfigError("file", "", f"its figures make no sense: {error!r:.80}") from None
        try:
            figure.savefig(target, metadata={"Date": None} if target.suffix == ".svg" else None)
        except OSError as error:
            raise DiskError.wrap(error, target, "write") from error


def _use(figure: Figure, axes: Axes, found: Mapping[str, Any]) -> None:
    """A row a layer, its experts by falling use."""
    import numpy as np

    rows = np.sort(np.array(found["by_expert"]["rows"], float), axis=1)[:, ::-1]
    share = 100 * rows / np.maximum(rows.sum(axis=1, keepdims=True), 1)
    image = axes.imshow(share, aspect="auto", cmap="viridis", interpolation="nearest")
    figure.colorbar(image, ax=axes, label="% of the layer's rows")
    axes.set_xlabel("experts of a layer, the most used first")
    axes.set_ylabel("layer")
    axes.set_title("how unevenly experts are used")


def _time(axes: Axes, found: Mapping[str, Any]) -> None:
    """Hit rate of each sample, and of a moving window."""
    import numpy as np

    samples = found["over_time"]
    hits = np.array([s["hits"] for s in samples], float)
    asks = hits + np.array([s["misses"] for s in samples], float)
    kept = asks > 0
    hits, asks = hits[kept], asks[kept]
    places = np.arange(1, len(samples) + 1)[kept]
    axes.plot(places, 100 * hits / asks, ".", color="#9aa4b2", markersize=3)
    if len(hits) >= _WINDOW:
        window = np.ones(_WINDOW)
        moving = np.convolve(hits, window, "valid") / np.convolve(asks, window, "valid")
        axes.plot(places[_WINDOW - 1 :], 100 * moving, color="#1f6feb")
    axes.set_ylim(0, 101)
    axes.set_xlabel("pieces of the answer")
    axes.set_ylabel("experts found in memory, %")
    axes.grid(alpha=0.3)
