"""What experts in 4, 3 and 2 bits cost in exactness: Glow's perplexity on text it has not seen, for every way to make them.

    python benchmarks/lowbit.py [--source FOLDER] [--json]

The text is `benchmarks/unseen.txt`. 3 and 2 bits are made from Glow's 4-bit experts: refitted, the scale and bias of each group that minimise
the squared error; or truncated as the Rust engine does. With --source, the BF16 checkpoint that Glow was quantised from, also refitted from that, and BF16
experts themselves as the yardstick. All have the same bytes a width. The dense part is the same everywhere. Truncated codes are run exactly: each of
their values is a whole number of half steps of the 4-bit scale, which 8-bit codes can say. Nothing here depends on time.
Writes `benchmarks/results/<date>-<machine>-lowbit.json`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from precision import TEXT, likelihoods
from report import table
from results import new_run, save

from cherenkov import Model
from cherenkov.backends.records import expert_matrices
from cherenkov.checkpoint.affine import (
    HostMatrix,
    bf16_to_float32,
    dequantise,
    float32_to_bf16,
    pack_codes,
    unpack,
)
from cherenkov.packing.integrity import NAME as INTEGRITY
from cherenkov.packing.layout import ExpertLayout
from cherenkov.packing.lowbit import at_precision
from cherenkov.packing.lower import lower
from cherenkov.packing.manifest import Manifest
from cherenkov.packing.store import EXPERTS, MANIFEST, PackedStore
from cherenkov.preparation import DEMO, open_source, prepare

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from cherenkov.checkpoint.source import Checkpoint

_KEPT = {3: (2, 1), 2: (4, 3)}
"""Of each width: 4-bit steps between truncated levels, and half steps to the first."""


@dataclass(frozen=True)
class _Reading:
    """What a model makes of the text: log-probabilities `[T, V]` of each next token, and those of the tokens that came."""

    logs: NDArray[np.float64]
    came: NDArray[np.float64]

    @classmethod
    def of(cls, store: Path, text: str, backend: str, experts: int | None = None) -> _Reading:
        with Model.load(store, backend=backend, context_tokens=4096, experts=experts) as model:
            ids = model.tokenizer.encode(text)
            logits = model.logits(ids)
        logs = logits.astype(np.float64)
        logs -= logs.max(axis=1, keepdims=True)
        logs -= np.log(np.exp(logs).sum(axis=1, keepdims=True))
        return cls(logs, likelihoods(logits, ids))

    def judge(self, best: _Reading) -> dict[str, Any]:
        """Perplexity, and how far from the best model's: with the standard errors of means over tokens."""
        loss = best.came - self.came
        divergence = (np.exp(best.logs) * (best.logs - self.logs)).sum(axis=1)
        return {
            "perplexity": _of(np.exp(-self.came.mean()), "", 6),
            "loss": _of(loss.mean(), "nats a token"),
            "loss_error": _of(loss.std() / np.sqrt(len(loss)), "nats a token"),
            "divergence": _of(divergence.mean(), "nats a token"),
            "divergence_error": _of(divergence.std() / np.sqrt(len(divergence)), "nats a token"),
        }


def _of(value: float, unit: str, digits: int = 3) -> dict[str, Any]:
    return {"value": float(f"{value:.{digits}g}"), "unit": unit}


def cut(matrix: HostMatrix, bits: int) -> HostMatrix:
    """What truncation leaves of a 4-bit matrix, in 8-bit codes of half its scale: the same values exactly."""
    step, half = _KEPT[bits]
    codes = unpack(matrix.codes, 4)
    codes = codes // np.uint8(step) * np.uint8(2 * step) + np.uint8(half)
    scales = float32_to_bf16(bf16_to_float32(matrix.scales) / 2)
    return HostMatrix(matrix.shape, 8, matrix.group, pack_codes(codes, 8), scales, matrix.biases)


def rewritten(
    store: Path, target: Path, bits: int, change: Callable[[int, HostMatrix], HostMatrix]
) -> Path:
    """A copy of a store whose experts are others, of `bits` bits, without checksums; `change` is told the matrix's number."""
    shutil.copytree(store, target)
    opened = PackedStore.open(store)
    old = opened.expert_layout
    layout = ExpertLayout(old.inter, old.hidden, bits, old.group)
    with opened.experts_path.open("rb") as source, (target / EXPERTS).open("wb") as file:
        for index in range(opened.records):
            slot = np.frombuffer(source.read(old.stride_bytes), np.uint8)
            record, offsets = np.zeros(layout.stride_bytes, np.uint8), layout.offsets()
            for which, matrix in enumerate(expert_matrices(old, slot)):
                new = change(3 * index + which, matrix)
                for part, values in zip("wsb", (new.codes, new.scales, new.biases), strict=True):
                    if values is not None:
                        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
                        start = offsets[f"{('gate', 'up', 'down')[which]}_{part}"]
                        record[start : start + len(data)] = data
            file.write(record)
    manifest = Manifest.from_bytes(target / MANIFEST, (target / MANIFEST).read_bytes())
    text = json.loads((target / MANIFEST).read_text())
    text["experts"] |= {
        "bits": bits,
        "record_bytes": layout.record_bytes,
        "record_stride": layout.stride_bytes,
        **layout.offsets(),
    }
    assert manifest.experts.records == opened.records
    (target / MANIFEST).write_text(json.dumps(text))
    (target / INTEGRITY).unlink()
    return target


