"""Where everything lies in a packed store. Pure arithmetic; no file is touched here.

The layout is that of the published Rust engine, byte for byte (docs/format.md). Our extensions are groups of 32
and widths other than 4 bits, both declared in the manifest.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DENSE_ALIGNMENT", "PAGE", "ExpertLayout", "NgramLayout", "padded"]

PAGE = 16_384
"""Experts start on this boundary: a page on Apple Silicon, a multiple of a page elsewhere."""
DENSE_ALIGNMENT = 64
_MATRICES = ("gate", "up", "down")


def padded(size: int, alignment: int) -> int:
    """`size` rounded up to a multiple of `alignment`."""
    return -(-size // alignment) * alignment


@dataclass(frozen=True, slots=True)
class ExpertLayout:
    """One expert record: three matrices' codes, then scales and biases of each, padded to a page.

    At `bits` = 16 the codes are BF16 values and there are no scales or biases.
    """

    inter: int
    hidden: int
    bits: int = 4
    group: int = 64

    def __post_init__(self) -> None:
        if self.bits not in {2, 3, 4, 8, 16}:
            raise ValueError(f"bits = {self.bits}: not one of 2, 3, 4, 8, 16")
        if self.bits != 16 and (
            self.group not in {32, 64} or self.inter % self.group or self.hidden % self.group
        ):
            raise ValueError(
                f"group = {self.group}: must be 32 or 64 and divide inter = {self.inter} and hidden = {self.hidden}"
            )

    @property
    def codes_bytes(self) -> int:
        """Bytes of one matrix's codes."""
        return self.inter * self.hidden * self.bits // 8

    @property
    def scales_bytes(self) -> int:
        """Bytes of one matrix's scales, and of its biases."""
        return 0 if self.bits == 16 else self.inter * self.hidden // self.group * 2

    @property
    def record_bytes(self) -> int:
        """Bytes of a record that mean something."""
        return 3 * self.codes_bytes + 6 * self.scales_bytes

    @property
    def stride_bytes(self) -> int:
        """Distance between records."""
        return padded(self.record_bytes, PAGE)

    def offsets(self) -> dict[str, int]:
        """Byte offsets inside a record, by the manifest's names: gate_w … down_w, gate_s, gate_b … down_b."""
        table = {f"{m}_w": i * self.codes_bytes for i, m in enumerate(_MATRICES)}
        start = 3 * self.codes_bytes
        for i, matrix in enumerate(_MATRICES):
            table[f"{matrix}_s"] = start + 2 * i * self.scales_bytes
            table[f"{matrix}_b"] = start + (2 * i + 1) * self.scales_bytes
        return table


@dataclass(frozen=True, slots=True)
class NgramLayout:
    """One n-gram row: codes, scales, biases, without padding. At `bits` = 16 a row is BF16 values."""

    rows: int
    dim: int
    bits: int = 4
    group: int = 32

    @property
    def weight_bytes(self) -> int:
        """Bytes of a row's codes."""
        return self.dim * self.bits // 8

    @property
    def scale_bytes(self) -> int:
        """Bytes of a row's scales, and of its biases."""
        return 0 if self.bits == 16 else self.dim // self.group * 2

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.weight_bytes + 2 * self.scale_bytes

    @property
    def total_bytes(self) -> int:
        """Bytes of the table."""
        return self.rows * self.row_bytes
