"""`cherenkov chat` and what is written to it, on Glow and through pipes."""

import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cherenkov.errors import Cancelled, RequestError
from cherenkov_cli.commands.chat import Chat
from cherenkov_cli.lines import Lines
from cherenkov_cli.main import run

ROOT = Path(__file__).parents[2]
MAIN = [sys.executable, "-c", "from cherenkov_cli.entry import main; main()"]
QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."
WEATHER = {"name": "get_weather", "parameters": {"properties": {"city": {"type": "string"}}}}


@pytest.fixture
def chat(glow_store, monkeypatch, capsys):
    """Talk: what is written, and more options; gives the exit code, the output and the rest."""

    def talk(text, *options):
        data = text if isinstance(text, bytes) else text.encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        code = run(["chat", str(glow_store), "--max-ctx", "512", *options])
        out, err = capsys.readouterr()
        return code, out, err

    return talk


def lines(monkeypatch, text):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    reader = Lines()
    found = []
    while (said := reader.read("> ")) is not None:
        found.append(said)
    return found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", []),
        ("a\nb\n", ["a", "b"]),
        ("a\nb", ["a", "b"]),
        ("\n\n", ["", ""]),
        ("a\\\nb\\\nc\nd", ["a\nb\nc", "d"]),
        ("a\\", ["a"]),
        ('"""\na\nb\n"""\nc', ["a\nb", "c"]),
        ('"""a\n\nb"""\n', ["a\n\nb"]),
        ('"""a"""', ["a"]),
        ('"""\na\\\n"""', ["a\\"]),
        ('"""\nnever closed\n', ["never closed"]),
        ("naïve 🚀\r\n", ["naïve 🚀"]),
    ],
)
def test_what_is_said(monkeypatch, text, said):
    assert lines(monkeypatch, text) == said


def test_input_that_is_no_text(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ab\xff\n")))
    with pytest.raises(RequestError, match="byte 0xff"):
        Lines().read("> ")


def test_a_conversation(chat):
    code, out, err = chat(f"{QUESTION}\n\nWhat is 17 \\\nplus 25?\n")
    assert code == 0
    assert out.splitlines()[0] == ANSWER
    assert len(out.splitlines()) >= 2
    assert "tok/s); read 22 of 22 in" in err
    assert "tok/s); read " in err.splitlines()[-1]


def test_quiet(chat):
    assert chat(f"{QUESTION}\n", "--quiet") == (0, f"{ANSWER}\n", "")


def test_commands(chat, tmp_path):
    path = tmp_path / "talk.json"
    code, out, err = chat(
        f"/help\n/system Be brief.\n{QUESTION}\n/save {path}\n/reset\n/system\n/load {path}\n"
        f"{QUESTION}\n/exit\n{QUESTION}\n"
    )
    assert code == 0
    assert len(out.splitlines()) == 2
    assert out.startswith(ANSWER)
    for words in (
        "/save FILE",
        "system message: Be brief.",
        "system message: none",
        "(forgotten)",
        f"saved to {path}",
        "(3 messages)",
    ):
        assert words in err
    assert json.loads(path.read_bytes())["system"] == "Be brief."
    copy = tmp_path / "copy.json"
    assert chat(f"/save {copy}\n", "--load", str(path))[0] == 0
    assert json.loads(copy.read_bytes())["system"] == "Be brief."


def test_a_home_is_found(chat, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    code, _, err = chat(f"{QUESTION}\n/save ~/talk.json\n/reset\n/load ~/talk.json\n")
    assert (code, "(2 messages)" in err) == (0, True)
    assert (tmp_path / "talk.json").exists()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--system", "x"], "--system"),
        (["--temperature", "0", "--seed", "3"], "--temperature, --seed"),
        (["--tools", "absent.json"], "--tools"),
        (["--overflow", "trim"], "--overflow"),
        (["--stop", "x", "--think", "--max-tokens", "3"], "--max-tokens, --think, --stop"),
        (["--top-k", "3", "--top-p", "0.5", "--min-p", "0.1"], "--top-k, --top-p, --min-p"),
        (["--presence-penalty", "1", "--frequency-penalty", "1"], "--presence-penalty, --freq"),
        (["--repetition-penalty", "2", "--logit-bias", "1=1"], "--repetition-penalty, --logit-"),
    ],
)
def test_what_a_loaded_conversation_settles_is_not_ignored(chat, options, named):
    code, out, err = chat("hi\n", "--load", "absent.json", *options, "-q")
    assert (code, out) == (1, "")
    assert err.startswith("cherenkov: --load: the file settles ")
    assert named in err
    assert err.count("\n") == 1


def test_a_failure_is_one_line_and_the_chat_goes_on(chat, tmp_path):
    code, out, err = chat(
        f"/dance\n/save\n/load {tmp_path}/absent\n/save {tmp_path}/a/b\n{'word ' * 600}\n{QUESTION}\n",
        "--overflow",
        "error",
        "--quiet",
    )
    assert (code, out) == (1, f"{ANSWER}\n")
    complaints = err.splitlines()
    assert len(complaints) == 5
    assert all(line.startswith("cherenkov: ") for line in complaints)
    assert "there is no command /dance" in complaints[0]
    assert "512" in complaints[4]


