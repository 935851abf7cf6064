"""The oracle: transformers' own qwen4_exp, plus a draft head transcribed from its description. Needs torch.

transformers knows no MTP head, so `Draft` builds one from transformers' decoder layer and final mixer, which the
trunk's vectors already pin, and adds the entry: `fc_embedding(norm(embed(next)))` to every stream of
`fc_hidden(norm(residual))`, where the residual's norm takes one statistic over all streams.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import DynamicCache, Qwen4ExpTextConfig
from transformers.models.qwen4_exp import modeling_qwen4_exp as published

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Draft", "Margins", "Trunk", "arithmetic", "watched"]

PREFIX = "model.language_model."


# --- arithmetic ---------------------------------------------------------------------------------------------------


class _Widened:
    """The torch module with every mention of float32 read as float64."""

    def __getattr__(self, name: str) -> Any:
        return torch.float64 if name in {"float", "float32"} else getattr(torch, name)


@contextlib.contextmanager
def arithmetic(double: bool) -> Iterator[None]:
    """Run the published model as it is, or with float64 wherever it says float32."""
    if not double:
        yield
        return
    narrow = torch.Tensor.float
    published.torch, torch.Tensor.float = _Widened(), torch.Tensor.double
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        published.torch, torch.Tensor.float = torch, narrow
        torch.set_default_dtype(torch.float32)


@dataclass
class Margins:
    """Smallest relative distance between the last choice taken and the first one left, over everything run."""

    blocks: float = float("inf")
    experts: float = float("inf")
    sparse_queries: int = 0


@contextlib.contextmanager
def watched() -> Iterator[Margins]:
    """Watch every top-k: of index blocks (one-dimensional scores) and of experts (`[rows, experts]`)."""
    margins, plain, method = Margins(), torch.topk, torch.Tensor.topk

    def watch(scores: torch.Tensor, k: int, *args: Any, **kwargs: Any) -> Any:
        if scores.shape[-1] > k:
            best = plain(scores.double(), k + 1, dim=-1).values
            gap = ((best[..., k - 1] - best[..., k]) / best[..., 0]).min().item()
            if scores.ndim == 1:
                margins.blocks = min(margins.blocks, gap)
                margins.sparse_queries += 1
            else:
                margins.experts = min(margins.experts, gap)
        return plain(scores, k, *args, **kwargs)

    torch.topk, torch.Tensor.topk = watch, watch
    try:
        yield margins
    finally:
        torch.topk, torch.Tensor.topk = plain, method


# --- the published model ------------------------------------------------------------------------------------------


def _config(text: dict[str, Any]) -> Qwen4ExpTextConfig:
    known = dict(text)
    known.pop("model_type", None)
    if known.get("layer_types"):
        # a third spelling of the same layer, which this version of transformers does not know
        spelled = {"qwen_sparse_attention": "full_attention"}
        known["layer_types"] = [spelled.get(kind, kind) for kind in known["layer_types"]]
    config = Qwen4ExpTextConfig(**known)
    config._attn_implementation = config._experts_implementation = "eager"
    return config


def _load(module: torch.nn.Module, tensors: dict[str, Any], tied: bool = False) -> None:
    """Copy every tensor; none may be missing, left over or of another shape; hashes must be those derived."""
    own = module.state_dict()
    given = {n: torch.from_numpy(np.array(v)) for n, v in tensors.items()}
    if tied:
        given["lm_head.weight"] = given["model.embed_tokens.weight"]
    for name, value in given.items():
        if value.dtype == torch.int64 and not torch.equal(value, own[name]):
            raise ValueError(f"{name}: not the hash parameters that the config implies")
    module.load_state_dict(given, strict=True)
    module.eval().requires_grad_(False)


@dataclass
class Result:
    """What a run leaves: logits `[T, V]`, the residual before the final mixer `[T, S*D]`, and the last states."""

    logits: torch.Tensor
    wide: torch.Tensor
    states: dict[str, np.ndarray] = field(default_factory=dict)


class Trunk:
    """transformers' causal language model, holding exactly the given tensors."""

    def __init__(self, text: dict[str, Any], tensors: dict[str, Any]) -> None:
        self.text, self.config = text, _config(text)
        self.model = published.Qwen4ExpForCausalLM(self.config)
        merged: dict[str, Any] = {}
        tables: dict[str, list[tuple[int, Any]]] = {}
        for name, value in tensors.items():
            if name.startswith("mtp."):
                continue
            own = name.replace(PREFIX, "model.", 1)
            stem, shard, number = own.removesuffix(".weight").partition(".shard_")
            if shard:
                tables.setdefault(f"{stem}.weight", []).append((int(number), value))
            else:
                merged[own] = value
        merged |= {
            n: np.concatenate([v for _, v in sorted(p, key=lambda x: x[0])])
            for n, p in tables.items()
        }
        _load(self.model, merged, tied=bool(text.get("tie_word_embeddings")))

    def run(self, ids: Sequence[int], chunks: Sequence[int] = ()) -> Result:
        """Run a prompt, whole or cut into chunks of the given lengths, always through a cache."""
        cache = DynamicCache(config=self.config)
        mixer = self.model.model.hyper_connection_mixer
        wide: list[torch.Tensor] = []
        hook = mixer.register_forward_pre_hook(lambda _, args: wide.append(args[0][0]))
        logits, start = [], 0
        for length in chunks or [len(ids)]:
            part = torch.tensor([list(ids[start : start + length])])
            logits.append(self.model(input_ids=part, cache=cache, use_cache=True).logits[0])
            start += length
        hook.remove()
        if start != len(ids):
            raise ValueError("chunks do not add up to the prompt")
        return Result(torch.cat(logits), torch.cat(wide), self._states(cache))

    def _states(self, cache: DynamicCache) -> dict[str, np.ndarray]:
        """By layer: `matrix` `[Hv, dk, dv]`, `history` `[taps-1, C]`, and a PLE's `ple` `[(taps-1)*dilation, S*D]`."""
        states = {}
        for index, layer in enumerate(cache.layers):
            if self.config.layer_types[index] != "linear_attention":
                continue
            states[f"{index}/matrix"] = layer.recurrent_states[0][0].numpy()
            states[f"{index}/history"] = layer.conv_states[0][0, :, 1:].T.numpy()
            if index + 1 in self.config.ple_layer_ids:
                states[f"{index}/ple"] = layer.conv_states[1][0].T.numpy()
        return states


