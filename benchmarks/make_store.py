"""Write a store of random weights in the published model's geometry, straight in packed form.

    python benchmarks/make_store.py FOLDER --layers 16
    python benchmarks/make_store.py FOLDER --layers 4 --hidden 256 --experts 32 --inter 128 --top-k 4 --vocab 2048

Without a checkpoint and without torch: codes and scales are drawn where a checkpoint's tensors would be read, and go through
the packer, which writes manifest, checksums and all. About 1.4 GB a layer at the defaults (hidden 2560, 512 experts of width 640,
10 of them used); memory stays below 200 MB. The same seed and geometry give the same weights. Random
weights route almost uniformly, which is the worst case for a cache.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
import zlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from random_model import Geometry, dense_tensor, model_config, write_tokenizer

from cherenkov.architectures.qwen4_exp.config import parse
from cherenkov.architectures.qwen4_exp.tensors import inventory
from cherenkov.checkpoint.affine import float32_to_bf16
from cherenkov.checkpoint.conventions import Dialect
from cherenkov.checkpoint.inventory import Role
from cherenkov.checkpoint.matrices import Block, StoredExperts, StoredMatrix, StoredTable
from cherenkov.checkpoint.shards import fingerprint
from cherenkov.checkpoint.source import Checkpoint
from cherenkov.events import Progress
from cherenkov.packing.pack import pack
from cherenkov.units import format_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from cherenkov.architectures.qwen4_exp.config import Config
    from cherenkov.checkpoint.inventory import ExpertSpec, NgramSpec, TensorSpec
    from cherenkov.events import Event

__all__ = ["PUBLISHED", "write_store"]

PUBLISHED = Geometry(
    hidden=2560,
    layers=16,
    experts=512,
    top_k=10,
    inter=640,
    vocab=248_320,
    ngram_base=100_000,
    key_heads=16,
    value_heads=48,
    heads=24,
    lowrank=320,
    budget=2048,
    context=262_144,
)
"""The published model, with fewer layers and a small n-gram table."""
_SPREAD = 0.02  # standard deviation of a matrix
_CODE_SPREAD = math.sqrt((16**2 - 1) / 12)  # of uniform 4-bit codes
_MIDDLE = 7.5
_GROUP = 64
_WORDS = np.iinfo(np.uint32).max


@dataclass(frozen=True, slots=True)
class _File:
    """Where a drawn tensor would lie; for messages."""

    path: Path


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Stands in for a tensor of a checkpoint: rows are drawn when they are read, the same every time.

    `kind` is codes, scales or biases of a matrix, or values around `centre`, or `integers`.
    """

    file: _File
    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: str
    seed: int
    spread: float = _SPREAD
    centre: float = 0.0
    integers: tuple[int, ...] = ()

    def read(self) -> NDArray[Any]:
        if self.integers:
            return np.array(self.integers, np.int64).reshape(self.shape)
        return self.rows(0, math.prod(self.shape[:-1])).reshape(self.shape)

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """Rows of it seen as `[rows, last dimension]`. The packer always cuts a tensor the same way, so they are the same."""
        width = self.shape[-1]
        rng = np.random.Generator(np.random.SFC64([self.seed, start, stop, width]))
        if self.kind == "codes":
            return rng.integers(0, _WORDS, (stop - start, width), np.uint32, endpoint=True)
        if self.kind == "values":
            values = rng.standard_normal((stop - start, width), np.float32)
            return float32_to_bf16(values * np.float32(self.spread) + np.float32(self.centre))
        scale = rng.random((stop - start, width), np.float32) + np.float32(0.5)
        scale *= np.float32(self.spread / _CODE_SPREAD)
        if self.kind == "biases":  # the same draw as the scales': codes lie evenly around zero
            scale *= np.float32(-_MIDDLE)
        return float32_to_bf16(scale)


