"""Templates and parents that misbehave: each costs its render, and nothing is left behind."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from cherenkov.errors import TemplateError
from cherenkov.text import template_process
from cherenkov.text.controls import Controls
from cherenkov.text.template import ChatTemplate
from cherenkov.text.template_process import Limits, TemplateProcess

ROOT = Path(__file__).parents[2]
USER = [{"role": "user", "content": "Hi"}]
QUICK = Limits(deadline_s=2)

ESCAPES = {
    "mro": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "attr": "{{ (''|attr('__class__')).__mro__ }}",
    "globals": "{{ self.__init__.__globals__ }}",
    "cycler": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "lipsum": "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "namespace": "{% set ns = namespace(x=1) %}{{ ns.__init__.__globals__ }}",
    "raise": "{{ raise_exception.__globals__.os }}",
    "strftime": "{{ strftime_now.__globals__['os'] }}",
    "tojson": "{{ (1|tojson).__class__.__mro__ }}",
    "mutate": "{{ messages.append(1) }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}",
    "range": "{% for i in range(10**9) %}x{% endfor %}",
    "recursion": "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
    "deep": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "syntax": "{% if %}",
}
HARMLESS = {
    # What these reach is a class or a text about it, and no farther.
    "format": "{{ '{0.__class__}'.format(1) }}",
    "format by map": "{{ ['{0.__class__.__init__.__globals__}'.format]|map(attribute='__call__')|list }}",
    "format by attr": "{{ ('{0.__class__}'|attr('format'))(1) }}",
}
BOMBS = {
    "doubling": "{% set ns=namespace(s='aaaaaaaaaa') %}{% for i in range(40) %}{% set ns.s=ns.s~ns.s %}{% endfor %}{{ ns.s|length }}",
    "nested": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "multiply": "{{ ('a' * (10**9))|length }}",
    "power": "{{ (9**(9**(7 + messages|length)))|string|length }}",
    "replace": "{{ ('a'*100000).replace('a','b'*10000)|length }}",
    "center": "{{ 'a'.center(10**9)|length }}",
    "format width": "{{ '%1000000000d' % 1 }}",
    "strftime width": "{{ strftime_now('%Y' * (5 * 10**7 * messages|length)) }}",
    "output": "{% for i in range(99999) %}{{ 'x' * 999 }}{% endfor %}",
}


@pytest.mark.parametrize("name", ESCAPES)
def test_escapes_fail(name):
    with ChatTemplate(ESCAPES[name], Controls(), limits=QUICK) as template:
        for _ in range(2):
            with pytest.raises(TemplateError) as caught:
                template.render(USER)
            assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", HARMLESS)
def test_formatting_reaches_nothing(name):
    with ChatTemplate(HARMLESS[name], Controls(), limits=QUICK) as template:
        try:
            text = template.render(USER).text
        except TemplateError:
            return
    assert "__builtins__" not in text
    assert "class" not in text or "built-in method" in text or "method format" in text


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_contained_and_the_next_render_is_fine(name):
    source = "{% if messages|length > 1 %}" + BOMBS[name] + "{% endif %}fine"
    with ChatTemplate(source, Controls(), limits=QUICK) as template:
        with pytest.raises(TemplateError):
            template.render(USER * 2)
        assert template.render(USER).text == "fine"


def test_a_bomb_that_goes_off_when_compiled():
    with ChatTemplate("{{ 9**(9**9) }}", Controls(), limits=QUICK) as template:
        for _ in range(2):
            with pytest.raises(TemplateError, match="longer than 2 s"):
                template.render(USER)


@pytest.mark.skipif(
    sys.platform not in {"linux", "darwin"}, reason="nobody knows how to watch here"
)
def test_a_watched_process_is_ended_when_it_grows_though_its_parent_is_larger():
    held = bytes(300 << 20)
    assert held.count(0) == len(held)  # touched, so that it is resident
    limits = Limits(deadline_s=20, memory_bytes=200 << 20, watch=True)
    grow = "{% set ns = namespace(l=[]) %}{% for i in range(3000) %}{% set ns.l = ns.l + ['x' * (10**6 + i)] %}{% endfor %}"
    process = TemplateProcess("{% if bad %}" + grow + "{% endif %}fine", limits)
    with pytest.raises(TemplateError, match="broke its limits"):
        process.render('{"bad": true}', "{}", "\ufdd0")
    assert process.render("{}", "{}", "\ufdd0") == "fine"
    process.close()


def test_output_is_capped_by_the_parent_too(monkeypatch):
    process = TemplateProcess("{{ 'x' * 20000 }}", dataclasses.replace(QUICK, output_chars=100_000))
    assert len(process.render("{}", "{}", "\ufdd0")) == 20_000
    process._limits = dataclasses.replace(QUICK, output_chars=100)
    with pytest.raises(TemplateError, match="output is too large"):
        process.render("{}", "{}", "\ufdd0")
    assert process.pid is None


def saying(monkeypatch, tmp_path, *answers: bytes) -> TemplateProcess:
    """A process whose worker answers the first two requests as it should, and then says this."""
    worker = tmp_path / "worker.py"
    worker.write_text(
        f"""
