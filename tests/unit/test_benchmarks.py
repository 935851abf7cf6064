"""The benchmark harness: what can be wrong without anybody noticing."""

import argparse
import importlib
import json
import platform
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cherenkov.backends.records import expert_matrices
from cherenkov.checkpoint.affine import dequantise
from cherenkov.model import Model
from cherenkov.packing.store import PackedStore
from cherenkov.packing.verify import verify
from cherenkov.preparation import prepare

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def harness(monkeypatch):
    """Import a script of the benchmarks folder, as running it there would."""
    monkeypatch.syspath_prepend(str(FOLDER))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        place = getattr(sys.modules[name], "__file__", None) or ""
        if place.startswith(str(FOLDER)):
            del sys.modules[name]


@pytest.fixture
def tiny(harness, tmp_path):
    module = harness("random_model")
    geometry = module.Geometry(128, 4, 4, 2, 64, 512, 50, 1, 2, 2, 1, 64, 32, 32, 256)
    return module, geometry, module.write_model(tmp_path / "checkpoint", geometry)


def test_a_random_model_packs_and_answers(tiny, tmp_path):
    _, _, folder = tiny
    store = prepare(folder, tmp_path / "store")
    with Model.load(store, backend="reference", context_tokens=64) as model:
        assert model.tokenizer.encode("abcXYZ") == [69, 70, 71, 60, 61, 62]
        logits = model.logits([69, 70, 71])
        model.generate("abc", max_tokens=3, raw=True, ignore_eos=True)
        assert model.last_run.output_tokens == 3
    assert np.isfinite(logits).all()
    assert logits.std() > 0.01


def test_a_random_model_is_the_same_every_time(tiny, tmp_path):
    module, geometry, folder = tiny
    again = module.write_model(tmp_path / "again", geometry)
    other = module.write_model(tmp_path / "other", geometry, seed=1)
    name = "model-00001-of-00001.safetensors"
    assert (again / name).read_bytes() == (folder / name).read_bytes()
    assert (other / name).read_bytes() != (folder / name).read_bytes()


def test_shards_hold_what_the_index_says(tiny, monkeypatch, tmp_path):
    module, geometry, _ = tiny
    monkeypatch.setattr(module, "SHARD_BYTES", 200_000)
    folder = module.write_model(tmp_path / "shards", geometry)
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    for name in set(index.values()):
        with (folder / name).open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
        del header["__metadata__"]
        assert set(header) == {tensor for tensor, place in index.items() if place == name}
        end = max(entry["data_offsets"][1] for entry in header.values())
        assert (folder / name).stat().st_size == 8 + size + end
    assert len(set(index.values())) > 1
    prepare(folder, tmp_path / "store")


def test_traffic_counts_what_a_step_reads(harness, tiny, tmp_path):
    store = prepare(tiny[2], tmp_path / "store")
    parts = harness("traffic").decode_bytes(store)
    manifest = PackedStore.open(store).manifest
    unread = [e for e in manifest.dense if "embed_tokens" in e.name]
    assert unread
    assert parts["dense"] == sum(e.nbytes for e in manifest.dense) - sum(e.nbytes for e in unread)
    # 4 layers, 2 of 4 experts, three matrices of 64 x 128 at 4.5 bits
    assert parts["experts"] == 4 * 2 * 3 * 64 * 128 * 9 // 16
    # 3 DeltaNet layers: matrices [2, 128, 128] and 3 inputs of 512 channels; n-grams: 9 rows of 4 streams
    assert parts["state"] == 2 * 4 * (3 * (2 * 128 * 128 + 3 * 512) + 9 * 4 * 128)


def test_callgrind_costs_of_calls_are_counted_once(harness):
    profile = """\
# callgrind format
positions: line
events: Ir
ob=(1) /lib/python3.11
fl=(1) a.c
fn=(1) main
0 5
cob=(2) /x/_native.abi3.so
cfn=(2) product
calls=3 0
0 700
+3 2
ob=(2)
fn=(2)
0 700
totals: 707
"""
    counts = harness("instructions").count_by_object(profile.splitlines())
    assert counts == {"/lib/python3.11": 7, "/x/_native.abi3.so": 700}