class _Weights:
    """Draws every tensor of a geometry."""

    def __init__(self, folder: Path, config: Config, seed: int) -> None:
        self.file = _File(folder)
        self.config = config
        self.seed = seed

    def seed_of(self, name: str) -> int:
        return zlib.crc32(f"{self.seed} {name}".encode())

    def matrix(self, name: str, rows: int, width: int, group: int) -> StoredMatrix:
        """A 4-bit matrix."""
        seed = self.seed_of(name)
        parts = (
            _Drawn(self.file, f"{name}.weight", (rows, width // 8), "U32", "codes", seed),
            _Drawn(self.file, f"{name}.scales", (rows, width // group), "BF16", "scales", seed),
            _Drawn(self.file, f"{name}.biases", (rows, width // group), "BF16", "biases", seed),
        )
        return StoredMatrix(*parts, rows, width, 4, group)

    def dense(self, spec: TensorSpec) -> StoredMatrix | _Drawn:
        drawn = dense_tensor(spec, self.config)
        if spec.role is Role.HASH:
            name, values = spec.name, drawn.values or ()
            return _Drawn(self.file, name, spec.shape, "I64", "integers", 0, integers=values)
        seed = self.seed_of(spec.name)
        if spec.role is not Role.MATRIX:
            shape, spread, centre = spec.shape, drawn.spread, drawn.centre
            return _Drawn(self.file, spec.name, shape, "BF16", "values", seed, spread, centre)
        rows, width = spec.shape
        group = next((size for size in (_GROUP, 32) if width % size == 0), 0)
        if group:
            return self.matrix(spec.name, rows, width, group)
        plain = _Drawn(self.file, f"{spec.name}.weight", spec.shape, "BF16", "values", seed)
        return StoredMatrix(plain, None, None, rows, width, 16, 0)

    def experts(self, spec: ExpertSpec) -> StoredExperts:
        count, inter, hidden = spec.experts, spec.inter, spec.hidden
        gate = self.matrix(f"{spec.prefix}.gate_proj", count * inter, hidden, _GROUP)
        up = self.matrix(f"{spec.prefix}.up_proj", count * inter, hidden, _GROUP)
        down = self.matrix(f"{spec.prefix}.down_proj", count * hidden, inter, _GROUP)
        blocks = tuple(
            (
                Block(gate, e * inter, inter),
                Block(up, e * inter, inter),
                Block(down, e * hidden, hidden),
            )
            for e in range(count)
        )
        return StoredExperts(spec.prefix, blocks, frozenset({(4, _GROUP)}))

    def table(self, spec: NgramSpec) -> StoredTable:
        group = next(size for size in (64, 32, 16, 8) if spec.dim % size == 0)
        return StoredTable(spec.prefix, (self.matrix(spec.prefix, spec.rows, spec.dim, group),))


def _checkpoint(folder: Path, raw: dict[str, Any], seed: int) -> Checkpoint:
    """A checkpoint of drawn tensors, by the conventions of Hugging Face: norms around zero."""
    config = parse(raw)
    needed, weights = inventory(config), _Weights(folder, config, seed)
    return Checkpoint(
        folder=folder,
        config=raw,
        inventory=needed,
        fingerprint=fingerprint(folder),
        trunk=Dialect.HUGGING_FACE,
        draft=Dialect.HUGGING_FACE,
        dense={spec.name: weights.dense(spec) for spec in needed.dense},
        experts=tuple(weights.experts(spec) for spec in needed.experts),
        ngrams=tuple(weights.table(spec) for spec in needed.ngrams),
    )


def write_store(
    output: Path, geometry: Geometry, *, seed: int = 0, threads: int = 0, on_event: Any = None
) -> Path:
    """Write the store into `output`, a folder that does not exist yet or is empty."""
    raw = model_config(geometry)
    with tempfile.TemporaryDirectory(prefix="cherenkov-") as folder:
        write_tokenizer(Path(folder), geometry.vocab)
        checkpoint = _checkpoint(Path(folder), raw, seed)
        return pack(checkpoint, output, threads=threads, on_event=on_event or (lambda _event: None))


def _show(event: Event) -> None:
    if isinstance(event, Progress) and sys.stderr.isatty():
        done, total = format_bytes(event.done_bytes), format_bytes(event.total_bytes)
        rate = format_bytes(int(event.rate_bytes_s))
        print(f"\r{event.stage}: {done} of {total}, {rate} a second ", end="", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0)
    for field, value in asdict(PUBLISHED).items():
        parser.add_argument("--" + field.replace("_", "-"), type=int, default=value)
    args = parser.parse_args()
    geometry = replace(PUBLISHED, **{k: getattr(args, k) for k in asdict(PUBLISHED)})
    begin = time.monotonic()
    path = write_store(args.folder, geometry, seed=args.seed, threads=args.threads, on_event=_show)
    seconds = time.monotonic() - begin
    size = sum(entry.stat().st_size for entry in path.iterdir())
    print(
        f"{path}: {format_bytes(size)} in {seconds:.1f} s, {format_bytes(int(size / seconds))} a second, "
        f"{geometry.layers} layers of {geometry.experts} experts"
    )


if __name__ == "__main__":
    main()
