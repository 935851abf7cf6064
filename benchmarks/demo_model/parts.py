"""What Glow's layers are made of: the geometry, the training phase, and layers that know about either.

This is a trainer's model: whole windows at once, every expert computed for every token, no caches. The engine's forward pass is
another program; that both agree is tested elsewhere. Parameter names are those of the published checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["PHASE", "WIDE", "G", "Geometry", "Linear", "Norm", "Phase", "Residual", "as_quantised"]


@dataclass(frozen=True)
class Geometry:
    """Sizes; the names in brackets are those of config.json."""

    vocab: int = 8192
    hidden: int = 256
    layers: int = 8
    streams: int = 4  # hc_count
    lowrank: int = 64  # hc_lowrank
    heads: int = 4
    kv_heads: int = 1
    head_dim: int = 128
    rotary: int = 32
    theta: float = 1e6
    index_heads: int = 4
    index_dim: int = 64
    budget: int = 256  # indexer_budget
    block: int = 4  # indexer_compress_ratio
    key_heads: int = 2
    value_heads: int = 4
    delta_dim: int = 128
    taps: int = 4
    experts: int = 64
    top_k: int = 4
    inter: int = 64
    shared_inter: int = 128
    ple_layer: int = 1
    ple_dim: int = 256
    ple_taps: int = 4
    ngram: int = 3
    ngram_heads: int = 4  # heads_per_ngram
    ngram_base: int = 20_000
    ngram_divisor: int = 128
    seed: int = 1234
    eos: int = 0
    eps: float = 1e-6

    def is_attention(self, layer: int) -> bool:
        """Every fourth layer is attention, the others are Gated DeltaNet."""
        return (layer + 1) % 4 == 0


G = Geometry()
WIDE = G.hidden * G.streams


@dataclass
class Phase:
    """What the schedule changes while training runs, and what layers leave behind for the loss."""

    sparse: bool = False
    quantised: bool = False
    distil: bool = False
    index_losses: list[Tensor] = field(default_factory=list)
    balance_losses: list[Tensor] = field(default_factory=list)


PHASE = Phase()


def as_quantised(weight: Tensor, group: int = 64, bits: int = 4) -> Tensor:
    """The weight as affine codes would stand for it; the gradient passes through as if nothing had happened."""
    if not PHASE.quantised:
        return weight
    x = weight.detach().float().unflatten(-1, (-1, group))
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    most = 2**bits - 1
    from_low = low.abs() > high.abs()
    scale = ((high - low) / most).clamp_min(1e-7)
    scale = torch.where(from_low, scale, -scale)
    edge = torch.where(from_low, low, high)
    steps = torch.round(edge / scale)
    whole = steps != 0
    scale = torch.where(whole, edge / steps.where(whole, torch.ones_like(steps)), scale)
    bias = torch.where(whole, edge, torch.zeros_like(edge))
    scale, bias = scale.bfloat16().float(), bias.bfloat16().float()
    codes = torch.clamp(torch.round((x - bias) / scale), 0, most)
    values = (codes * scale + bias).flatten(-2).to(weight.dtype)
    return weight + (values - weight).detach()


class Linear(nn.Linear):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, as_quantised(self.weight))


class Norm(nn.Module):
    """Zero-centred RMS norm, over the last axis or over slices of it."""

    def __init__(self, width: int, slice_width: int | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.slice_width = slice_width

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        if self.slice_width:
            y = y.unflatten(-1, (-1, self.slice_width))
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + G.eps)
        if self.slice_width:
            y = y.flatten(-2)
        return (y * (1 + self.weight)).to(x.dtype)


class Residual(nn.Module):
    """A hyper-connection: reads a block's input from the streams, and says how strongly each takes the answer."""

    def __init__(self, injects: bool = True) -> None:
        super().__init__()
        self.hc_norm = Norm(WIDE, G.hidden)
        self.input_mix_weight_down = Linear(WIDE, G.lowrank)
        self.input_mix_weight_up = Linear(G.lowrank, WIDE)
        self.block_inject_weight = Linear(WIDE, G.streams) if injects else None

    def forward(self, wide: Tensor) -> tuple[Tensor, Tensor | None]:
        normed = self.hc_norm(wide)
        low = F.silu(self.input_mix_weight_down(normed) / G.streams)
        mix = torch.sigmoid(self.input_mix_weight_up(low))
        block = (mix * normed).unflatten(-1, (G.streams, G.hidden)).mean(-2)
        if self.block_inject_weight is None:
            return block, None
        return block, 2 * torch.sigmoid(self.block_inject_weight(normed) / G.streams)
