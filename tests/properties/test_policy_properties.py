"""What holds for every policy and every trace."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cherenkov.experts.policy import EMPTY, POLICIES
from cherenkov.experts.simulator import Belady, simulate
from cherenkov.experts.traces import Recorder

LAYERS, EXPERTS = 3, 8


@st.composite
def traces(draw, widest=4):
    """Passes over layers, of a few rows or of a prompt."""
    recorder = Recorder(LAYERS, EXPERTS)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kinds = draw(st.lists(st.sampled_from([1, 1, 1, 2, 70]), min_size=1, max_size=40))
    favour = rng.dirichlet(np.full(EXPERTS, 0.5), LAYERS) + 1e-6
    for rows in kinds:
        for layer in range(LAYERS):
            p = favour[layer] / favour[layer].sum()
            pick = [
                rng.choice(EXPERTS, min(2, widest // min(rows, 2)), replace=False, p=p)
                for _ in range(rows)
            ]
            recorder(layer, np.array(pick, np.int32).reshape(rows, -1)[:, :1])
            if rng.random() < 0.1:
                favour[layer] = rng.dirichlet(np.full(EXPERTS, 0.5)) + 1e-6
    return recorder.trace()


@settings(max_examples=60, deadline=None)
@given(trace=traces(), slots=st.integers(2, 20), stream=st.sampled_from([64, 10**9]))
def test_nobody_reads_less_than_the_optimum(trace, slots, stream):
    if stream > 64:
        slots = max(slots, EXPERTS)  # so that every pass fits: else the optimum is another
    best = simulate(trace, Belady(slots, trace), slots, stream_rows=stream)
    for kind in POLICIES.values():
        found = simulate(trace, kind(slots, LAYERS, EXPERTS), slots, stream_rows=stream)
        total = found.hits + found.misses + found.prompt_hits + found.prompt_misses
        assert total == best.hits + best.misses + best.prompt_hits + best.prompt_misses
        assert best.misses + best.prompt_misses <= found.misses + found.prompt_misses


@settings(max_examples=40, deadline=None)
@given(trace=traces(), slots=st.integers(2, 20))
def test_the_same_events_give_the_same_decisions(trace, slots):
    for kind in POLICIES.values():
        first, second = (simulate(trace, kind(slots, LAYERS, EXPERTS), slots) for _ in range(2))
        assert first == second


EVENT = st.one_of(
    st.tuples(st.just("used"), st.integers(0, LAYERS - 1), st.lists(st.integers(0, 7), min_size=1)),
    st.tuples(st.just("victims"), st.integers(0, 8), st.integers(0, 2**6 - 1)),
    st.tuples(st.just("admits"), st.lists(st.integers(0, 23), unique=True), st.integers(0, 63)),
    st.tuples(st.just("left"), st.integers(0, 5), st.none()),
)


@settings(max_examples=150, deadline=None)
@given(events=st.lists(EVENT, max_size=40), data=st.data())
def test_a_slot_that_is_not_allowed_is_never_named(events, data):
    for kind in POLICIES.values():
        policy = kind(6, LAYERS, EXPERTS)
        for what, a, b in events:
            if what == "used":
                policy.used(a, np.array(b, np.int32)[:, None])
                continue
            if what == "left":
                policy.left(a)
                continue
            allowed = np.array([b >> i & 1 for i in range(6)], bool)
            if what == "victims":
                slots = policy.victims(a, allowed)
                assert len(slots) == min(a, allowed.sum())
                records = np.array(
                    [r for r in range(24) if r not in policy.record_in.tolist()][: len(slots)]
                )
            else:
                offered = np.array([r for r in a if r not in policy.record_in.tolist()], np.int64)
                records, slots = policy.admits(offered, allowed)
                assert set(records.tolist()) <= set(offered.tolist())
                assert len(records) == len(slots) <= allowed.sum()
            assert allowed[slots].all()
            assert len(set(slots.tolist())) == len(slots)
            for slot, record in zip(slots.tolist(), records.tolist(), strict=True):
                if policy.record_in[slot] != EMPTY:
                    policy.left(slot)
                policy.arrived(slot, record, predicted=data.draw(st.booleans()))
