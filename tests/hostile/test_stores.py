"""Stores that are damaged or lie about themselves."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from cherenkov.errors import CorruptModel, ModelNotFound, UnsupportedModel
from cherenkov.packing.layout import ExpertLayout, NgramLayout
from cherenkov.packing.manifest import DenseEntry, ExpertSection, Manifest, NgramSection
from cherenkov.packing.pack import pack
from cherenkov.packing.store import PackedStore
from cherenkov.packing.verify import verify
from tests.checkpoints import opened, small

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("stores")
    return pack(opened(small(root / "source", "two-ple")[0]), root / "store")


@pytest.fixture
def store(pristine: Path, tmp_path: Path) -> Path:
    return shutil.copytree(pristine, tmp_path / "store")


def edit(store: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest of a store that has no checksums."""
    (store / "integrity.json").unlink(missing_ok=True)
    document = json.loads((store / "manifest.json").read_text())
    change(document)
    (store / "manifest.json").write_text(json.dumps(document))


def refused(store: Path, message: str, kind: type[Exception] = CorruptModel) -> None:
    with pytest.raises(kind, match=message) as caught:
        PackedStore.open(store)
    assert "\n" not in str(caught.value)


def dense(document: dict[str, Any], index: int = 0) -> dict[str, Any]:
    return document["dense"][index]


def setting(section: str, key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document[section].update({key: value})


CASES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no version": (lambda d: d.pop("version"), "version: missing"),
    "old version": (lambda d: d.update(version=0), "no such version"),
    "version of text": (lambda d: d.update(version="1"), "version: not a count"),
    "no dense": (lambda d: d.pop("dense"), "dense: missing"),
    "dense of numbers": (lambda d: d.update(dense=[1]), "dense: not a list of objects"),
    "no experts": (lambda d: d.pop("experts"), "experts: missing"),
    "no source": (lambda d: d.pop("source_dir"), "source_dir: missing"),
    "unknown type": (lambda d: dense(d).update(dtype="F99"), "unknown type"),
    "size and shape": (lambda d: dense(d).update(nbytes=1), "contradicts the shape"),
    "negative offset": (lambda d: dense(d).update(offset=-64), "offset: not a count"),
    "crooked offset": (lambda d: dense(d, 3).update(offset=8), "not a multiple of 64"),
    "overlap": (lambda d: dense(d, 1).update(offset=0), "overlaps the tensor before it"),
    "beyond the end": (lambda d: dense(d, -1).update(offset=1 << 40), "dense.bin: cut short"),
    "absurd shape": (lambda d: dense(d).update(shape=[1 << 70]), "not a count"),
    "many dimensions": (lambda d: dense(d).update(shape=[1] * 9), "too many dimensions"),
    "twice": (lambda d: dense(d, 1).update(name=dense(d)["name"]), "named twice"),
    "boolean": (lambda d: dense(d).update(offset=False), "not a count"),
    "layers": (setting("experts", "layers", 3), "layer_prefixes: wrong count"),
    "no layers": (setting("experts", "layers", 0), "no experts"),
    "absurd experts": (setting("experts", "experts", 1 << 60), "impossibly large"),
    "more experts": (setting("experts", "experts", 9), "experts.bin: cut short"),
    "fewer experts": (setting("experts", "experts", 7), "longer than the manifest says"),
    "bad group": (setting("experts", "group", 48), "group = 48"),
    "bad bits": (setting("experts", "bits", 5), "bits = 5"),
    "stride": (setting("experts", "record_stride", 4096), "record_stride: contradicts"),
    "offset in a record": (setting("experts", "up_w", 0), "up_w: contradicts"),
    "prefixes": (setting("experts", "layer_prefixes", [1] * 4), "not a list of strings"),
    "n-gram group": (setting("ngram", "group", 7), "no row can have"),
    "n-gram bits": (setting("ngram", "bits", 3), "no row can have"),
    "n-gram rows": (setting("ngram", "rows", 1), "longer than the manifest says"),
    "no n-gram rows": (setting("ngram", "rows", 0), "empty, or impossibly large"),
    "row bytes": (setting("ngram", "row_bytes", 1), "row_bytes: contradicts"),
    "hash": (setting("ngram", "layer_multipliers", [1 << 64]), "not a 64-bit integer"),
    "second table": (lambda d: d["more_ngrams"][0].update(file="../x.bin"), "not a plain name"),
    "hidden table": (lambda d: d["more_ngrams"][0].update(file=".x.bin"), "not a plain name"),
    "table of two lines": (
        lambda d: d["more_ngrams"][0].update(file="x\ny.bin"),
        "not a plain name",
    ),
    "table of half a character": (
        lambda d: d["more_ngrams"][0].update(file="\ud800.bin"),
        "not a plain name",
    ),
    "no table": (lambda d: d["more_ngrams"][0].update(file="x.bin"), "x.bin: the file is missing"),
}


@pytest.mark.parametrize("case", CASES)
def test_manifests_that_lie(case: str, store: Path) -> None:
    change, message = CASES[case]
    edit(store, change)
    refused(store, message)


def test_a_later_version(store: Path) -> None:
    edit(store, lambda d: d.update(version=2))
    refused(store, "version 2, written by a later release", UnsupportedModel)


def test_unknown_keys_are_let_be(store: Path) -> None:
    def change(document: dict[str, Any]) -> None:
        document["later"] = document["experts"]["later"] = dense(document)["later"] = 1

    edit(store, change)
    assert PackedStore.open(store).integrity is None


