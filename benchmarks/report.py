"""A run as a table for people."""

from __future__ import annotations

from typing import Any

from results import median_of

__all__ = ["print_run", "table"]


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table with aligned columns."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]

    def line(cells: list[str]) -> str:
        padded = (
            c.ljust(w) if i == 0 else c.rjust(w)
            for i, (c, w) in enumerate(zip(cells, widths, strict=True))
        )
        return f"| {' | '.join(padded)} |"

    rule = ["-" * w if i == 0 else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    return "\n".join([line(head), line(rule), *(line(row) for row in rows)])


def print_run(run: dict[str, Any]) -> None:
    """Print every section that the run has."""
    machine = run["machine"]
    sets = " ".join(machine["instruction_sets"])
    print(
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, {sets}; {run['date']}"
    )
    print(f"load average {run['load']['median']:g}; revision {run['versions']['revision']}\n")
    printers = {
        "engines": _engines,
        "traffic": _traffic,
        "glow": _glow,
        "context": _context,
        "experts": _experts,
    }
    for section, show in printers.items():
        if section in run:
            print(show(run), end="\n\n")


def _engines(run: dict[str, Any]) -> str:
    threads = [str(t) for t in run["settings"]["threads"]]
    kinds = [(t, kind) for t in threads for kind in ("decode", "prefill")]
    head = ["engine", "weights", *(f"{kind} {t}T" for t, kind in kinds), "peak GB"]
    rows = []
    for name, row in run["engines"].items():
        cells = [name, row["weights"]]
        for t, kind in kinds:
            rate = median_of(row, t if t in row else "own", kind)
            factor = median_of(run, "ratios", name, t, kind)
            cells.append(_number(rate) + (f" ({factor:.2f}x)" if factor else ""))
        rows.append([*cells, _number(median_of(row, "peak_memory"))])
    text = table(head, rows)
    return f"{text}\nTokens per second; in brackets, how many times faster cherenkov is (median over rounds)."


def _traffic(run: dict[str, Any]) -> str:
    moved = run["traffic"]["bytes_per_token"]
    parts = ", ".join(f"{k} {v['value'] / 1e6:.1f}" for k, v in moved.items())
    rows = []
    for threads in map(str, run["settings"]["threads"]):
        values = [
            median_of(run, "bandwidth", threads, "best"),
            median_of(run, "traffic", threads, "achieved"),
            median_of(run, "traffic", threads, "share_of_bandwidth"),
        ]
        rows.append([threads, *map(_number, values)])
    head = ["threads", "read bandwidth GB/s", "decode GB/s", "share %"]
    return f"Bytes a decoded token moves, in MB: {parts}\n{table(head, rows)}"


def _glow(run: dict[str, Any]) -> str:
    first, rate, cold = (
        _number(median_of(run, "glow", name)) for name in ("first_token", "decode", "first_decode")
    )
    return (
        f"Glow: first token of a cold process {first} s, decode {rate} tok/s, {cold} in the answer before, "
        "which finds no expert in memory"
    )


def _context(run: dict[str, Any]) -> str:
    rows = [
        [count, _number(median_of(row, "prefill")), _number(median_of(row, "decode"))]
        for count, row in run["context"].items()
        if count.isdigit()
    ]
    return table(["context tokens", "prefill tok/s", "decode tok/s"], rows)


def _experts(run: dict[str, Any]) -> str:
    names = list(next(iter(run["experts"].values())))
    threads = str(max(run["settings"]["threads"]))
    rows = [
        [count, *(_number(median_of(row, name, threads, "decode")) for name in names)]
        for count, row in run["experts"].items()
    ]
    return table(["experts a layer", *(f"{n} decode tok/s" for n in names)], rows)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
