"""The command, with a model that only pretends."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cherenkov import __version__, config, inspection, model, preparation, sampling
from cherenkov.errors import (
    Cancelled,
    CapacityError,
    ConfigError,
    ModelNotFound,
    RequestError,
    TemplateError,
)
from cherenkov.events import Note, Progress
from cherenkov.experts.stats import ExpertStats
from cherenkov.model import Difference, Run
from cherenkov_cli import diagnosis, show
from cherenkov_cli.main import run

ROOT = Path(__file__).parents[2]


@dataclass
class FakeModel:
    pieces: tuple[str, ...] = ("The capital", " is Paris.")
    failure: BaseException | None = None
    differences: tuple[Difference, ...] = ()
    loads: list[dict] = field(default_factory=list)
    calls: list[tuple] = field(default_factory=list)
    closed: int = 0
    backend_name: str = "fake (portable)"
    last_run: Run | None = None

    def load(self, selector, *, on_event, **settings):
        self.loads.append({"selector": selector, **settings})
        on_event(Note("preparing it first"))
        on_event(Note("odd norms", level="warning"))
        on_event(Progress("experts", 50, 100, 1.0))
        on_event(Progress("experts", 100, 100, 2.0))
        return self

    def stream(self, prompt, **options):
        self.calls.append((prompt, options))
        yield from self.pieces
        if self.failure:
            raise self.failure
        self.last_run = Run(12, 5, 0.25, 0.5, "stop", ExpertStats(30, 10, 20_000_000, 0.1))

    def encode_prompt(self, prompt, **options):
        self.calls.append((prompt, options))
        return [1, 2, 3]

    def check(self, ids, *, margin):
        self.calls.append((ids, margin))
        return list(self.differences)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.closed += 1


@pytest.fixture
def fake(monkeypatch):
    made = FakeModel()
    monkeypatch.setattr(model, "Model", made)
    return made


# --- run ---


def test_text_on_stdout_and_the_rest_on_stderr(fake, capsys):
    assert run(["run", "demo", "Where?"]) == 0
    out, err = capsys.readouterr()
    assert out == "The capital is Paris.\n"
    assert err.splitlines() == [
        "preparing it first",
        "warning: odd norms",
        "experts: 50 B of 100 B (50 B/s, 1.0 s left)",
        "experts: 100 B of 100 B (50 B/s)",
        (
            "prompt 12 tokens in 250 ms (48.0 tok/s); answer 5 tokens (8.0 tok/s); "
            "75% of experts found in memory; 0.02 GB read; fake (portable)"
        ),
    ]
    assert fake.loads == [{"selector": "demo"}]
    assert fake.closed == 1


def test_quiet_says_nothing_else(fake, capsys):
    assert run(["run", "demo", "Where?", "-q"]) == 0
    assert capsys.readouterr() == ("The capital is Paris.\n", "")


def test_a_model_and_a_prompt_alone(fake, capsys):
    assert run(["demo", "Where?"]) == 0
    assert run(["--raw", "demo", "Where?"]) == 0
    assert [options["raw"] for _, options in fake.calls] == [False, True]
    assert capsys.readouterr().out == "The capital is Paris.\n" * 2


def test_every_option_arrives(fake):
    line = (
        "run m p --max-tokens 7 --max-ctx 99 --raw --no-eos --system S --think --backend native "
        "--threads 3 --pool-gb 0.5 --temperature 0.7 --top-k 20 --top-p 0.9 --seed 5 "
        "--precision bf16 --cpu-isa avx2 --repeat 2"
    )
    assert run(line.split()) == 0
    assert fake.loads == [
        {
            "selector": "m",
            "backend": "native",
            "context_tokens": 99,
            "pool": "0.5",
            "threads": 3,
            "precision": "bf16",
            "isa": "avx2",
        }
    ]
    call = (
        "p",
        {
            "max_tokens": 7,
            "sampling": sampling.Sampling(0.7, 20, 0.9, 5),
            "system": "S",
            "thinking": True,
            "raw": True,
            "ignore_eos": True,
        },
    )
    assert fake.calls == [call, call]


def test_repeat_answers_on_the_same_model(fake, capsys):
    assert run(["run", "demo", "p", "--repeat", "3"]) == 0
    out, err = capsys.readouterr()
    assert out == "The capital is Paris.\n" * 3
    assert err.count("GB read") == 3
    assert len(fake.loads) == fake.closed == 1


def _stdin(monkeypatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_dash_reads_standard_input(fake, monkeypatch):
    _stdin(monkeypatch, "naïve\n".encode())
    assert run(["demo", "-"]) == 0
    assert fake.calls[0][0] == "naïve\n"


def test_an_empty_prompt_is_refused_before_loading(fake, monkeypatch, capsys):
    _stdin(monkeypatch, b"")
    for prompt in ("", "-"):
        assert run(["demo", prompt]) == 1
        assert capsys.readouterr() == ("", "cherenkov: the prompt is empty\n")
    assert not fake.loads


def test_standard_input_must_be_utf8(fake, monkeypatch, capsys):
    _stdin(monkeypatch, b"ab\xffcd")
    assert run(["demo", "-"]) == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("", "cherenkov: standard input is not UTF-8: byte 2 is 0xff\n")
    assert not fake.loads


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--temperature", "-1"),
        ("--temperature", "nan"),
        ("--top-k", "-3"),
        ("--top-p", "0"),
        ("--top-p", "2"),
        ("--seed", "-1"),
    ],
)
def test_bad_sampling_values_are_refused_before_loading(fake, capsys, option, value):
    assert run(["demo", "p", option, value]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"cherenkov: {option[2:].replace('-', '_')} = ")
    assert err.count("\n") == 1
    assert not fake.loads


@pytest.mark.parametrize(
    "error",
    [
        ModelNotFound("x", ["a\nb"]),
        CapacityError("too small"),
        ConfigError("pool", "x", "bad"),
        RequestError("the prompt is empty"),
        TemplateError("refused"),
    ],
)
def test_our_errors_are_one_line_and_exit_1(fake, capsys, error):
    fake.failure = error
    assert run(["demo", "p", "-q"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("cherenkov: ")
    assert err.count("\n") == 1
    assert fake.closed == 1


def test_control_characters_of_foreign_names_do_not_reach_the_terminal(fake, capsys):
    fake.failure = ModelNotFound("\x1b[31mred\x07", [])
    assert run(["demo", "p", "-q"]) == 1
    assert capsys.readouterr().err.strip().isprintable()


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), Cancelled()])
def test_interrupted(fake, capsys, stop):
    fake.failure = stop
    assert run(["demo", "p", "-q"]) == 130
    assert fake.closed == 1
    assert capsys.readouterr().err == ""


def test_errors_that_are_not_ours_are_not_hidden(fake):
    fake.failure = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        run(["demo", "p", "-q"])


@pytest.mark.parametrize(
    "line",
    [
        "run demo",
        "run demo p --max-tokens many",
        "run demo p --nonesuch",
        "run demo p --repeat 0",
        "run demo p q",
        "doctr",
        "demo",
        "prepare x",
        "--nonesuch",
    ],
)
def test_wrong_usage_exits_2(fake, capsys, line):
    assert run(line.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Usage: cherenkov" in err
    assert not fake.loads


def test_a_misspelt_command_gets_a_hint(capsys):
    assert run(["doctr"]) == 2
    assert "did you mean 'doctor'?" in capsys.readouterr().err


# --- run --check ---


def test_check_reports_every_layer(fake, capsys):
    fake.differences = (Difference("layer 0", 0.5, 2.0), Difference("logits", 0.003, 1.5))
    assert run(["demo", "p", "--check", "-q"]) == 0
    out, err = capsys.readouterr()
    assert out == "The capital is Paris.\n"
    assert "over 3 prompt tokens" in err
    assert "layer 0  0.5    0.25 of the largest value" in err
    assert "logits   0.003  0.002 of the largest value" in err
    assert fake.calls[-1] == ([1, 2, 3], 1e-2)


@pytest.mark.parametrize(
    ("difference", "arguments", "reason"),
    [
        (Difference("logits", 0.2, 10.0), [], "logits differ by 0.02, more than 0.01"),
        (Difference("logits", float("nan"), 1.0), [], "logits differ by nan"),
        (
            Difference("logits", 0.0, 1.0, argmax_differs=2),
            [],
            "the most likely token differs in 2 places",
        ),
        (
            Difference("logits", 0.01, 10.0),
            ["--precision", "float32"],
            "logits differ by 0.001, more than 0.0001",
        ),
    ],
)
def test_check_fails_beyond_tolerance(fake, capsys, difference, arguments, reason):
    fake.differences = (difference,)
    assert run(["demo", "p", "--check", *arguments]) == 1
    assert f"check failed: {reason}" in capsys.readouterr().err


# --- the other commands ---


def test_prepare(monkeypatch, capsys):
    calls = []

    def prepare(source, output, *, bits, threads, on_event):
        calls.append((source, output, bits, threads))
        on_event(Progress("experts", 1, 1, 1.0))
        return Path("out/store")

    monkeypatch.setattr(preparation, "prepare", prepare)
    assert run(["prepare", "src", "--output", "out", "--bits", "8", "--threads", "2"]) == 0
    out, err = capsys.readouterr()
    assert calls == [("src", "out", 8, 2)]
    assert out == "out/store\n"
    assert err == "experts: 1 B of 1 B (1 B/s)\n"


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
        "cherenkov.packing.verify.verify", lambda path, on_event: report
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
    },
    "source": {"dialect": "MLX", "expert_bits": 4, "bytes": 104 * 10**9, "shards": 21, "notes": ["pre-norms are raw"]},
    "preparing": {"output_bytes": 102 * 10**9, "bits": 4, "group": 64},
}  # fmt: skip


def test_inspect(monkeypatch, capsys):
    monkeypatch.setattr(inspection, "inspect", lambda path, bits: FOUND)
    assert run(["inspect", "x"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for part in (
        "checkpoint x",
        "architecture qwen4_exp",
        "parameters 1,234,567",
        "experts 10 of 512 a token, 4 bits in groups of 64",
        "layout MLX, 4 bits",
        "total 102 GB",
        "smallest pool 27 MB",
        "smallest in all 4 GB",
        "writes 102 GB",
        "note: pre-norms are raw",
    ):
        assert part in text
    assert run(["inspect", "x", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == FOUND


def test_paths(capsys):
    assert run(["paths"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["config", "data", "stores"]
    assert run(["paths", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["data"]["path"] == str(config.load_settings().data_dir)
    assert found["config"]["source"] == "XDG_CONFIG_HOME"


# --- doctor ---


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
    assert f"data_dir        {data_dir}" in out
    assert "(CHERENKOV_DATA_DIR)" in out
    assert not data_dir.exists()


def test_doctor_for_programs(data_dir, capsys):
    assert run(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["version"] == __version__
    assert found["cores"] >= 1
    assert found["memory"]["available_bytes"] > 0
    assert {"name", "usable", "reason"} <= found["backends"][0].keys()
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
        (
            "cherenkov: threads = 'many' (CHERENKOV_THREADS): input should be a valid integer, "
            "unable to parse string as an integer"
        )
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


# --- showing ---


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_bar_on_a_terminal_leaves_nothing_behind(monkeypatch):
    screen = _Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    with show.Reporter() as report:
        report(Progress("dense", 10, 100, 1.0))
        report(Progress("experts", 100, 100, 2.0))
        report(Progress("verify", 5, 7, 2.0))
        assert len(report._bar.tasks) == 2
        assert report._bar.tasks[0].description == "experts"
    assert report._bar is None
    assert "experts" in screen.getvalue()


def test_plain_progress_is_sparse(monkeypatch, capsys):
    clock = iter([100.0, 101.0, 106.0, 106.5])
    monkeypatch.setattr(show.time, "monotonic", lambda: next(clock))
    report = show.Reporter()
    for done in (1, 2, 3, 4):
        report(Progress("experts", done, 4, float(done)))
    assert [line.split(" of")[0] for line in capsys.readouterr().err.splitlines()] == [
        "experts: 1 B",
        "experts: 3 B",
        "experts: 4 B",
    ]


def test_a_run_without_experts_or_decoding():
    text = show.summary(Run(1, 1, 0.0, 0.0, "length", ExpertStats()), "b")
    assert (
        text
        == "prompt 1 tokens in 0 ms (no rate); answer 1 tokens (no rate), cut off at --max-tokens; no experts used; 0 GB read; b"
    )


# --- processes ---


def _python(code: str, *arguments: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        **options,
    )


MAIN = "from cherenkov_cli.entry import main; main()"


def test_help_and_version_import_nothing_heavy():
    heavy = ("numpy", "mlx", "pydantic", "tokenizers", "jinja2", "rich", "huggingface_hub", "torch")
    code = f"""
