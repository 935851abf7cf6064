"""Train Glow on one NVIDIA GPU, for a given time.

    python -m benchmarks.demo_model.train WORK --seconds 1200

The whole schedule follows the share of the time that is gone: a cosine from 3e-3, sparse attention from 60 % on, 4-bit fake
quantisation from 72 % on. Writes WORK/glow.safetensors, BF16, under the names of `network.Glow`.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from benchmarks.demo_model.network import Glow
from benchmarks.demo_model.parts import PHASE

WINDOW = 1024
BATCH = 64
PROSE_SHARE = 0.42
PEAK_RATE = 3e-3
WARM_UP_STEPS = 100
SPARSE_FROM = 0.60
QUANTISED_FROM = 0.72
EVALUATE_EVERY = 250
WEIGHTS = {"draft": 0.3, "balance": 0.01, "index": 0.05}


class Corpus:
    """Token files on the GPU, cut into windows."""

    def __init__(self, folder: Path, device: str) -> None:
        self.tokens = {
            path.stem: torch.from_numpy(np.fromfile(path, np.uint16).astype(np.int64)).to(device)
            for path in sorted(folder.glob("*.bin"))
        }

    def batch(self, name: str, count: int) -> Tensor:
        """Random windows `[count, WINDOW + 1]`."""
        source = self.tokens[name]
        starts = torch.randint(0, len(source) - WINDOW - 1, (count,), device=source.device)
        return source[starts[:, None] + torch.arange(WINDOW + 1, device=source.device)]

    def held_out(self, name: str) -> Tensor:
        """The first windows of a file, at most 48."""
        source = self.tokens[name]
        count = min(len(source) // (WINDOW + 1), 48)
        return source[: count * (WINDOW + 1)].view(count, WINDOW + 1)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW; matrices decay, norms and convolutions do not."""
    decaying, rest = [], []
    for name, weight in model.named_parameters():
        matrix = weight.dim() >= 2 and "norm" not in name and "conv1d" not in name
        (decaying if matrix else rest).append(weight)
    groups = [
        {"params": decaying, "weight_decay": 0.05},
        {"params": rest, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), fused=True)


def rate(step: int, done: float) -> float:
    """Learning rate: a short warm-up, then a cosine down to a fiftieth."""
    cosine = 0.5 * (1 + math.cos(math.pi * done)) * 0.98 + 0.02
    return PEAK_RATE * min(1.0, (step + 1) / WARM_UP_STEPS) * cosine


def evaluate(model: nn.Module, corpus: Corpus) -> str:
    """Loss, draft loss and agreement of the draft with the trunk, for prose and for chat."""
    model.eval()
    PHASE.distil = False
    figures = []
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        for name in ("prose_val", "chat_val"):
            windows = corpus.held_out(name)
            parts = [model(w[:, :-1], w[:, 1:]) for w in windows.split(16)]
            figures += [sum(float(p[i]) for p in parts) / len(parts) for i in (0, 1, 3)]
    model.train()
    return " ".join(f"{value:.3f}" for value in figures)


def step_loss(model: nn.Module, corpus: Corpus) -> tuple[Tensor, str]:
    """The loss of one random batch, and a line about it."""
    PHASE.distil, PHASE.index_losses = True, []
    prose = int(BATCH * PROSE_SHARE)
    windows = torch.cat([corpus.batch("prose", prose), corpus.batch("chat", BATCH - prose)])
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss, draft, balance, agreement = model(windows[:, :-1], windows[:, 1:])
    index = sum(PHASE.index_losses) / len(PHASE.index_losses)
    total = loss + WEIGHTS["draft"] * draft + WEIGHTS["balance"] * balance
    line = f"loss {loss:.3f} draft {draft:.3f} agreement {agreement:.3f} balance {balance:.3f} index {index:.3f}"
    return total + WEIGHTS["index"] * index, line


def train(work: Path, seconds: float) -> None:
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    corpus = Corpus(work / "data", "cuda")
    model = Glow().to("cuda")
    optimizer = optimizer_of(model)
    begun, step = time.monotonic(), 0
    while (done := (time.monotonic() - begun) / seconds) < 1:
        PHASE.sparse, PHASE.quantised = done > SPARSE_FROM, done > QUANTISED_FROM
        for group in optimizer.param_groups:
            group["lr"] = rate(step, done)
        loss, line = step_loss(model, corpus)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step % 25 == 0:
            print(f"{step} {done:.1%} {line}", flush=True)
        if step % EVALUATE_EVERY == 0:
            print("held out:", evaluate(model, corpus), flush=True)
    print("held out:", evaluate(model, corpus), flush=True)
    weights = {
        name: (value.bfloat16() if value.is_floating_point() else value).contiguous().cpu()
        for name, value in model.state_dict().items()
    }
    save_file(weights, work / "glow.safetensors")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=Path)
    parser.add_argument("--seconds", type=float, default=1200)
    arguments = parser.parse_args()
    train(arguments.work, arguments.seconds)
