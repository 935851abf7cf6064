"""Preparing what cannot be prepared: refused by name, and nothing is left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from cherenkov.errors import Cancelled, ConfigError, CorruptModel, DiskError, UnsupportedModel
from cherenkov.events import Note, Progress
from cherenkov.packing.pack import pack
from cherenkov.packing.store import PackedStore
from cherenkov.packing.verify import verify
from tests.checkpoints import opened, small, to_mlx, tree, write_mlx, write_raw
from tests.tiny import TINY, weights

if TYPE_CHECKING:
    from pathlib import Path

PLAIN = TINY["plain"]
TENSORS = weights(PLAIN.text, PLAIN.seed)
TRUNK = "language_model.model."


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small(tmp_path_factory.mktemp("hf") / "plain")[0]


def test_something_else_in_the_way_is_left_alone(source: Path, tmp_path: Path) -> None:
    path = pack(opened(source), tmp_path / "store")
    before = tree(tmp_path)
    with pytest.raises(ConfigError, match="another store"):
        pack(opened(source), path, bits=8)
    (path / "dense.bin").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"cannot be used \(.*dense\.bin.*\); remove it first"):
        pack(opened(source), path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match="not empty"):
        pack(opened(source), tmp_path / "full")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="no folder"):
        pack(opened(source), tmp_path / "file")
    after = tree(tmp_path)
    assert set(after) == {*before, "full/thesis.txt", "file"}


def test_links_in_the_way_are_not_written_through(source: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "dense.bin").write_text("precious")
    (tmp_path / ".store.partial").symlink_to(tmp_path / "theirs")
    assert verify(pack(opened(source), tmp_path / "store")).ok
    assert tree(tmp_path / "theirs") == {"dense.bin": b"precious"}
    (tmp_path / "victim").write_text("precious")
    (tmp_path / ".other.lock").symlink_to(tmp_path / "victim")
    with pytest.raises(DiskError):
        pack(opened(source), tmp_path / "other")
    assert (tmp_path / "victim").read_text() == "precious"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 3}, "bits = 3"),
        ({"bits": 5}, "bits = 5"),
        ({"group": 128}, "group = 128"),
        ({"threads": -1}, "threads = -1"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str, source: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        pack(opened(source), tmp_path / "store", **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["a\0b", "half\ud800"])
def test_names_that_no_store_can_have(name: str, source: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can have this name") as caught:
        pack(opened(source), tmp_path / name)
    assert str(caught.value).isprintable()
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="no store can have this name"):
        pack(opened(source), "/")


def test_a_folder_that_is_gone(source: Path, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here").rmdir()
    with pytest.raises(DiskError, match="cannot find the folder of"):
        pack(opened(source), "store")


def test_a_link_cannot_become_a_store(source: Path, tmp_path: Path) -> None:
    """Found before the work is done, not when the store is to take its name."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    with pytest.raises(ConfigError, match="is a link: give the folder it leads to"):
        pack(opened(source), tmp_path / "link")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "link"]


def test_a_mount_point_cannot_become_a_store(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "disk").mkdir()
    monkeypatch.setattr("pathlib.Path.is_mount", lambda path: path.name == "disk")
    with pytest.raises(ConfigError, match="is a mount point: give a folder in it"):
        pack(opened(source), tmp_path / "disk")
    assert verify(pack(opened(source), tmp_path / "disk" / "store")).ok


def test_options_that_quantised_weights_cannot_honour(tmp_path: Path) -> None:
    folder = write_mlx(tmp_path / "mlx", PLAIN.config, TENSORS)
    for options, message in (({"bits": 16}, "already quantised"), ({"group": 32}, "groups of 64")):
        with pytest.raises(ConfigError, match=message):
            pack(opened(folder), tmp_path / "store", **options)


def test_groups_follow_the_widths(tmp_path: Path) -> None:
    folder, _ = small(tmp_path / "source", "thirty-twos")
    assert PackedStore.open(pack(opened(folder), tmp_path / "a")).expert_layout.group == 32
    with pytest.raises(UnsupportedModel, match="groups of 64"):
        pack(opened(folder), tmp_path / "b", group=64)


