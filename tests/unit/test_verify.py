"""Verifying: any flipped bit is found, and its place is named."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING

import pytest

from cherenkov.errors import ModelNotFound
from cherenkov.events import Progress
from cherenkov.packing.integrity import Integrity, record_checksum
from cherenkov.packing.pack import pack
from cherenkov.packing.store import PackedStore
from cherenkov.packing.verify import verify
from tests.checkpoints import opened, small

if TYPE_CHECKING:
    from pathlib import Path

FLIPS = 1000
AT_ONCE = 25


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("verify")
    return pack(opened(small(root / "source")[0]), root / "store")


def flip(file: Path, bit: int) -> None:
    with file.open("r+b") as stream:
        stream.seek(bit // 8)
        byte = stream.read(1)[0]
        stream.seek(bit // 8)
        stream.write(bytes([byte ^ 1 << bit % 8]))


def expected_item(store: PackedStore, file: str, byte: int) -> str:
    """A pattern that the report must match for a wrong byte."""
    if file == "experts.bin":
        layer, expert = divmod(byte // store.expert_layout.stride_bytes, 8)
        return rf"record \d+ \(layer {layer}, expert {expert}\)"
    if file == "ngram.bin":
        return r"block \d+ \(rows \d+ to \d+\)"
    if file == "dense.bin":
        inside = [e for e in store.manifest.dense if e.offset <= byte < e.offset + e.nbytes]
        return re.escape(inside[0].name) if inside else "before .*"
    return ".*"


def test_every_flipped_bit_is_found_and_named(path: Path) -> None:
    """A thousand, up to 25 at a time, each in another item: as many problems must be listed, each with its place.

    A flip in a document that says what the rest is like may be all that is told, so those come alone.
    """
    store = PackedStore.open(path)
    files = sorted(p for p in path.iterdir() if p.is_file())
    data, documents = ([p for p in files if (p.suffix == ".bin") is big] for big in (True, False))
    rng, done, number = random.Random(11), 0, 0
    while done < FLIPS:
        number += 1
        lonely = number % 4 == 0
        flips: dict[tuple[str, str], int] = {}
        for _ in range(1 if lonely else 3 * AT_ONCE):
            file = rng.choice(documents if lonely else data)
            if rng.random() < 0.7 and not lonely:
                file = path / "experts.bin"  # which has the most items
            bit = rng.randrange(file.stat().st_size * 8)
            if len(flips) < AT_ONCE:
                flips.setdefault((file.name, expected_item(store, file.name, bit // 8)), bit)
        for (name, _), bit in flips.items():
            flip(path / name, bit)
        report = verify(path)
        for (name, _), bit in flips.items():
            flip(path / name, bit)
        assert len(report.problems) == len(flips), (flips, report.problems)
        for name, item in flips:
            (found,) = (p for p in report.problems if p.file == name and re.fullmatch(item, p.item))
            assert name in found.describe()
        done += len(flips)
    assert verify(path).ok


def test_several_problems_are_all_listed(path: Path) -> None:
    stride = PackedStore.open(path).expert_layout.stride_bytes
    places = [0, 9 * stride, 39 * stride + stride - 1]
    for byte in places:
        flip(path / "experts.bin", 8 * byte)
    report = verify(path)
    for byte in places:
        flip(path / "experts.bin", 8 * byte)
    assert [p.item for p in report.problems] == [
        "record 0 (layer 0, expert 0)",
        "record 9 (layer 1, expert 1)",
        "record 39 (layer 4, expert 7)",
    ]
    assert [p.offset for p in report.problems] == [0, 9 * stride, 39 * stride]


def test_everything_is_read(path: Path) -> None:
    events: list[object] = []
    report = verify(path, events.append)
    sizes = sum((path / n).stat().st_size for n in ("dense.bin", "experts.bin", "ngram.bin"))
    assert report.checked_bytes == sizes
    last = events[-1]
    assert isinstance(last, Progress)
    assert last.done_bytes == last.total_bytes == sizes


def test_missing_companions_are_reported(path: Path) -> None:
    text = (path / "tokenizer.json").read_bytes()
    (path / "tokenizer.json").unlink()
    (problem,) = verify(path).problems
    (path / "tokenizer.json").write_bytes(text)
    assert (problem.file, problem.item) == ("tokenizer.json", "")


def test_nothing_to_verify(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        verify(tmp_path)


def test_checksums_of_records_are_those_of_the_file(path: Path) -> None:
    store = PackedStore.open(path)
    assert store.integrity is not None
    data, stride = store.experts_path.read_bytes(), store.expert_layout.stride_bytes
    for index, expected in enumerate(store.integrity.records):
        record = memoryview(data)[index * stride : (index + 1) * stride]
        assert record_checksum(record) == expected


def test_integrity_round_trips(path: Path) -> None:
    text = (path / "integrity.json").read_bytes()
    document = Integrity.from_bytes("i", text)
    assert document.to_bytes() == text
    assert document.tool.startswith("cherenkov ")
    assert document.options["bits"] == 4
    assert re.fullmatch("[0-9a-f]{64}", document.fingerprint)
    assert set(document.files) == {
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "manifest.json",
    }
