from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float32]
Ids: TypeAlias = NDArray[np.int32]
Spans: TypeAlias = Sequence[tuple[int, int, int, Any]]

def isas() -> list[str]: ...
def read_bandwidth(threads: int) -> float: ...

# Passes over logits, `[V]`, of which those of some ids were changed to values; see cherenkov/passes.py.
Longs: TypeAlias = NDArray[np.int64]
Doubles: TypeAlias = NDArray[np.float64]

class NgramHash:
    def __init__(self, multipliers: Longs, sizes: Longs, offsets: Longs, eos: int, /) -> None: ...
    def rows(self, before: Sequence[int], tokens: Ids, rows: Longs, /) -> None: ...

def nibble_rows(table: NDArray[np.uint8], group: int, chosen: Longs, values: Floats, /) -> None: ...

class Logits:
    def __init__(self, base: Floats, ids: Longs, values: Doubles, isa: str, /) -> None: ...
    @property
    def changed(self) -> int: ...
    def likeliest(self) -> int: ...
    def how_many_above(self, value: float, /) -> int: ...
    def looks_wide(
        self, largest: float, temperature: float, count: int, share: float, least: float, /
    ) -> bool: ...
    def before_amending(self, before: Doubles, /) -> Logits: ...
    def mass(self, largest: float, temperature: float, /) -> float: ...
    def before(
        self, largest: float, temperature: float, token: int, value: float, /
    ) -> tuple[float, float, int]: ...
    def largest(self, ids: Longs, values: Doubles, /) -> None: ...

def amend(
    logits: Floats,
    seen: Longs,
    counts: Longs,
    factor: float,
    presence: float,
    frequency: float,
    biased: Longs,
    biases: Doubles,
    base: Floats,
    ids: Longs,
    values: Doubles,
    before: Doubles,
    isa: str,
    /,
) -> Logits: ...

class Foremost:
    def __init__(self, logits: Logits, count: int, /) -> None: ...
    @property
    def value(self) -> float: ...
    @property
    def ties(self) -> int: ...
    def mass(self, largest: float, temperature: float, /) -> float: ...
    def before(
        self, largest: float, temperature: float, token: int, value: float, /
    ) -> tuple[float, float, int]: ...
    def how_many_above(self, value: float, /) -> int: ...
    def holds(self, token: int, value: float, /) -> bool: ...

class Draws:
    def __init__(
        self, logits: Logits, largest: float, temperature: float, number: float, /
    ) -> None: ...
    def next(self) -> int: ...

class Matrix:
    def __init__(
        self,
        codes: NDArray[Any],
        scales: NDArray[np.uint16] | None,
        biases: NDArray[np.uint16] | None,
        rows: int,
        cols: int,
        bits: int,
        group: int,
    ) -> None: ...

class GatedResidual: ...
class DeltaNet: ...

delta_chunk: int
most_back: int

class SparseAttention: ...
class Ple: ...
class SharedExpert: ...
class DraftFuse: ...
class Head: ...

class Record:
    def __init__(
        self, inter: int, hidden: int, bits: int, group: int, stride: int, offsets: list[int]
    ) -> None: ...

def gated_residual(
    norm: Floats, down: Matrix, up: Matrix, inject: Matrix | None, streams: int, eps: float
) -> GatedResidual: ...
def delta_net(**parts: object) -> DeltaNet: ...
def sparse_attention(**parts: object) -> SparseAttention: ...
def ple(**parts: object) -> Ple: ...
def shared_expert(gate: Matrix, up: Matrix, down: Matrix, switch: Matrix) -> SharedExpert: ...
def draft_fuse(
    norm_embedding: Floats,
    norm_hidden: Floats,
    fc_embedding: Matrix,
    fc_hidden: Matrix,
    streams: int,
    eps: float,
) -> DraftFuse: ...
def head(mixer: GatedResidual, matrix: Matrix) -> Head: ...

class Trunk: ...
class Memory: ...

class Drafts:
    def __init__(
        self,
        fuse: DraftFuse,
        table: Matrix,
        trunk: Trunk,
        head: Head,
        experts: tuple[Record, NDArray[np.uint8], Ids, Record | None, NDArray[np.uint8] | None],
        /,
    ) -> None: ...

def distinct_in_each(ids: Ids) -> int: ...
def trunk(layers: Sequence[tuple[Any, ...]]) -> Trunk: ...
def memory(trunk: Trunk, states: Sequence[Any], ple: Sequence[Any]) -> Memory: ...

class Mixture:
    @property
    def bytes(self) -> int: ...
    def weights(self, out: Floats, /) -> None: ...

