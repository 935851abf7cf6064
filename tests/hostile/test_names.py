"""Names that no file can have, users that there are not, links that lead elsewhere: one line each."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cherenkov.checkpoint.shards import fingerprint, vetted
from cherenkov.errors import ConfigError, CorruptModel, DiskError, ModelNotFound
from cherenkov.inspection import inspect
from cherenkov.packing.store import PackedStore
from cherenkov.packing.verify import verify
from cherenkov.preparation import locate, prepare
from cherenkov.text.controls import Controls
from cherenkov.text.template import ChatTemplate
from cherenkov.text.tokenizer import Tokenizer
from cherenkov_cli import diagnosis
from cherenkov_cli.main import run
from tests.checkpoints import small

ROOT = Path(__file__).parents[2]
IMPOSSIBLE = ["a\0b", "half\ud800", "half\udcff\ud800"]


@pytest.mark.parametrize("name", [*IMPOSSIBLE, "~nobody-of-this-name/model"])
def test_no_model_has_such_a_name(name):
    for look in (locate, inspect, lambda n: prepare(n, "unused")):
        with pytest.raises(ModelNotFound) as caught:
            look(name)
        assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", ["a\0b", "half\ud800", "~nobody-of-this-name/store"])
def test_no_store_has_such_a_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="output") as caught:
        prepare(small(tmp_path / "model")[0], name)
    assert str(caught.value).isprintable()
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "~nobody-of-this-name", "Hi"],
        ["run", "half\udcff", "Hi"],
        ["inspect", "half\udcff\n\x1b[2J"],
        ["verify", "half\udcff"],
        ["prepare", "~nobody-of-this-name", "-o", "x"],
        ["prepare", "demo", "-o", "~nobody-of-this-name/x"],
    ],
)
def test_the_command_says_so_on_one_line(arguments, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.rstrip("\n").isprintable()
    assert not list(tmp_path.iterdir())


def test_what_a_folder_is_called_cannot_drive_the_terminal(tmp_path, capsys):
    folder = small(tmp_path / "model\n\x1b[2J")[0]
    assert run(["inspect", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert out.splitlines()[0].endswith("model [2J")


def test_files_beside_a_model_may_have_names_that_are_no_text(tmp_path):
    folder = small(tmp_path / "model")[0]
    before = fingerprint(folder)
    odd = os.fsencode(folder) + b"/caf\xe9.json"
    Path(os.fsdecode(odd)).write_text("{}")
    assert fingerprint(folder) != before
    assert verify(prepare(folder, tmp_path / "store")).ok


def test_a_shard_of_an_impossible_name(tmp_path):
    with pytest.raises(CorruptModel, match="no file can have this name"):
        vetted(tmp_path, "half\ud800")


def test_a_fingerprint_that_fails_names_the_file(tmp_path):
    folder = small(tmp_path / "model")[0]
    (folder / "gone.json").symlink_to("nowhere")
    with pytest.raises(DiskError, match=r"gone\.json: cannot read"):
        fingerprint(folder)


# --- places where we may not look


def _open_store(folder, tmp_path):
    return PackedStore.open(folder).file("tokenizer.json")


def _locate(folder, tmp_path):
    return locate(folder)


def _open_text(folder, tmp_path):
    ChatTemplate.open(folder, Controls()).close()
    return Tokenizer.open(folder)


def _prepare(folder, tmp_path):
    return prepare(folder, tmp_path / "store")


@pytest.mark.parametrize(
    ("open_it", "name"),
    [
        *[(_prepare, n) for n in ("config.json", "model.safetensors", "mtp.safetensors")],
        *[(_prepare, n) for n in ("model.safetensors.index.json", "LICENSE")],
        *[(_open_store, n) for n in ("manifest.json", "integrity.json")],
        *[(_open_store, n) for n in ("config.json", "tokenizer.json")],
        *[(_locate, n) for n in ("manifest.json", "config.json")],
        *[(_open_text, n) for n in ("generation_config.json", "config.json")],
        *[(_open_text, n) for n in ("chat_template.jinja", "tokenizer_config.json")],
    ],
)
def test_a_file_that_we_may_not_look_at(
    demo_folder, glow_store, tmp_path, monkeypatch, open_it, name
):
    """Not to be taken for one that is not there, and no failure of Python's own."""
    stat = Path.stat

    def refuse(path, **options):
        if path.name == name:
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(DiskError, match=f"{name}: cannot read: Permission denied"):
        open_it(glow_store if open_it is _open_store else demo_folder, tmp_path)
    assert not (tmp_path / "store").exists()


