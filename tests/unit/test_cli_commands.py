"""The commands beside `run`, with a library that only pretends."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from cherenkov import __version__, config, inspection, preparation
from cherenkov.backends import native
from cherenkov.errors import CapacityError
from cherenkov.events import Progress
from cherenkov_cli import diagnosis
from cherenkov_cli.main import run


def test_prepare(monkeypatch, capsys):
    calls = []

    def prepare(source, output, *, bits, experts, lowbit, threads, draft_head, on_event):
        assert draft_head
        calls.append((source, output, bits, experts, lowbit, threads))
        on_event(Progress("experts", 1, 1, 1.0))
        return Path("out/store")

    monkeypatch.setattr(preparation, "prepare", prepare)
    assert run(["prepare", "src", "--output", "out", "--bits", "8", "--threads", "2"]) == 0
    out, err = capsys.readouterr()
    assert calls == [("src", "out", 8, (), "refit", 2)]
    assert out == "out/store\n"
    assert err == "experts: 1 B of 1 B (1 B/s)\n"
    assert run(["prepare", "src", "--experts", "4, 3,2", "--lowbit", "truncate", "-q"]) == 0
    assert calls[1:] == [("src", None, None, (4, 3, 2), "truncate", 0)]


def test_prepare_refuses_what_makes_no_sense(capsys):
    assert run(["prepare", "src"]) == 2
    assert "--output" in capsys.readouterr().err
    assert run(["prepare", "src", "--experts", "3,two"]) == 1
    assert "must be widths such as 4,3,2" in capsys.readouterr().err


@dataclass
class FakeReport:
    problems: tuple = ()
    verifiable: bool = True
    checked_bytes: int = 28_000_000

    @property
    def ok(self):
        return not self.problems


@dataclass
class FakeProblem:
    n: int

    def describe(self):
        return f"experts.bin: record {self.n}: checksum does not match"


@pytest.fixture
def verify(monkeypatch):
    return lambda report: monkeypatch.setattr(
        "cherenkov.preparation.verify", lambda path, on_event: report
    )


def test_verify(verify, capsys):
    verify(FakeReport())
    assert run(["verify", "store"]) == 0
    assert capsys.readouterr().out == "store: all 28 MB are as they were written\n"


def test_verify_names_what_is_wrong(verify, capsys):
    verify(FakeReport(tuple(map(FakeProblem, range(25)))))
    assert run(["verify", "store"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert lines[0] == "cherenkov: experts.bin: record 0: checksum does not match"
    assert lines[-1] == "cherenkov: and 5 more"


def test_verify_without_checksums_warns(verify, capsys):
    verify(FakeReport(verifiable=False))
    assert run(["verify", "store"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "warning: store: has no checksums" in err


FOUND = {
    "kind": "checkpoint",
    "path": "x",
    "architecture": "qwen4_exp",
    "parameters": 1234567,
    "tensors": 271,
    "layers": 49,
    "draft_head": True,
    "experts": {
        "per_layer": 512,
        "used_per_token": 10,
        "bits": 4,
        "group": 64,
        "record_bytes": 2764800,
        "stride_bytes": 2768896,
    },
    "max_context_tokens": 262144,
    "bytes": {"dense": 10**9, "experts": 10**11, "ngrams": 10**9, "total": 102 * 10**9},
    "memory": {
        "smallest_pool_bytes": 27_000_000,
        "smallest_total_bytes": 4 * 10**9,
        "everything_resident_bytes": 104 * 10**9,
        "token_state_bytes": 18304,
        "available_bytes": 24 * 10**9,
        "available_in": "this control group",
        "plan": {"pool_bytes": 18 * 10**9, "slots": 6500, "records": 25088, "share": 0.2591, "context_tokens": 8192, "chunk_rows": 2048, "total_bytes": 23 * 10**9},
        "refusal": None,
    },
    "source": {"dialect": "MLX", "expert_bits": 4, "bytes": 104 * 10**9, "shards": 21, "notes": ["pre-norms are raw"]},
    "preparing": {"output_bytes": 102 * 10**9, "bits": 4, "group": 64},
}  # fmt: skip


def test_inspect(monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(inspection, "inspect", lambda path, **how: asked.append(how) or FOUND)
    assert run(["inspect", "x"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for part in (
        "checkpoint x",
        "architecture qwen4_exp",
        "parameters 1,234,567",
        "layers 48 of 512 experts",
        "draft head yes, with 512 experts of its own",
        "experts 10 of 512 a token, 4 bits in groups of 64",
        "layout MLX, 4 bits",
        "total 102 GB",
        "memory to run it, with a context of one token smallest pool 27 MB (--pool-gb 0.027)",
        "smallest in all 4 GB",
        "with the 24 GB that this control group has",
        "pool 18 GB: 6500 of 25088 experts (25.9%)",
        "context 8,192 tokens",
        "in chunks of 2,048 tokens",
        "in all 23 GB",
        "writes 102 GB",
        "note: pre-norms are raw",
    ):
        assert part in text
    monkeypatch.setitem(FOUND["memory"], "plan", None)
    monkeypatch.setitem(FOUND["memory"], "refusal", "not enough memory:\nbuy more")
    assert run(["inspect", "x", "--pool-gb", "max", "--max-ctx", "7"]) == 0
    assert "not enough memory: buy more" in capsys.readouterr().out
    assert asked == [
        {"bits": None, "pool": None, "context_tokens": None},
        {"bits": None, "pool": "max", "context_tokens": 7},
    ]
    monkeypatch.setitem(FOUND["preparing"], "bits", 16)
    assert run(["inspect", "x"]) == 0
    assert "weights  BF16" in capsys.readouterr().out
    assert run(["inspect", "x", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == FOUND


def test_inspect_keeps_names_from_driving_the_terminal(monkeypatch, capsys):
    notes = {**FOUND["source"], "notes": ["unknown tensor 'a\n\x1b[2Jb'"]}
    found = {**FOUND, "path": "x\n\x1b[2Jy", "source": notes}
    monkeypatch.setattr(inspection, "inspect", lambda path, **_: found)
    assert run(["inspect", "x"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "note: unknown tensor 'a [2Jb'" in out.splitlines()


def test_paths(capsys):
    assert run(["paths"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["config", "server", "data", "stores", "cache"]
    assert run(["paths", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["data"]["path"] == str(config.load_settings().data_dir)
    assert found["config"]["source"] == "XDG_CONFIG_HOME"


# --- doctor


@pytest.fixture
def data_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("CHERENKOV_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


def test_doctor(data_dir, capsys):
    assert run(["doctor"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for part in (
        "cherenkov " + __version__,
        "Python",
        "memory",
        "backends",
        "reference",
        "settings",
    ):
        assert part in out
    assert re.search(rf"data_dir +{re.escape(str(data_dir))} ", out)
    assert "(CHERENKOV_DATA_DIR)" in out
    assert not data_dir.exists()


def test_doctor_for_programs(data_dir, capsys):
    assert run(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["version"] == __version__
    assert found["cores"] >= 1
    assert found["memory"]["available_bytes"] > 0
    assert {
        "name",
        "usable",
        "reason",
        "doubt",
        "detail",
        "memory_bytes",
    } == found["backends"][0].keys()
    kernels = found["native"]
    assert kernels["threads"] >= 1
    if next(one for one in found["backends"] if one["name"] == "native")["usable"]:
        assert kernels["instruction_sets"][-1] == "portable"
        assert 1e8 < kernels["read_bandwidth_bytes_s"] < 1e13
        assert kernels["not_measured"] == ""
    else:
        assert kernels["instruction_sets"] == []
        assert kernels["read_bandwidth_bytes_s"] is None
        assert "not built" in kernels["not_measured"]
    assert "route" in found["kernels"]["names"]
    assert {"emulator", "address_spaces", "nvcc"} < found["kernels"].keys()
    assert found["data"] == {
        "path": str(data_dir),
        "exists": False,
        "writable": True,
        "free_bytes": found["data"]["free_bytes"],
    }
    assert {"key": "data_dir", "value": str(data_dir), "source": "CHERENKOV_DATA_DIR"} in found[
        "settings"
    ]
    assert found["problems"] == []


def test_doctor_says_what_a_device_may_use(monkeypatch, capsys):
    from cherenkov.backends.reference import Reference

    monkeypatch.setattr(Reference, "working_set_bytes", 12_700_000_000)
    assert run(["doctor"]) == 0
    (line,) = (x for x in capsys.readouterr().out.splitlines() if x.startswith("  reference "))
    assert line.endswith("NumPy float32, may use 12.7 GB")


def test_doctor_measures_with_the_threads_that_are_set(monkeypatch, capsys):
    asked = []
    monkeypatch.setenv("CHERENKOV_THREADS", "3")
    monkeypatch.setattr(native, "unavailable", lambda: "")
    monkeypatch.setattr(native, "read_bandwidth", lambda n: asked.append(n) or 12.34e9)
    run(["doctor"])
    assert asked == [3]
    assert "memory is read at  12.3 GB/s by 3 threads" in capsys.readouterr().out


def test_doctor_takes_options_as_other_commands_do(monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(native, "unavailable", lambda: "")
    monkeypatch.setattr(native, "read_bandwidth", lambda n: asked.append(n) or 12.34e9)
    isa = native.instruction_sets()[-1:]
    code = run(["doctor", "--threads", "3", *[f"--cpu-isa={name}" for name in isa]])
    out = capsys.readouterr().out
    assert (code, asked) == (0, [3])
    assert "(argument)" in out
    assert all(f"taken: native ({name}, 3 threads" in out for name in isa)
    assert run(["doctor", "--threads", "-1"]) == 1
    assert "threads = -1 (argument)" in capsys.readouterr().err


def test_doctor_says_what_it_could_not_measure(monkeypatch, capsys):
    def no_memory(_):
        raise CapacityError("no memory for that")

    monkeypatch.setattr(native, "unavailable", lambda: "")
    monkeypatch.setattr(native, "read_bandwidth", no_memory)
    run(["doctor"])
    assert "not measured: no memory for that" in capsys.readouterr().out
    monkeypatch.setattr(native, "unavailable", lambda: "not built")
    assert diagnosis.diagnose().native["not_measured"] == "not built"


def test_doctor_finds_what_preparing_left(data_dir, capsys):
    stores = data_dir / "stores"
    for name, lock in (("a", None), ("b", "1\n"), ("c", "999999999\n"), ("d", "?")):
        (stores / f".{name}.partial").mkdir(parents=True)
        (stores / f".{name}.partial" / "experts.bin").write_bytes(b"x" * 8192)
        if lock:
            (stores / f".{name}.lock").write_text(lock)
    (stores / "finished").mkdir()
    found = diagnosis.diagnose()
    assert [(Path(p.path).name, p.holder) for p in found.partials] == [
        (".a.partial", None),
        (".b.partial", 1),
        (".c.partial", None),
        (".d.partial", None),
    ]
    assert all(p.size_bytes >= 8192 for p in found.partials)
    run(["doctor"])
    out = capsys.readouterr().out
    assert "unfinished: prepare again to resume" in out
    assert "process 1 is at work" in out


def test_doctor_survives_bad_settings(monkeypatch, capsys):
    monkeypatch.setenv("CHERENKOV_THREADS", "many")
    assert run(["doctor"]) == 1
    out, err = capsys.readouterr()
    assert "memory" in out
    assert err.splitlines() == [
        ("cherenkov: threads = 'many' (CHERENKOV_THREADS): must be a valid integer")
    ]


def test_doctor_names_a_backend_that_cannot_run(monkeypatch, capsys):
    monkeypatch.setenv("CHERENKOV_BACKEND", "nonesuch")
    assert run(["doctor"]) == 1
    assert "backend = 'nonesuch'" in capsys.readouterr().err


def test_doctor_sees_a_folder_that_cannot_be_written(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CHERENKOV_DATA_DIR", str(tmp_path / "file" / "data"))
    assert run(["doctor"]) == 1
    assert "cannot be written to" in capsys.readouterr().err
