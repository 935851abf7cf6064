"""How operations describe their weights to the C++ kernels, once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from cherenkov.backends.base import (
        DeltaNet,
        DraftFuse,
        Floats,
        GatedResidual,
        Head,
        Ple,
        SharedExpert,
        SparseAttention,
    )
    from cherenkov.checkpoint.affine import HostMatrix
    from cherenkov.packing.layout import ExpertLayout

try:
    import cherenkov._native as _native  # noqa: PLR0402 - the package itself is not what is meant
except ImportError as error:
    missing = str(error)
else:
    missing = ""

__all__ = [
    "Matrix",
    "attention_weights",
    "delta_weights",
    "expert_record",
    "fuse_weights",
    "head_weights",
    "missing",
    "ple_weights",
    "residual_weights",
    "shared_weights",
]


class Matrix:
    """A placed matrix `[out, in]`: the host's bytes, used where they are, and described to the kernels."""

    __slots__ = ("host", "placed", "shape")

    def __init__(self, host: HostMatrix) -> None:
        self.host = host
        self.shape = host.shape
        self.placed = _native.Matrix(
            host.codes, host.scales, host.biases, *host.shape, host.bits, host.group
        )


def residual_weights(w: GatedResidual[Matrix, Floats]) -> _native.GatedResidual:
    """Of a hyper-connection."""
    inject = None if w.inject is None else w.inject.placed
    return _native.gated_residual(w.norm, w.down.placed, w.up.placed, inject, w.streams, w.eps)


def delta_weights(w: DeltaNet[Matrix, Floats]) -> _native.DeltaNet:
    """Of a gated DeltaNet."""
    return _native.delta_net(
        qkv=w.qkv.placed,
        z=w.z.placed,
        a=w.a.placed,
        b=w.b.placed,
        out=w.out.placed,
        conv=w.conv,
        a_log=w.a_log,
        dt_bias=w.dt_bias,
        norm=w.norm,
        key_heads=w.key_heads,
        value_heads=w.value_heads,
        key_dim=w.key_dim,
        value_dim=w.value_dim,
        sigmoid_gate=w.gate == "sigmoid",
        eps=w.eps,
    )


def attention_weights(w: SparseAttention[Matrix, Floats]) -> _native.SparseAttention:
    """Of indexed attention; the rotation's frequencies are rounded to float32 as the model does."""
    half = w.rotary_dim // 2
    frequencies = w.theta ** (-np.arange(half, dtype=np.float64) / half)
    return _native.sparse_attention(
        q=w.q.placed,
        k=w.k.placed,
        v=w.v.placed,
        o=w.o.placed,
        index=w.index.placed,
        q_bias=w.q_bias,
        k_bias=w.k_bias,
        v_bias=w.v_bias,
        o_bias=w.o_bias,
        q_norm=w.q_norm,
        k_norm=w.k_norm,
        index_q_norm=w.index_q_norm,
        index_k_norm=w.index_k_norm,
        frequencies=frequencies.astype(np.float32),
        heads=w.heads,
        kv_heads=w.kv_heads,
        head_dim=w.head_dim,
        index_heads=w.index_heads,
        index_dim=w.index_dim,
        block=w.block,
        budget=w.budget,
        eps=w.eps,
    )


def ple_weights(w: Ple[Matrix, Floats]) -> _native.Ple:
    """Of the n-gram features."""
    return _native.ple(
        key=w.key.placed,
        value=w.value.placed,
        norm_key=w.norm_key,
        norm_query=w.norm_query,
        norm_conv=w.norm_conv,
        conv=w.conv,
        dilation=w.dilation,
        streams=w.streams,
        eps=w.eps,
    )


def shared_weights(w: SharedExpert[Matrix]) -> _native.SharedExpert:
    """Of the expert that every token uses."""
    return _native.shared_expert(w.gate.placed, w.up.placed, w.down.placed, w.switch.placed)


def expert_record(layout: ExpertLayout) -> _native.Record:
    """How an expert record is laid out."""
    offsets = list(layout.offsets().values())
    shape = layout.inter, layout.hidden, layout.bits, layout.group
    return _native.Record(*shape, layout.stride_bytes, offsets)


def fuse_weights(w: DraftFuse[Matrix, Floats]) -> _native.DraftFuse:
    """Of the draft head's entry."""
    fc = w.fc_embedding.placed, w.fc_hidden.placed
    return _native.draft_fuse(w.norm_embedding, w.norm_hidden, *fc, w.streams, w.eps)


def head_weights(w: Head[Matrix, Floats]) -> _native.Head:
    """Of the final mixer and the LM head."""
    return _native.head(residual_weights(w.mixer), w.matrix.placed)
