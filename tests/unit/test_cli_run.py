"""`cherenkov run`, with a model that only pretends."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cherenkov import model, sampling
from cherenkov.comparison import Difference
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
from cherenkov.model import Run
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
            "75% of experts found in memory; 20 MB read; fake (portable)"
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
        "--precision bf16 --cpu-isa avx2 --repeat 2 --min-p 0.1 --presence-penalty 1 "
        "--frequency-penalty -1 --repetition-penalty 1.1 --logit-bias 5=-2 --logit-bias 6=1 "
        "--stop a --stop b"
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
            "sampling": sampling.Sampling(0.7, 20, 0.9, 5, 0.1, 1, -1, 1.1, {5: -2, 6: 1}),
            "system": "S",
            "thinking": True,
            "raw": True,
            "ignore_eos": True,
            "stop": ("a", "b"),
        },
    )
    assert fake.calls == [call, call]


def test_repeat_answers_on_the_same_model(fake, capsys):
    assert run(["run", "demo", "p", "--repeat", "3"]) == 0
    out, err = capsys.readouterr()
    assert out == "The capital is Paris.\n" * 3
    assert err.count(" read; ") == 3
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
    assert run(["chatt", "demo", "--quiet"]) == 2
    assert "did you mean 'chat'?" in capsys.readouterr().err


def test_a_model_whose_name_is_nearly_a_command_s(fake, tmp_path, monkeypatch):
    (tmp_path / "serv").mkdir()
    monkeypatch.chdir(tmp_path)
    assert run(["serv", "hi"]) == 0
    assert fake.loads


@pytest.mark.parametrize("line", ["-h", "run -h", "plot stats -h"])
def test_help_in_short(capsys, line):
    assert run(line.split()) == 0
    assert "Usage: cherenkov" in capsys.readouterr().out


# --- --check


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