class Engine:
    def __init__(self, isa: str, precision: str, threads: int) -> None: ...
    @property
    def isa(self) -> str: ...
    @property
    def precision(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def regions(self) -> int: ...
    @property
    def scratch_bytes(self) -> int: ...
    def close(self) -> None: ...
    def linear(self, matrix: Matrix, x: Floats, out: Floats, /) -> None: ...
    def embed(self, table: Matrix, streams: int, tokens: Ids, wide: Floats, /) -> None: ...
    def read_residual(
        self, w: GatedResidual, wide: Floats, block: Floats, gain: Floats | None, /
    ) -> None: ...
    def inject(self, wide: Floats, block: Floats, gain: Floats, /) -> None: ...
    def delta_net(self, w: DeltaNet, x: Floats, spans: Spans, out: Floats, /) -> None: ...
    def settle(self, w: DeltaNet, position: int, pending: Floats, matrix: Floats, /) -> None: ...
    def sparse_attention(
        self, w: SparseAttention, x: Floats, spans: Spans, out: Floats, /
    ) -> None: ...
    def ple(self, w: Ple, wide: Floats, features: Floats, spans: Spans, /) -> None: ...
    def route(
        self, gate: Matrix, normalise: bool, x: Floats, ids: Ids, weights: Floats, /
    ) -> None: ...
    def mix_delta(
        self, read: GatedResidual, w: DeltaNet, wide: Floats, spans: Spans, /
    ) -> None: ...
    def mix_attention(
        self,
        read: GatedResidual,
        w: SparseAttention,
        wide: Floats,
        spans: Spans,
        /,
    ) -> None: ...
    def choose(
        self,
        read: GatedResidual,
        gate: Matrix,
        normalise: bool,
        wide: Floats,
        mixture: Mixture,
        ids: Ids,
        /,
    ) -> None: ...
    def enter(self, x: Floats, ids: Ids, weights: Floats, mixture: Mixture, /) -> None: ...
    def expert_wave(
        self,
        mixture: Mixture,
        shared: SharedExpert,
        record: Record,
        pool: NDArray[np.uint8],
        experts: Ids,
        slots: Ids,
        target: Floats,
        lower: Record | None = None,
        tags: NDArray[np.uint8] | None = None,
        /,
    ) -> bool: ...
    def stretch(
        self,
        trunk: Trunk,
        first: int,
        last: int,
        spans: Spans,
        wide: Floats,
        features: Sequence[Floats | Callable[[], Floats] | None],
        record: Record,
        pool: NDArray[np.uint8],
        table: Ids,
        mixture: Mixture,
        ids: Ids,
        lower: Record | None = None,
        tags: NDArray[np.uint8] | None = None,
        flow: object = None,
        /,
    ) -> int: ...
    def rehearse(
        self,
        trunk: Trunk,
        layer: int,
        spans: Spans,
        wide: Floats,
        features: Sequence[Floats | Callable[[], Floats] | None],
        ids: Ids,
        most: int = -1,
        /,
    ) -> bool: ...
    def likely(
        self,
        read: GatedResidual,
        gate: Matrix,
        normalise: bool,
        wide: Floats,
        ids: Ids,
        /,
    ) -> None: ...
    def fuse(
        self, w: DraftFuse, table: Matrix, tokens: Ids, wide: Floats, out: Floats, /
    ) -> None: ...
    def draft(
        self,
        drafts: Drafts,
        tokens: Ids,
        wide: Floats,
        spans: Spans,
        ends: Ids,
        mixture: Mixture,
        ids: Ids,
        out: Floats,
        /,
    ) -> bool: ...
    def guess(
        self,
        drafts: Drafts,
        tokens: Ids,
        wide: Floats,
        spans: Spans,
        mixture: Mixture,
        ids: Ids,
        whole: bool,
        /,
    ) -> list[list[int]] | None: ...
    def logits(self, w: Head, wide: Floats, rows: Ids, out: Floats, /) -> None: ...
    def argmax(self, w: Head, wide: Floats, rows: Ids, out: Ids, /) -> None: ...

def xxh3_64(data: NDArray[np.uint8], /, portable: bool = False) -> int: ...

class Flow:
    def lend(
        self,
        victims: list[int],
        coming: list[tuple[int, int, bool, bool]],
        expected: list[tuple[int, list[int]]],
        ahead: bool,
        most_ahead: int,
        lower: bool,
        /,
    ) -> None: ...
    @property
    def events(self) -> list[tuple[int, int, int, int, float]]: ...
    @property
    def expected(self) -> list[tuple[int, list[int]]]: ...
    @property
    def counts(self) -> dict[str, Any]: ...
    @property
    def missed(self) -> list[int]: ...
    @property
    def foreseen(self) -> list[int]: ...
    @property
    def victims_used(self) -> int: ...

def flow(
    reads: Reads,
    table: Ids,
    record_in: NDArray[np.int64],
    tags: NDArray[np.uint8],
    spared: NDArray[np.uint8],
    unasked: NDArray[np.uint8],
    /,
) -> Flow: ...

class Reads:
    def __init__(
        self,
        file: int,
        direct: int,
        memory: NDArray[np.uint8],
        threads: int,
        checksums: NDArray[np.uint64] | None,
        every_time: bool,
        lower: tuple[int, int, int, NDArray[np.uint64] | None] | None = None,
    ) -> None: ...
    @property
    def orphaned(self) -> bool: ...
    @property
    def preads(self) -> int: ...
    @property
    def direct(self) -> bool: ...
    @property
    def outstanding(self) -> int: ...
    def submit(
        self, records: list[int], slots: list[int], required: bool, lower: bool = False, /
    ) -> None: ...
    def promote(self, slots: list[int], /) -> None: ...
    def cancel(self, slots: list[int], /) -> list[int]: ...
    def landed(self, wait: bool) -> list[tuple[int, int, float]]: ...
    def close(self) -> None: ...
