"""Policies decide by events alone; the simulator counts what follows; traces survive their files."""

import json
import sys
import zlib

import numpy as np
import pytest

from cherenkov.errors import CorruptModel, UnsupportedModel
from cherenkov.experts.policy import DEFAULT, EMPTY, POLICIES, Frequency, Lru, Periodic
from cherenkov.experts.simulator import Belady, simulate
from cherenkov.experts.traces import Recorder, Trace, interleaved
from cherenkov.packing.integrity import checksum


def ids(*rows):
    return np.array(rows, dtype=np.int32)


def everything(slots):
    return np.ones(slots, dtype=np.bool_)


def trace_of(layers, experts, *events):
    recorder = Recorder(layers, experts)
    for layer, rows in events:
        recorder(layer, np.array(rows, dtype=np.int32))
    return recorder.trace()


def fill(policy, *records):
    for slot, record in enumerate(records):
        policy.arrived(slot, record)


def test_the_least_recently_used_leaves():
    policy = Lru(3, layers=1, experts=8)
    policy.used(0, ids([5, 6, 7]))
    fill(policy, 6, 5, 7)
    policy.used(0, ids([5]))
    assert policy.victims(2, everything(3)).tolist() == [0, 2]


def test_what_was_used_often_outlives_what_was_used_last():
    for kind in (Frequency, Periodic):
        policy = kind(2, layers=1, experts=8)
        for _ in range(5):
            policy.used(0, ids([3]))
        policy.used(0, ids([4]))
        fill(policy, 3, 4)
        assert policy.victims(1, everything(2)).tolist() == [1]


def test_of_equals_the_layer_that_is_due_last_leaves():
    policy = Periodic(4, layers=4, experts=2)
    for layer in (0, 1, 2, 3, 0, 1):
        policy.used(layer, ids([0]))
    policy._means[:] = 0.5  # equal chances: only the order of layers is left
    policy.table[:] = -2
    fill(policy, 0, 2, 4, 6)
    # layer 1 has just run; next come 2, 3, 0, 1
    assert policy.victims(4, everything(4)).tolist() == [1, 0, 3, 2]


def test_empty_slots_go_first_and_missing_ones_are_not_invented():
    for kind in POLICIES.values():
        policy = kind(4, layers=1, experts=8)
        policy.used(0, ids([0, 1]))
        policy.arrived(2, 0)
        policy.arrived(0, 1)
        assert set(policy.victims(2, everything(4)).tolist()) == {1, 3}
        assert policy.victims(9, np.array([0, 0, 1, 0], bool)).tolist() == [2]
        assert policy.victims(1, np.zeros(4, bool)).tolist() == []


def test_a_batch_of_layers_counts_as_the_layers_one_by_one():
    rng = np.random.default_rng(0)
    for kind in POLICIES.values():
        one, many = (kind(4, layers=6, experts=16) for _ in range(2))
        for rows in (1, 3, 80):
            batch = np.stack(
                [[rng.permutation(16)[:4] for _ in range(rows)] for _ in range(5)]
            ).astype(np.int32)
            for i, layer in enumerate(batch):
                one.used(1 + i, layer)
            many.used(1, batch)
        np.testing.assert_array_equal(one.table, many.table)
        records = np.arange(96)
        np.testing.assert_array_equal(one.worth(records), many.worth(records))


def test_frequencies_are_means_that_fade():
    policy = Frequency(1, layers=2, experts=4)
    expected = np.zeros(4)
    for used, rows in (([0], 1), ([1, 1], 2), ([1, 2, 2, 2], 4)):
        policy.used(1, np.array(used, np.int32)[:, None])
        kept = 0.97**rows
        expected = kept * expected + (1 - kept) * np.bincount(used, minlength=4) / rows
    np.testing.assert_allclose(policy.table[1], expected)
    assert not policy.table[0].any()


def test_a_prompt_counts_as_few_steps():
    answer, prompt = (Frequency(1, layers=1, experts=2) for _ in range(2))
    for _ in range(Frequency.longest):
        answer.used(0, ids([1]))
    prompt.used(0, np.ones((500, 1), np.int32))
    np.testing.assert_allclose(answer.table, prompt.table)


