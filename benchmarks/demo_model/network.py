"""Glow's network in PyTorch, as it was trained: experts, n-gram features, and the whole."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.demo_model.mixers import Attention, DeltaNet, rotary_tables
from benchmarks.demo_model.parts import PHASE, WIDE, G, Linear, Norm, Residual, as_quantised

__all__ = ["Glow"]


def inject(wide: Tensor, block: Tensor, gain: Tensor) -> Tensor:
    return wide + (block.unsqueeze(-2) * gain.unsqueeze(-1)).flatten(-2)


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(G.experts, 2 * G.inter, G.hidden) * 0.04)
        self.down_proj = nn.Parameter(torch.randn(G.experts, G.hidden, G.inter) * 0.04)


class Router(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(G.experts, G.hidden) * 0.02)


class SharedExpert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = Linear(G.hidden, G.shared_inter)
        self.up_proj = Linear(G.hidden, G.shared_inter)
        self.down_proj = Linear(G.shared_inter, G.hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = Router()
        self.experts = Experts()
        self.shared_expert = SharedExpert()
        self.shared_expert_gate = nn.Linear(G.hidden, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.reshape(-1, G.hidden)
        scores = F.linear(x, self.gate.weight).float().softmax(-1)
        best, ids = scores.topk(G.top_k, -1)
        weights = (
            torch.zeros_like(scores).scatter(-1, ids, best / best.sum(-1, keepdim=True)).to(x.dtype)
        )
        used = torch.zeros_like(scores).scatter(-1, ids, 1.0).mean(0) / G.top_k
        PHASE.balance_losses.append(G.experts * (used * scores.mean(0)).sum())
        # Every expert for every token: at this size the dense product is faster than gathering.
        up = F.linear(x, as_quantised(self.experts.gate_up_proj).reshape(-1, G.hidden))
        up = up.unflatten(-1, (G.experts, 2, G.inter))
        hidden = F.silu(up[:, :, 0]) * up[:, :, 1] * weights[:, :, None]
        down = as_quantised(self.experts.down_proj).permute(1, 0, 2).reshape(G.hidden, -1)
        shared = torch.sigmoid(self.shared_expert_gate(x)) * self.shared_expert(x)
        return (F.linear(hidden.flatten(1), down) + shared).reshape(shape)


# --- n-gram features


def _splitmix(value: int) -> int:
    mask = (1 << 64) - 1
    value = (value + 0x9E3779B97F4A7C15) & mask
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
    return value ^ (value >> 31)


def multipliers() -> list[int]:
    """Odd numbers that keep products of token ids within 63 bits."""
    half = max(1, ((1 << 63) - 1) // G.vocab // 2)
    step = 0x9E3779B97F4A7C15
    return [
        2 * (_splitmix(G.seed + step * (i + 1) & (1 << 64) - 1) % half) + 1 for i in range(G.ngram)
    ]


def head_sizes() -> list[int]:
    """The first primes from `ngram_base` on, one for each hash head."""
    primes: list[int] = []
    candidate = G.ngram_base
    while len(primes) < (G.ngram - 1) * G.ngram_heads:
        if all(candidate % d for d in range(2, math.isqrt(candidate) + 1)):
            primes.append(candidate)
        candidate += 1
    return primes


class NgramEmbedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = head_sizes()
        rows = -(-sum(sizes) // G.ngram_divisor) * G.ngram_divisor
        self.register_buffer("layer_multipliers", torch.tensor(multipliers()))
        self.register_buffer("ngram_heads_vocab_sizes", torch.tensor(sizes))
        self.register_buffer(
            "ngram_heads_offsets", torch.tensor([sum(sizes[:i]) for i in range(len(sizes))])
        )
        self.ngram_embedding = nn.Embedding(rows, G.ple_dim // len(sizes))

    def forward(self, ids: Tensor) -> Tensor:
        rows = F.embedding(self._rows(ids), as_quantised(self.ngram_embedding.weight, 32))
        return F.dropout(rows, 0.3, self.training).flatten(-2)

    def _rows(self, ids: Tensor) -> Tensor:
        batch, tokens = ids.shape
        history = torch.cat([ids.new_full((batch, G.ngram - 1), G.eos), ids], 1)
        length = history.shape[1]
        place = torch.arange(length, device=ids.device)
        last_eos = torch.where(history == G.eos, place, -1).cummax(1).values
        before = torch.cat([last_eos.new_full((batch, 1), -1), last_eos[:, :-1]], 1)
        since = place - (before + 1)  # tokens of the same segment before this one
        shifted = [history]
        for k in range(1, G.ngram):
            token = history.gather(1, (place - k).clamp_min(0).expand(batch, length))
            own = (since >= k) & (place - k >= 0)
            shifted.append(torch.where(own, token, history.new_full((), G.eos)))
        out = []
        mixed = shifted[0] * self.layer_multipliers[0]
        for k in range(1, G.ngram):
            mixed = mixed ^ (shifted[k] * self.layer_multipliers[k])
            heads = slice((k - 1) * G.ngram_heads, k * G.ngram_heads)
            rows = torch.remainder(mixed[..., None], self.ngram_heads_vocab_sizes[heads])
            out.append(rows + self.ngram_heads_offsets[heads])
        return torch.cat(out, -1)[:, -tokens:]


class Ple(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ple_embedding = NgramEmbedding()
        self.key_proj = Linear(G.ple_dim, WIDE)
        self.value_proj = Linear(G.ple_dim, G.hidden)
        self.norm_key = Norm(WIDE, G.hidden)
        self.norm_query = Norm(WIDE, G.hidden)
        self.norm_conv = Norm(WIDE, G.hidden)
        self.conv1d = nn.Conv1d(WIDE, WIDE, G.ple_taps, groups=WIDE, dilation=G.ngram, bias=False)
        nn.init.zeros_(self.conv1d.weight)

    def forward(self, wide: Tensor, ids: Tensor) -> Tensor:
        split = (G.streams, G.hidden)
        features = self.ple_embedding(ids).to(wide.dtype)
        key = self.norm_key(self.key_proj(features)).unflatten(-1, split)
        query = self.norm_query(wide).unflatten(-1, split)
        score = (key.float() * query.float()).sum(-1, keepdim=True) / math.sqrt(G.hidden)
        gate = torch.sigmoid(score.abs().clamp_min(1e-6).sqrt() * score.sign()).to(wide.dtype)
        gated = (gate * self.value_proj(features).unsqueeze(-2)).flatten(-2)
        past = F.pad(self.norm_conv(gated).transpose(1, 2), ((G.ple_taps - 1) * G.ngram, 0))
        return gated + F.silu(self.conv1d(past)).transpose(1, 2)


# --- the whole


class Layer(nn.Module):
    def __init__(self, attention: bool, features: bool = False) -> None:
        super().__init__()
        if attention:
            self.self_attn = Attention()
        else:
            self.linear_attn = DeltaNet()
        self.mlp = Mixture()
        self.ple = Ple() if features else None
        self.attn_hyper_connection = Residual()
        self.mlp_hyper_connection = Residual()

    def forward(self, wide: Tensor, cos: Tensor, sin: Tensor, ids: Tensor | None) -> Tensor:
        if self.ple is not None:
            wide = wide + self.ple(wide, ids)
        x, gain = self.attn_hyper_connection(wide)
        mixed = self.self_attn(x, cos, sin) if hasattr(self, "self_attn") else self.linear_attn(x)
        wide = inject(wide, mixed, gain)
        x, gain = self.mlp_hyper_connection(wide)
        return inject(wide, self.mlp(x), gain)


class DraftHead(nn.Module):
    """The trunk's residual at t with the embedding of token t + 1 predicts token t + 2."""

    def __init__(self) -> None:
        super().__init__()
        self.pre_fc_norm_embedding = Norm(G.hidden)
        self.pre_fc_norm_hidden = Norm(WIDE, G.hidden)
        self.fc_embedding = Linear(G.hidden, G.hidden)
        self.fc_hidden = Linear(G.hidden, G.hidden)
        self.layers = nn.ModuleList([Layer(attention=True)])
        self.hyper_connection_mixer = Residual(injects=False)

    def forward(self, wide: Tensor, embedding: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        token = self.fc_embedding(self.pre_fc_norm_embedding(embedding))
        hidden = self.fc_hidden(self.pre_fc_norm_hidden(wide).unflatten(-1, (G.streams, G.hidden)))
        wide = self.layers[0]((hidden + token.unsqueeze(-2)).flatten(-2), cos, sin, None)
        return self.hyper_connection_mixer(wide)[0]


class Trunk(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(G.vocab, G.hidden)
        self.layers = nn.ModuleList(
            [Layer(G.is_attention(i), i == G.ple_layer) for i in range(G.layers)]
        )
        self.hyper_connection_mixer = Residual(injects=False)


class Glow(nn.Module):
    """Trunk, LM head and draft head."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Trunk()
        self.lm_head = Linear(G.hidden, G.vocab)
        self.mtp = DraftHead()
        for name, weight in self.named_parameters():
            if weight.dim() == 2 and "norm" not in name:
                small = any(part in name for part in ("embed", "lm_head", "gate.weight"))
                nn.init.normal_(weight, 0, 0.02 if small else weight.shape[1] ** -0.5 * 0.7)

    def forward(self, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Loss, the draft head's loss, the balance loss, and how often the draft agrees with the trunk."""
        PHASE.balance_losses.clear()
        tokens = ids.shape[1]
        cos, sin = rotary_tables(torch.arange(tokens, device=ids.device))
        embedding = F.embedding(ids, as_quantised(self.model.embed_tokens.weight))
        wide = embedding.repeat(1, 1, G.streams)
        if torch.is_autocast_enabled("cuda"):
            wide = wide.to(torch.bfloat16)
        for layer in self.model.layers:
            wide = layer(wide, cos, sin, ids)
        logits = self.lm_head(self.model.hyper_connection_mixer(wide)[0])
        loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        length = tokens - 64  # DeltaNet works in chunks of 64, and one token is lost to the shift
        drafted = self.lm_head(
            self.mtp(wide[:, :length], embedding[:, 1 : length + 1], cos[:length], sin[:length])
        )
        draft_loss = F.cross_entropy(
            drafted.float().flatten(0, 1), targets[:, 1 : length + 1].flatten()
        )
        agreement = (drafted.argmax(-1) == logits[:, 1 : length + 1].argmax(-1)).float().mean()
        balance = sum(PHASE.balance_losses) / len(PHASE.balance_losses)
        return loss, draft_loss, balance, agreement
