"""What the expert store did: as a document, as tables, as a picture."""

import json
import sys

import pytest

from cherenkov.experts.report import KIND, VERSION, History, report
from cherenkov.model import Model
from cherenkov_cli.main import run

PROMPT = "What is the capital of France?"


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    path = tmp_path_factory.mktemp("stats") / "stats.json"
    arguments = ["run", "demo", PROMPT, "--max-tokens", "8", "--pool-gb", "0.004", "-q"]
    assert run([*arguments, "--stats-json", str(path)]) == 0
    return path


def test_the_document_agrees_with_itself(document):
    found = json.loads(document.read_text())
    assert (found["kind"], found["version"]) == (KIND, VERSION)
    totals, layers, experts = found["totals"], found["by_layer"], found["by_expert"]
    for name in ("hits", "misses"):
        assert totals[name] == sum(row[name] for row in layers)
        assert totals[name] == sum(sample[name] for sample in found["over_time"])
    assert totals["hits"] > 0
    assert totals["misses"] > 0
    assert totals["hit_rate"] == totals["hits"] / (totals["hits"] + totals["misses"])
    assert all(row["asks"] == row["hits"] + row["misses"] for row in layers)
    assert [sum(row) for row in experts["misses"]] == [row["misses"] for row in layers]
    completed = sum(kind["completed_bytes"] for kind in found["reads"].values())
    assert completed == totals["read_bytes"]
    assert len(found["over_time"]) >= 5
    assert found["pool"]["slots"] < found["pool"]["layers"] * found["pool"]["experts"]


def test_a_history_begins_where_it_is_made():
    with Model.load("demo", pool=0.004, context_tokens=64) as model:
        model.generate("one", max_tokens=2)
        before = model.experts.stats.copy()
        history = History(model.experts)
        for _ in history.each(model.stream("two", max_tokens=3)):
            pass
        found = report(model.experts, history)
        asked = model.experts.stats.hits + model.experts.stats.misses
    assert found["totals"]["hits"] + found["totals"]["misses"] < asked
    assert found["totals"]["hits"] == model.experts.stats.hits - before.hits
    assert sum(row["asks"] for row in found["by_layer"]) == asked


def test_the_tables_are_shown_on_standard_error(capsys):
    assert run(["run", "demo", PROMPT, "--max-tokens", "2", "-q", "--stats"]) == 0
    out, err = capsys.readouterr()
    assert "hits" not in out
    for word in ("hits", "misses", "waited", "demand", "prediction", "read ahead"):
        assert word in err


def test_statistics_of_an_answer_in_json_and_with_tools(tmp_path, capsys):
    for extra in (["--json"], ["--raw", "--json"]):
        path = tmp_path / "stats.json"
        prompt = "The old harbour lay quiet under the"
        arguments = ["run", "demo", prompt, "--max-tokens", "4", "-q", "--stats-json", str(path)]
        assert run([*arguments, *extra]) == 0
        assert json.loads(path.read_text())["over_time"]
        json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_the_picture_is_drawn(suffix, document, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    target = tmp_path / f"picture{suffix}"
    assert run(["plot", "stats", str(document), "--output", str(target)]) == 0
    assert capsys.readouterr().out.strip() == str(target)
    head = target.read_bytes()[:100]
    assert head.startswith(b"\x89PNG" if suffix == ".png" else b"<?xml")
    if suffix == ".svg":
        again = tmp_path / "again.svg"
        assert run(["plot", "stats", str(document), "-o", str(again)]) == 0
        assert again.read_bytes() == target.read_bytes()


def test_without_matplotlib_it_says_what_to_install(document, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run(["plot", "stats", str(document), "-o", str(tmp_path / "a.png")]) == 1
    assert "pip install 'cherenkov[plot]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{}", "not what run --stats-json writes"),
        ("[", "JSON"),
        (json.dumps({"kind": KIND, "version": 9}), "version 9"),
    ],
)
def test_other_files_are_refused(text, reason, tmp_path, capsys):
    path = tmp_path / "a.json"
    path.write_text(text)
    assert run(["plot", "stats", str(path)]) == 1
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", "/", ".", ".."])
def test_what_no_file_is_called_is_refused(name, capsys):
    assert run(["plot", "stats", name]) == 1
    assert "not a regular file" in capsys.readouterr().err
    arguments = ["run", "demo", "Hi", "--max-tokens", "1", "-q", "--stats-json", name]
    assert run(arguments) == 1
    assert "cannot write" in capsys.readouterr().err


def test_figures_that_make_no_sense_are_refused(document, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    found = json.loads(document.read_text())
    for key in ("by_expert", "over_time"):
        path = tmp_path / "a.json"
        path.write_text(json.dumps(found | {key: [1]}))
        assert run(["plot", "stats", str(path)]) == 1
        assert "make no sense" in capsys.readouterr().err
    rows = [sample | {"hits": 10**400} for sample in found["over_time"]]
    path.write_text(json.dumps(found | {"over_time": rows}))
    assert run(["plot", "stats", str(path)]) == 1
    assert "make no sense" in capsys.readouterr().err
    assert run(["plot", "stats", str(document), "-o", str(tmp_path / "a.gif")]) == 1
    assert ".png or .svg" in capsys.readouterr().err
    assert run(["plot", "stats", str(document), "-o", str(tmp_path / "absent" / "a.png")]) == 1
    assert "a.png" in capsys.readouterr().err
