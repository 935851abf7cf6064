"""The report on experts: its numbers, its file, and what it refuses."""

import contextlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cherenkov.backends.base import ExpertPool
from cherenkov.errors import CherenkovError, CorruptModel, DiskError, RequestError, UnsupportedModel
from cherenkov.experts.reader import RecordReader
from cherenkov.experts.report import LIMIT_BYTES, Report, report_of
from cherenkov.experts.stats import ExpertStats
from cherenkov.experts.store import ExpertStore
from cherenkov.experts.timeline import MOST_POINTS, Timeline
from cherenkov.packing.layout import ExpertLayout

LAYERS, EXPERTS, SLOTS = 3, 8, 6
LAYOUT = ExpertLayout(inter=32, hidden=32, group=32)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    path = tmp_path_factory.mktemp("records") / "experts.bin"
    path.write_bytes(bytes(LAYERS * EXPERTS * LAYOUT.stride_bytes))
    return path


def served(records, steps=20, seed=0):
    """The report on a store that has served so many steps of two rows, and what was asked for."""
    random = np.random.default_rng(seed)
    pool = ExpertPool(LAYOUT, np.zeros((SLOTS, LAYOUT.stride_bytes), dtype=np.uint8))
    reader = RecordReader(records, LAYOUT.stride_bytes, EXPERTS, None)
    store = ExpertStore(pool, reader, LAYERS, EXPERTS, lookahead="on")
    asked = []
    for _ in range(steps):
        store.begin_step(2)
        for layer in range(LAYERS):
            ids = np.stack([random.permutation(EXPERTS)[:2] for _ in range(2)]).astype(np.int32)
            asked.append((layer, ids))
            with store.acquire(layer, ids) as lease:
                if layer + 1 < LAYERS:
                    store.expect(layer + 1, random.permutation(EXPERTS)[:2].astype(np.int32))
                assert sum(len(wave.experts) for wave in lease) == len(np.unique(ids))
        store.end_step()
    report = report_of(store, {})
    store.close()
    return report, asked


def test_the_numbers_are_those_of_the_work(records):
    report, asked = served(records)
    rows = np.zeros((LAYERS, EXPERTS), dtype=int)
    for layer, ids in asked:
        np.add.at(rows[layer], ids.ravel(), 1)
    assert report.by_expert.rows == rows.tolist()
    distinct = sum(len(np.unique(ids)) for _, ids in asked)
    assert report.totals.hits + report.totals.misses == distinct
    assert report.totals.hit_rate == pytest.approx(report.totals.hits / distinct)
    assert sum(report.by_layer.hits) == report.totals.hits
    assert sum(report.by_layer.misses) == report.totals.misses > 0
    assert np.array(report.by_expert.misses).sum(axis=1).tolist() == report.by_layer.misses
    assert np.array(report.by_expert.predicted).sum(axis=1).tolist() == report.by_layer.predicted
    assert sum(report.by_layer.predicted) == report.reads["prediction"].requested > 0
    assert report.reads["demand"].requested + report.predictions.joined == report.totals.misses
    assert report.reads["prefill"].requested == 0
    completed = sum(kind.completed_bytes for kind in report.reads.values())
    assert completed == report.totals.read_bytes == report.precisions["4"].read_bytes
    assert report.predictions.predicted == 20 * 2 * 2
    assert (report.steps, report.tokens, report.slots) == (20, 40, SLOTS)
    assert report.timeline.step == list(range(1, 21))
    assert report.timeline.tokens == list(range(2, 41, 2))
    assert report.timeline.misses[-1] == report.totals.misses


def test_a_store_that_did_nothing_has_a_report(records):
    report, _ = served(records, steps=0)
    assert report.totals.hit_rate == report.predictions.precision == report.steps == 0
    assert report.timeline.step == [0]
    assert "0 steps" in repr(report) == str(report)


def test_a_report_shows_itself_on_a_line(records):
    shown = repr(served(records)[0])
    assert shown.startswith("<Report on 20 steps of 40 tokens: ")
    assert len(shown) < 120


def test_a_file_holds_all_of_it(records, tmp_path):
    report, _ = served(records)
    path = tmp_path / "stats.json"
    report.write(path)
    assert Report.read(path) == Report.read(str(path)) == report
    assert json.loads(path.read_text()) == report.as_dict()
    assert list(tmp_path.iterdir()) == [path]  # nothing else is left


@pytest.mark.parametrize("name", ["", "no/such/folder/x.json", "x" * 300])
def test_a_file_that_cannot_be_written(records, tmp_path, name):
    report, _ = served(records, steps=1)
    with pytest.raises(DiskError):
        report.write(tmp_path / name)
    with pytest.raises(RequestError, match="must be a path"):
        report.write(7)


# --- what is no report


