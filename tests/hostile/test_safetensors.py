"""Hostile safetensors files: refused in one line, in little memory and time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from cherenkov.checkpoint.safetensors import HEADER_LIMIT_BYTES, SafetensorsFile
from cherenkov.errors import CorruptModel
from tests.checkpoints import write_raw

if TYPE_CHECKING:
    from pathlib import Path


def tensor(shape: list[Any], offsets: list[Any], dtype: str = "F32", **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}


def put(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


ONE = {"a": tensor([4], [0, 16])}
TWICE = b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'
CASES: dict[str, tuple[Any, bytes, str]] = {
    "truncated": (ONE, bytes(9), "cut short"),
    "trailing bytes": (ONE, bytes(20), "bytes after the last tensor"),
    "overlap": (
        {"a": tensor([4], [0, 16]), "b": tensor([4], [8, 24])},
        bytes(24),
        "b: overlaps the tensor before it",
    ),
    "hole": ({"a": tensor([4], [0, 16]), "b": tensor([4], [24, 40])}, bytes(40), "b: a gap before"),
    "hole at the start": ({"a": tensor([4], [8, 24])}, bytes(24), "a gap before"),
    "negative offset": ({"a": tensor([4], [-16, 0])}, bytes(16), "is no size"),
    "reversed offsets": ({"a": tensor([0], [16, 0])}, bytes(16), "bad offsets"),
    "three offsets": ({"a": tensor([4], [0, 8, 16])}, bytes(16), "bad offsets"),
    "shape mismatch": ({"a": tensor([5], [0, 16])}, bytes(16), "shape and offsets disagree"),
    "overflowing shape": ({"a": tensor([2**62, 8], [0, 16])}, bytes(16), "impossibly large"),
    "overflow hidden by a zero": ({"a": tensor([2**62, 8, 0], [0, 0])}, b"", "impossibly large"),
    "negative shape": ({"a": tensor([-4, -1], [0, 16])}, bytes(16), "is no size"),
    "minus zero": (b'{"a":{"dtype":"F32","shape":[-0],"data_offsets":[0,0]}}', b"", "is no size"),
    "fractional shape": ({"a": tensor([4.0], [0, 16])}, bytes(16), "bad shape"),
    "boolean shape": ({"a": tensor([True], [0, 4])}, bytes(4), "bad shape"),
    "shape of text": ({"a": tensor(["4"], [0, 16])}, bytes(16), "bad shape"),
    "huge number": (b'{"a":{"dtype":"F32","shape":[' + b"9" * 5000 + b"]}}", b"", "is no size"),
    "duplicate key": (TWICE, bytes(16), "appears twice"),
    "bad JSON": (b'{"a":', b"", "not JSON"),
    "no object": (b"[1]", b"", "no JSON object"),
    "leading space": (b" " + json.dumps(ONE).encode(), bytes(16), "no JSON object"),
    "bad UTF-8": (b'{"\xff":1}', b"", "bad header"),
    "half a surrogate": (
        b'{"\\ud800":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}',
        bytes(16),
        "surrogate",
    ),
    "unknown type": ({"a": tensor([4], [0, 16], "F99")}, bytes(16), "unknown type"),
    "type of a number": ({"a": {**tensor([4], [0, 16]), "dtype": 3}}, bytes(16), "unknown type"),
    "missing shape": ({"a": {"dtype": "F32", "data_offsets": [0, 16]}}, bytes(16), "not a tensor"),
    "extra field": ({"a": tensor([4], [0, 16], extra=1)}, bytes(16), "not a tensor"),
    "null tensor": ({"a": None}, b"", "not a tensor"),
    "many dimensions": ({"a": tensor([1] * 40, [0, 4])}, bytes(4), "bad shape"),
    "deep nesting": (b'{"a":' + b"[" * 200_000, b"", "nests"),
    "deep objects": (b'{"a":' * 50_000, b"", "nest"),
    "metadata of numbers": ({"__metadata__": {"a": 1}, **ONE}, bytes(16), "text to text"),
    "metadata of null": ({"__metadata__": None, **ONE}, bytes(16), "text to text"),
    "many lists": (b'{"a":[' + b"[]," * 1_000_000 + b"[]]}", b"", "nests too much"),
    "many numbers": (b'{"a":[' + b"1," * 8_000_000 + b"1]}", b"", "too many numbers"),
    "wide text": (b'{"' + b"a" * 30_000_000 + b'\\ud83d\\ude00":1}', b"", "not a tensor"),
    "spaces": (b"{}" + b" " * 33_000_000 + b"}", b"", "not JSON"),
}


@pytest.mark.parametrize("case", CASES)
def test_refused(case: str, tmp_path: Path) -> None:
    header, data, message = CASES[case]
    path = put(tmp_path / "bad.safetensors", header, data)
    with pytest.raises(CorruptModel, match=message) as caught:
        SafetensorsFile.open(path)
    text = str(caught.value)
    assert text.startswith(str(path))
    assert "\n" not in text
    assert len(text) < len(str(path)) + 400


@pytest.mark.parametrize(
    ("length", "message"),
    [
        (2**63, "absurd header length"),
        (2**64 - 1, "absurd header length"),
        (HEADER_LIMIT_BYTES + 1, "absurd header length"),
        (17, "past the end"),
    ],
)
def test_header_lengths_are_checked_before_anything_is_read(
    length: int, message: str, tmp_path: Path
) -> None:
    with pytest.raises(CorruptModel, match=message):
        SafetensorsFile.open(put(tmp_path / "bad.safetensors", {}, length=length))


def test_no_file_at_all(tmp_path: Path) -> None:
    path = tmp_path / "empty.safetensors"
    with pytest.raises(CorruptModel, match="missing"):
        SafetensorsFile.open(path)
    for content in (b"", b"\0\0\0\0"):
        path.write_bytes(content)
        with pytest.raises(CorruptModel, match="too short"):
            SafetensorsFile.open(path)
    with pytest.raises(CorruptModel, match="not a regular file"):
        SafetensorsFile.open(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CorruptModel, match="not a regular file"):
        SafetensorsFile.open(tmp_path / "pipe")


def test_what_is_sound_is_read(tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    path = tmp_path / "good.safetensors"
    write_raw(
        path, {"../../etc/passwd": values, "none": np.zeros((0, 3), np.int64)}, {"format": "pt"}
    )
    file = SafetensorsFile.open(path)
    assert file.metadata == {"format": "pt"}
    assert np.array_equal(file.read("../../etc/passwd"), values)
    assert np.array_equal(file.read("../../etc/passwd", slice(1, 2)), values[1:2])
    assert np.array_equal(file.read_flat("../../etc/passwd", 2, 5), values.reshape(6, 4)[2:5])
    assert file.read("none").shape == (0, 3)
    with pytest.raises(CorruptModel, match="no such tensor"):
        file.read("other")
    with pytest.raises(ValueError, match="ranges"):
        file.read("../../etc/passwd", slice(0, 2, 2))
    with pytest.raises(ValueError, match="no rows"):
        file.read_flat("../../etc/passwd", 2, 7)


def test_a_file_that_changes_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_raw(path, {"a": np.zeros(1000, np.float32)})
    file = SafetensorsFile.open(path)
    os.truncate(path, path.stat().st_size - 4)
    with pytest.raises(CorruptModel, match="changed"):
        file.read("a")


CHILD = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (512 << 20, 512 << 20))
resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
from cherenkov.checkpoint.safetensors import SafetensorsFile
from cherenkov.errors import CorruptModel
for path in sys.argv[1:]:
    try:
        SafetensorsFile.open(path)
    except CorruptModel:
        continue
    print("accepted", path)
"""