def bf16(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {
        n: v if v.dtype == np.int64 else (v.view(np.uint32) >> 16).astype(np.uint16)
        for n, v in tensors.items()
    }


@pytest.mark.parametrize(
    ("name", "row", "where"),
    [
        ("model.language_model.embed_tokens.weight", 17, "row 17"),
        ("model.language_model.layers.2.mlp.experts.gate_up_proj", 3, "expert 3, row"),
        (
            "model.language_model.layers.1.ple.ple_embedding.ngram_embedding.shard_1.weight",
            2,
            "row 2",
        ),
        ("model.language_model.layers.0.linear_attn.dt_bias", 2, "element 2"),
        ("model.language_model.layers.0.mlp.gate.weight", 2, "row 2"),
        ("mtp.hyper_connection_mixer.hc_norm.weight", 9, "element 9"),
    ],
)
@pytest.mark.parametrize(("bits", "pattern"), [(4, 0x7FC0), (16, 0xFF80)])
def test_weights_that_are_not_finite_are_named(
    name: str, row: int, where: str, pattern: int, bits: int, tmp_path: Path
) -> None:
    tensors = bf16(dict(TENSORS))
    tensors[name] = tensors[name].copy()
    tensors[name][row] = pattern
    (tmp_path / "source").mkdir()
    write_raw(tmp_path / "source" / "model.safetensors", tensors)
    checkpoint = opened(tmp_path / "source", PLAIN.config)
    with pytest.raises(CorruptModel, match="holds NaN or infinity") as caught:
        pack(checkpoint, tmp_path / "store", bits=bits)
    assert name in str(caught.value)
    assert where in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["source"]


def test_scales_that_are_not_finite_are_named(tmp_path: Path) -> None:
    converted = to_mlx(TENSORS)
    name = f"{TRUNK}layers.1.mlp.switch_mlp.up_proj.scales"
    converted[name][2, 5, 0] = 0x7F80
    (tmp_path / "source").mkdir()
    write_raw(tmp_path / "source" / "model.safetensors", converted)
    checkpoint = opened(tmp_path / "source", PLAIN.config)
    with pytest.raises(CorruptModel, match=r"up_proj.weight \(expert 2, row 5\): holds NaN"):
        pack(checkpoint, tmp_path / "store")
    path = pack(checkpoint, tmp_path / "store", allow_nonfinite=True)
    assert verify(path).ok


def test_a_source_that_changes_meanwhile(source: Path, tmp_path: Path) -> None:
    folder, _ = small(tmp_path / "source")
    checkpoint = opened(folder)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(CorruptModel, match="changed while it was being prepared"):
        pack(checkpoint, tmp_path / "store")
    assert [p.name for p in tmp_path.iterdir()] == ["source"]


def test_cancelled_work_is_taken_up_again(source: Path, tmp_path: Path) -> None:
    expected = tree(pack(opened(source), tmp_path / "expected"))
    (tmp_path / "here").mkdir()
    seen: list[Any] = []

    def stop(event: Any) -> None:
        if isinstance(event, Progress):
            raise Cancelled("enough")

    with pytest.raises(Cancelled):
        pack(opened(source), tmp_path / "here/store", on_event=stop, at_risk_bytes=0, threads=1)
    assert [p.name for p in (tmp_path / "here").iterdir()] == [".store.partial"]
    path = pack(opened(source), tmp_path / "here/store", on_event=seen.append)
    assert any("resuming" in e.message for e in seen if isinstance(e, Note))
    assert tree(path) == expected
    assert [p.name for p in (tmp_path / "here").iterdir()] == ["store"]


def test_another_kind_of_work_starts_clean(source: Path, tmp_path: Path) -> None:
    def stop(event: Any) -> None:
        if isinstance(event, Progress):
            raise Cancelled("enough")

    with pytest.raises(Cancelled):
        pack(opened(source), tmp_path / "store", on_event=stop, at_risk_bytes=0, threads=1)
    path = pack(opened(source), tmp_path / "store", bits=16)
    assert PackedStore.open(path).expert_layout.bits == 16
    assert verify(path).ok
