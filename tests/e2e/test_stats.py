"""What `--stats` shows and `--stats-json` writes, on Glow."""

import importlib.util
import io
import json
import sys

import pytest

from cherenkov import Model
from cherenkov.experts.report import Report
from cherenkov_cli.main import run

QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris.\n"
POOL = "0.0048"  # a quarter of the experts


def test_a_run_that_is_shown_and_written(glow_store, tmp_path, capsys):
    file = tmp_path / "stats.json"
    options = ("--stats", "--stats-json", str(file), "--pool-gb", POOL, "-q")
    assert run([str(glow_store), QUESTION, *options]) == 0
    out, err = capsys.readouterr()
    assert out == ANSWER  # nothing else is in the way of the answer
    report = Report.read(file)
    text = " ".join(err.split())
    assert f"{report.slots} of 576 experts (25.3%)" in text
    assert f"{report.totals.hit_rate:.1%} ({report.totals.hits} hits" in text
    assert f"demand {report.reads['demand'].requested} " in text
    assert report.steps == report.timeline.step[-1] > 5
    assert len(report.by_layer.hits) == 9  # the draft head's layer is the last
    uses = [h + m for h, m in zip(report.by_layer.hits, report.by_layer.misses, strict=True)]
    assert all(uses[:-1])
    assert not uses[-1]  # it was not asked to guess
    assert [table.on_disk for table in report.ngrams] == [False]
    assert not any(not c.isprintable() and c != "\n" for c in err)


def test_nothing_is_shown_unless_asked_for(glow_store, capsys):
    assert run([str(glow_store), QUESTION, "-q"]) == 0
    assert capsys.readouterr() == (ANSWER, "")


def test_the_library_gives_the_same(glow_store):
    with Model.load(glow_store, pool=float(POOL), speculate="off") as model:
        assert model.stats().totals.hits == model.stats().steps == 0
        for _ in model.stream(QUESTION):
            during = model.stats()
        after = model.stats()
        assert during.tokens <= after.tokens
        assert after.totals.hits == model.experts.stats.hits
        assert after.totals.misses == model.experts.stats.misses > 0
        rows = sum(map(sum, after.by_expert.rows))
        assert rows == after.tokens * 8 * 4  # eight layers, four experts to a token
        json.dumps(after.as_dict())
    assert model.stats().totals == after.totals  # also when it is closed


def test_a_chat_writes_at_its_end(glow_store, tmp_path, monkeypatch, capsys):
    file = tmp_path / "stats.json"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{QUESTION}\n".encode() * 2)))
    options = ("--stats", "--stats-json", str(file), "--max-ctx", "512", "-q")
    assert run(["chat", str(glow_store), *options]) == 0
    out, err = capsys.readouterr()
    assert out == ANSWER * 2
    assert "hit rate" in err
    assert Report.read(file).steps > 10


@pytest.mark.parametrize("command", ["run", "chat"])
def test_a_file_that_cannot_be_written_is_refused_before_the_work(command, tmp_path, capsys):
    prompt = [QUESTION] if command == "run" else []
    for name in ("no/stats.json", "."):
        path = tmp_path / name
        assert run([command, "no-such-model", *prompt, "--stats-json", str(path)]) == 1
        out, err = capsys.readouterr()
        assert not out
        assert "cannot write" in err
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    "extra", [["--json"], ["--raw", "--json"], ["--repeat", "2"]], ids=" ".join
)
def test_every_kind_of_answer_is_counted(glow_store, tmp_path, capsys, extra):
    file = tmp_path / "stats.json"
    options = ("--max-tokens", "4", "--stats-json", str(file), "-q", "--drafts", "0", *extra)
    assert run([str(glow_store), "The old harbour lay quiet under the", *options]) == 0
    assert capsys.readouterr().out
    assert Report.read(file).steps == (8 if "--repeat" in extra else 4)


def test_a_file_is_replaced_as_a_whole(glow_store, tmp_path):
    file = tmp_path / "stats.json"
    file.write_text("x" * 10**6)
    assert run([str(glow_store), QUESTION, "--stats-json", str(file), "-q"]) == 0
    assert Report.read(file).totals.misses > 0
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="no matplotlib")
def test_from_an_answer_to_a_picture(glow_store, tmp_path):
    file = tmp_path / "stats.json"
    assert run([str(glow_store), QUESTION, "--stats-json", str(file), "--pool-gb", POOL]) == 0
    assert run(["plot", "stats", str(file)]) == 0
    assert (tmp_path / "stats.png").read_bytes().startswith(b"\x89PNG")
