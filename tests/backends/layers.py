"""Layers with seeded weights, placed on any backend: what the native backend and the reference are compared over.

A matrix is quantised where its columns divide into groups, and kept in BF16 or float32 otherwise.
"""

from dataclasses import dataclass

import numpy as np

from cherenkov.backends.base import (
    AttentionState,
    DeltaNet,
    DraftFuse,
    Embedding,
    GatedResidual,
    Head,
    Ple,
    Router,
    SharedExpert,
    SparseAttention,
    Wave,
)
from cherenkov.checkpoint.affine import HostMatrix, float32_to_bf16, quantise
from cherenkov.packing.layout import ExpertLayout
from tests.backends.arithmetic import EPS, random

BF16, FLOAT32 = 16, 32


@dataclass(frozen=True)
class Geometry:
    """Sizes of a small model, and how its matrices are stored."""

    hidden: int = 64
    streams: int = 3
    rank: int = 32
    vocab: int = 70
    features: int = 32
    key_heads: int = 2
    value_heads: int = 4
    key_dim: int = 16
    value_dim: int = 32
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    rotary: int = 16
    index_heads: int = 2
    index_dim: int = 32
    block: int = 2
    budget: int = 8
    experts: int = 9
    top_k: int = 3
    inter: int = 32
    bits: int = 4
    group: int = 32
    gate: str = "sigmoid"


PLAIN = Geometry(bits=FLOAT32)
SMALL = Geometry()
WIDE = Geometry(
    hidden=192,
    streams=4,
    rank=64,
    vocab=301,
    features=64,
    key_heads=3,
    value_heads=6,
    key_dim=64,
    value_dim=64,
    heads=6,
    kv_heads=1,
    head_dim=64,
    index_heads=5,
    block=3,
    budget=12,
    experts=37,
    top_k=4,
    inter=64,
    group=64,
    gate="silu",
)
ODD = Geometry(  # nothing divides by anything: every matrix is of values
    hidden=37,
    streams=2,
    rank=5,
    vocab=13,
    features=11,
    key_heads=1,
    value_heads=3,
    key_dim=7,
    value_dim=9,
    heads=6,
    kv_heads=2,
    head_dim=13,
    rotary=6,
    index_heads=3,
    index_dim=11,
    block=4,
    budget=4,
    experts=5,
    top_k=5,
    inter=21,
    bits=BF16,
)