def _values(source: Checkpoint, number: int) -> NDArray[np.uint16]:
    """A BF16 matrix of the checkpoint, by its number."""
    index, which = divmod(number, 3)
    layer, expert = divmod(index, len(source.experts[0].blocks))
    return source.experts[layer].blocks[expert][which].read().codes


def error_of(store: PackedStore, exact: Callable[[int], NDArray[np.float32]]) -> float:
    """Root mean square of the experts' errors, relative to that of their values."""
    wrong = power = 0.0
    layout = store.expert_layout
    with store.experts_path.open("rb") as file:
        for index in range(store.records):
            slot = np.frombuffer(file.read(layout.stride_bytes), np.uint8)
            for which, matrix in enumerate(expert_matrices(layout, slot)):
                truth = exact(3 * index + which).astype(np.float64)
                wrong += ((dequantise(matrix) - truth) ** 2).sum()
                power += (truth**2).sum()
    return float(np.sqrt(wrong / power))


def measure(folder: Path, text: str, backend: str, source: Path | None) -> list[dict[str, Any]]:
    """Every way to make experts, with its perplexity."""
    base = prepare(DEMO, folder / "base")
    checkpoint = None if source is None else open_source(source)
    if checkpoint is None:
        first = PackedStore.open(base)
        records = np.fromfile(first.experts_path, np.uint8).reshape(first.records, -1)

        def exact(number: int) -> NDArray[np.float32]:
            return dequantise(
                expert_matrices(first.expert_layout, records[number // 3])[number % 3]
            )

    else:

        def exact(number: int) -> NDArray[np.float32]:
            return bf16_to_float32(_values(checkpoint, number))

    found: list[dict[str, Any]] = []
    readings: list[_Reading] = []  # the best first

    def add(bits: int, how: str, store: Path, experts: int | None = None) -> None:
        opened = PackedStore.open(store)
        if experts:
            opened = at_precision(opened, experts)
        readings.append(_Reading.of(store, text, backend, experts))
        error = _of(error_of(opened, exact), "of the weights")
        judged = readings[-1].judge(readings[0])
        found.append({"bits": bits, "made": how, "error": error, **judged})

    if checkpoint is not None:

        def whole(number: int, matrix: HostMatrix) -> HostMatrix:
            return HostMatrix(matrix.shape, 16, 0, _values(checkpoint, number))

        add(16, "as trained", rewritten(base, folder / "whole", 16, whole))
    add(4, "as quantised", base)
    for bits in (3, 2):
        target = folder / f"cut{bits}"
        add(bits, "truncated", rewritten(base, target, 8, lambda _, m, b=bits: cut(m, b)))
    lower(base, [3, 2])
    for bits in (3, 2):
        add(bits, "refitted from 4 bits", base, bits)
    if checkpoint is not None:
        again = shutil.copytree(base, folder / "again")
        for path in [*again.glob("*2.*"), *again.glob("*3.*")]:
            path.unlink()
        lower(again, [3, 2], source=checkpoint)
        for bits in (3, 2):
            add(bits, "refitted from BF16", again, bits)
    return sorted(found, key=lambda row: (-row["bits"], row["made"] != "truncated", row["made"]))


def rows(found: list[dict[str, Any]]) -> list[list[str]]:
    """Of the table."""

    def cells(row: dict[str, Any]) -> list[str]:
        value = {key: node["value"] for key, node in row.items() if isinstance(node, dict)}
        return [
            str(row["bits"]),
            row["made"],
            f"{value['error']:.3f}",
            f"{value['perplexity']:.3f}",
            f"{value['loss']:+.4f} ± {value['loss_error']:.4f}",
            f"{value['divergence']:.4f} ± {value['divergence_error']:.4f}",
        ]

    return [cells(row) for row in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--source", type=Path, help="the BF16 checkpoint of Glow")
    parser.add_argument("--text", type=Path, default=TEXT, help="another text")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--json", action="store_true", help="print the run instead of the table")
    parser.add_argument("--output", default="", help="file to keep the run in")
    args = parser.parse_args()
    text = args.text.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), text, args.backend, args.source)
    run = new_run("lowbit", {"text": args.text.name, "source": args.source is not None})
    run["lowbit"] = {f"{row['bits']} bits {row['made']}": row for row in found}
    path = save(run, args.output)
    if args.json:
        print(json.dumps(run, indent=1))
        return
    print(
        table(["bits", "made", "error of weights", "perplexity", "loss", "divergence"], rows(found))
    )
    print(f"\n{path}")


if __name__ == "__main__":
    main()