import sys
from cherenkov_cli.main import run
code = run(sys.argv[1:])
print([m for m in {heavy} if m in sys.modules], file=sys.stderr)
sys.exit(code)
"""
    for arguments in (["--help"], ["--version"], ["run", "--help"], ["doctor", "--help"]):
        done = _python(code, *arguments)
        assert (done.returncode, done.stderr) == (0, "[]\n"), arguments
        assert "cherenkov" in done.stdout


def test_help_names_every_command():
    out = _python(MAIN, "--help").stdout
    for name in ("run", "prepare", "verify", "inspect", "doctor", "paths", "--version"):
        assert name in out


def test_version():
    assert _python(MAIN, "--version").stdout == f"cherenkov {__version__}\n"


@pytest.mark.parametrize("absent", [["click"], ["rich"], ["click", "rich"]])
def test_without_the_extra_one_line_says_so(absent):
    code = f"""
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name in {absent} else found(name, *a)
{MAIN}
"""
    done = _python(code, "--help")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == (
        f"cherenkov: the command needs {' and '.join(absent)}: pip install 'cherenkov[cli]'\n"
    )


def test_a_reader_that_leaves_is_no_error():
    code = f"""
import sys
from cherenkov_cli.commands import paths
paths.print_json = lambda value: [print("x" * 70_000) for _ in range(9)]
{MAIN}
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, "paths", "--json"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.read(10)
    process.stdout.close()
    err = process.stderr.read()
    assert (process.wait(), err) == (1, b"")
    process.stderr.close()


def test_a_full_disk_behind_stdout_is_one_line():
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("there is no /dev/full here")
    with full.open("w") as out:
        done = subprocess.run(
            [sys.executable, "-c", MAIN, "paths"],
            check=False,
            cwd=ROOT,
            stdout=out,
            stderr=subprocess.PIPE,
        )
    assert done.returncode == 1
    assert done.stderr == b"cherenkov: cannot write the output: No space left on device\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_the_character_gets_a_question_mark(encoding):
    code = f"""
from cherenkov_cli.commands import paths
paths.print_json = lambda value: print("na\\u00efve \\U0001f680")
{MAIN}
"""
    done = _python(code, "paths", "--json", env={"PYTHONIOENCODING": encoding}, encoding="latin-1")
    assert done.returncode == 0, done.stderr
    assert done.stdout in ("na?ve ?\n", "naïve ?\n")
