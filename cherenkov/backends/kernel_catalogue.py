"""Every kernel of `kernels/metal`, with the names of its inputs and outputs and the headers that it needs."""

from __future__ import annotations

from cherenkov.backends.shaders import Kernel, Signature, Template, load

__all__ = ["KERNELS", "example"]

_ACTIVE = ("activations.h",)
_AFFINE = ("affine.h", "activations.h")
_TILED = ("tiles.h", "activations.h")
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
        load("tile_gemv", (*w, "x", "params", "dims"), ("y",), _TILED),
        load("tile_up", (*pool[::2], "rows", "x", "dims"), ("h",), _TILED),
        load("tile_down", (*pool[::2], "h", "dims"), ("y",), _TILED),
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
        load("block_keys", ("raw", "weight", "cosine", "sine", "params", "from", "dims"), ("out",)),
        load("qsa_scores", ("query", "keys", "from", "dims"), ("scores",)),
        load("qsa_select", ("scores", "dims"), ("chosen",)),
        load(
            "qsa_attend",
            ("query", "keys", "values", "chosen", "params", "from", "dims"),
            ("sums", "tops"),
        ),
        load("qsa_merge", ("sums", "tops", "projected", "dims"), ("out",), _ACTIVE),
        load("route", ("scores", "table", "dims"), ("ids", "weights", "places")),
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

_PRODUCT: Template = (
    ("BITS", 4),
    ("ROWS", 1),
    ("LANES", 16),
    ("AHEAD", 5),
    ("TILE", 96),
    ("SG", 4),
    ("TX", 1),
)
_EXPERT: Template = (("WIDTH", 4), *_PRODUCT[1:])
_TILES: Template = (
    ("BITS", 4),
    ("TILES", 1),
    ("KSPLIT", 4),
    ("SPAN", 1),
    ("ONCE", False),
    ("AHEAD", 1),
    ("BRING", 20),
    ("SG", 4),
    ("TX", 1),
)
_TEMPLATES: dict[str, Template] = {
    "tile_gemv": _TILES,
    "tile_up": _TILES,
    "tile_down": _TILES,
    "affine_gemv": _PRODUCT,
    "affine_swiglu": _PRODUCT,
    "value_gemv": (("T", "bfloat16"), ("TX", 1)),
    "expert_up": _EXPERT,
    "expert_down": _EXPERT,
    "group_norm": (("SG", 8),),
    "residual_mix": (
        ("BITS", 4),
        ("S", 4),
        ("LANES", 2),
        ("AHEAD", 2),
        ("TILE", 32),
        ("SG", 4),
        ("TX", 1),
    ),
    "causal_conv": (("ADD", False),),
    "delta_step": (
        ("HK", 16),
        ("HV", 48),
        ("DK", 128),
        ("DV", 128),
        ("SLICES", 4),
        ("SILU", False),
        ("SNAP", False),
    ),
    "block_keys": (("T", "float32"), ("N", 128)),
    "qsa_scores": (("T", "float32"), ("N", 128)),
    "qsa_select": (("SG", 8),),
    "qsa_attend": (("T", "float32"), ("N", 256)),
    "route": (("P", 16), ("Q", 1), ("PLACED", True)),
    "ple_gate": (("SG", 8),),
    "argmax": (("SG", 8), ("FIRST", True)),
}
_MATRICES = ("w", "gw", "uw")
"""Codes of affine matrices; `s` and `b` in place of `w` are their scales and biases."""
_WHOLE = dict.fromkeys(
    ("dims", "tags", "slots", "rows", "place", "table", "chosen", "from"), "int32"
)
_MADE_WHOLE = ("ids", "places", "index", "chosen", "token")


def example(name: str) -> Signature:
    """A kernel as the published model calls it for one row, so that its text can be shown and compiled.

    Types follow from names: float32, but for the names listed above this function.
    """
    kernel, template = KERNELS[name], _TEMPLATES.get(name, ())
    types = dict(template)
    kinds = _WHOLE | {"pool": "uint32"}
    for codes in _MATRICES:
        if codes in kernel.inputs:
            before = codes.removesuffix("w")
            kinds |= {codes: "uint32", f"{before}s": "bfloat16", f"{before}b": "bfloat16"}
    if name in {"value_gemv", "block_keys", "qsa_scores", "qsa_attend"}:
        kinds |= dict.fromkeys(("w", "raw", "keys", "values"), str(types["T"]))
    inputs = tuple((kinds.get(each, "float32"), (64,)) for each in kernel.inputs)
    outputs = tuple("int32" if each in _MADE_WHOLE else "float32" for each in kernel.outputs)
    return Signature(inputs, outputs, template)