def test_ratios_pair_samples_of_one_round(harness):
    engines, rounds = harness("engines"), harness("rounds")

    def sample(rate, threads="1"):
        return engines.Sample({threads: {"decode": rate}}, 0)

    samples = [
        {"cherenkov": sample(10.0), "a": sample(5.0), "b": sample(2.0, "own")},
        {"cherenkov": sample(100.0), "a": sample(25.0), "b": sample(50.0, "own")},
        {"cherenkov": sample(30.0), "a": sample(10.0), "b": sample(10.0, "own")},
    ]
    table = rounds.ratio_table(samples)
    assert table["a"]["1"]["decode"]["samples"] == [2, 4, 3]
    assert table["b"]["1"]["decode"]["median"] == 3
    assert "cherenkov" not in table


def test_comparison_marks_only_ranges_that_do_not_touch(harness, tmp_path, monkeypatch, capsys):
    results = harness("results")

    def run(rates, seconds):
        head = {"schema": 1, "kind": "cpu", "date": "d", "machine": {}, "settings": {}}
        return head | {
            "versions": {"revision": "r"},
            "engines": {
                "transformers 5.24": {"decode": results.measurement(rates, "tok/s")},
                "start": results.measurement(seconds, "s"),
            },
            "count": {"value": len(rates), "unit": "instructions"},
            "error": {"value": seconds[0], "unit": "of the largest logit"},
        }

    for name, document in (
        ("old", run([10, 12, 11], [2.0, 2.1])),
        ("new", run([20, 12, 21], [1.0, 1.1])),
    ):
        (tmp_path / name).write_text(json.dumps(document))
    monkeypatch.setattr(sys, "argv", ["compare", str(tmp_path / "old"), str(tmp_path / "new")])
    harness("compare").main()
    lines = capsys.readouterr().out.splitlines()
    decode = next(line for line in lines if "transformers 5.24.decode" in line)
    start = next(line for line in lines if "engines.start" in line)
    assert "1.818" in decode
    assert "better" not in decode
    assert "better" in start
    assert "better" in next(line for line in lines if "error" in line)  # half as large


def test_comparison_of_what_is_no_run_is_one_line(harness, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["compare", str(tmp_path / "absent"), str(tmp_path / "too")])
    with pytest.raises(SystemExit) as refused:
        harness("compare").main()
    assert refused.value.code == 2
    assert "absent" in capsys.readouterr().err.splitlines()[-1]


def test_a_run_names_no_host_and_no_path(harness):
    run = harness("results").new_run("cpu", {})
    text = json.dumps(run)
    assert str(Path.home()) not in text
    assert str(FOLDER.parent) not in text
    assert f'"{platform.node()}"' not in text
    assert run["machine"]["cores"] >= 1


def test_measured_processes_are_not_pinned_to_old_kernels(harness, monkeypatch):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    monkeypatch.setenv("OPENBLAS_L2_SIZE", "512")
    monkeypatch.setenv("HOME_OF_NOTHING", "kept")
    env = harness("machine").clean_environment(EXTRA="1")
    assert "OPENBLAS_CORETYPE" not in env
    assert "OPENBLAS_L2_SIZE" not in env
    assert env["HOME_OF_NOTHING"] == "kept"
    assert env["EXTRA"] == "1"


def test_precision_judges_what_it_says(harness):
    module = harness("precision")
    expected = np.array([[0, 0, 4], [0, 8, 0], [2, 0, 0]], np.float32)
    logits = expected.copy()
    logits[0, 0] += 0.8  # of 8: a tenth
    logits[1] = [7.6, 7.5, 0]  # another choice
    found = {k: v["value"] for k, v in module.judge(logits, expected, [0, 2, 1]).items()}
    assert found["largest_error"] == pytest.approx(0.95)
    assert found["median_error"] == pytest.approx(0.1)
    assert found["other_choice"] == pytest.approx(1 / 3, abs=1e-3)
    chances = [
        np.exp(4) / (np.exp(0.8) + 1 + np.exp(4)),
        np.exp(7.5) / (np.exp(7.6) + np.exp(7.5) + 1),
    ]
    assert found["perplexity"] == pytest.approx(np.exp(-np.log(chances).mean()), rel=1e-5)


def test_precision_agrees_with_the_model_about_perplexity(harness, tiny, tmp_path):
    store = prepare(tiny[2], tmp_path / "store")
    with Model.load(store, backend="reference", context_tokens=64) as model:
        ids, text = model.tokenizer.encode("abcXYZcba"), "abcXYZcba"
        ours = harness("precision").likelihoods(model.logits(ids), ids)
        assert np.exp(-ours.mean()) == pytest.approx(model.perplexity(text), rel=1e-9)


