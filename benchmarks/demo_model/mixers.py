"""Glow's two token mixers: indexed attention and Gated DeltaNet."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.demo_model.parts import PHASE, G, Linear, Norm

__all__ = ["Attention", "DeltaNet", "rotary_tables"]


def rotary_tables(positions: Tensor) -> tuple[Tensor, Tensor]:
    inverse = 1.0 / (
        G.theta ** (torch.arange(0, G.rotary, 2, device=positions.device).float() / G.rotary)
    )
    angles = positions.float()[:, None] * inverse
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    width = cos.shape[-1]
    turned, rest = x[..., :width], x[..., width:]
    first, second = turned[..., : width // 2], turned[..., width // 2 :]
    return torch.cat([turned * cos + torch.cat([-second, first], -1) * sin, rest], -1)


class Indexer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.index_qk_proj = Linear(G.hidden, (G.index_heads + 1) * G.index_dim)
        self.q_layernorm = Norm(G.index_dim)
        self.k_layernorm = Norm(G.index_dim)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Scores `[B, T, blocks]`, very low for blocks that are not complete at the query, and which are."""
        tokens = x.shape[1]
        count = tokens // G.block
        split = G.index_heads * G.index_dim
        both = self.index_qk_proj(x)
        queries, keys = (
            both[..., :split].unflatten(-1, (G.index_heads, G.index_dim)),
            both[..., split:],
        )
        queries = rotate(self.q_layernorm(queries), cos[:, None], sin[:, None])
        blocks = (
            keys[:, : count * G.block].unflatten(1, (count, G.block)).float().mean(2).to(keys.dtype)
        )
        starts = slice(0, count * G.block, G.block)
        blocks = rotate(self.k_layernorm(blocks), cos[starts], sin[starts])
        scores = torch.einsum("bthd,bnd->bthn", queries.float(), blocks.float())
        scores = torch.relu(scores).sum(2) / math.sqrt(G.index_dim)
        now = torch.arange(tokens, device=x.device)
        ends = (torch.arange(count, device=x.device) + 1) * G.block
        complete = ends[None] <= (now + 1)[:, None]
        return scores.masked_fill(~complete, -1e30), complete


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj = Linear(G.hidden, G.heads * G.head_dim * 2)
        self.k_proj = Linear(G.hidden, G.kv_heads * G.head_dim)
        self.v_proj = Linear(G.hidden, G.kv_heads * G.head_dim)
        self.o_proj = Linear(G.heads * G.head_dim, G.hidden)
        self.q_norm = Norm(G.head_dim)
        self.k_norm = Norm(G.head_dim)
        self.indexer = Indexer()

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        queries, gate = self.q_proj(x).unflatten(-1, (G.heads, 2 * G.head_dim)).chunk(2, -1)
        keys = self.k_proj(x).unflatten(-1, (G.kv_heads, G.head_dim))
        values = self.v_proj(x).unflatten(-1, (G.kv_heads, G.head_dim)).to(x.dtype)
        turn = cos[:, None], sin[:, None]
        queries = rotate(self.q_norm(queries), *turn).to(x.dtype).transpose(1, 2)
        shape = (batch, G.heads, tokens, G.head_dim)
        keys = (
            rotate(self.k_norm(keys), *turn).to(x.dtype).transpose(1, 2).expand(shape).contiguous()
        )
        values = values.transpose(1, 2).expand(shape).contiguous()
        now = torch.arange(tokens, device=x.device)
        causal = now[:, None] >= now[None]
        scores, complete = self.indexer(x.detach(), cos, sin)
        if PHASE.sparse and scores.shape[-1] > G.budget // G.block:
            mask = _selected(scores, complete, causal)[:, None]
            mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        else:
            mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        if self.training and PHASE.distil:
            PHASE.index_losses.append(_index_loss(queries, keys, scores, complete, causal))
        gated = mixed.transpose(1, 2).flatten(-2) * torch.sigmoid(gate.flatten(-2))
        return self.o_proj(gated)


def _selected(scores: Tensor, complete: Tensor, causal: Tensor) -> Tensor:
    """What each query may attend to: tokens of its best blocks, and those after the last complete block."""
    tokens = causal.shape[0]
    best = scores.topk(G.budget // G.block, -1).indices
    kept = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, best, True) & complete
    kept = kept.repeat_interleave(G.block, -1)
    kept = F.pad(kept, (0, tokens - kept.shape[-1]))
    now = torch.arange(tokens, device=scores.device)
    tail = now[None] >= ((now + 1) // G.block * G.block)[:, None]
    return causal & (kept | tail)


def _index_loss(
    queries: Tensor, keys: Tensor, scores: Tensor, complete: Tensor, causal: Tensor
) -> Tensor:
    """Cross-entropy from the attention mass of each block to the indexer's scores, at 32 random queries."""
    tokens, count = causal.shape[0], scores.shape[-1]
    rows = torch.randint(G.block * 8, tokens, (32,), device=scores.device)
    with torch.no_grad():
        logits = (queries[:, :, rows].float() @ keys.float().transpose(-1, -2)) / math.sqrt(
            G.head_dim
        )
        mass = torch.softmax(logits + torch.where(causal[rows], 0.0, -1e30), -1).sum(1)
        mass = mass[..., : count * G.block].unflatten(-1, (count, G.block)).sum(-1) * complete[rows]
        mass = mass / mass.sum(-1, keepdim=True).clamp_min(1e-9)
    return -(mass * torch.log_softmax(scores[:, rows], -1).clamp_min(-40)).sum(-1).mean()


# --- Gated DeltaNet


class GatedNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(G.delta_dim))

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + G.eps)
        return (self.weight * y * torch.sigmoid(gate.float())).to(gate.dtype)


class DeltaNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.keys, self.values = G.key_heads * G.delta_dim, G.value_heads * G.delta_dim
        channels = 2 * self.keys + self.values
        self.conv1d = nn.Conv1d(
            channels, channels, G.taps, groups=channels, bias=False, padding=G.taps - 1
        )
        self.dt_bias = nn.Parameter(torch.ones(G.value_heads))
        self.A_log = nn.Parameter(torch.empty(G.value_heads).uniform_(0.5, 8).log())
        self.norm = GatedNorm()
        self.out_proj = Linear(self.values, G.hidden)
        self.in_proj_qkv = Linear(G.hidden, channels)
        self.in_proj_z = Linear(G.hidden, self.values)
        self.in_proj_b = Linear(G.hidden, G.value_heads)
        self.in_proj_a = Linear(G.hidden, G.value_heads)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.in_proj_qkv(x).transpose(1, 2)
        mixed = F.silu(self.conv1d(mixed)[..., : x.shape[1]]).transpose(1, 2)
        query, key, value = mixed.split([self.keys, self.keys, self.values], -1)
        query = _unit(self._heads(query)) / math.sqrt(G.delta_dim)
        key = _unit(self._heads(key))
        value = value.unflatten(-1, (G.value_heads, G.delta_dim)).transpose(1, 2).float()
        beta = self.in_proj_b(x).float().sigmoid().transpose(1, 2)
        step = F.softplus(self.in_proj_a(x).float() + self.dt_bias)
        decay = (-self.A_log.float().exp() * step).transpose(1, 2)
        with torch.autocast("cuda", enabled=False):
            out = chunked_delta(query, key, value, beta, decay).transpose(1, 2)
        gate = self.in_proj_z(x).unflatten(-1, (G.value_heads, G.delta_dim))
        return self.out_proj(self.norm(out, gate).flatten(-2).to(x.dtype))

    def _heads(self, x: Tensor) -> Tensor:
        repeats = G.value_heads // G.key_heads
        heads = x.unflatten(-1, (G.key_heads, G.delta_dim)).repeat_interleave(repeats, 2)
        return heads.transpose(1, 2).float()


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def chunked_delta(
    query: Tensor, key: Tensor, value: Tensor, beta: Tensor, decay: Tensor, size: int = 64
) -> Tensor:
    """The gated delta rule over `[B, H, T, d]`, chunk by chunk: dense products inside, a recurrence between."""
    batch, heads, tokens, width = query.shape
    count = tokens // size
    assert count * size == tokens
    query, key, value = (t.reshape(batch, heads, count, size, width) for t in (query, key, value))
    beta = beta.reshape(batch, heads, count, size)
    total = decay.reshape(batch, heads, count, size).cumsum(-1)
    place = torch.arange(size, device=query.device)
    lower, strict = place[:, None] >= place[None], place[:, None] > place[None]
    between = torch.exp((total[..., :, None] - total[..., None, :]).masked_fill(~lower, -1e30))
    narrow = torch.bfloat16 if query.is_cuda else torch.float32

    def product(a: Tensor, b: Tensor) -> Tensor:
        return (a.to(narrow) @ b.to(narrow)).float()

    overlap = (product(beta[..., None] * key, key.transpose(-1, -2)) * between).masked_fill(
        ~strict, 0
    )
    eye = torch.eye(size, device=query.device).expand_as(overlap)
    solved = torch.linalg.solve_triangular(eye + overlap, eye, upper=False, unitriangular=True)
    fresh = product(solved, beta[..., None] * value)
    recalled = product(solved, beta[..., None] * key * total.exp()[..., None])
    within = product(query, key.transpose(-1, -2)) * between
    query = query * total.exp()[..., None]
    key = key * (total[..., -1:] - total).exp()[..., None]
    last = total[..., -1].exp()
    state = torch.zeros(batch, heads, width, width, device=query.device)
    out = []
    for c in range(count):
        change = fresh[:, :, c] - product(recalled[:, :, c], state)
        out.append(product(query[:, :, c], state) + product(within[:, :, c], change))
        state = state * last[:, :, c, None, None] + product(key[:, :, c].transpose(-1, -2), change)
    return torch.stack(out, 2).reshape(batch, heads, tokens, width)
