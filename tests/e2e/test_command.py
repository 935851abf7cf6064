"""The command as a person uses it, on Glow."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cherenkov.backends import native_engine
from cherenkov.backends.native import instruction_sets, unavailable
from cherenkov_cli.main import run

needs_kernels = pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "kernels are built")

ROOT = Path(__file__).parents[2]
QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris.\n"
COMMAND = [sys.executable, "-c", "from cherenkov_cli.entry import main; main()"]


@pytest.fixture
def store(glow_store):
    return str(glow_store)


def _hear_interrupts():
    """Who starts tests in the background may have told them to ignore interrupts, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def process(*arguments, **options):
    return subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_hear_interrupts,  # noqa: PLW1509 - no other thread runs, and it only sets a handler
        **options,
    )


def test_the_first_command_of_a_newcomer(tmp_path):
    env = {**os.environ, "XDG_DATA_HOME": str(tmp_path)}
    out, err = process("run", "demo", QUESTION, env=env).communicate()
    assert out == ANSWER
    assert re.search(r": [\d.]+ \w+ of [\d.]+ \w+ \(", err)  # prepared, and told how far
    assert "tok/s" in err
    first = process("demo", QUESTION, env=env)
    assert (first.communicate()[0], first.returncode) == (ANSWER, 0)
    assert "Traceback" not in err
    assert [p.name for p in (tmp_path / "cherenkov/stores").iterdir()] == [
        p.name for p in (tmp_path / "cherenkov/stores").glob("demo-*")
    ]


def test_standard_input_and_repeat(store, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{QUESTION}\n".encode())))
    assert run([store, "-", "--repeat", "2"]) == 0
    out, err = capsys.readouterr()
    assert out == ANSWER * 2
    assert err.count(" read; ") == 2
    assert "experts:" not in err


def test_max_tokens_and_no_eos(store, capsys):
    assert run([store, QUESTION, "--max-tokens", "3"]) == 0
    out, err = capsys.readouterr()
    assert ANSWER.startswith(out.rstrip("\n"))
    assert "cut off at --max-tokens" in err
    assert run([store, QUESTION, "--max-tokens", "12", "--no-eos", "-q"]) == 0
    assert capsys.readouterr().out.startswith(ANSWER.strip())


def test_raw_system_and_think_change_the_prompt(store, capsys):
    seen = set()
    for options in ([], ["--raw"], ["--system", "Be brief."], ["--think"]):
        assert run([store, QUESTION, "--max-tokens", "1", *options]) == 0
        seen.add(capsys.readouterr().err.split(" tokens")[0])
    assert len(seen) == 4


def test_sampling_repeats_with_its_seed(store, capsys):
    arguments = [store, "Tell me a story.", "--max-tokens", "12", "--temperature", "1.5", "-q"]
    answers = []
    for seed in ("1", "1", "2"):
        assert run([*arguments, "--seed", seed]) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1] != answers[2]


