"""JSON documents and the names of files: what is read, and what is refused before anything can go wrong with it."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from cherenkov.checkpoint.documents import (
    CONFIG_LIMIT_BYTES,
    is_file,
    is_there,
    parse_object,
    read_bytes,
)
from cherenkov.errors import CorruptModel, DiskError
from cherenkov.packing.store import PackedStore
from cherenkov.preparation import prepare
from tests.checkpoints import opened, small

IMPOSSIBLE = ["a\0b", "half\ud800"]
"""Names that no file can have: a NUL, and half of a surrogate pair."""


@pytest.mark.parametrize("brackets", ["[]", "{}"])
def test_depth_is_bounded_and_real_documents_are_far_from_it(brackets):
    def nested(depth):
        value = json.loads(brackets)
        for _ in range(depth - 1):
            value = {"a": value} if isinstance(value, dict) else [value]
        return json.dumps({"a": value}).encode()

    assert parse_object("x.json", nested(60))["a"] is not None
    for depth in (70, 500):  # neither troubles the parser itself
        with pytest.raises(CorruptModel, match=r"x\.json: JSON nested too deeply"):
            parse_object("x.json", nested(depth))


def test_breadth_is_not_depth():
    wide = json.dumps({"a": [[{}] * 1000, {str(i): [i] for i in range(1000)}]})
    assert len(parse_object("x.json", wide.encode())["a"][1]) == 1000


def test_a_deep_configuration_is_refused_where_models_are_opened(tmp_path):
    folder = small(tmp_path / "model")[0]
    config = json.loads((folder / "config.json").read_text())
    config["made_up"] = json.loads("[" * 80 + "]" * 80)
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CorruptModel, match=r"config\.json: JSON nested too deeply"):
        prepare(folder, tmp_path / "store")
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_a_configuration_of_absurd_length(tmp_path):
    folder = small(tmp_path / "model")[0]
    store = prepare(folder, tmp_path / "store")
    for path in (folder, store):
        config = json.loads((path / "config.json").read_text())
        config["made_up"] = " " * CONFIG_LIMIT_BYTES
        (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CorruptModel, match=f"at most {CONFIG_LIMIT_BYTES} bytes"):
        prepare(folder, tmp_path / "other")
    (store / "integrity.json").unlink()
    with pytest.raises(CorruptModel, match=f"at most {CONFIG_LIMIT_BYTES} bytes"):
        PackedStore.open(store)


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_names_that_no_file_can_have_are_not_there(name, tmp_path):
    assert not is_there(tmp_path / name)
    assert not is_file(tmp_path / name)
    with pytest.raises(CorruptModel, match="no file can have this name") as caught:
        read_bytes(tmp_path / name)
    assert str(caught.value).isprintable()


def test_what_is_there(tmp_path):
    (tmp_path / "file").write_text("x")
    assert is_there(tmp_path)
    assert not is_file(tmp_path)
    assert is_file(tmp_path / "file")
    assert not is_there(tmp_path / "file" / "below")
    assert not is_there(tmp_path / "absent")
    (tmp_path / "circle").symlink_to("circle")
    assert not is_there(tmp_path / "circle")


def test_where_we_may_not_look_is_not_the_same_as_nothing(tmp_path, monkeypatch):
    def refuse(path, **_):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", refuse)
    for look in (is_there, is_file):
        with pytest.raises(DiskError, match="cannot read: Permission denied"):
            look(tmp_path / "file")


def test_no_name_is_too_long_for_a_message(tmp_path):
    with pytest.raises(DiskError, match="File name too long"):
        is_there(tmp_path / ("x" * 5000))
    assert opened(small(tmp_path / "model")[0]).folder == tmp_path / "model"