def test_the_unseen_text_is_long_enough_and_plain(harness):
    import tokenizers

    text = harness("precision").TEXT.read_text(encoding="ascii")
    tokenizer = tokenizers.Tokenizer.from_file(
        str(FOLDER.parent / "cherenkov" / "demo" / "tokenizer.json")
    )
    assert 400 <= len(tokenizer.encode(text).ids) <= 4096


def test_policies_are_judged_against_the_optimum(harness, tiny, tmp_path):
    module = harness("policies")
    store = prepare(tiny[2], tmp_path / "store")
    with Model.load(store, backend="reference", context_tokens=128, pool="max") as model:
        trace = module.recorded(model, module._babble, 0, 8)
        assert model.experts.listener is None
    assert [len(step) for step in trace.steps()] == [4] * 8  # a prompt, and seven tokens after
    judged = module.judge(trace)
    for row in judged.values():
        rates = [row[name]["hit_rate"]["value"] for name in module.POLICIES]
        assert max(rates) <= row["optimum"]["hit_rate"]["value"]
    assert len(module.rows({"babble": judged})) == len(module.RESIDENCY) + 1


def test_a_drawn_store_opens_answers_and_is_the_same_every_time(harness, tmp_path):
    module, geometry = harness("make_store"), small_geometry(harness)
    store = module.write_store(tmp_path / "store", geometry, threads=1)
    other = module.write_store(tmp_path / "other", geometry, seed=1)
    assert verify(store).ok
    with Model.load(store, backend="reference", context_tokens=64) as model:
        logits = model.logits([69, 70, 71])
    assert np.isfinite(logits).all()
    assert logits.std() > 0.01
    again = module.write_store(tmp_path / "again", geometry, threads=3)
    for name in ("experts.bin", "dense.bin", "ngram.bin"):
        assert (store / name).read_bytes() == (again / name).read_bytes()
        assert (store / name).read_bytes() != (other / name).read_bytes()


def test_drawn_matrices_spread_as_they_should(harness, tmp_path):
    module = harness("make_store")
    store = PackedStore.open(
        module.write_store(tmp_path / "store", replace(small_geometry(harness), experts=2))
    )
    record = np.fromfile(store.experts_path, np.uint8, store.expert_layout.stride_bytes)
    for matrix in expert_matrices(store.expert_layout, record):
        values = dequantise(matrix)
        assert abs(values.mean()) < 0.001
        assert 0.018 < values.std() < 0.023


def small_geometry(harness):
    return harness("random_model").Geometry(128, 4, 4, 2, 64, 512, 50, 1, 2, 2, 1, 64, 32, 32, 256)


def test_ways_of_reading_ahead_are_compared_within_a_round(harness, tiny, tmp_path, monkeypatch):
    module = harness("pools")
    store = PackedStore.open(prepare(tiny[2], tmp_path / "store"))

    def sample(rate, stall):
        return {
            "decode": rate,
            "hit_rate": 0.5,
            "missing_bytes": 1e8,
            "read_bytes": 1.2e8,
            "stall_s": stall,
        }

    def child(script, job):
        if script == "disk.py":
            return {"rate": 2.0, "cpu_s_per_gb": 0.05}
        assert job["ways"] == ["off", "on"]
        ways = {
            "off": [sample(5, 0.1), sample(4, 0.2)],
            "on": [sample(10, 0.01), sample(6, 0.02)],
        }
        return {"ways": ways, "share": 0.25}

    monkeypatch.setattr(module, "_child", child)
    args = argparse.Namespace(pools=[0.1], ways=["off", "on"], rounds=2, decode=8, threads=1)
    vars(args).update(prompt=4, together=True, resident=0.0, disk_bytes=1)
    found = module.summary(*module.measure(args, store))
    on = found["0.1 GB"]["on"]
    assert on["ratio"]["samples"] == [2.0, 1.5]
    # the disk would allow 20 a second; computing 10 in the first round, by what did not wait, 20 in the second
    assert on["bound_share"]["samples"] == pytest.approx([1.0, 0.3])
    assert "| 0.1 GB |    25% |    on |" in module.printed(found)
