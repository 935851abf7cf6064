"""From tensors in a store to the operations' weights on a backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import numpy as np

from cherenkov.architectures.qwen4_exp.ngrams import NgramHash
from cherenkov.architectures.qwen4_exp.tensors import DRAFT, HEAD, TRUNK, layer_prefix
from cherenkov.backends.base import (
    Backend,
    Block,
    DeltaNet,
    DraftFuse,
    Embedding,
    GatedResidual,
    Head,
    Ple,
    Router,
    SharedExpert,
    SparseAttention,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from cherenkov.architectures.qwen4_exp.config import Config
    from cherenkov.checkpoint.affine import HostMatrix

__all__ = ["DraftWeights", "Tensors", "Weights", "load"]

M = TypeVar("M")
A = TypeVar("A")


class Tensors(Protocol):
    """Dense tensors by canonical name."""

    def matrix(self, name: str, shape: tuple[int, int]) -> HostMatrix:
        """A matrix, quantised or not."""

    def vector(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """A tensor's values as float32."""

    def integers(self, name: str, shape: tuple[int, ...]) -> NDArray[np.int64]:
        """A tensor's values as int64."""


@dataclass(frozen=True, slots=True)
class DraftWeights(Generic[M, A]):
    """The MTP head. Its embedding and LM head are the trunk's."""

    fuse: DraftFuse[M, A]
    layer: Block[M, A]
    head: Head[M, A]


@dataclass(frozen=True, slots=True)
class Weights(Generic[M, A]):
    """Everything resident."""

    embedding: Embedding[M]
    layers: tuple[Block[M, A], ...]
    hashes: dict[int, NgramHash]  # of the layers with n-gram features
    head: Head[M, A]
    draft: DraftWeights[M, A] | None


def load(config: Config, tensors: Tensors, backend: Backend[M, A]) -> Weights[M, A]:
    """Place every dense tensor on the backend."""
    return _Loader(config, tensors, backend).everything()


