"""The command as a process, and what it shows while it works."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cherenkov import __version__
from cherenkov.events import Progress
from cherenkov.experts.stats import ExpertStats
from cherenkov.model import Run
from cherenkov_cli import show

ROOT = Path(__file__).parents[2]


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


@pytest.mark.parametrize("no_color", [True, False])
def test_no_color_is_honoured(monkeypatch, no_color):
    screen = _Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    with show.Reporter() as report:
        report(Progress("dense", 10, 100, 1.0))
    assert ("\x1b[3" in screen.getvalue()) is not no_color


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
        == "prompt 1 tokens in 0 ms (no rate); answer 1 tokens (no rate), cut off at --max-tokens; no experts used; 0 B read; b"
    )


# --- processes


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
    for arguments in (
        ["--help"],
        ["--version"],
        ["run", "--help"],
        ["chat", "--help"],
        ["doctor", "--help"],
    ):
        done = _python(code, *arguments)
        assert (done.returncode, done.stderr) == (0, "[]\n"), arguments
        assert "cherenkov" in done.stdout


def test_help_names_every_command():
    out = _python(MAIN, "--help").stdout
    for name in (
        "run",
        "chat",
        "prepare",
        "verify",
        "inspect",
        "doctor",
        "plot",
        "paths",
        "--version",
    ):
        assert name in out


def test_version():
    assert _python(MAIN, "--version").stdout == f"cherenkov {__version__}\n"


def test_the_package_runs_as_a_module():
    command = [sys.executable, "-m", "cherenkov"]
    done = subprocess.run([*command, "--version"], check=False, cwd=ROOT, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == f"cherenkov {__version__}\n"
    done = subprocess.run([*command, "paths", "-x"], check=False, cwd=ROOT, capture_output=True)
    assert done.returncode == 2
    assert b"Usage: cherenkov paths" in done.stderr


def test_the_package_as_a_module_without_the_extra(tmp_path):
    """Where Python finds no click, as after a plain install: one line."""
    hidden = tmp_path / "sitecustomize.py"
    hidden.write_text(
        "import importlib.util as u\n"
        "found = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'click' else found(name, *a)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "cherenkov", "paths"],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == ("cherenkov: the command needs click: pip install 'cherenkov[cli]'\n")


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


def test_a_server_without_its_extra():
    code = f"""
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name == "uvicorn" else found(name, *a)
{MAIN}
"""
    done = _python(code, "serve", "demo")
    assert (done.returncode, done.stdout) == (1, "")
    said = "cherenkov: the server needs uvicorn: pip install 'cherenkov[server]'\n"
    assert done.stderr == said


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