# --- the draft head -----------------------------------------------------------------------------------------------


class Draft(torch.nn.Module):
    """The MTP head. Row p holds the trunk's residual at p and token p+1, sits at position p, predicts token p+2."""

    def __init__(self, trunk: Trunk, tensors: dict[str, Any]) -> None:
        super().__init__()
        self.__dict__["trunk"] = trunk
        own = {"num_hidden_layers": 1, "layer_types": ["full_attention"], "ple_layer_ids": []}
        self.own_config = config = _config({**trunk.text, **own})
        hidden, streams, eps = config.hidden_size, config.hc_count, config.rms_norm_eps
        self.pre_fc_norm_embedding = published.Qwen4ExpTextRMSNorm(hidden, eps=eps)
        self.pre_fc_norm_hidden = published.Qwen4ExpTextRMSNorm(streams * hidden, eps=eps)
        self.fc_embedding = torch.nn.Linear(hidden, hidden, bias=False)
        self.fc_hidden = torch.nn.Linear(hidden, hidden, bias=False)
        self.layers = torch.nn.ModuleList([published.Qwen4ExpTextDecoderLayer(config, 0)])
        self.hyper_connection_mixer = published.Qwen4ExpTextGatedResidual(config, use_combine=False)
        _load(self, {n.removeprefix("mtp."): v for n, v in tensors.items() if n.startswith("mtp.")})
        self.cache = DynamicCache(config=config)

    def forward(
        self, wide: torch.Tensor, tokens: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Residuals `[R, S*D]` and the tokens that follow them, to draft logits `[R, V]` and the head's residual."""
        start, rows = self.cache.get_seq_length(), len(tokens)
        trunk = self.trunk.model
        embedded = trunk.model.embed_tokens(torch.tensor([list(tokens)]))
        entry = self.fc_embedding(self.pre_fc_norm_embedding(embedded))
        normed = self.pre_fc_norm_hidden(wide[None])
        split = normed.unflatten(-1, (self.own_config.hc_count, self.own_config.hidden_size))
        stack = (self.fc_hidden(split) + entry.unsqueeze(-2)).flatten(-2)
        positions = torch.arange(start + rows)
        hidden_behind = positions[None] > positions[start:, None]
        mask = torch.zeros(rows, start + rows).masked_fill(
            hidden_behind, torch.finfo(stack.dtype).min
        )
        stack = self.layers[0](
            stack,
            position_embeddings=trunk.model.rotary_emb(
                stack, positions.view(1, 1, -1).expand(3, 1, -1)
            ),
            attention_mask=mask[None, None],
            cache=self.cache,
        )
        return trunk.lm_head(self.hyper_connection_mixer(stack))[0], stack[0]

    def drafts(self, ids: Sequence[int], count: int) -> torch.Tensor:
        """Logits `[count, V]` of the drafts that follow a prompt and the trunk's own greedy next token."""
        self.cache = DynamicCache(config=self.own_config)
        result = self.trunk.run(ids)
        token = int(result.logits[-1].argmax())
        logits, wide = self(result.wide, [*ids[1:], token])
        rows = [logits[-1]]
        while len(rows) < count:
            logits, wide = self(wide[-1:], [int(rows[-1].argmax())])
            rows.append(logits[-1])
        return torch.stack(rows)