class Layers:
    """Weights of a geometry on a backend. The same seed gives the same values on every backend."""

    def __init__(self, ops, geometry=SMALL, seed=0):
        self.ops = ops
        self.g = geometry
        self.draw = random(seed)

    def matrix(self, rows, columns, scale=1.0, bits=None):
        values = self.draw(rows, columns, scale=scale / np.sqrt(columns))
        bits = bits or self.g.bits
        if bits < BF16 and columns % self.g.group:
            bits = BF16
        return self.ops.matrix(host_matrix(values, bits, self.g.group))

    def array(self, *shape, scale=0.3, plus=1.0):
        return self.ops.array((plus + self.draw(*shape, scale=scale)).astype(np.float32))

    def embedding(self):
        return Embedding(self.matrix(self.g.vocab, self.g.hidden, scale=4), self.g.streams)

    def residual(self, *, injects=True):
        g = self.g
        wide = g.streams * g.hidden
        return GatedResidual(
            norm=self.array(wide),
            down=self.matrix(g.rank, wide, scale=2),
            up=self.matrix(wide, g.rank, scale=2),
            inject=self.matrix(g.streams, wide) if injects else None,
            streams=g.streams,
            eps=EPS,
        )

    def delta(self):
        g = self.g
        values = g.value_heads * g.value_dim
        channels = 2 * g.key_heads * g.key_dim + values
        return DeltaNet(
            qkv=self.matrix(channels, g.hidden, scale=2),
            z=self.matrix(values, g.hidden),
            a=self.matrix(g.value_heads, g.hidden, bits=BF16),
            b=self.matrix(g.value_heads, g.hidden),
            out=self.matrix(g.hidden, values),
            conv=self.array(channels, 4, plus=0, scale=1),
            a_log=self.array(g.value_heads, plus=0, scale=1),
            dt_bias=self.array(g.value_heads, plus=0, scale=1),
            norm=self.array(g.value_dim),
            key_heads=g.key_heads,
            value_heads=g.value_heads,
            key_dim=g.key_dim,
            value_dim=g.value_dim,
            taps=4,
            gate=g.gate,
            eps=EPS,
        )

    def delta_state(self):
        return self.ops.delta_state(self.delta())

    def attention(self, *, biased=False):
        g = self.g

        def bias(width):
            return self.array(width, plus=0) if biased else None

        queries, keys = g.heads * g.head_dim, g.kv_heads * g.head_dim
        return SparseAttention(
            q=self.matrix(2 * queries, g.hidden),
            k=self.matrix(keys, g.hidden),
            v=self.matrix(keys, g.hidden),
            o=self.matrix(g.hidden, queries),
            q_bias=bias(2 * queries),
            k_bias=bias(keys),
            v_bias=bias(keys),
            o_bias=bias(g.hidden),
            q_norm=self.array(g.head_dim),
            k_norm=self.array(g.head_dim),
            index=self.matrix((g.index_heads + 1) * g.index_dim, g.hidden),
            index_q_norm=self.array(g.index_dim),
            index_k_norm=self.array(g.index_dim),
            heads=g.heads,
            kv_heads=g.kv_heads,
            head_dim=g.head_dim,
            rotary_dim=g.rotary,
            theta=1000.0,
            index_heads=g.index_heads,
            index_dim=g.index_dim,
            block=g.block,
            budget=g.budget,
            eps=EPS,
        )

    def attention_state(self, tokens=64):
        g = self.g
        return AttentionState(
            keys=self.ops.cache((tokens, g.kv_heads, g.head_dim)),
            values=self.ops.cache((tokens, g.kv_heads, g.head_dim)),
            index_keys=self.ops.cache((tokens, g.index_dim)),
            block_keys=self.ops.cache((tokens // g.block, g.index_dim)),
        )

    def ple(self, taps=4, dilation=3):
        g = self.g
        wide = g.streams * g.hidden
        return Ple(
            key=self.matrix(wide, g.features),
            value=self.matrix(g.hidden, g.features),
            norm_key=self.array(wide),
            norm_query=self.array(wide),
            norm_conv=self.array(wide),
            conv=self.array(wide, taps, plus=0, scale=1),
            taps=taps,
            dilation=dilation,
            streams=g.streams,
            eps=EPS,
        )

    def ple_state(self, taps=4, dilation=3):
        return self.ops.ple_state((taps - 1) * dilation, self.g.streams * self.g.hidden)

    def router(self, *, normalise=True, bits=BF16):
        gate = self.matrix(self.g.experts, self.g.hidden, bits=bits)
        return Router(gate, self.g.top_k, normalise)

    def shared(self):
        g = self.g
        return SharedExpert(
            self.matrix(g.inter, g.hidden),
            self.matrix(g.inter, g.hidden),
            self.matrix(g.hidden, g.inter),
            self.matrix(1, g.hidden, bits=BF16),
        )

    def records(self):
        """A layout, and one record per expert."""
        g = self.g
        layout = ExpertLayout(g.inter, g.hidden, min(g.bits, BF16), g.group)
        shapes = (g.inter, g.hidden), (g.inter, g.hidden), (g.hidden, g.inter)
        made = _RECORDS.setdefault(layout, [])
        draw = random(len(made))
        while len(made) < g.experts:
            made.append(record(layout, [draw(*s, scale=s[1] ** -0.5) for s in shapes]))
        return layout, made[: g.experts]

    def fuse(self):
        g = self.g
        return DraftFuse(
            self.array(g.hidden),
            self.array(g.streams * g.hidden),
            self.matrix(g.hidden, g.hidden),
            self.matrix(g.hidden, g.hidden),
            g.streams,
            EPS,
        )

    def head(self):
        return Head(self.residual(injects=False), self.matrix(self.g.vocab, self.g.hidden))


_RECORDS = {}  # by layout: quantising many experts is slow, and any values will do


def host_matrix(values, bits, group):
    """A float32 matrix as it would be stored."""
    if bits == FLOAT32:
        return HostMatrix(values.shape, FLOAT32, 0, values)
    if bits == BF16:
        return HostMatrix(values.shape, BF16, 0, float32_to_bf16(values))
    return HostMatrix(values.shape, bits, group, *quantise(values, bits, group))


def record(layout, matrices):
    """An expert's record."""
    codes, others = [], []
    for matrix in matrices:
        if layout.bits == BF16:
            codes.append(float32_to_bf16(matrix))
        else:
            parts = quantise(matrix, layout.bits, layout.group)
            codes.append(parts[0])
            others += parts[1:]
    return np.concatenate([part.view(np.uint8).ravel() for part in codes + others])


class Arrivals:
    """Experts in slots in the order of `waves`, which together name every expert that is used."""

    def __init__(self, ops, layout, records, waves):
        self.pool = ops.pool(layout, len(records))
        self.waves = []
        slot = 0
        for experts in waves:
            for i, expert in enumerate(experts):
                self.pool.memory[slot + i, : layout.record_bytes] = records[expert]
                self.pool.landed(slot + i)
            slots = np.arange(slot, slot + len(experts), dtype=np.int32)
            self.waves.append(Wave(np.array(experts, dtype=np.int32), slots))
            slot += len(experts)

    steady = True  # each has a slot of its own

    def __iter__(self):
        return iter(self.waves)
