"""Pictures of reports. The only module that needs matplotlib, which is imported when something is drawn."""

from __future__ import annotations

import importlib.util
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cherenkov.errors import CherenkovError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from cherenkov.experts.report import Report, Times

__all__ = ["Spans", "draw", "relative_use", "require_matplotlib", "spans_of"]

_MOST_SPANS = 96
_BLUE, _ORANGE, _GREY = "#1f6feb", "#d9822b", "#9aa4b2"
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "cherenkov",  # the same report gives the same picture
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.axisbelow": True,
}


def require_matplotlib() -> None:
    """Raise CherenkovError, with what to install, if there is no matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        raise CherenkovError("pictures need matplotlib: pip install 'cherenkov[plot]'")


def draw(report: Report, kind: str) -> bytes:
    """A picture of expert use by layer, and of hit rate and bytes read over time.

    Args:
        report: what to draw.
        kind: `svg` or `png`.

    Returns:
        The file's content; the same for the same report.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(9, 6.5), layout="constrained")
        use, rate, size = figure.subplots(3, 1, height_ratios=(3, 2, 2))
        size.sharex(rate)
        _draw_use(use, report)
        spans = spans_of(report.timeline)
        _draw_rate(rate, spans, report.totals.hit_rate)
        _draw_bytes(size, spans)
        return _saved(figure, kind)


def _saved(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    metadata: Any = {"Date": None} if kind == "svg" else {"Software": None}
    figure.savefig(buffer, format=kind, metadata=metadata, facecolor="white", dpi=150)
    if kind == "png":
        return buffer.getvalue()
    return b"\n".join(line.rstrip() for line in buffer.getvalue().split(b"\n"))


def relative_use(report: Report) -> NDArray[np.float64]:
    """How often each expert was used, `[layers, experts]`, where 1 is an equal share of its layer's rows.

    Layers that nothing used, such as a draft head's while there is no drafting, are left out at the end.
    """
    rows = np.array(report.by_expert.rows, dtype=np.float64)
    used = np.flatnonzero(rows.sum(axis=1))
    rows = rows[: used[-1] + 1] if len(used) else rows[:1]
    means = rows.mean(axis=1, keepdims=True)
    relative: NDArray[np.float64] = np.divide(rows, means, out=np.zeros_like(rows), where=means > 0)
    return relative


def _draw_use(axes: Axes, report: Report) -> None:
    from matplotlib.ticker import MaxNLocator

    use = relative_use(report)
    most = max(1.0, float(np.quantile(use, 0.99)))
    image = axes.imshow(
        use, aspect="auto", interpolation="nearest", cmap="Blues", vmin=0, vmax=most
    )
    axes.grid(visible=False)
    axes.set_xlabel("expert")
    axes.set_ylabel("layer")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title(
        f"use of each expert, as a multiple of an equal share ({report.tokens} tokens; pool of {report.slots}"
        f" of {report.layers * report.experts} experts)"
    )
    axes.figure.colorbar(image, ax=axes, pad=0.01, extend="max")


@dataclass(frozen=True, slots=True)
class Spans:
    """What happened from each point of a time line to the next; neighbours are joined so that a picture can show them.

    Attributes:
        edges: `[n + 1]`, the step with which each span ends, after the 0 with which the first begins.
        hit_rate: `[n]`, share of hits; NaN where nothing was asked for.
        bytes_per_token: by kind of reads, `[n]`.
    """

    edges: NDArray[np.float64]
    hit_rate: NDArray[np.float64]
    bytes_per_token: dict[str, NDArray[np.float64]]


def spans_of(times: Times) -> Spans:
    """The differences between points, at most 96 of them."""
    points = len(times.step)
    stops = np.linspace(0, points, min(points, _MOST_SPANS) + 1).round().astype(int)[1:] - 1

    def gained(name: str) -> NDArray[np.float64]:
        column = np.array(getattr(times, name), dtype=np.float64)[stops]
        return np.diff(column, prepend=0.0)

    hits, tokens = gained("hits"), gained("tokens")
    kinds = ("demand", "prefill", "prediction")
    return Spans(
        edges=np.array([0, *np.array(times.step)[stops]], dtype=np.float64),
        hit_rate=_ratio(hits, hits + gained("misses")),
        bytes_per_token={kind: _ratio(gained(f"{kind}_bytes"), tokens) for kind in kinds},
    )


def _ratio(part: NDArray[np.float64], whole: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.divide(part, whole, out=np.full_like(part, np.nan), where=whole > 0)


def _draw_rate(axes: Axes, spans: Spans, mean: float) -> None:
    axes.stairs(100 * spans.hit_rate, spans.edges, baseline=None, color=_BLUE)
    axes.axhline(100 * mean, color=_GREY, linestyle="--", linewidth=1)
    axes.set_ylim(0, 101)
    axes.set_title(f"experts found in memory, % ({100 * mean:.1f} in all, dashed)")


def _draw_bytes(axes: Axes, spans: Spans) -> None:
    colours = {"demand": _BLUE, "prefill": _GREY, "prediction": _ORANGE}
    for kind, values in spans.bytes_per_token.items():
        if np.nansum(values) > 0:
            axes.stairs(values / 1e6, spans.edges, baseline=None, color=colours[kind], label=kind)
    if axes.patches:
        axes.legend(frameon=False, fontsize=8, ncols=3, loc="upper right")
    axes.set_ylim(0, 1.3 * axes.get_ylim()[1])  # room for the legend
    axes.set_xlim(0, max(1.0, float(spans.edges[-1])))
    axes.set_xlabel("step")
    axes.set_title("read, MB a token")
