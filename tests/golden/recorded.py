"""Recorded vectors, and what it means to agree with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["FOUR_BIT", "QUANTISED", "TOLERANCE", "VECTORS", "Recorded", "notes"]

VECTORS = Path(__file__).parent / "vectors"
FOUR_BIT = "-4bit"
QUANTISED = ("null-gate-4bit", "thirty-twos-4bit")
"""Tiny models recorded also from their 4-bit weights: groups of 64, groups of 32, n-gram rows of 16."""
TOLERANCE = 2e-4
"""Of the largest logit, at least 1: what float32 may differ by. The oracle's own error is 7e-6 at most."""

Floats = NDArray[np.float32]


def notes(name: str) -> dict[str, Any]:
    """What the recording script noted of a model."""
    found: dict[str, Any] = json.loads((VECTORS / "oracle.json").read_text())["models"][name]
    return found


class Recorded:
    """The vectors of one model."""

    def __init__(self, name: str) -> None:
        self.name = name
        with np.load(VECTORS / f"{name}.npz") as file:
            self._arrays = {key: file[key] for key in file.files}

    def ids(self, prompt: str) -> list[int]:
        """Token ids of a prompt."""
        return [int(i) for i in self._arrays[f"{prompt}/ids"]]

    def greedy(self, prompt: str) -> list[int]:
        """Token ids of the greedy continuation."""
        return [int(i) for i in self._arrays[f"{prompt}/greedy"]]

    def draft_lengths(self, prompt: str) -> list[int]:
        """Lengths of the prefixes that drafts were recorded behind."""
        parts = [key.split("/") for key in self._arrays if key.startswith(f"{prompt}/draft/")]
        return sorted({int(part[2]) for part in parts})

    def check(self, logits: Floats, where: str, tolerance: float = TOLERANCE) -> float:
        """Compare logits `[T, V]` with those recorded under `where`: a prompt, or `prompt/draft/length`.

        Returns:
            The largest difference, relative to the largest logit.

        Raises:
            AssertionError: if any differs by more than the tolerance, or an argmax differs though its margin is larger.
        """
        kept = {
            k: self._arrays[f"{where}/{k}"]
            for k in ("full_at", "full", "top_ids", "top", "logsumexp")
        }
        scale = max(1.0, float(self._arrays[f"{where}/largest"]))
        assert logits.dtype == np.float32
        assert len(logits) == len(kept["top"])
        top_ids = kept["top_ids"].astype(np.intp)
        wide = logits.astype(np.float64)
        peak = wide.max(axis=1)
        mass = peak + np.log(np.exp(wide - peak[:, None]).sum(axis=1))
        apart = {
            "some position's whole row": _apart(logits[kept["full_at"]], kept["full"]),
            "the largest logits": _apart(np.take_along_axis(logits, top_ids, axis=1), kept["top"]),
            "the normaliser": _apart(mass, kept["logsumexp"]),
        }
        for what, difference in apart.items():
            # written so that NaN fails
            assert difference <= tolerance * scale, (
                f"{self.name} {where}: {what}: {difference:.2e}, allowed {tolerance * scale:.2e}"
            )
        clear = kept["top"][:, 0] - kept["top"][:, 1] > tolerance * scale
        differs = np.flatnonzero(clear & (logits.argmax(axis=1) != top_ids[:, 0]))
        assert not len(differs), f"{self.name} {where}: another argmax at rows {differs.tolist()}"
        return max(apart.values()) / scale

    def check_states(
        self, states: dict[str, Floats], prompt: str, tolerance: float = TOLERANCE
    ) -> None:
        """Compare final states with those recorded, of every DeltaNet and n-gram layer.

        Raises:
            AssertionError: if one is missing, or differs by more than the tolerance times its largest value.
        """
        stride = int(self._arrays[f"{prompt}/stride"])
        prefix = f"{prompt}/state/"
        recorded = {
            k.removeprefix(prefix): v for k, v in self._arrays.items() if k.startswith(prefix)
        }
        assert recorded
        for key, expected in recorded.items():
            found = states[key][..., ::stride]
            found = found[..., ::stride, :] if found.ndim == 3 else found
            assert found.shape == expected.shape
            allowed = tolerance * max(1.0, float(np.abs(expected).max()))
            assert _apart(found, expected) <= allowed, f"{self.name} {prompt}: state {key}"


def _apart(a: NDArray[Any], b: NDArray[Any]) -> float:
    return float(np.abs(a - b).max()) if a.size else 0.0