def test_a_predicted_record_stays_until_its_layer_has_run():
    for kind in POLICIES.values():
        policy = kind(2, layers=3, experts=4)
        policy.used(0, ids([1]))
        policy.arrived(0, 1)
        policy.arrived(1, 4, predicted=True)  # of layer 1, never used
        assert policy.victims(1, everything(2)).tolist() == [0]
        assert len(policy.admits(np.array([8]), np.array([False, True]))[0]) == 0
        policy.used(0, ids([1]))  # another layer keeps the promise open
        assert policy.victims(1, everything(2)).tolist() == [0]
        policy.used(1, ids([2]))
        assert policy.victims(1, everything(2)).tolist() == [1]
        policy.arrived(1, 4, predicted=True)
        policy.left(1)
        policy.arrived(1, 5)
        assert policy._promises == 0


def test_what_passes_once_does_not_enter():
    policy = Frequency(2, layers=1, experts=8)
    for _ in range(50):
        policy.used(0, ids([0, 1]))
    fill(policy, 0, 1)
    policy.used(0, np.array([[2, 3]] * 63 + [[4, 5]], np.int32))
    records, _ = policy.admits(np.array([4, 5, 2, 3]), everything(2))
    assert records.tolist() == []
    for _ in range(40):
        policy.used(0, np.array([[2, 3]] * 63 + [[2, 5]], np.int32))
    records, slots = policy.admits(np.array([4, 5, 2, 3]), everything(2))
    assert records.tolist() == [2, 3]
    assert sorted(slots.tolist()) == [0, 1]


def test_the_default_is_known():
    assert DEFAULT in POLICIES


# --- simulator


def test_a_simulation_counts_what_a_person_would():
    trace = trace_of(
        1, 8, (0, [[0, 1]]), (0, [[0, 2]]), (0, [[1, 2]]), (0, [[3, 4]] * 64), (0, [[1, 2]])
    )
    found = simulate(trace, Lru(2, 1, 8), 2)
    # 0 1 missed; 0 hit, 2 for 1; 2 hit, 1 for 0; the prompt washes 1 and 2 out; both missed
    assert (found.hits, found.misses, found.prompt_hits, found.prompt_misses) == (2, 6, 0, 2)
    assert found.hit_rate == 0.25
    best = simulate(trace, Belady(2, trace), 2)
    assert (best.hits, best.misses) == (4, 4)


def test_a_prompt_does_not_wash_out_what_is_used():
    """Steps of an answer, a long text about something else, and the answer goes on."""
    rng = np.random.default_rng(1)

    def answer(count):
        return [(0, [rng.choice(8, 3, replace=False)]) for _ in range(count)]

    text = (0, [rng.choice(np.arange(8, 32), 3, replace=False) for _ in range(200)])
    trace = trace_of(1, 32, *answer(40), text, *answer(40))
    misses = {name: simulate(trace, kind(8, 1, 32), 8).misses for name, kind in POLICIES.items()}
    assert misses["lru"] == 16  # everything again
    assert misses["frequency"] == misses["periodic"] == 8


def test_more_experts_than_slots_come_in_groups():
    trace = trace_of(1, 8, (0, [[0, 1, 2, 3, 4]]), (0, [[4, 0, 1, 2, 3]]))
    for kind in POLICIES.values():
        found = simulate(trace, kind(2, 1, 8), 2)
        assert found.hits + found.misses == 10
        assert found.misses >= 8


# --- traces


@pytest.fixture
def trace():
    return trace_of(
        2, 300, (0, [[1, 2]]), (1, [[3, 4]]), (0, [[5, 299], [7, 8]]), (1, [[9, 1]] * 2)
    )


def listed(trace):
    return [(layer, rows.tolist()) for layer, rows in trace]


def test_a_trace_survives_its_file(trace, tmp_path):
    trace.save(tmp_path / "a.trace")
    again = Trace.load(tmp_path / "a.trace")
    assert listed(again) == listed(trace)
    assert (again.layers, again.experts, again.top_k) == (2, 300, 2)
    assert [len(step) for step in again.steps()] == [2, 2]
    first = (tmp_path / "a.trace").read_bytes()
    again.save(tmp_path / "b.trace")
    assert (tmp_path / "b.trace").read_bytes() == first