import sys, time
for answer in [b"T0\\n", b"T0\\n", *{list(answers)!r}]:
    sys.stdin.buffer.readline()
    for part in answer.split(b"|"):
        sys.stdout.buffer.write(part)
        sys.stdout.buffer.flush()
        time.sleep(0.01)
time.sleep(60)
"""
    )
    monkeypatch.setattr("cherenkov.text.template_process._WORKER", worker)
    return TemplateProcess("", Limits(deadline_s=1, patience_s=1))


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"T2\nhi", "hi"),
        (b"T0\n", ""),
        (b"T|2|\n|h|i", "hi"),
        ("T6\näö\n\n".encode(), "äö\n\n"),
        (b"T3\n\xed\xa0\xbd", "\ud83d"),
        (b"T6\n\xed\xa0\xbd\xed\xb8\x80", "\U0001f600"),
    ],
)
def test_an_answer_may_come_in_parts(monkeypatch, tmp_path, answer, text):
    process = saying(monkeypatch, tmp_path, answer)
    assert process.render("{}", "{}", "\ufdd0") == text
    process.close()


def test_a_long_answer_grows_in_place(monkeypatch):
    """What came already is not copied for every piece: that would take seconds for the longest answers."""
    seen, is_whole = [], template_process._is_whole
    monkeypatch.setattr(
        template_process, "_is_whole", lambda answer: seen.append(answer) or is_whole(answer)
    )
    process = TemplateProcess("{{ 'x' * 500000 }}", QUICK)
    assert len(process.render("{}", "{}", "\ufdd0")) == 500_000
    assert len({id(answer) for answer in seen}) == 3  # of the start, the template and the render
    assert len(seen) > 9
    process.close()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "longer than 1 s"),
        (b"T5\nhi", "longer than 1 s"),
        (b"T1\nhi", "said more"),
        (b"T-1\nhi", "said more"),
        (b"T\nhi", "invalid literal"),
        (b"Tx\nhi", "invalid literal"),
        (b"hi" * 50, "no answer"),
        (b"E1\n5", "no answer"),
        (b"E2\nhi", "Expecting value"),
        (b"T1\n\xff", "decode"),
        (b"T9999999\n" + b"x" * 9_000, "longer than 1 s"),
    ],
)
def test_whatever_the_process_says_it_is_one_error_and_its_end(
    monkeypatch, tmp_path, answer, reason
):
    process = saying(monkeypatch, tmp_path, answer)
    with pytest.raises(TemplateError, match=reason):
        process.render("{}", "{}", "\ufdd0")
    assert process.pid is None


@pytest.mark.skipif(
    sys.platform != "linux", reason="the processor time of others is Linux's to tell"
)
def test_time_that_others_take_does_not_count():
    """The process stands still for longer than it may run, as on a machine that is very busy."""
    process = TemplateProcess("{{ a }}", Limits(deadline_s=0.2))
    assert process.render('{"a": 1}', "{}", "\ufdd0") == "1"
    os.kill(process.pid, signal.SIGSTOP)
    going_on = threading.Timer(0.8, os.kill, [process.pid, signal.SIGCONT])
    going_on.start()
    assert process.render('{"a": 2}', "{}", "\ufdd0") == "2"
    going_on.join()
    process._limits = dataclasses.replace(process._limits, patience_s=0.3)
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(TemplateError, match="it ran longer"):
        process.render('{"a": 3}', "{}", "\ufdd0")
    process.close()


# --- lifetimes ---


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _gone(pid: int, within_s: float = 30) -> bool:
    end = time.monotonic() + within_s
    while _alive(pid):
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def test_no_process_before_the_first_render_and_none_after_close():
    process = TemplateProcess("x")
    assert process.pid is None
    process.render("{}", "{}", "\ufdd0")
    pid = process.pid
    assert _alive(pid)
    process.close()
    assert not _alive(pid)
    assert process.render("{}", "{}", "\ufdd0") == "x"
    process.close()
    process.close()


def test_a_forgotten_template_ends_its_process():
    process = TemplateProcess("x")
    process.render("{}", "{}", "\ufdd0")
    pid = process.pid
    del process
    assert _gone(pid)


def test_a_process_that_was_killed_is_replaced():
    process = TemplateProcess("x")
    process.render("{}", "{}", "\ufdd0")
    os.kill(process.pid, signal.SIGKILL)
    process._process.wait()
    assert process.render("{}", "{}", "\ufdd0") == "x"
    process.close()


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("how", ["killed", "exits"])
def test_no_orphan_when_the_parent_goes(busy, how):
    nested = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    script = f"""
        import os, sys, threading
        from cherenkov.text.template_process import Limits, TemplateProcess
        process = TemplateProcess({"{% if b %}" + nested + "{% endif %}"!r}, Limits(deadline_s=1))
        process.render("{{}}", "{{}}", "x")
        print(process.pid, flush=True)
        if {busy}:
            threading.Thread(target=process.render, args=('{{"b": 1}}', "{{}}", "x"), daemon=True).start()
        sys.stdin.readline()
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    pid = int(parent.stdout.readline())
    assert _alive(pid)
    if busy:
        time.sleep(0.2)
    if how == "killed":
        parent.kill()
    parent.communicate(b"\n")
    assert _gone(pid)
