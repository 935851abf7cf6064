"""`cherenkov serve` as a process: what it says, and how signals end it."""

import contextlib
import re
import signal
import socket
import subprocess
import sys
import threading

import httpx
import pytest

from cherenkov_cli.main import run

SCRIPTED = """
import sys
from cherenkov.testing import Pause, ScriptedModel
from cherenkov_server.config import load_config
from cherenkov_server.serve import serve

def script(request):
    return ["a", Pause(float(request.messages[-1]["content"])), "b"]

config, _ = load_config({"server.port": 0, "limits.shutdown_seconds": 5.0})
engine = ScriptedModel(script)
sys.exit(serve(config, engine, name="m", say=lambda text: print(text, file=sys.stderr, flush=True)))
"""


def started(*arguments):
    """A process, and where it serves."""
    process = subprocess.Popen(
        [sys.executable, *arguments], stderr=subprocess.PIPE, text=True, stdout=subprocess.DEVNULL
    )
    lines = []
    for line in process.stderr:
        lines.append(line)
        if found := re.search(r"serving \S+ at (http://\S+)", line):
            return process, found[1], lines
    raise AssertionError(f"it never served: {lines}")


@pytest.fixture
def scripted():
    process, url, _ = started("-c", SCRIPTED)
    yield process, url
    process.kill()
    process.communicate()


def ask(url, seconds, found):
    body = {"messages": [{"role": "user", "content": str(seconds)}]}
    try:
        found.append(httpx.post(f"{url}/v1/chat/completions", json=body, timeout=30).json())
    except httpx.TransportError as error:
        found.append(error)


def asking(url, seconds):
    found = []
    thread = threading.Thread(target=ask, args=(url, seconds, found))
    thread.start()
    while not httpx.get(f"{url}/v1/requests").json()["data"]:
        pass
    return thread, found


def test_the_first_signal_lets_answers_end(scripted):
    process, url = scripted
    thread, found = asking(url, 0.5)
    process.send_signal(signal.SIGTERM)
    thread.join()
    assert found[0]["choices"][0]["message"]["content"] == "ab"
    assert process.wait(20) == 0


def test_the_second_signal_does_not_wait(scripted):
    process, url = scripted
    thread, found = asking(url, 60)
    process.send_signal(signal.SIGTERM)
    while httpx.get(f"{url}/health").status_code != 503:
        pass
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 128 + signal.SIGINT
    thread.join()
    assert isinstance(found[0], httpx.TransportError)


def test_an_interrupt_of_an_idle_server(scripted):
    process, _ = scripted
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130


def test_a_log_that_nobody_reads(scripted):
    process, url = scripted
    with httpx.Client(base_url=url) as client:
        for _ in range(1200):  # more than a pipe and the queue hold
            assert client.get("/health/" + "x" * 200).status_code == 404
        assert client.get("/health").is_success
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0


@pytest.fixture
def command(capsys, monkeypatch):
    """The command, in this process: what it says and with which code it ends."""
    monkeypatch.setattr(
        "cherenkov_server.serve.logging_to_stderr", lambda **_: contextlib.nullcontext()
    )

    def command(*arguments):
        code = run(["serve", *arguments])
        said = capsys.readouterr()
        return code, said.out, said.err.splitlines()

    return command


def test_what_the_command_refuses(command, tmp_path):
    store = tmp_path / "store"
    store.mkdir()
    (store / "manifest.json").write_text("{")
    only_stores = tmp_path / "only.toml"
    only_stores.write_text("[experts]\nbuild_missing_store = false\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        busy = command("demo", "--port", str(taken.getsockname()[1]))
    found = (
        (busy, "Address already in use"),
        (command("demo", "--host", "0.0.0.0"), "--no-auth"),
        (command("demo", "--host", "no such host", "--no-auth"), "cannot listen"),
        (command(str(tmp_path / "none"), "--port", "0", "-q"), "no model"),
        (command(str(store), "--port", "0", "-q"), "manifest.json"),
        (command("demo", "--config", str(tmp_path / "none.toml")), "no such file"),
        (command("demo", "--config", str(only_stores), "--port", "0", "-q"), "is no store"),
        (command("demo", "--backend", "slide-rule", "--port", "0", "-q"), "slide-rule"),
    )
    for (code, _, lines), words in found:
        assert code == 1
        (error,) = [line for line in lines if "listening" not in line]
        assert error.startswith("cherenkov: ")
        assert words in error


def test_print_config(command, monkeypatch):
    monkeypatch.setenv("CHERENKOV_LIMITS_MAX_SESSIONS", "3")
    flags = ("--port", "0", "--cors-origin", "https://a.example")
    code, out, _ = command("m", "--print-config", *flags)
    assert code == 0
    assert re.search(r"^port = 0 +# flag$", out, re.MULTILINE)
    assert re.search(r"^max_sessions = 3 +# CHERENKOV_LIMITS_MAX_SESSIONS$", out, re.MULTILINE)
    assert re.search(r'^cors_origins = \["https://a.example"\] +# flag$', out, re.MULTILINE)


def test_no_secret_is_said(command, tmp_path):
    file = tmp_path / "keys"
    file.write_text("canary-key-1\n")
    _, out, lines = command("m", "--print-config", "--api-key-file", str(file))
    assert "canary-key-1" not in out + "".join(lines)
    assert "keys" in out