class _Loader(Generic[M, A]):
    def __init__(self, config: Config, tensors: Tensors, backend: Backend[M, A]) -> None:
        self.c = config
        self.tensors = tensors
        self.backend = backend

    def everything(self) -> Weights[M, A]:
        c = self.c
        table = self.matrix(f"{TRUNK}.embed_tokens", c.vocab, c.hidden)
        lm_head = table if c.tied else self.matrix(HEAD, c.vocab, c.hidden)
        return Weights(
            embedding=Embedding(table, c.streams),
            layers=tuple(self.layer(i) for i in range(c.layers)),
            hashes={i: self.hash(i) for i in c.ple_layers},
            head=Head(self.residual(f"{TRUNK}.hyper_connection_mixer", injects=False), lm_head),
            draft=self.draft(lm_head) if c.draft else None,
        )

    def matrix(self, name: str, rows: int, columns: int) -> M:
        return self.backend.matrix(self.tensors.matrix(name, (rows, columns)))

    def array(self, name: str, *shape: int) -> A:
        return self.backend.array(self.tensors.vector(name, shape))

    def layer(self, index: int) -> Block[M, A]:
        c, prefix = self.c, layer_prefix(self.c, index)
        attention = index >= c.layers or c.attention[index]
        return Block(
            index=index,
            mixer_read=self.residual(f"{prefix}.attn_hyper_connection", injects=True),
            moe_read=self.residual(f"{prefix}.mlp_hyper_connection", injects=True),
            mixer=self.attention(index) if attention else self.delta(f"{prefix}.linear_attn"),
            router=Router(
                self.matrix(f"{prefix}.mlp.gate", c.experts, c.hidden), c.top_k, c.normalise
            ),
            shared=self.shared(f"{prefix}.mlp"),
            ple=self.ple(f"{prefix}.ple") if index in c.ple_layers else None,
        )

    def residual(self, prefix: str, *, injects: bool) -> GatedResidual[M, A]:
        c = self.c
        return GatedResidual(
            norm=self.array(f"{prefix}.hc_norm.weight", c.wide),
            down=self.matrix(f"{prefix}.input_mix_weight_down", c.lowrank, c.wide),
            up=self.matrix(f"{prefix}.input_mix_weight_up", c.wide, c.lowrank),
            inject=self.matrix(f"{prefix}.block_inject_weight", c.streams, c.wide)
            if injects
            else None,
            streams=c.streams,
            eps=c.eps,
        )

    def delta(self, prefix: str) -> DeltaNet[M, A]:
        c = self.c
        values = c.value_heads * c.value_dim
        conv = self.tensors.vector(f"{prefix}.conv1d.weight", (c.channels, c.taps, 1))
        return DeltaNet(
            qkv=self.matrix(f"{prefix}.in_proj_qkv", c.channels, c.hidden),
            z=self.matrix(f"{prefix}.in_proj_z", values, c.hidden),
            a=self.matrix(f"{prefix}.in_proj_a", c.value_heads, c.hidden),
            b=self.matrix(f"{prefix}.in_proj_b", c.value_heads, c.hidden),
            out=self.matrix(f"{prefix}.out_proj", c.hidden, values),
            conv=self.backend.array(conv.reshape(c.channels, c.taps)),
            a_log=self.array(f"{prefix}.A_log", c.value_heads),
            dt_bias=self.array(f"{prefix}.dt_bias", c.value_heads),
            norm=self.array(f"{prefix}.norm.weight", c.value_dim),
            key_heads=c.key_heads,
            value_heads=c.value_heads,
            key_dim=c.key_dim,
            value_dim=c.value_dim,
            taps=c.taps,
            gate=c.gate,
            eps=c.eps,
        )

    def attention(self, index: int) -> SparseAttention[M, A]:
        c, prefix = self.c, f"{layer_prefix(self.c, index)}.self_attn"
        queries, keys = c.heads * c.head_dim, c.kv_heads * c.head_dim
        bias: Callable[[str, int], A | None] = lambda name, width: (  # noqa: E731 - one use of four
            self.array(f"{prefix}.{name}.bias", width) if c.biased else None
        )
        return SparseAttention(
            q=self.matrix(f"{prefix}.q_proj", 2 * queries, c.hidden),
            k=self.matrix(f"{prefix}.k_proj", keys, c.hidden),
            v=self.matrix(f"{prefix}.v_proj", keys, c.hidden),
            o=self.matrix(f"{prefix}.o_proj", c.hidden, queries),
            q_bias=bias("q_proj", 2 * queries),
            k_bias=bias("k_proj", keys),
            v_bias=bias("v_proj", keys),
            o_bias=bias("o_proj", c.hidden),
            q_norm=self.array(f"{prefix}.q_norm.weight", c.head_dim),
            k_norm=self.array(f"{prefix}.k_norm.weight", c.head_dim),
            index=self.matrix(
                f"{prefix}.indexer.index_qk_proj", (c.index_heads + 1) * c.index_dim, c.hidden
            ),
            index_q_norm=self.array(f"{prefix}.indexer.q_layernorm.weight", c.index_dim),
            index_k_norm=self.array(f"{prefix}.indexer.k_layernorm.weight", c.index_dim),
            heads=c.heads,
            kv_heads=c.kv_heads,
            head_dim=c.head_dim,
            rotary_dim=c.rotary_dim,
            theta=c.theta if index < c.layers else c.draft_theta,
            index_heads=c.index_heads,
            index_dim=c.index_dim,
            block=c.block,
            budget=c.budget,
            eps=c.eps,
        )

    def shared(self, prefix: str) -> SharedExpert[M]:
        c = self.c
        return SharedExpert(
            gate=self.matrix(f"{prefix}.shared_expert.gate_proj", c.shared_inter, c.hidden),
            up=self.matrix(f"{prefix}.shared_expert.up_proj", c.shared_inter, c.hidden),
            down=self.matrix(f"{prefix}.shared_expert.down_proj", c.hidden, c.shared_inter),
            switch=self.matrix(f"{prefix}.shared_expert_gate", 1, c.hidden),
        )

    def ple(self, prefix: str) -> Ple[M, A]:
        c = self.c
        conv = self.tensors.vector(f"{prefix}.conv1d.weight", (c.wide, c.ple_taps, 1))
        return Ple(
            key=self.matrix(f"{prefix}.key_proj", c.wide, c.ple_dim),
            value=self.matrix(f"{prefix}.value_proj", c.hidden, c.ple_dim),
            norm_key=self.array(f"{prefix}.norm_key.weight", c.wide),
            norm_query=self.array(f"{prefix}.norm_query.weight", c.wide),
            norm_conv=self.array(f"{prefix}.norm_conv.weight", c.wide),
            conv=self.backend.array(conv.reshape(c.wide, c.ple_taps)),
            taps=c.ple_taps,
            dilation=c.ngram,
            streams=c.streams,
            eps=c.eps,
        )

    def hash(self, index: int) -> NgramHash:
        c, prefix = self.c, f"{layer_prefix(self.c, index)}.ple.ple_embedding"
        heads = ((c.ngram - 1) * c.ngram_heads,)
        return NgramHash(
            multipliers=self.tensors.integers(f"{prefix}.layer_multipliers", (c.ngram,)),
            sizes=self.tensors.integers(f"{prefix}.ngram_heads_vocab_sizes", heads),
            offsets=self.tensors.integers(f"{prefix}.ngram_heads_offsets", heads),
            eos=c.eos[0],
        )

    def draft(self, lm_head: M) -> DraftWeights[M, A]:
        c = self.c
        return DraftWeights(
            fuse=DraftFuse(
                norm_embedding=self.pre_norm("pre_fc_norm_embedding", c.hidden),
                norm_hidden=self.pre_norm("pre_fc_norm_hidden", c.wide),
                fc_embedding=self.matrix(f"{DRAFT}.fc_embedding", c.hidden, c.hidden),
                fc_hidden=self.matrix(f"{DRAFT}.fc_hidden", c.hidden, c.hidden),
                streams=c.streams,
                eps=c.eps,
            ),
            layer=self.layer(c.layers),
            head=Head(self.residual(f"{DRAFT}.hyper_connection_mixer", injects=False), lm_head),
        )

    def pre_norm(self, name: str, width: int) -> A:
        """The two MTP pre-norms are stored zero-centred, unlike every other norm of the store."""
        raw = self.tensors.vector(f"{DRAFT}.{name}.weight", (width,))
        return self.backend.array(raw + np.float32(1))