# --- links that lead out of a model


@pytest.mark.parametrize(
    "name", ["manifest.json", "integrity.json", "config.json", "tokenizer.json"]
)
def test_files_of_a_store_may_not_be_links_to_elsewhere(glow_store, tmp_path, name):
    store = shutil.copytree(glow_store, tmp_path / "store")
    (store / name).rename(tmp_path / name)
    (store / name).symlink_to(tmp_path / name)
    with pytest.raises(CorruptModel, match=f"{name}: a link that leads out of the folder"):
        PackedStore.open(store).file("tokenizer.json")
    if name == "tokenizer.json":
        (problem,) = verify(store).problems
        assert (problem.file, "leads out" in problem.describe()) == (name, True)


def test_tokenizers_and_templates_may_not_either(demo_folder, tmp_path):
    copy = Path(shutil.copytree(demo_folder, tmp_path / "model"))
    for name, open_it in (
        ("chat_template.jinja", lambda: ChatTemplate.open(copy, Controls())),
        ("tokenizer_config.json", lambda: ChatTemplate.open(copy, Controls())),
        ("generation_config.json", lambda: Tokenizer.open(copy)),
        ("tokenizer.json", lambda: Tokenizer.open(copy)),
    ):
        (copy / name).rename(tmp_path / name)
        (copy / name).symlink_to(tmp_path / name)
        with pytest.raises(CorruptModel, match=f"{name}: a link that leads out of the folder"):
            open_it()
        (copy / name).unlink()
        (tmp_path / name).rename(copy / name)


@pytest.mark.parametrize("name", [[1], {}, None, 5])
def test_templates_by_names_that_are_none(tmp_path, name):
    named = [{"name": name, "template": "x"}, {"name": "default", "template": "D"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    with ChatTemplate.open(tmp_path, Controls()) as template:
        assert template.render([{"role": "user", "content": "Hi"}]).text == "D"


# --- what surrounds the command


def test_doctor_where_we_may_not_look(monkeypatch, tmp_path):
    monkeypatch.setenv("CHERENKOV_DATA_DIR", str(tmp_path / "data"))

    def refuse(path, **_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", refuse)
    found = diagnosis.diagnose()
    assert not found.data["writable"]
    assert any("cannot be written to" in problem for problem in found.problems)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="descriptors are seen in /proc")
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_do_not_give_their_place_to_files(tmp_path, closed):
    """Descriptors 0 to 2 would go to the next files opened, and what is printed by others would land there."""
    code = """
import os, pathlib, sys
from cherenkov_cli.main import run
code = run(["paths"])
links = [os.readlink(f"/proc/self/fd/{i}") for i in range(3)]
pathlib.Path(sys.argv[1]).write_text(f"{code} {links}")
"""
    line = f'exec "$0" -c "$1" "$2" {closed}'
    command = ["sh", "-c", line, sys.executable, code, str(tmp_path / "seen")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    code, links = (tmp_path / "seen").read_text().split(" ", 1)
    assert code == "0"
    for stream, redirection in enumerate(("<&-", ">&-", "2>&-")):
        if redirection in closed.split():
            assert json.loads(links.replace("'", '"'))[stream] == "/dev/null"


def test_no_memory_is_one_line(monkeypatch, capsys):
    def exhausted(_path):
        raise MemoryError

    monkeypatch.setattr("cherenkov.inspection.is_store", exhausted)
    assert run(["inspect", "x"]) == 1
    assert capsys.readouterr().err == (
        "cherenkov: there is not enough memory, or a limit on it (ulimit -v) is too low\n"
    )
