"""Whatever the format's own library refuses, ours refuses too; what both accept, they read alike."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open

from cherenkov.checkpoint.safetensors import SafetensorsFile
from cherenkov.errors import CorruptModel

if TYPE_CHECKING:
    from pathlib import Path

names = st.sampled_from(["a", "b", "é", "__metadata__", "", "x.weight"])
numbers = st.one_of(
    st.integers(-1, 12), st.sampled_from([2**31, 2**62, 2**63, 2**64, 1.0, "4", None])
)
kinds = st.sampled_from(["F32", "BF16", "F16", "U32", "I64", "U8", "F8_E4M3", "F4", "F99", "f32"])
wild = st.fixed_dictionaries(
    {
        "dtype": kinds,
        "shape": st.lists(numbers, max_size=3),
        "data_offsets": st.lists(numbers, max_size=3),
    }
)
headers = st.dictionaries(
    names,
    st.one_of(wild, st.none(), st.dictionaries(names, st.sampled_from(["", "pt", "é"]))),
    max_size=3,
)


@st.composite
def sound(draw: st.DrawFn) -> tuple[dict[str, Any], int]:
    """A header without a mistake, and how many bytes it describes."""
    header: dict[str, Any] = {}
    offset = 0
    for name in draw(st.lists(st.sampled_from("abcd"), unique=True, max_size=4)):
        kind, size = draw(st.sampled_from([("F32", 4), ("I64", 8), ("F16", 2), ("U32", 4)]))
        shape = draw(st.lists(st.integers(0, 3), max_size=3))
        end = offset + size * int(np.prod(shape, dtype=np.int64))
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    return header, offset


def theirs(path: Path) -> dict[str, tuple[int, ...]] | None:
    try:
        with safe_open(path, "np") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OverflowError):
        return None


def ours(path: Path) -> dict[str, tuple[int, ...]] | None:
    try:
        file = SafetensorsFile.open(path)
    except CorruptModel:
        return None
    return {name: info.shape for name, info in file.tensors.items()}


def compare(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    mine = ours(path)
    if mine is not None:
        assert theirs(path) == mine


settled = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(headers, st.integers(0, 40), st.integers(-2, 2))
@settled
def test_wild_headers(tmp_path: Path, header: Any, size: int, error: int) -> None:
    text = json.dumps(header).encode()
    compare(
        tmp_path / "t.safetensors",
        max(0, len(text) + error).to_bytes(8, "little") + text + bytes(size),
    )


@given(
    sound(),
    st.integers(0, 400),
    st.integers(0, 255),
    st.sampled_from(["replace", "insert", "drop"]),
)
@settled
def test_sound_headers_with_one_byte_changed(
    tmp_path: Path, made: tuple[dict[str, Any], int], place: int, value: int, how: str
) -> None:
    text = json.dumps(made[0]).encode()
    place %= len(text)
    after = text[place:] if how == "insert" else text[place + 1 :]
    changed = text[:place] + (b"" if how == "drop" else bytes([value])) + after
    compare(
        tmp_path / "t.safetensors", len(changed).to_bytes(8, "little") + changed + bytes(made[1])
    )


@given(sound())
@settled
@example(({}, 0))
def test_sound_files_are_read_alike(tmp_path: Path, made: tuple[dict[str, Any], int]) -> None:
    header, size = made
    text = json.dumps(header).encode()
    path = tmp_path / "t.safetensors"
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    assert ours(path) == theirs(path) is not None
    file = SafetensorsFile.open(path)
    with safe_open(path, "np") as other:
        for name in header:
            assert file.read(name).tobytes() == other.get_tensor(name).tobytes()
