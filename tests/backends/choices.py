"""The instruction sets and precisions of the native backend that can be tested here."""

import pytest

from cherenkov.backends.base import Options
from cherenkov.backends.native import Native, instruction_sets, unavailable
from tests.forced import FORCED

__all__ = ["CHOICES", "DEFAULTS", "FLOAT32", "ISAS", "TOLERANCE", "needs_kernels", "start"]

needs_kernels = pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "kernels are built")

ISAS = tuple(isa for isa in instruction_sets() if FORCED in {"", isa})
_OFFERS = {
    "avx512_bf16": ("float32", "bf16", "int16", "int8"),
    "avx512_vnni": ("float32", "int16", "int8"),
    "avx2": ("float32", "int16", "int8"),
    "portable": ("float32",),
}
CHOICES = [(isa, precision) for isa in ISAS for precision in _OFFERS[isa]]
FLOAT32 = [(isa, "float32") for isa in ISAS]
DEFAULTS = [(isa, "") for isa in ISAS]

TOLERANCE = {"float32": 5e-6, "bf16": 1.2e-2, "int16": 4e-4, "int8": 6e-2}
"""Largest error of a product, over the size that a sum of random signs would have."""


def start(isa, precision="float32", threads=2):
    return Native(Options(threads=threads, precision=precision, isa=isa or FORCED))