def test_little_memory_is_enough(tmp_path: Path) -> None:
    """The costliest headers of the largest size that is read, in a process of 512 MiB."""
    if sys.platform == "darwin":
        pytest.skip("this system does not limit the memory of a process")
    size = HEADER_LIMIT_BYTES
    entry = b'"%07d":{"dtype":"F32","shape":[],"data_offsets":[0,4]},'
    bodies = {
        "lists": b'{"a":[' + b"[]," * (size // 3 - 10) + b"[]]}",
        "numbers": b'{"a":[' + b"1," * 3_600_000 + b"1]}",
        "tensors": b"{" + b"".join(entry % i for i in range(199_000)) + b'"z":1}',
        "wide": b'{"' + b"a" * (size - 40) + b'\\ud83d\\ude00":1}',
        "emoji": b'{"' + "\U0001f600".encode() * (size // 4 - 10) + b'":1}',
        "escapes": b'{"' + b"\\u1234" * (size // 6 - 10) + b'":1}',
        "strings": b'{"a":[' + b'"",' * 3_600_000 + b'""]}',
    }
    paths = []
    for name, text in bodies.items():
        assert len(text) <= size
        paths.append(str(put(tmp_path / f"{name}.safetensors", text)))
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *paths],
        capture_output=True,
        text=True,
        timeout=110,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-500:]
    assert done.stdout == ""