@pytest.fixture(scope="module")
def text(records):
    report, _ = served(records, steps=3)
    return json.dumps(report.as_dict())


def broken(document, place, value):
    *outer, last = place
    inner = document
    for key in outer:
        inner = inner[key]
    if value is KeyError:
        del inner[last]
    else:
        inner[last] = value
    return document


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (["kind"], "session", "not a report"),
        (["totals"], KeyError, "totals: field required"),
        (["totals", "hits"], -1, "totals.hits: input should be greater than or equal to 0"),
        (["totals", "hits"], 10**30, "totals.hits"),
        (["totals", "hits"], True, "totals.hits: input should be a valid integer"),
        (["totals", "hits"], "7", "totals.hits: input should be a valid integer"),
        (["totals", "stall_s"], float("nan"), "totals.stall_s"),
        (["totals", "stall_s"], float("inf"), "totals.stall_s"),
        (["totals", "hit_rate"], 1.5, "totals.hit_rate"),
        (["totals", "more"], 1, "totals.more: extra inputs are not permitted"),
        (["layers"], 4, "by_layer.hits has 3 layers, not 4"),
        (["experts"], 9, "by_expert.rows is not 3 x 9"),
        (["by_expert", "misses"], [[0] * 8] * 2, "by_expert.misses is not 3 x 8"),
        (["by_expert", "rows"], "all", "by_expert.rows: input should be a valid list"),
        (["by_layer", "hits"], [], "by_layer.hits has 0 layers"),
        (["reads", "demand"], KeyError, "reads lacks a kind"),
        (["reads", "other"], {}, "reads.other"),
        (["timeline", "hits"], [1, 2], "timeline: columns differ in length"),
        (["timeline", "hits"], [3, 2, 1], "timeline: a counter goes down"),
        (["timeline", "step"], [], "timeline: must have 1 to 513 points"),
        (["timeline", "step"], list(range(600)), "timeline: must have 1 to 513 points"),
    ],
)
def test_wrong_contents_are_named(text, tmp_path, place, value, said):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(broken(json.loads(text), place, value)))
    with pytest.raises(CorruptModel, match=r"x\.json") as caught:
        Report.read(path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("version", [2, 0, "1", True, None, [1], KeyError])
def test_other_versions_are_named(text, tmp_path, version):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(broken(json.loads(text), ["version"], version)))
    with pytest.raises(UnsupportedModel, match="supported: version 1"):
        Report.read(path)


def test_what_is_no_document(text, tmp_path):
    path = tmp_path / "x.json"
    whole = text.encode()
    for data, said in (
        (b"", "not JSON"),
        (whole[: len(whole) // 2], "not JSON"),
        (b"\xff" + whole, "not UTF-8"),
        (b"[1]", "not a JSON object"),
        (b"{}", "not a report"),
        (b"[" * 100_000, "nested too deeply"),
        (whole.replace(b'"kind"', b'"version": 1, "kind"', 1), "appears twice"),
    ):
        path.write_bytes(data)
        with pytest.raises(CorruptModel, match=said):
            Report.read(path)
    with path.open("wb") as file:
        file.truncate(LIMIT_BYTES + 1)
    with pytest.raises(CorruptModel, match="too long"):
        Report.read(path)
    with pytest.raises(CorruptModel, match="the file is missing"):
        Report.read(tmp_path / "absent.json")
    with pytest.raises(CorruptModel, match="not a regular file"):
        Report.read(tmp_path)


@given(data=st.data())
def test_any_damage_is_found_or_does_no_harm(text, tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "damaged.json"
    damaged = bytearray(text.encode())
    damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(damaged)
    with contextlib.suppress(CherenkovError):  # nothing else, that is
        assert Report.read(path).layers == LAYERS


# --- the time line


@given(st.integers(0, 5000), st.integers(1, 3))
def test_a_time_line_stays_short_and_even(steps, rows):
    stats, now = ExpertStats(), iter(range(10**6))
    line = Timeline(stats, clock=lambda: next(now))
    for _ in range(steps):
        stats.hits += 2
        line.note(rows)
    points = line.points()
    assert 1 <= len(points) <= MOST_POINTS + 1
    assert points[-1].step == line.steps == steps
    assert [p.step for p in points[:-1]] == [line.every * (i + 1) for i in range(len(points) - 1)]
    assert all(p.tokens == rows * p.step and p.hits == 2 * p.step for p in points)
    assert line.every <= max(1, 2 * steps // MOST_POINTS)
    if steps > MOST_POINTS:
        assert len(points) >= MOST_POINTS // 2


def test_what_lands_after_the_last_step_shows():
    stats = ExpertStats()
    line = Timeline(stats)
    line.note(1)
    stats.prediction.completed_bytes += 5
    assert [(p.step, p.prediction_bytes) for p in line.points()] == [(1, 5)]