@pytest.mark.parametrize("name", ["dense.bin", "experts.bin", "ngram.bin", "ngram2.bin"])
def test_lengths(name: str, store: Path) -> None:
    size = (store / name).stat().st_size
    for wrong, message in ((size - 1, "cut short"), (0, "cut short"), (size + 64, "longer than")):
        os.truncate(store / name, wrong)
        refused(store, f"{name}: {message}")
    (store / name).unlink()
    refused(store, f"{name}: the file is missing")
    (store / name).mkdir()
    refused(store, f"{name}: not a regular file")


@pytest.mark.parametrize("name", ["manifest.json", "integrity.json", "config.json"])
def test_documents_cut_short_or_garbled(name: str, store: Path) -> None:
    text = (store / name).read_bytes()
    for size in (0, 1, len(text) // 2, len(text) - 3):
        (store / name).write_bytes(text[:size])
        refused(store, name)
    (store / name).write_bytes(text.replace(b"e", b"\xff", 1))
    refused(store, name)


def test_integrity_must_cover_the_store(store: Path) -> None:
    def drop(document: dict[str, Any]) -> None:
        document["dense"].pop()

    text = (store / "integrity.json").read_bytes()
    edit(store, drop)
    (store / "integrity.json").write_bytes(text)
    refused(store, "manifest.json: differs from what was prepared")


def test_a_changed_configuration_is_noticed(store: Path) -> None:
    text = (store / "config.json").read_text()
    (store / "config.json").write_text(text.replace("1e-06", "1e-05"))
    refused(store, "config.json: differs from what was prepared")


def test_no_store(tmp_path: Path) -> None:
    refused(tmp_path, "no model", ModelNotFound)
    refused(tmp_path / "nowhere", "no model", ModelNotFound)


def test_the_older_layout(store: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    store.rename(tmp_path / "packed")
    model.mkdir()
    (tmp_path / "packed").rename(model / "packed")
    (model / "packed" / "integrity.json").unlink()
    for name in ("config.json", "tokenizer.json"):
        (model / "packed" / name).rename(model / name)
    for path in (model, model / "packed"):
        opened_store = PackedStore.open(path)
        assert opened_store.path == model / "packed"
        assert opened_store.config["model_type"] == "qwen4_exp"
        assert opened_store.file("tokenizer.json") == model / "tokenizer.json"
        assert opened_store.integrity is None
    assert opened_store.file("nothing.json") is None
    report = verify(model)
    assert report.ok
    assert not report.verifiable


def test_dense_tensors_are_checked_when_read(store: Path) -> None:
    entry = PackedStore.open(store).manifest.dense[5]
    with (store / "dense.bin").open("r+b") as file:
        file.seek(entry.offset)
        byte = file.read(1)
        file.seek(entry.offset)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(CorruptModel, match="checksum does not match") as caught:
        PackedStore.open(store).dense()
    assert caught.value.item == entry.name
    assert caught.value.offset == entry.offset


def test_dense_tensors_of_other_shapes(store: Path) -> None:
    tensors = PackedStore.open(store).dense()
    embedding = "language_model.model.embed_tokens"
    assert tensors.matrix(embedding, (300, 64)).bits == 4
    for shape in ((299, 64), (300, 65), (300, 128), (300, 16), (64, 300)):
        with pytest.raises(CorruptModel, match="wrong shape"):
            tensors.matrix(embedding, shape)
    with pytest.raises(CorruptModel, match="no such tensor"):
        tensors.matrix("language_model.model.nothing", (1, 1))
    with pytest.raises(CorruptModel, match="wrong shape"):
        tensors.vector("language_model.model.hyper_connection_mixer.hc_norm.weight", (64,))
    with pytest.raises(CorruptModel, match="not floating point"):
        tensors.vector("language_model.model.embed_tokens.weight", (300, 8))
    with pytest.raises(CorruptModel, match="not integers"):
        tensors.integers("language_model.model.hyper_connection_mixer.hc_norm.weight", (256,))
    name = "language_model.model.layers.0.ple.ple_embedding.layer_multipliers"
    assert tensors.integers(name, (4,)).dtype == np.int64
    with pytest.raises(CorruptModel, match="wrong shape"):
        tensors.integers(name, (5,))


def test_tensors_start_on_64_bytes(pristine: Path) -> None:
    tensors = PackedStore.open(pristine).dense()
    assert all(tensors.raw(name).ctypes.data % 64 == 0 for name in tensors)


def test_record_numbers(pristine: Path) -> None:
    store = PackedStore.open(pristine)
    section = store.manifest.experts
    assert store.record_index(1, 2) == section.experts + 2
    assert store.record_index(section.layers - 1, section.experts - 1) == store.records - 1
    for layer, expert in ((-1, 0), (0, -1), (section.layers, 0), (0, section.experts)):
        with pytest.raises(IndexError, match="no expert"):
            store.record_index(layer, expert)


@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("tables", [0, 1, 3])
def test_manifests_round_trip(bits: int, tables: int) -> None:
    manifest = Manifest(
        source_dir="somewhere",
        dense=(
            DenseEntry("a", "BF16", (3, 2), 0, 12),
            DenseEntry("b", "I64", (), 64, 8),
            DenseEntry("c", "F32", (0, 5), 128, 0),
        ),
        experts=ExpertSection(2, 3, ExpertLayout(64, 128, bits, 32), ("x", "y")),
        ngrams=tuple(
            NgramSection(
                f"ngram{i + 1}.bin" if i else "ngram.bin",
                NgramLayout(7, 32, 16 if bits == 16 else 4, 16),
                (0, 3),
                (3, 4),
                (-1, 1 << 62),
            )
            for i in range(tables)
        ),
    )
    assert Manifest.from_bytes("m", manifest.to_bytes()) == manifest
    assert ("bits" in json.loads(manifest.to_bytes())["experts"]) == (bits != 4)