def test_two_slashes_say_one(chat):
    code, out, _ = chat("//help\n", "--quiet", "--max-tokens", "2")
    assert (code, bool(out.strip())) == (0, True)


def test_trimming_is_told(chat):
    said = "".join(f"{i} {'word ' * 150}\n" for i in range(4))
    code, _, err = chat(said, "--max-tokens", "4")
    assert code == 0
    assert "the context is full" in err


def test_tools_are_answered_by_whoever_writes(chat, tmp_path):
    path = tmp_path / "tools.json"
    path.write_text(json.dumps([WEATHER]))
    code, out, err = chat(
        'What is the weather in Paris?\n{"temperature": 18, "sky": "clear"}\n', "--tools", str(path)
    )
    assert code == 0
    assert 'the model calls get_weather {"city": "Paris"}' in err
    assert "18" in out
    code, out, err = chat("What is the weather in Paris?\n", "--tools", str(path))
    assert (code, out) == (0, "")
    assert "(not called)" in err


def test_options_arrive(chat):
    once = chat(
        "Tell me a story.\n", *["--temperature", "1", "--seed", "4", "--max-tokens", "8", "-q"]
    )
    again = chat(
        "Tell me a story.\n", *["--temperature", "1", "--seed", "4", "--max-tokens", "8", "-q"]
    )
    other = chat(
        "Tell me a story.\n", *["--temperature", "1", "--seed", "5", "--max-tokens", "8", "-q"]
    )
    assert once == again != other
    assert chat(f"{QUESTION}\n", "-q", "--stop", " is")[1] == "The capital of France\n"
    thought = chat("What is 17 plus 25?\n", "--think", "--max-tokens", "60")
    assert thought[0] == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--temperature", "-1"], "temperature = -1.0"),
        (["--logit-bias", "x"], "must be ID=BIAS"),
        (["--max-tokens", "0"], "max_tokens = 0"),
        (["--stop", ""], "stop[0]"),
        (["--tools", "absent.json"], "absent.json: cannot read"),
        (["--load", "absent.json"], "absent.json"),
    ],
)
def test_bad_options_end_it(chat, options, words):
    code, out, err = chat("hi\n", *options, "-q")
    assert (code, out) == (1, "")
    assert err.startswith("cherenkov: ")
    assert words in err
    assert err.count("\n") == 1


def test_input_that_is_not_utf8_ends_it(chat):
    code, _, err = chat(b"\xff\xfe\n", "-q")
    assert (code, err) == (1, "cherenkov: standard input is not UTF-8: there is a byte 0xff\n")


# --- at a terminal


class Terminal:
    """The command at a terminal of its own."""

    def __init__(self, *arguments):
        self.end, child = pty.openpty()
        self.process = subprocess.Popen(
            [*MAIN, *arguments],
            cwd=ROOT,
            stdin=child,
            stdout=child,
            stderr=child,
            env={**os.environ, "TERM": "dumb"},
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        )
        os.close(child)
        self.seen = ""

    def write(self, text):
        os.write(self.end, text.encode())

    def wait_for(self, text, timeout_s=60):
        """Read until `text` has come after what was waited for before."""
        limit = time.monotonic() + timeout_s
        while text not in self.seen:
            self.read(limit, f"no {text!r}")
        before, _, self.seen = self.seen.partition(text)
        return before

    def interrupt_until(self, text, presses=20):
        """Press Ctrl-C until `text` comes.

        Of a signal that arrives between the prompt's appearance and its wait for a key, the interpreter takes note at
        the next key: whoever sits there presses again.
        """
        for _ in range(presses):
            os.kill(self.process.pid, signal.SIGINT)
            limit = time.monotonic() + 3
            while (
                text not in self.seen
                and select.select([self.end], [], [], max(0, limit - time.monotonic()))[0]
            ):
                self.read(limit + 1, f"no {text!r}")
            if text in self.seen:
                return self.wait_for(text)
        return pytest.fail(f"no {text!r} in {self.seen!r}")

    def wait_for_an_answer(self, timeout_s=60):
        """Read on into the line after the one that was written: what answers is at work then."""
        self.wait_for("\n", timeout_s)
        limit = time.monotonic() + timeout_s
        while not self.seen.strip():
            self.read(limit, "no answer")

    def read(self, limit, complaint):
        """What there is to read, at the latest by `limit`."""
        left = limit - time.monotonic()
        if left <= 0 or not select.select([self.end], [], [], left)[0]:
            pytest.fail(f"{complaint} in {self.seen!r}")
        try:
            self.seen += os.read(self.end, 4096).decode("utf-8", "replace")
        except OSError:
            pytest.fail(f"{complaint} before the end: {self.seen!r}")

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.end)


