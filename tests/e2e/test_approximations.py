"""Settings that give up the one property: misses in fewer bits, weak experts skipped. They say so, and only then do."""

import json
import shutil

import numpy as np
import pytest

from cherenkov import Model, prepare
from cherenkov.backends import native_weights
from cherenkov.backends.reference import Reference
from cherenkov.errors import BackendError, ConfigError, CorruptModel, ModelNotFound
from cherenkov.events import Note
from cherenkov.packing.store import PackedStore
from cherenkov.units import GB
from cherenkov_cli.main import run
from tests.checkpoints import small

IDS = [1, 5, 9, 2, 7, 3]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    source = small(tmp_path_factory.mktemp("source") / "tiny")[0]
    return prepare(source, tmp_path_factory.mktemp("prepared") / "store", experts=(4, 3, 2))


@pytest.fixture(params=["native", "reference", "mlx"])
def load(request, prepared):
    if request.param == "native" and native_weights.missing:
        pytest.skip(f"no native kernels here: {native_weights.missing}")
    if request.param == "mlx":
        pytest.importorskip("mlx.core")

    def load(store=prepared, **settings):
        settings = {"backend": request.param, "context_tokens": 100, "lookahead": "off"} | settings
        return Model.load(store, **settings)

    return load


def small_pool(store):
    opened = PackedStore.open(store)
    return opened.records // 4 * opened.expert_layout.stride_bytes / GB


def logits(load, **settings):
    with load(**settings) as model:
        return model.logits(IDS)


@pytest.mark.parametrize("bits", [3, 2])
def test_all_misses_at_first_are_the_uniform_run_of_those_bits(load, bits):
    uniform = logits(load, experts=bits)
    with load(miss_experts=bits) as model:
        np.testing.assert_array_equal(model.logits(IDS), uniform)
        np.testing.assert_array_equal(model.logits(IDS), uniform)  # and they keep them
        report = model.stats()
        assert report.bits == 4
        assert report.precisions["4"].reads == report.precisions["4"].hits == 0
        assert report.precisions[str(bits)].reads == report.precisions[str(bits)].misses > 0
        assert report.precisions[str(bits)].hits > 0


def test_misses_in_fewer_bits_among_predictions_in_full(load, prepared):
    exact, low = logits(load), logits(load, experts=2)
    with load(miss_experts=2, lookahead="on", pool=small_pool(prepared)) as model:
        for _ in range(3):
            for end in range(1, len(IDS) + 1):
                found = model.logits(IDS[:end])
        report = model.stats()
    assert np.isfinite(found).all()
    assert report.precisions["4"].reads == report.reads["prediction"].completed
    assert report.precisions["2"].reads == report.reads["demand"].completed > 0
    bytes_read = sum(reads.completed_bytes for reads in report.reads.values())
    assert sum(p.read_bytes for p in report.precisions.values()) == bytes_read
    assert not np.array_equal(exact, low)


def test_nothing_changes_while_nothing_is_asked_for(load, prepared):
    exact = logits(load)
    heard = []
    for settings in ({"cut_weak": 0.0}, {"pool": small_pool(prepared), "cut_weak": 0.0}):
        np.testing.assert_array_equal(logits(load, on_event=heard.append, **settings), exact)
    assert not [e for e in heard if isinstance(e, Note) and e.level == "warning"]


def test_what_is_cut_is_not_read_and_what_is_here_is_not_cut(load):
    exact = logits(load)
    with load(cut_weak=1.0) as model:
        found = model.logits(IDS)
        stats = model.experts.stats
        assert stats.demand.requested == stats.read_bytes == 0
        assert stats.cut == stats.misses > 0
        assert model.stats().totals.cut == stats.cut
        assert np.isfinite(found).all()
        assert not np.array_equal(found, exact)
        model.logits([i % 200 for i in range(90)])  # a prompt is read, and brings all that it uses
        assert stats.prefill.completed > 0
    with load() as model:
        np.testing.assert_array_equal(model.logits(IDS), exact)
        model.experts.cut_weak = 1.0
        np.testing.assert_array_equal(model.logits(IDS), exact)  # all of them are here now
        assert model.experts.stats.cut == 0


def test_they_say_what_they_give_up(load):
    heard = []
    load(miss_experts=3, cut_weak=0.05, on_event=heard.append).close()
    warnings = [e.message for e in heard if isinstance(e, Note) and e.level == "warning"]
    assert len(warnings) == 2
    assert "in 3 bits: answers depend on what was in memory" in warnings[0]
    assert "less weight than 0.05 are left out: answers depend on the disk" in warnings[1]


def test_what_is_not_there_is_an_error_with_the_command(prepared, tmp_path):
    store = shutil.copytree(prepared, tmp_path / "store")
    (store / "manifest3.json").unlink()
    with pytest.raises(ModelNotFound, match=rf"go on with: cherenkov prepare {store} --experts 3"):
        Model.load(store, miss_experts=3)
    for name in ("experts3.bin", "integrity3.json"):
        (store / name).unlink()
    with pytest.raises(ModelNotFound, match=rf"make them with: cherenkov prepare {store}"):
        Model.load(store, miss_experts=3)
    (store / "experts2.bin").write_bytes(b"short")
    with pytest.raises(CorruptModel, match=rf"cut short.*cherenkov prepare {store} --experts 2"):
        Model.load(store, miss_experts=2)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"miss_experts": 4}, "miss_experts"),
        ({"miss_experts": True}, "miss_experts = True"),
        ({"miss_experts": 2, "experts": 3}, "not together with experts = 3"),
        ({"cut_weak": -0.1}, "cut_weak"),
        ({"cut_weak": float("nan")}, "cut_weak"),
        ({"cut_weak": True}, "cut_weak = True"),
    ],
)
def test_what_makes_no_sense_is_refused(prepared, settings, match):
    with pytest.raises(ConfigError, match=match):
        Model.load(prepared, **settings)


def test_a_backend_that_does_not_know_them_refuses(prepared, monkeypatch):
    monkeypatch.setattr(Reference, "approximates", False)
    for settings in ({"miss_experts": 3}, {"cut_weak": 0.1}):
        with pytest.raises(BackendError, match="neither miss_experts nor cut_weak"):
            Model.load(prepared, backend="reference", **settings)
    Model.load(prepared, backend="reference").close()


def test_the_commands_take_them(prepared, tmp_path, capsys):
    options = ["--raw", "--max-tokens", "3", "--no-eos", "--backend", "reference"]
    stats = tmp_path / "stats.json"
    asked = ["--miss-experts", "2", "--cut-weak", "0.01", "--stats-json", str(stats)]
    assert run(["run", str(prepared), "abc", *options, *asked]) == 0
    shown = capsys.readouterr().err
    assert "2 bits: answers depend on what was in memory" in shown
    assert "left out: answers depend on the disk" in shown
    assert set(json.loads(stats.read_text())["precisions"]) == {"4", "2"}
    assert run(["run", str(prepared), "abc", "--miss-experts", "5", *options]) == 1
    assert "miss_experts" in capsys.readouterr().err
