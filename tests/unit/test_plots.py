"""Pictures of reports: what is drawn, and what is refused."""

import builtins
import importlib.util
import json

import numpy as np
import pytest

from cherenkov.experts.report import Report, Times
from cherenkov_cli import plots
from cherenkov_cli.main import run

needs_matplotlib = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None,
    reason="matplotlib (cherenkov[plot]) is not there",
)
READS = {
    "requested": 9,
    "completed": 8,
    "cancelled": 1,
    "failed": 0,
    "requested_bytes": 900,
    "completed_bytes": 800,
    "read_s": 0.5,
}


def report(points=30, layers=3, experts=8):
    random = np.random.default_rng(0)
    counts = random.integers(0, 9, (layers, experts))
    counts[-1] = 0  # the draft head's
    steps = list(range(1, points + 1))
    rising = {n: np.cumsum(random.integers(1, 9, points)).tolist() for n in Times.model_fields}
    times = {**rising, "step": steps, "seconds": [0.5 * s for s in steps]}
    times["stall_s"] = times["seconds"]
    return Report(
        kind="cherenkov-experts",
        version=1,
        layers=layers,
        experts=experts,
        bits=4,
        record_bytes=32768,
        slots=6,
        resident=6,
        steps=points,
        tokens=times["tokens"][-1],
        totals={
            "hits": times["hits"][-1],
            "misses": times["misses"][-1],
            "hit_rate": 0.5,
            "read_bytes": 5,
            "read_s": 0.1,
            "stall_s": 0.1,
        },
        reads=dict.fromkeys(("demand", "prefill", "prediction"), READS),
        predictions={
            "predicted": 4,
            "right": 3,
            "asked": 6,
            "precision": 0.75,
            "recall": 0.5,
            "joined": 1,
            "useful": 2,
            "wasted_bytes": 7,
        },
        precisions={"4": {"hits": 1, "misses": 2, "reads": 3, "read_bytes": 4}},
        by_layer={name: counts.sum(axis=1).tolist() for name in ("hits", "misses", "predicted")},
        by_expert={name: counts.tolist() for name in ("rows", "misses", "predicted")},
        ngrams=[],
        timeline=times,
    )


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "stats.json"
    report().write(path)
    return path


def test_use_is_relative_to_an_equal_share():
    use = plots.relative_use(report())
    assert use.shape == (2, 8)  # the draft head was not used
    assert use.mean(axis=1) == pytest.approx(1)
    unused = report().model_copy(
        update={"by_expert": report().by_expert.model_copy(update={"rows": [[0] * 8] * 3})}
    )
    assert plots.relative_use(unused).tolist() == [[0] * 8]


@pytest.mark.parametrize("points", [1, 2, 95, 96, 97, 513])
def test_spans_hold_all_that_happened(points):
    times = report(points).timeline
    spans = plots.spans_of(times)
    assert len(spans.edges) == min(points, 96) + 1
    assert (spans.edges[0], spans.edges[-1]) == (0, times.step[-1])
    tokens = np.diff(np.interp(spans.edges, [0, *times.step], [0, *times.tokens]))
    for kind, values in spans.bytes_per_token.items():
        assert (values * tokens).sum() == pytest.approx(getattr(times, f"{kind}_bytes")[-1])
    asked = np.array(times.hits) + times.misses
    weights = np.diff(np.interp(spans.edges, [0, *times.step], [0, *asked]))
    assert (spans.hit_rate * weights).sum() == pytest.approx(times.hits[-1])


@needs_matplotlib
@pytest.mark.parametrize("points", [1, 30])
def test_pictures(points, tmp_path):
    svg, png = (plots.draw(report(points), kind) for kind in ("svg", "png"))
    assert svg.startswith(b"<?xml")
    assert svg.rstrip().endswith(b"</svg>")
    assert png.startswith(b"\x89PNG")
    assert plots.draw(report(points), "svg") == svg


@needs_matplotlib
def test_a_report_of_nothing_is_drawn():
    idle = report(1).model_dump()
    idle["timeline"] = {name: [0] for name in Times.model_fields}
    idle["by_expert"] = {name: [[0] * 8] * 3 for name in idle["by_expert"]}
    assert plots.draw(Report.model_validate(idle), "png").startswith(b"\x89PNG")


@needs_matplotlib
def test_the_command_draws_beside_the_file_or_where_it_is_told(file, tmp_path, capsys):
    assert run(["plot", "stats", str(file)]) == 0
    assert capsys.readouterr() == (f"{tmp_path / 'stats.png'}\n", "")
    assert (tmp_path / "stats.png").read_bytes().startswith(b"\x89PNG")
    assert run(["plot", "stats", str(file), "--output", str(tmp_path / "x.SVG")]) == 0
    assert (tmp_path / "x.SVG").read_bytes().startswith(b"<?xml")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["stats.json", "stats.png", "x.SVG"]


def test_without_matplotlib_it_says_what_to_install(file, tmp_path, monkeypatch, capsys):
    found, imported = importlib.util.find_spec, builtins.__import__

    def refuse(name, *rest):
        assert not name.startswith("matplotlib")
        return imported(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda n, *r: None if n == "matplotlib" else found(n, *r)
    )
    assert run(["plot", "stats", str(file)]) == 1
    said = capsys.readouterr().err
    assert said == "cherenkov: pictures need matplotlib: pip install 'cherenkov[plot]'\n"
    assert [p.name for p in tmp_path.iterdir()] == ["stats.json"]


@needs_matplotlib
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not JSON"),
        (b'{"kind": "cherenkov-experts", "version": 2}', "a report of version 2"),
        (b'{"kind": "cherenkov-experts", "version": 1}', "layers: field required"),
        (b'{"kind": "other"}', "not a report"),
        (b"\0" * 100, "not JSON"),
        (None, "is missing"),
    ],
)
def test_what_is_no_report_is_refused_in_one_line(tmp_path, capsys, content, said):
    path = tmp_path / "x.json"
    if content is not None:
        path.write_bytes(content)
    before = list(tmp_path.iterdir())
    assert run(["plot", "stats", str(path)]) == 1
    err = capsys.readouterr().err
    assert said in err
    assert err.startswith("cherenkov: ")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == before


@pytest.mark.parametrize("name", ["x.pdf", "x", "", ".", "no/x.svg", "folder.svg"])
def test_pictures_that_cannot_be_written(file, tmp_path, capsys, name):
    (tmp_path / "folder.svg").mkdir()
    before = sorted(tmp_path.iterdir())
    assert run(["plot", "stats", str(file), "-o", str(tmp_path / name) if name else ""]) == 1
    err = capsys.readouterr().err
    assert "must end in .svg or .png" in err or "cannot write" in err
    assert err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


@needs_matplotlib
def test_a_damaged_report_is_refused_or_drawn(file, tmp_path, capsys):
    document = json.loads(file.read_text())
    for name in list(document):
        file.write_text(json.dumps({k: v for k, v in document.items() if k != name}))
        missed = name != "drafts"  # a report may do without these
        assert run(["plot", "stats", str(file)]) == int(missed)
        assert capsys.readouterr().err.count("\n") == int(missed)
