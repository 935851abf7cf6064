"""The part of `config.json` that `qwen4_exp` computes with. What we cannot honour is refused by key."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cherenkov.errors import UnsupportedModel

__all__ = ["Config", "parse"]

_ATTENTION = {"full_attention", "indexed_attention", "qwen_sparse_attention"}
_LINEAR = "linear_attention"
_MOST_HASHES = 1024
"""Hash heads over all layers. Each needs a prime of its own, and 16 are usual."""
_MOST_TAPS = 16
"""Of a convolution; what the kernels have room for."""
_MOST_BUDGET = 1 << 29
"""Tokens attended to; positions are 32-bit integers in the kernels."""


@dataclass(frozen=True, slots=True)
class Config:
    """A `qwen4_exp` geometry. Names follow the checkpoint's keys where those are clear."""

    vocab: int
    hidden: int
    streams: int
    lowrank: int
    attention: tuple[bool, ...]
    """Per trunk layer: sparse attention, or else DeltaNet."""
    eps: float
    tied: bool
    max_context: int
    eos: tuple[int, ...]
    """Every stop id; the first also ends n-gram segments."""

    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    theta: float
    biased: bool
    index_heads: int
    index_dim: int
    block: int
    budget: int

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int
    gate: str

    experts: int
    top_k: int
    normalise: bool
    inter: int
    shared_inter: int

    ple_layers: tuple[int, ...]
    """Zero-based trunk layers that add n-gram features."""
    ple_dim: int
    ple_taps: int
    ngram: int
    """Longest n-gram, in tokens."""
    ngram_heads: int
    """Heads for each order from 2 to `ngram`."""
    ngram_rows: tuple[tuple[int, ...], ...]
    """Per PLE layer: rows of each hash head, all primes."""
    ngram_divisor: int

    draft: bool
    """There is an MTP head."""
    draft_theta: float

    @property
    def layers(self) -> int:
        """Trunk layers."""
        return len(self.attention)

    @property
    def wide(self) -> int:
        """Width of the residual: streams times hidden."""
        return self.streams * self.hidden

    @property
    def channels(self) -> int:
        """Convolved channels of a DeltaNet layer."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def ngram_dim(self) -> int:
        """Width of one n-gram row."""
        return self.ple_dim // ((self.ngram - 1) * self.ngram_heads)

    def table_rows(self, which: int) -> int:
        """Rows of the n-gram table of the `which`-th PLE layer, padding included."""
        total = sum(self.ngram_rows[which])
        return -(-total // self.ngram_divisor) * self.ngram_divisor


class _Keys:
    """Reads one mapping, and refuses by key."""

    def __init__(self, values: Mapping[str, Any], where: str = "") -> None:
        self.values = values
        self.where = where

    def refuse(self, key: str, reason: str) -> UnsupportedModel:
        found = reprlib.repr(self.values.get(key))
        return UnsupportedModel(f"config.json: {self.where}{key} = {found}: {reason}", key=key)

    def integer(
        self, key: str, default: int | None = None, *, least: int = 1, most: int = 1 << 32
    ) -> int:
        value = self.values.get(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.refuse(key, f"must be an integer from {least} to {most}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.values.get(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
            raise self.refuse(key, "must be a positive number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refuse(key, "must be true or false")
        return value

    def section(self, key: str) -> _Keys:
        value = self.values.get(key)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise self.refuse(key, "must be an object")
        return _Keys(value, f"{self.where}{key}.")

    def only(self, key: str, *allowed: object) -> None:
        if self.values.get(key) not in allowed:
            raise self.refuse(key, f"only {', '.join(map(repr, allowed))} is supported")


def parse(raw: Mapping[str, Any]) -> Config:
    """Read a `config.json` (whole, or its `text_config` alone).

    Raises:
        UnsupportedModel: naming the key that is missing, malformed or beyond what this engine computes.
    """
    keys = _Keys(raw).section("text_config") if "text_config" in raw else _Keys(raw)
    keys.only("hidden_act", None, "silu")
    layers = _layer_types(keys)
    fields = _trunk(keys, raw) | _attention(keys) | _delta(keys) | _mixture(keys)
    config = Config(
        attention=layers, **fields, **_ngrams(keys, layers), **_draft(keys, fields["theta"])
    )
    _cross_check(keys, config)
    return config


def _layer_types(keys: _Keys) -> tuple[bool, ...]:
    count = keys.integer("num_hidden_layers", most=4096)
    types = keys.values.get("layer_types")
    if types is None:
        interval = keys.integer("full_attention_interval", 4)
        return tuple((i + 1) % interval == 0 for i in range(count))
    if not isinstance(types, list) or len(types) != count:
        raise keys.refuse("layer_types", f"must name the type of each of the {count} layers")
    unknown = [t for t in types if t != _LINEAR and not _is_attention(t)]
    if unknown:
        first = reprlib.repr(unknown[0])
        raise keys.refuse("layer_types", f"{first} is not a layer type of qwen4_exp")
    return tuple(t != _LINEAR for t in types)


def _is_attention(layer_type: object) -> bool:
    return isinstance(layer_type, str) and layer_type in _ATTENTION


def _trunk(keys: _Keys, raw: Mapping[str, Any]) -> dict[str, Any]:
    eos = keys.values.get("eos_token_id")
    ids = [] if eos is None else eos if isinstance(eos, list) else [eos]
    vocab = keys.integer("vocab_size")
    if any(isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < vocab for i in ids):
        raise keys.refuse("eos_token_id", "must be a token id, or a list of them")
    tied = keys.flag(
        "tie_word_embeddings", default=_Keys(raw).flag("tie_word_embeddings", default=False)
    )
    return {
        "vocab": vocab,
        "hidden": keys.integer("hidden_size"),
        "streams": keys.integer("hc_count", 4, least=2),
        "lowrank": keys.integer("hc_lowrank", 320),
        "eps": keys.number("rms_norm_eps", 1e-6),
        "tied": tied,
        "max_context": keys.integer("max_position_embeddings", 32_768),
        "eos": tuple(ids),
    }


def _attention(keys: _Keys) -> dict[str, Any]:
    rope = keys.section("rope_parameters")
    rope.only("rope_type", None, "default")
    keys.only("rope_scaling", None)
    head_dim = keys.integer("head_dim", 256)
    factor = rope.values.get("partial_rotary_factor", keys.values.get("partial_rotary_factor", 1.0))
    rotary = _Keys({"partial_rotary_factor": factor}, rope.where).number("partial_rotary_factor")
    source = rope if "rope_theta" in rope.values else keys
    return {
        "heads": keys.integer("num_attention_heads"),
        "kv_heads": keys.integer("num_key_value_heads"),
        "head_dim": head_dim,
        "rotary_dim": int(head_dim * rotary),
        "theta": source.number("rope_theta"),
        "biased": keys.flag("attention_bias", default=False),
        "index_heads": keys.integer("indexer_n_heads"),
        "index_dim": keys.integer("indexer_head_dim"),
        "block": keys.integer("indexer_compress_ratio", most=_MOST_BUDGET),
        "budget": keys.integer("indexer_budget", most=_MOST_BUDGET),
    }


def _delta(keys: _Keys) -> dict[str, Any]:
    gate = keys.values.get("output_gate_type") or "silu"
    if gate not in ("silu", "sigmoid"):
        raise keys.refuse("output_gate_type", "only silu and sigmoid are supported")
    return {
        "key_heads": keys.integer("linear_num_key_heads"),
        "value_heads": keys.integer("linear_num_value_heads"),
        "key_dim": keys.integer("linear_key_head_dim"),
        "value_dim": keys.integer("linear_value_head_dim"),
        "taps": keys.integer("linear_conv_kernel_dim", 4, least=2, most=_MOST_TAPS),
        "gate": gate,
    }


def _mixture(keys: _Keys) -> dict[str, Any]:
    return {
        "experts": keys.integer("num_experts"),
        "top_k": keys.integer("num_experts_per_tok"),
        "normalise": keys.flag("norm_topk_prob", default=True),
        "inter": keys.integer("moe_intermediate_size"),
        "shared_inter": keys.integer("shared_expert_intermediate_size"),
    }


def _ngrams(keys: _Keys, attention: tuple[bool, ...]) -> dict[str, Any]:
    ids = keys.values.get("ple_layer_ids") or []
    if not isinstance(ids, list) or any(
        isinstance(i, bool) or not isinstance(i, int) or not 1 <= i <= len(attention) for i in ids
    ):
        raise keys.refuse("ple_layer_ids", f"must list one-based layers from 1 to {len(attention)}")
    layers = tuple(sorted({i - 1 for i in ids}))
    if any(attention[i] for i in layers):
        raise keys.refuse(
            "ple_layer_ids", "n-gram features are defined for linear_attention layers only"
        )
    order = keys.integer("ngram_size", 3, least=2, most=64)
    heads = keys.integer("heads_per_ngram", 8, most=1024)
    width = keys.integer("ple_embed_dim", keys.integer("hidden_size"))
    per_layer = (order - 1) * heads
    if layers and width % per_layer:
        raise keys.refuse("ple_embed_dim", f"must be a multiple of the {per_layer} n-gram heads")
    if layers and keys.values.get("eos_token_id") in (None, []):
        raise keys.refuse("eos_token_id", "is needed to end n-gram segments")
    base = keys.integer("ngram_vocab_size_base", 20_000_000)
    if per_layer * len(layers) > _MOST_HASHES:
        raise keys.refuse("heads_per_ngram", f"makes more than {_MOST_HASHES} hash heads in all")
    primes = _primes_from(base, per_layer * len(layers))
    return {
        "ple_layers": layers,
        "ple_dim": width,
        "ple_taps": keys.integer("ple_conv_kernel_size", 4, least=2, most=_MOST_TAPS),
        "ngram": order,
        "ngram_heads": heads,
        "ngram_rows": tuple(
            tuple(primes[i * per_layer : (i + 1) * per_layer]) for i in range(len(layers))
        ),
        "ngram_divisor": keys.integer("make_ngram_vocab_size_divisible_by", 128),
    }


def _primes_from(start: int, count: int) -> list[int]:
    """The first `count` primes of at least `start`."""
    primes: list[int] = []
    candidate = start
    while len(primes) < count:
        if _is_prime(candidate):
            primes.append(candidate)
        candidate += 1
    return primes


_WITNESSES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
"""Enough for a Miller-Rabin test that is exact below 3.3e24."""


def _is_prime(n: int) -> bool:
    if n < 2 or any(n % p == 0 for p in _WITNESSES):
        return n in _WITNESSES
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    return all(
        pow(a, odd, n) == 1 or any(pow(a, odd << i, n) == n - 1 for i in range(twos))
        for a in _WITNESSES
    )


def _draft(keys: _Keys, theta: float) -> dict[str, Any]:
    mtp = keys.section("mtp")
    count = keys.integer(
        "mtp_num_hidden_layers", mtp.integer("num_hidden_layers", 0, least=0), least=0
    )
    if count > 1:
        raise keys.refuse("mtp_num_hidden_layers", "only 0 or 1 draft layer is supported")
    if count:
        keys.only("mtp_use_dedicated_embeddings", None, False)
        mtp.only("mtp_use_hidden_state_from_layer", None)
        types = mtp.values.get("layer_types")
        if types is not None and (
            not isinstance(types, list) or len(types) != 1 or not _is_attention(types[0])
        ):
            raise mtp.refuse("layer_types", "the draft layer must be one attention layer")
    return {"draft": count == 1, "draft_theta": mtp.number("rope_theta", theta)}


def _cross_check(keys: _Keys, c: Config) -> None:
    """Relations between keys."""
    rules = (
        (c.top_k <= c.experts, "num_experts_per_tok", f"must not exceed num_experts = {c.experts}"),
        (c.heads % c.kv_heads == 0, "num_attention_heads", f"must be a multiple of num_key_value_heads = {c.kv_heads}"),
        (c.value_heads % c.key_heads == 0, "linear_num_value_heads", "must be a multiple of linear_num_key_heads"),
        (keys.values.get("indexer_kv_heads", 1) == 1, "indexer_kv_heads", "only one key head is defined"),
        (c.budget % c.block == 0, "indexer_budget", f"must be a multiple of indexer_compress_ratio = {c.block}"),
        (0 < c.rotary_dim <= min(c.head_dim, c.index_dim), "partial_rotary_factor", f"gives {c.rotary_dim} rotary dimensions, which must fit head_dim and indexer_head_dim"),
        (c.rotary_dim % 2 == 0, "partial_rotary_factor", f"gives {c.rotary_dim} rotary dimensions, which must be even"),
    )  # fmt: skip
    for holds, key, reason in rules:
        if not holds:
            raise keys.refuse(key, reason)