def test_check(store, capsys):
    assert run([store, "Hi", "--max-tokens", "1", "--check"]) == 0
    err = capsys.readouterr().err
    assert "layer 7" in err
    assert "logits" in err
    assert "check failed" not in err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["Hi", "--max-ctx", "20"], "shorten the prompt or raise"),
        (["Hi", "--max-ctx", "99999"], "must be from 1 to 8192"),
        (["Hi", "--max-ctx", "0"], "context_tokens = 0 (argument)"),
        (["Hi", "--max-tokens", "0"], "max_tokens = 0"),
        (["Hi", "--pool-gb", "1e-9"], "the smallest pool"),
        (["Hi", "--pool-gb", "lots"], "pool = 'lots' (argument)"),
        (["Hi", "--pool-gb", "4MB"], "a number of GB alone"),
        (["Hi", "--threads", "-1"], "threads = -1 (argument)"),
        (["Hi", "--threads", "2000"], "threads = 2000 (argument)"),
        (["Hi", "--cpu-isa", "sse9"], "isa = 'sse9' (argument)"),
        (["Hi", "--precision", "float16"], "precision = 'float16' (argument)"),
        (["Hi", "--backend", "abacus"], "backend = 'abacus'"),
        (["a\udcff"], "not valid Unicode"),
    ],
)
def test_bad_requests_are_one_line(store, capsys, arguments, reason):
    assert run([store, *arguments]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("cherenkov: ")
    assert err.count("\n") == 1
    assert reason in err


@needs_kernels
def test_the_instruction_set_can_be_forced(store, monkeypatch, capsys):
    monkeypatch.setenv("CHERENKOV_ISA", "portable")
    arguments = [store, QUESTION, "--backend", "native", "--threads", "1"]
    assert run([*arguments]) == 0
    out, err = capsys.readouterr()
    assert out == ANSWER
    assert "native (portable, 1 thread, float32 activations)" in err
    fastest = instruction_sets()[0]
    assert run([*arguments, "--cpu-isa", fastest, "--max-tokens", "1"]) == 0
    assert f"native ({fastest}, 1 thread, " in capsys.readouterr().err
    monkeypatch.setenv("CHERENKOV_BACKEND", "native")  # where there is a GPU, it would be taken
    assert run(["doctor"]) == 0
    assert "taken: native (portable, " in capsys.readouterr().out


@needs_kernels
def test_an_instruction_set_that_is_not_here(store, monkeypatch, capsys):
    monkeypatch.setattr(native_engine, "instruction_sets", lambda: ("portable",))
    assert run([store, "Hi", "--backend", "native", "--cpu-isa", "avx512_bf16"]) == 1
    assert capsys.readouterr().err == (
        "cherenkov: backend native: start: no 'avx512_bf16' kernels here; there are portable\n"
    )


def test_a_pool_too_large_for_the_model_is_cut(store, capsys):
    assert run([store, "Hi", "--max-tokens", "1", "--pool-gb", "5000"]) == 0


@pytest.mark.parametrize(
    "command", [["run", "X", "Hi"], ["inspect", "X"], ["verify", "X"], ["prepare", "X", "-o", "Y"]]
)
@pytest.mark.parametrize(
    "made", ["nothing", "a file", "an empty folder", "another model", "no JSON"]
)
def test_what_is_no_model_is_one_line_and_leaves_nothing(tmp_path, capsys, command, made):
    place = tmp_path / "x"
    if made == "a file":
        place.write_text("hello")
    elif made != "nothing":
        place.mkdir()
    if made == "another model":
        (place / "config.json").write_text('{"model_type": "llama"}')
    if made == "no JSON":
        (place / "config.json").write_text("{")
    here = sorted(tmp_path.rglob("*"))
    line = [{"X": str(place), "Y": str(tmp_path / "out")}.get(word, word) for word in command]
    assert run(line) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("cherenkov: ")
    assert err.count("\n") == 1
    if made == "another model" and command[0] != "verify":
        assert "llama" in err
    assert sorted(tmp_path.rglob("*")) == here


def test_inspect_the_demo_and_its_store(store, capsys):
    assert run(["inspect", "demo", "--json"]) == 0
    checkpoint = json.loads(capsys.readouterr().out)
    assert run(["inspect", store, "--json"]) == 0
    packed = json.loads(capsys.readouterr().out)
    assert (checkpoint["kind"], packed["kind"]) == ("checkpoint", "store")
    assert checkpoint["bytes"] == packed["bytes"]
    assert checkpoint["preparing"]["output_bytes"] >= packed["bytes"]["experts"]
    for path in ("demo", store):
        assert run(["inspect", path]) == 0
        assert "smallest in all" in capsys.readouterr().out


def test_verify_finds_a_flipped_bit_and_names_the_record(store, tmp_path, capsys):
    copy = tmp_path / "store"
    shutil.copytree(store, copy)
    assert run(["verify", str(copy)]) == 0
    assert "are as they were written" in capsys.readouterr().out
    with (copy / "experts.bin").open("r+b") as file:
        file.seek(100)
        byte = file.read(1)[0]
        file.seek(100)
        file.write(bytes([byte ^ 1]))
    assert run(["verify", str(copy)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "experts.bin" in err
    assert "expert 0" in err


def test_prepare_prints_where_and_does_not_touch_what_is_there(demo_folder, tmp_path, capsys):
    output = tmp_path / "store"
    assert run(["prepare", str(demo_folder), "--output", str(output)]) == 0
    out, err = capsys.readouterr()
    assert out == f"{output}\n"
    assert "30.3 MB of 30.3 MB" in err
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter").write_text("dear")
    assert run(["prepare", str(demo_folder), "--output", str(tmp_path / "other")]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("cherenkov: output = ")
    assert (tmp_path / "other" / "letter").read_text() == "dear"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other", "store"]


def _children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are found through /proc")
@pytest.mark.parametrize(
    ("sign", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)]
)
def test_interrupting_leaves_no_process_behind(store, sign, code):
    running = process(store, "Tell me a story.", "--max-tokens", "5000", "--no-eos")
    assert running.stdout.read(1)
    children = _children(running.pid)
    assert children  # the template's process
    running.send_signal(sign)
    _out, err = running.communicate()
    assert running.returncode == code
    assert "Traceback" not in err
    end = time.monotonic() + 30
    while any(Path(f"/proc/{pid}/cmdline").exists() for pid in children):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_reader_that_has_enough(store):
    running = process(store, "Tell me a story.", "--max-tokens", "200", "--no-eos", "-q")
    running.stdout.read(5)
    running.stdout.close()
    err = running.stderr.read()
    running.stderr.close()
    assert (running.wait(), err) == (1, "")


# --- answers for programs, tools, stop strings


WEATHER = {
    "name": "get_weather",
    "description": "Weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}


@pytest.fixture
def tools(tmp_path):
    path = tmp_path / "tools.json"
    path.write_text(json.dumps({"tools": [WEATHER]}))
    return str(path)


def answers(out):
    """The objects on the lines of standard output."""
    return [json.loads(line) for line in out.splitlines()]


def test_an_answer_as_json(store, capsys):
    assert run([store, QUESTION, "--json", "-q", "--repeat", "2"]) == 0
    out, err = capsys.readouterr()
    first, second = answers(out)
    assert err == ""
    assert set(first) == {"text", "reasoning", "tool_calls", "finish_reason", "usage", "timings"}
    assert (first["text"], first["reasoning"], first["tool_calls"]) == (ANSWER.strip(), "", [])
    assert first["finish_reason"] == "stop"
    assert first["usage"] == {"prompt_tokens": 22, "cached_tokens": 0, "output_tokens": 9}
    assert first["timings"]["prefill_s"] > 0
    assert second["text"] == first["text"]


@pytest.mark.parametrize("options", [["--raw"], ["--no-eos"]])
def test_json_of_a_continued_text(store, capsys, options):
    assert run([store, "Once upon a time", "--json", "-q", "--max-tokens", "5", *options]) == 0
    (answer,) = answers(capsys.readouterr().out)
    assert answer["text"]
    assert (answer["finish_reason"], answer["usage"]["output_tokens"]) == ("length", 5)


def test_tools(store, tools, capsys):
    question = "What is the weather in Paris?"
    assert run([store, question, "--tools", tools, "-q"]) == 0
    assert capsys.readouterr() == ('get_weather {"city": "Paris"}\n', "")
    assert run([store, question, "--tools", tools, "-q", "--json"]) == 0
    (answer,) = answers(capsys.readouterr().out)
    assert answer["tool_calls"] == [{"name": "get_weather", "arguments": {"city": "Paris"}}]
    assert (answer["text"], answer["finish_reason"]) == ("", "tool_calls")
    assert run([store, QUESTION, "--tools", tools, "-q"]) == 0
    assert capsys.readouterr().out.endswith("\n")


@pytest.mark.parametrize("options", [[], ["--json"], ["--no-eos"]])
def test_stop_strings(store, capsys, options):
    assert run([store, QUESTION, "--stop", "zzz", "--stop", " is", "-q", *options]) == 0
    out = capsys.readouterr().out
    text = answers(out)[0]["text"] if "--json" in options else out.rstrip("\n")
    assert text == "The capital of France"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--tools", "absent.json"], "absent.json: cannot read"),
        (["--stop", "x" * 300], "stop[0]: must be a string of 1 to 256"),
        ([word for _ in range(40) for word in ("--stop", "x")], "40 strings"),
        (["--logit-bias", "1"], "logit_bias = '1'"),
        (["--logit-bias", "1=500"], "logit_bias[1]"),
        (["--min-p", "2"], "min_p = 2.0"),
        (["--presence-penalty", "9"], "presence_penalty"),
        (["--repetition-penalty", "0"], "repetition_penalty"),
    ],
)
def test_bad_settings_are_refused_before_loading(capsys, options, words):
    assert run(["run", "no such model", QUESTION, *options]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("5", "must hold a list"),
        ('{"tools": 5}', "must hold a list"),
        ("[5]", "tools[0]: must be a mapping"),
        ('[{"name": "a b"}]', "letters, digits"),
        ('[{"name": "f", "parameters": []}]', "must be a JSON schema"),
    ],
)
def test_bad_tools_are_refused_before_loading(tmp_path, capsys, text, words):
    path = tmp_path / "tools.json"
    path.write_text(text)
    assert run(["run", "no such model", QUESTION, "--tools", str(path)]) == 1
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1


def test_tools_need_the_template(tools, capsys):
    assert run(["run", "no such model", QUESTION, "--tools", tools, "--raw"]) == 1
    assert "not together with --raw" in capsys.readouterr().err
