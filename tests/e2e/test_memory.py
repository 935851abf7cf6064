"""Memory is what the plan says, and not more."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from cherenkov import Model

QUESTION = "What is the capital of France?"


def _arrays(value):
    if isinstance(value, np.ndarray):
        yield value
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
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
        network = model._engine.network
        state = network.new_state(context)
        taken = sum(a.nbytes for a in _arrays(state))
        assert taken == pytest.approx(model.plan.state_bytes, rel=0.01)
        assert model.experts.pool.memory.nbytes == model.plan.pool_bytes


def test_state_does_not_grow_while_generating(glow_store):
    with Model.load(glow_store, context_tokens=64, pool=0.001) as model:
        network = model._engine.network
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
import pathlib, sys
from cherenkov import Model
with Model.load(sys.argv[1], context_tokens=512, pool=0.004) as model:
    model.generate("What is the capital of France?", ignore_eos=True, max_tokens=100)
    status = pathlib.Path("/proc/self/status").read_text().split()
    print(model.plan.total_bytes, int(status[status.index("VmHWM:") + 1]) * 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_process_stays_within_the_plan(glow_store):
    run = subprocess.run(
        [sys.executable, "-c", PEAK, str(glow_store)], capture_output=True, text=True, check=True
    )
    planned, peak = map(int, run.stdout.split())
    assert peak <= planned * 1.1