def test_ctrl_c_ends_the_answer_and_not_the_chat(glow_store):
    # A bias against both stop tokens: the answer would go on until the context is full.
    endless = ["--logit-bias", "2=-100", "--logit-bias", "0=-100", "--max-ctx", "4096"]
    terminal = Terminal("chat", str(glow_store), *endless)
    try:
        terminal.wait_for("> ")
        terminal.write("Tell me a story.\n")
        terminal.wait_for("story.")
        terminal.wait_for_an_answer()
        os.kill(terminal.process.pid, signal.SIGINT)
        terminal.wait_for("cancelled")
        terminal.wait_for("> ")
        terminal.write("And another.\n")
        terminal.wait_for("another.")
        terminal.wait_for_an_answer()
        os.kill(terminal.process.pid, signal.SIGINT)  # twice, by someone who cannot wait
        os.kill(terminal.process.pid, signal.SIGINT)
        terminal.wait_for("cancelled")
        terminal.wait_for("> ")
        terminal.interrupt_until("> ")  # at the prompt: another prompt
        terminal.write("/system\n")
        terminal.wait_for("system message: none")
        terminal.wait_for("> ")
        terminal.write("\x1b[A\n")  # the arrow up calls the line back
        terminal.wait_for("system message: none")
        terminal.wait_for("> ")
        terminal.write("\x04")
        assert terminal.process.wait(30) == 0
    finally:
        terminal.close()


class Barely:
    """A session whose answer is not there to be cancelled when Ctrl-C comes, and which notices at the next piece."""

    history, system, forgotten = (), None, 0

    def __init__(self, presses):
        self.presses = presses
        self.is_answering = self.cancelled = False

    def cancel(self):
        self.cancelled = self.is_answering

    def stream(self, _):
        from cherenkov.chat.replies import TextDelta

        for _ in range(self.presses):
            os.kill(os.getpid(), signal.SIGINT)
        self.is_answering = True
        for _ in range(3):
            yield TextDelta("piece ")
            if self.cancelled:
                raise Cancelled("the answer was cancelled")


@pytest.mark.parametrize("presses", [1, 2, 5])
def test_an_early_ctrl_c_is_not_lost(capsys, presses):
    before = signal.getsignal(signal.SIGINT)
    Chat(None, Barely(presses), None, quiet=True)._take("Tell me a story.")
    assert "(cancelled" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before


def test_completion():
    def complete(words, place):
        environment = {
            **os.environ,
            "_CHERENKOV_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(place),
        }
        done = subprocess.run(
            MAIN, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        assert done.stderr == ""
        return {line.partition(",")[2] for line in done.stdout.split()}

    assert complete("cherenkov c", 1) == {"chat"}
    assert {"run", "prepare", "doctor"} <= complete("cherenkov ", 1)
    assert {"--temperature", "--top-p", "--top-k"} <= complete("cherenkov run --t", 2)
    assert complete("cherenkov chat de", 2) == {
        "de",
        "demo",
    }  # what was begun: the shell looks for folders
    assert complete("cherenkov run demo hi --backend m", 5) == {"metal", "mlx"}
    source = subprocess.run(
        MAIN,
        cwd=ROOT,
        env={**os.environ, "_CHERENKOV_COMPLETE": "bash_source"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "_CHERENKOV_COMPLETE=bash_complete" in source.stdout


_NOT_COMPLETED = {  # no name, file or folder
    *("prompt", "system", "logit_bias", "stop", "pool_gb", "max_ctx", "host", "served_name"),
    *("cors_origin", "allowed_host", "experts", "lowbit"),
}


def _parameters(command):
    for sub in getattr(command, "commands", {}).values():
        yield from _parameters(sub)
    yield from command.params


def test_every_value_that_is_a_name_a_file_or_a_folder_is_completed():
    from click import Context

    from cherenkov_cli.main import _COMMANDS, cli

    context, bare = Context(cli), set()
    for command in (cli.get_command(context, name) for name in _COMMANDS):
        for parameter in _parameters(command):
            takes_text = parameter.type.name == "text" and not getattr(parameter, "is_flag", False)
            if takes_text and not parameter.shell_complete(context, ""):
                bare.add(parameter.name)
    assert bare <= _NOT_COMPLETED


@pytest.mark.parametrize(
    ("command", "name", "kinds"),
    [
        ("run", "tools", {"file"}),
        ("run", "model", {"dir", "plain"}),
        ("prepare", "output", {"dir"}),
        ("verify", "path", {"dir"}),
        ("kernels", "name", {"plain"}),
    ],
)
def test_what_a_value_is_completed_with(command, name, kinds):
    from click import Context

    from cherenkov_cli.main import cli

    context = Context(cli)
    one = next(p for p in cli.get_command(context, command).params if p.name == name)
    assert {item.type for item in one.shell_complete(context, "")} == kinds


def test_names_that_are_completed_are_those_that_are_known():
    from cherenkov.backends import available
    from cherenkov_cli.options import BACKENDS

    assert set(BACKENDS) == {"auto", *(each.name for each in available())}