def test_an_empty_trace_survives_too(tmp_path):
    Recorder(2, 3).trace().save(tmp_path / "a.trace")
    assert listed(Trace.load(tmp_path / "a.trace")) == []
    assert list(Trace.load(tmp_path / "a.trace").steps()) == []


def test_recorders_take_many_layers_at_once_and_copy_them():
    single, batched = Recorder(4, 9), Recorder(4, 9)
    ids = np.arange(12, dtype=np.int32).reshape(3, 2, 2) % 9
    for i in range(3):
        single(1 + i, ids[i])
    batched(1, ids)
    ids[:] = 0
    assert listed(single.trace()) == listed(batched.trace())


def test_interleaved_requests_share_steps_but_not_prompts():
    a = trace_of(
        2, 9, (0, [[1]] * 3), (1, [[2]] * 3), (0, [[3]]), (1, [[4]]), (0, [[5]]), (1, [[6]])
    )
    b = trace_of(2, 9, (0, [[7]]), (1, [[8]]))
    assert listed(interleaved([a, b])) == [
        (0, [[1]] * 3), (1, [[2]] * 3), (0, [[3], [7]]), (1, [[4], [8]]), (0, [[5]]), (1, [[6]]),
    ]  # fmt: skip


def forge(path, body=None, **changes):
    line, _, rest = path.read_bytes().partition(b"\n")
    head = json.loads(line) | changes
    if body is not None:
        rest = body
        head["checksum"] = f"{checksum(rest):016x}"
    path.write_bytes(json.dumps(head).encode() + b"\n" + rest)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kind": "letters"}, "not a routing trace"),
        ({"layers": -1}, "not a count"),
        ({"events": 1 << 40}, "not a count"),
        ({"events": True}, "not a count"),
        ({"events": 3}, "longer or shorter"),
        ({"experts": 299}, "contradicts itself"),
        ({"layers": 1}, "contradicts itself"),
        ({"top_k": 3}, "contradicts itself"),
        ({"checksum": "0" * 16}, "the checksum does not match"),
        ({"body": b"nothing"}, "cannot be decompressed"),
        ({"body": zlib.compress(bytes(10**7))}, "longer or shorter"),
        ({"body": zlib.compress(b"")}, "longer or shorter"),
    ],
)
def test_damaged_traces_are_refused(changes, reason, trace, tmp_path):
    trace.save(tmp_path / "a.trace")
    forge(tmp_path / "a.trace", **changes)
    with pytest.raises(CorruptModel, match=reason):
        Trace.load(tmp_path / "a.trace")


def test_other_files_and_later_traces_are_refused(trace, tmp_path):
    path = tmp_path / "a.trace"
    with pytest.raises(CorruptModel, match="missing"):
        Trace.load(path)
    for text in (b"", b"{", b"[1]\n", b"\xff\xfe"):
        path.write_bytes(text)
        with pytest.raises(CorruptModel, match="not a routing trace"):
            Trace.load(path)
    trace.save(path)
    forge(path, version=2)
    with pytest.raises(UnsupportedModel, match="version 2"):
        Trace.load(path)


def test_hits_cost_a_few_calls_whatever_their_number(monkeypatch):
    """Counted, not timed: the Python and NumPy functions that a report of hits runs through."""

    def calls(layers):
        policy = POLICIES[DEFAULT](100, layers=48, experts=64)
        ids = np.tile(np.arange(8, dtype=np.int32), (layers, 1, 1))
        seen = []
        sys.setprofile(lambda frame, event, what: seen.append(event) if "call" in event else None)
        try:
            policy.used(0, ids)
        finally:
            sys.setprofile(None)
        return len(seen)

    assert calls(48) == calls(1)
    assert calls(48) < 40


def test_nothing_is_held_of_an_empty_slot():
    policy = Lru(1, 1, 2)
    policy.left(0)
    assert policy.record_in.tolist() == [EMPTY]
