"""Every kernel of `kernels/metal`, with the names of its inputs and outputs and the headers that it needs."""

from __future__ import annotations

from cherenkov.backends.shaders import Kernel, load

__all__ = ["KERNELS"]

_ACTIVE = ("activations.h",)
_AFFINE = ("affine.h", "activations.h")
_RECORDS = ("affine.h", "records.h", "activations.h")


def _catalogue() -> dict[str, Kernel]:
    w = ("w", "s", "b")
    pool = ("pool", "tags", "slots")
    made = (
        load("affine_gemv", (*w, "x", "params", "dims"), ("y",), _AFFINE),
        load("affine_swiglu", ("gw", "gs", "gb", "uw", "us", "ub", "x", "dims"), ("h",), _AFFINE),
        load("value_gemv", ("w", "x", "params", "dims"), ("y",), _ACTIVE),
        load("expert_up", (*pool, "rows", "x", "dims"), ("h",), _RECORDS),
        load("expert_down", (*pool, "h", "dims"), ("y",), _RECORDS),
        load(
            "expert_sum",
            ("y", "place", "weights", "shared", "control", "gain", "wide", "dims"),
            ("out",),
            _ACTIVE,
        ),
        load("group_norm", ("x", "weight", "params", "dims"), ("out",)),
        load("residual_mix", (*w, "low", "normed", "dims"), ("out",), _AFFINE),
        load("gated_inject", ("wide", "block", "gain", "dims"), ("out",)),
        load("causal_conv", ("x", "history", "taps", "base", "dims"), ("y", "after"), _ACTIVE),
        load(
            "delta_step",
            ("conv", "a", "b", "a_log", "dt_bias", "z", "norm", "before", "params", "dims"),
            ("y", "after"),
            _ACTIVE,
        ),
        load("qsa_prepare", ("in", "weight", "cosine", "sine", "params", "dims"), ("out",)),
        load("block_keys", ("raw", "weight", "cosine", "sine", "params", "dims"), ("out",)),
        load("qsa_scores", ("query", "keys", "dims"), ("scores",)),
        load("qsa_select", ("scores", "dims"), ("chosen",)),
        load(
            "qsa_attend",
            ("query", "keys", "values", "chosen", "params", "dims"),
            ("sums", "tops"),
        ),
        load("qsa_merge", ("sums", "tops", "projected", "dims"), ("out",), _ACTIVE),
        load("route", ("scores", "dims"), ("ids", "weights")),
        load(
            "ple_gate",
            ("key", "wide", "value", "norm_key", "norm_query", "norm_conv", "params", "dims"),
            ("base", "normed"),
            _ACTIVE,
        ),
        load("argmax", ("values", "from", "dims"), ("best", "index")),
        load("sample", ("logits", "largest", "draw", "inverse_temperature", "dims"), ("token",)),
    )
    return {kernel.name: kernel for kernel in made}


KERNELS = _catalogue()
"""By name."""
