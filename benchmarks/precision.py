"""What each precision of activations costs in exactness: Glow's logits, and its perplexity on text it has not seen.

    python benchmarks/precision.py [--isa NAME] [--json]

The text is `benchmarks/unseen.txt`, about 2,000 tokens that were written for this measurement and so were never trained on.
Every precision that the instruction set offers is compared with the `reference` backend, which computes the same 4-bit
weights in float32, over every token of it. A row's error is its largest difference from the reference's row, divided by
the largest logit of all. Nothing here depends on time or threads: a run gives the same figures again.
Writes `benchmarks/results/<date>-<machine>-precision.json`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from report import table
from results import new_run, save

from cherenkov import Model
from cherenkov.backends.native import instruction_sets

if TYPE_CHECKING:
    from numpy.typing import NDArray

TEXT = Path(__file__).resolve().parent / "unseen.txt"
PRECISIONS = ("float32", "bf16", "int16", "int8")


def likelihoods(logits: NDArray[np.float32], ids: list[int]) -> NDArray[np.float64]:
    """Log-likelihood in nats of each token but the first, from the logits `[T, V]` before it: `[T - 1]`."""
    scored = logits[:-1].astype(np.float64)
    peak = scored.max(axis=1)
    mass = np.log(np.exp(scored - peak[:, None]).sum(axis=1)) + peak
    return scored[np.arange(len(ids) - 1), ids[1:]] - mass


def judge(
    logits: NDArray[np.float32], expected: NDArray[np.float32], ids: list[int]
) -> dict[str, Any]:
    """Errors against the reference, and perplexity."""
    errors = np.abs(logits - expected).max(axis=1) / np.abs(expected).max()  # [T]
    other = (logits.argmax(axis=1) != expected.argmax(axis=1)).mean()
    perplexity = float(np.exp(-likelihoods(logits, ids).mean()))
    return {
        "largest_error": _of(errors.max(), "of the largest logit"),
        "median_error": _of(np.median(errors), "of the largest logit"),
        "other_choice": _of(other, "of the tokens"),
        "perplexity": _of(perplexity, "", digits=6),
    }


def measure(isa: str, text: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """How many tokens; and the reference first, then each precision that the instruction set offers, by name."""
    with Model.load("demo", backend="reference", context_tokens=4096) as model:
        ids = model.tokenizer.encode(text)
        expected = model.logits(ids)
    found = {"reference": judge(expected, expected, ids) | {"runs": "NumPy float32"}}
    for precision in PRECISIONS:
        with Model.load(
            "demo", backend="native", isa=isa, precision=precision, context_tokens=4096
        ) as model:
            if "offers no" not in model.backend_name:  # else a more exact one stands in
                runs = model.backend_name.removeprefix("native (").split(",")[0]
                found[precision] = judge(model.logits(ids), expected, ids) | {"runs": runs}
    return len(ids), found


def rows(found: dict[str, dict[str, Any]]) -> list[list[str]]:
    """Of the table: a precision a line."""
    exact = found["reference"]["perplexity"]["value"]
    lines = []
    for name, values in found.items():
        perplexity = values["perplexity"]["value"]
        lines.append(
            [
                name,
                values["runs"],
                *(
                    f"{values[key]['value']:.1e}" if name != "reference" else "-"
                    for key in ("largest_error", "median_error")
                ),
                f"{values['other_choice']['value']:.2%}" if name != "reference" else "-",
                f"{perplexity:.4f}",
                f"{perplexity / exact - 1:+.3%}" if name != "reference" else "-",
            ]
        )
    return lines


def _of(value: float, unit: str, digits: int = 3) -> dict[str, Any]:
    return {"value": float(f"{value:.{digits}g}"), "unit": unit}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--isa", default="", help="instruction set; the best of this machine by default"
    )
    parser.add_argument("--text", type=Path, default=TEXT, help="another text, up to 4,096 tokens")
    parser.add_argument("--json", action="store_true", help="print the run instead of the table")
    parser.add_argument("--output", default="", help="file to keep the run in")
    args = parser.parse_args()
    if args.isa and args.isa not in instruction_sets():
        parser.error(f"no {args.isa!r} kernels here; there are {', '.join(instruction_sets())}")
    if not args.text.is_file():
        parser.error(f"{args.text}: no such file")
    tokens, found = measure(args.isa, args.text.read_text(encoding="utf-8"))
    settings = {"isa": args.isa, "text": args.text.name, "tokens": tokens}
    run = new_run("precision", settings) | {"precision": found}
    path = save(run, args.output)
    if args.json:
        print(json.dumps(run, indent=1))
        return
    heads = ["activations", "by", "largest", "median row", "other choice", "perplexity", "change"]
    print(table(heads, rows(found)))
    print(f"\n{tokens} tokens; {path}")


if __name__ == "__main__":
    main()
