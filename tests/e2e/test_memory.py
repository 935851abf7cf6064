"""Memory is what the plan says, and not more."""

import dataclasses
import io
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from cherenkov import Model, budget
from cherenkov.experts.report import Report
from cherenkov.inspection import inspect
from cherenkov_cli.main import run

QUESTION = "What is the capital of France?"


def _arrays(value):
    if isinstance(value, np.ndarray):
        yield value
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            if field.name == "_head":  # the draft head's cache, once more
                continue
            yield from _arrays(getattr(value, field.name))
    elif isinstance(value, dict):
        for part in value.values():
            yield from _arrays(part)
    elif isinstance(value, tuple):
        for part in value:
            yield from _arrays(part)


@pytest.mark.parametrize("context", [64, 300, 2048])
def test_a_sequence_takes_what_was_planned(glow_store, context):
    with Model.load(glow_store, context_tokens=context, pool=0.001) as model:
        network = model._loaded.network
        state = network.new_state(context)
        taken = sum(a.nbytes for a in _arrays(state))
        assert taken == pytest.approx(model.plan.state_bytes, rel=0.01)
        assert model.experts.pool.memory.nbytes == model.plan.pool_bytes


def test_state_does_not_grow_while_generating(glow_store):
    with Model.load(glow_store, context_tokens=64, pool=0.001) as model:
        network = model._loaded.network
        made = []
        plain = network.new_state
        network.new_state = lambda tokens: made.append(plain(tokens)) or made[-1]
        model.generate(QUESTION, ignore_eos=True, max_tokens=40)
        (state,) = made
        assert sum(a.nbytes for a in _arrays(state)) == pytest.approx(
            model.plan.state_bytes, rel=0.01
        )
        assert state.position <= 64


PEAK = """
import functools, pathlib, resource, sys
from cherenkov import Model, budget, model
store, pool, context, room, root, text = sys.argv[1:]

def status(name):
    words = pathlib.Path("/proc/self/status").read_text().split()
    return int(words[words.index(name + ":") + 1]) * 1024

if root:  # another machine's files
    model.available_memory = functools.partial(budget.available_memory, pathlib.Path(root))
elif int(room):  # what `ulimit -v` does
    limit = status("VmSize") + int(room)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
with Model.load(store, context_tokens=int(context), pool=pool, lookahead="on") as loaded:
    answer = loaded.generate(text, ignore_eos=True, max_tokens=60)
    plan = loaded.plan
    assert answer.startswith("The capital of France is Paris") or len(text) > 99, answer
    print(plan.total_bytes, status("VmHWM"), plan.available_bytes, plan.slots, plan.chunk_rows)
"""

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
EVERYTHING = 9 * 64


def peak(store, *, pool, context=512, room=0, root="", text=QUESTION):
    """Planned bytes, peak of resident memory, what there was, slots and rows of a chunk, of a process that answers."""
    done = subprocess.run(
        [sys.executable, "-c", PEAK, store, pool, str(context), str(room), str(root), text],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return map(int, done.stdout.split())


@linux
def test_the_process_stays_within_the_plan(glow_store):
    planned, most, *_ = peak(glow_store, pool="0.004")
    assert most <= planned


@linux
def test_the_widest_chunks_of_a_prompt_are_in_the_plan(glow_store):
    text = "The quick brown fox jumps over the lazy dog and runs. " * 200
    planned, most, _, slots, rows = peak(glow_store, pool="0.0048", context=8192, text=text)
    assert (slots, rows) == (146, 2048)
    assert most <= planned


@linux
@pytest.mark.parametrize("pool", ["0.0048", "adaptive", "max"])
@pytest.mark.parametrize("room", [160_000_000, 280_000_000])
def test_a_limit_on_the_address_space_is_kept(glow_store, pool, room):
    planned, most, available, slots, _ = peak(glow_store, pool=pool, room=room)
    assert available <= room  # the limit is what there is
    assert most <= planned <= available
    assert 4 <= slots <= EVERYTHING


@linux
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("pool", "limit", "share"), [("max", 155_000_000, 16), ("adaptive", 193_000_000, 4)]
)
def test_a_control_group_is_kept(glow_store, tmp_path, version, pool, limit, share):
    """The files are those of such a group. What the process takes is its own affair, so the test is a real one."""
    folder = tmp_path / "sys/fs/cgroup" / ("memory" if version == 1 else "")
    folder.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("4:memory:/\n" if version == 1 else "0::/\n")
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
    names = names if version == 1 else ("memory.max", "memory.current")
    for name, size in zip(names, (limit, 0), strict=True):
        (folder / name).write_text(f"{size}\n")
    planned, most, available, slots, _ = peak(glow_store, pool=pool, root=tmp_path)
    assert available == limit
    assert 4 < slots < EVERYTHING  # the limit decides
    assert most <= planned <= limit - limit // share  # the margin is there


def test_the_smallest_pool_that_inspect_prints_runs(glow_store, tmp_path, capsys):
    assert run(["inspect", str(glow_store)]) == 0
    said = re.search(r"--pool-gb ([0-9.]+)", capsys.readouterr().out)
    file = tmp_path / "stats.json"
    options = ("--pool-gb", said[1], "--stats-json", str(file), "-q")
    assert run([str(glow_store), QUESTION, *options]) == 0
    assert capsys.readouterr().out == "The capital of France is Paris.\n"
    report = Report.read(file)
    assert report.slots == 4  # the experts of one token in one layer
    assert report.totals.misses > report.totals.hits
    less = str(float(said[1]) * 0.99)
    assert run([str(glow_store), QUESTION, "--pool-gb", less]) == 1
    assert f"the smallest pool for this model is {said[1]} GB" in capsys.readouterr().err


@pytest.mark.parametrize(("pool", "slots"), [("adaptive", 576), ("max", 576), ("0.0048", 146)])
def test_every_command_takes_a_pool(glow_store, tmp_path, monkeypatch, capsys, pool, slots):
    file = tmp_path / "stats.json"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(QUESTION.encode())))
    written = ("--stats-json", str(file), "-q", "--max-ctx", "512")
    for command in (["run", str(glow_store), QUESTION], ["chat", str(glow_store)]):
        assert run([*command, "--pool-gb", pool, *written]) == 0
        assert Report.read(file).slots == slots
    capsys.readouterr()
    assert run(["inspect", str(glow_store), "--json", "--pool-gb", pool, "--max-ctx", "512"]) == 0
    memory = json.loads(capsys.readouterr().out)["memory"]
    assert memory["refusal"] is None
    assert memory["plan"]["slots"] == slots
    assert memory["plan"]["share"] == slots / 576
    assert memory["plan"]["context_tokens"] == 512


def test_inspect_says_why_there_is_no_plan(glow_store, monkeypatch):
    small = budget.Memory(50_000_000, 50_000_000, "this control group")
    monkeypatch.setattr(budget, "available_memory", lambda: small)
    memory = inspect(glow_store)["memory"]
    assert memory["plan"] is None
    assert "this control group has 50 MB available; this model needs at least" in memory["refusal"]
    assert (memory["available_bytes"], memory["available_in"]) == (50_000_000, small.source)
