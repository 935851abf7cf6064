"""A layer's steps are their parts, bit for bit; what they keep between calls does not grow; few regions are handed over."""

import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from cherenkov.backends.base import Span
from cherenkov.backends.reference import Reference
from cherenkov.errors import BackendError
from tests.backends.choices import CHOICES, needs_kernels, start
from tests.backends.layers import ODD, PLAIN, SMALL, WIDE, Arrivals, Geometry, Layers

REFERENCE = ("reference", "")
GEOMETRIES = {"small": SMALL, "wide": WIDE, "odd": ODD, "plain": PLAIN}


def backend(isa, precision, threads=2):
    return Reference() if isa == "reference" else start(isa, precision, threads)


every_backend = pytest.mark.parametrize(("isa", "precision"), [*CHOICES, REFERENCE])
every_geometry = pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES.keys())


class Steps:
    """A layer of each kind on a backend, taken step by step or part by part."""

    def __init__(self, ops, geometry):
        self.ops, self.g = ops, geometry
        self.layers = layers = Layers(ops, geometry)
        self.read = layers.residual()
        self.delta, self.attention = layers.delta(), layers.attention()
        self.router, self.shared = layers.router(), layers.shared()
        self.layout, self.records = layers.records()

    def wide(self, rows, seed=0):
        values = np.random.default_rng(seed).normal(size=(rows, self.g.streams * self.g.hidden))
        return self.ops.array(values.astype(np.float32))

    def state(self, kind):
        return self.layers.delta_state() if kind == "delta" else self.layers.attention_state()

    def mix(self, kind, wide, spans):
        if kind == "delta":
            return self.ops.mix_delta(self.read, self.delta, wide, spans)
        return self.ops.mix_attention(self.read, self.attention, wide, spans)

    def mix_in_parts(self, kind, wide, spans):
        ops = self.ops
        x, gain = ops.read_residual(self.read, wide)
        if kind == "delta":
            return ops.inject(wide, ops.delta_net(self.delta, x, spans), gain)
        return ops.inject(wide, ops.sparse_attention(self.attention, x, spans), gain)

    def choose(self, wide):
        return self.ops.choose(self.read, self.router, wide)

    def mixture(self, wide, choice, waves=1):
        return self.ops.mixture(self.shared, wide, choice, self.arrivals(choice.ids, waves))

    def mixture_in_parts(self, wide):
        ops = self.ops
        x, gain = ops.read_residual(self.read, wide)
        routes = ops.route(self.router, x)
        block = ops.experts(self.shared, x, routes, self.arrivals(routes.ids))
        return routes.ids, ops.inject(wide, block, gain)

    def arrivals(self, ids, waves=1):
        used = list(dict.fromkeys(ids.ravel().tolist()))
        parts = [used[i::waves] for i in range(min(waves, len(used)))]
        return Arrivals(self.ops, self.layout, self.records, parts)


def parts_of(state):
    names = "history", "matrix", "keys", "values", "index_keys", "block_keys", "length"
    return [np.array(getattr(state, name)) for name in names if hasattr(state, name)]


@every_backend
@every_geometry
@pytest.mark.parametrize("kind", ["delta", "attention"])
def test_mixing_is_reading_mixing_injecting(isa, precision, geometry, kind):
    steps = Steps(backend(isa, precision), geometry)
    random = np.random.default_rng(1)
    sequences = [(steps.state(kind), steps.state(kind)) for _ in range(3)]
    lengths = [0, 0, 0]
    for turn in range(6):
        counts = random.integers(1, [2, 9, 4, 2, 6, 2][turn], size=3, endpoint=True).tolist()
        stops = np.cumsum(counts).tolist()
        whole, parted = (
            [
                Span(stop - count, stop, length, pair[which])
                for stop, count, length, pair in zip(stops, counts, lengths, sequences, strict=True)
            ]
            for which in (0, 1)
        )
        wide = steps.wide(stops[-1], seed=turn)
        expected = steps.mix_in_parts(kind, steps.ops.copy(wide), parted)
        np.testing.assert_array_equal(steps.mix(kind, wide, whole), expected)
        lengths = [length + count for length, count in zip(lengths, counts, strict=True)]
    for one, other in sequences:
        for a, b in zip(parts_of(one), parts_of(other), strict=True):
            np.testing.assert_array_equal(a, b)
    steps.ops.close()


@every_backend
@every_geometry
@pytest.mark.parametrize("rows", [1, 2, 17])
def test_a_mixture_is_reading_routing_experts_injecting(isa, precision, geometry, rows):
    steps = Steps(backend(isa, precision), geometry)
    wide = steps.wide(rows)
    ids, expected = steps.mixture_in_parts(steps.ops.copy(wide))
    for waves in (1, 2, 100):
        copy = steps.ops.copy(wide)
        choice = steps.choose(copy)
        np.testing.assert_array_equal(choice.ids, ids)
        np.testing.assert_array_equal(steps.mixture(copy, choice, waves), expected)
    steps.ops.close()


@every_backend
def test_choices_may_wait_for_one_another(isa, precision):
    steps = Steps(backend(isa, precision), WIDE)
    wides = [steps.wide(rows, seed=rows) for rows in (3, 1, 8)]
    expected = [steps.mixture_in_parts(steps.ops.copy(wide))[1] for wide in wides]
    for order in ([0, 1, 2], [2, 0, 1]):
        copies = [steps.ops.copy(wide) for wide in wides]
        choices = [steps.choose(wide) for wide in copies]
        for i in order:
            np.testing.assert_array_equal(steps.mixture(copies[i], choices[i]), expected[i])
    steps.ops.close()


class Broken:
    """Arrivals of which only the first wave comes."""

    def __init__(self, arrivals, error=None):
        self.pool, self.waves, self.error = arrivals.pool, arrivals.waves, error

    def __iter__(self):
        yield self.waves[0]
        if self.error is not None:
            raise self.error


@needs_kernels
def test_a_mixture_that_fails_spoils_nothing():
    steps = Steps(start(""), WIDE)
    wide = steps.wide(4)
    expected = steps.mixture_in_parts(steps.ops.copy(wide))[1]
    for error in (None, OSError("the disk is gone")):
        copy = steps.ops.copy(wide)
        choice = steps.choose(copy)
        arrivals = Broken(steps.arrivals(choice.ids, waves=2), error)
        with pytest.raises((BackendError, OSError), match=r"not every expert|the disk is gone"):
            steps.ops.mixture(steps.shared, copy, choice, arrivals)
        np.testing.assert_array_equal(copy, wide)  # nothing is injected before everything is there
        with pytest.raises(BackendError, match="has had its experts"):
            steps.mixture(copy, choice)
        np.testing.assert_array_equal(steps.mixture(copy, steps.choose(copy)), expected)


NO_MEMORY = """
import resource
from pathlib import Path

import numpy as np

from cherenkov import _native
from cherenkov.backends.native_weights import expert_record, residual_weights, shared_weights
from cherenkov.errors import BackendError
from tests.backends.choices import start
from tests.backends.layers import SMALL
from tests.backends.test_layer_steps import Steps

steps, mixture = Steps(start("", threads=1), SMALL), _native.Mixture()
engine, read, gate = steps.ops._engine, residual_weights(steps.read), steps.router.gate.placed
arrivals = steps.arrivals(np.arange(SMALL.experts))


def choose(wide):
    ids = np.zeros((len(wide), SMALL.top_k), np.int32)
    engine.choose(read, gate, True, wide, mixture, ids)


choose(steps.wide(2))
many = np.zeros((200_000, SMALL.streams * SMALL.hidden), np.float32)
held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + (%d << 20), -1))
wave = arrivals.waves[0]
for call in (
    lambda: choose(many),
    lambda: engine.expert_wave(
        mixture, shared_weights(steps.shared), expert_record(steps.layout), arrivals.pool.memory, wave.experts, wave.slots, many
    ),
):
    try:
        call()
    except BackendError as error:
        print(error)
"""


@needs_kernels
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
@pytest.mark.skipif(
    "asan" in os.environ.get("LD_PRELOAD", ""), reason="AddressSanitizer maps all memory there is"
)
@pytest.mark.parametrize("left_mib", [20, 350])
def test_a_choice_without_memory_is_none(left_mib):
    """Neither where its own memory is missing, nor where that of its computation is."""
    done = subprocess.run(
        [sys.executable, "-c", NO_MEMORY % left_mib], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert "choose: there is not enough memory" in first
    assert "has had its experts" in second


@needs_kernels
def test_an_expert_that_comes_twice_is_computed_once():
    steps = Steps(start(""), WIDE)
    wide = steps.wide(4)
    expected = steps.mixture_in_parts(steps.ops.copy(wide))[1]
    choice = steps.choose(wide)
    arrivals = steps.arrivals(choice.ids, waves=2)
    arrivals.waves.insert(1, arrivals.waves[0])
    np.testing.assert_array_equal(steps.ops.mixture(steps.shared, wide, choice, arrivals), expected)


@needs_kernels
def test_a_choice_has_its_experts_once():
    steps = Steps(start(""), SMALL)
    wide = steps.wide(2)
    choice = steps.choose(wide)
    steps.mixture(wide, choice)
    with pytest.raises(BackendError, match="has had its experts"):
        steps.mixture(wide, choice)


@needs_kernels
def test_steps_that_do_not_fit_are_refused():
    steps = Steps(start(""), SMALL)
    other = Steps(steps.ops, WIDE)
    wide = steps.wide(2)
    final = steps.layers.residual(injects=False)
    with pytest.raises(BackendError, match="injects nothing"):
        steps.ops.mix_delta(final, steps.delta, wide, [Span(0, 2, 0, steps.state("delta"))])
    with pytest.raises(BackendError, match="injects nothing"):
        steps.ops.choose(final, steps.router, wide)
    with pytest.raises(BackendError, match="shapes"):
        steps.ops.mix_delta(steps.read, other.delta, wide, [Span(0, 2, 0, other.state("delta"))])
    with pytest.raises(BackendError, match="shapes"):
        steps.mix("delta", other.wide(2), [Span(0, 2, 0, steps.state("delta"))])
    with pytest.raises(BackendError, match="state"):
        steps.mix("delta", wide, [Span(0, 2, 0, other.state("delta"))])
    for kind in ("delta", "attention"):
        for spans in ((), ((0, 1),), ((1, 2),), ((0, 2), (1, 2)), ((0, 2), (0, 2))):
            listed = [Span(start, stop, 0, steps.state(kind)) for start, stop in spans]
            with pytest.raises(BackendError, match="every row"):
                steps.mix(kind, wide, listed)
    with pytest.raises(BackendError, match="shapes"):
        steps.ops.choose(steps.read, other.router, wide)
    with pytest.raises(BackendError, match="shapes"):
        other.mixture(other.wide(2), steps.choose(wide))
    with pytest.raises(BackendError, match="shapes"):
        steps.mixture(steps.wide(3), steps.choose(wide))
    fresh = start("")
    choice = steps.choose(wide)
    steps.ops.close()
    with pytest.raises(BackendError, match="closed"):
        steps.mixture(wide, choice)
    fresh.close()


@needs_kernels
def test_a_repeated_step_allocates_nothing():
    """Neither scratch memory nor arrays beyond a few numbers a row, also after a wider step."""
    steps = Steps(start(""), WIDE)
    rows = 48
    states = steps.state("delta"), steps.state("attention")
    arrivals = steps.arrivals(np.arange(WIDE.experts))

    def held():
        engine = steps.ops._engine
        return engine.scratch_bytes, [mixture.bytes for mixture in steps.ops._mixtures]

    def step(count):
        wide = steps.wide(count)
        tracemalloc.start()
        steps.mix("delta", wide, [Span(0, count, 0, states[0])])
        steps.mix("attention", wide, [Span(0, count, 0, states[1])])
        steps.ops.mixture(steps.shared, wide, steps.choose(wide), arrivals)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak

    for _ in range(2):
        step(rows)
    before = held()
    assert before[0] > 0
    assert before[1][0] >= rows * WIDE.top_k * WIDE.hidden * 4
    assert len(before[1]) == 1
    for count in (rows, 1, 7, rows):
        assert step(count) < count * 64 + 8192
        assert held() == before


# As wide as matters: a region is handed over where that pays, which small layers never do.
BROAD = Geometry(
    hidden=1024,
    streams=4,
    rank=320,
    key_heads=8,
    value_heads=16,
    key_dim=128,
    value_dim=128,
    heads=16,
    kv_heads=2,
    head_dim=128,
    index_heads=8,
    index_dim=64,
    block=16,
    budget=64,
    experts=64,
    top_k=8,
    inter=256,
    group=64,
)


@needs_kernels
def test_a_decoded_row_is_few_regions():
    steps = Steps(start("", ""), BROAD)
    engine = steps.ops._engine
    wide = steps.wide(1)
    arrivals = steps.arrivals(np.arange(BROAD.experts))

    def regions(call):
        before = engine.regions
        call()
        return engine.regions - before

    short, long = steps.layers.attention_state(), steps.layers.attention_state(2048)
    long.length = 2000
    found = {
        "mix_delta": regions(
            lambda: steps.mix("delta", wide, [Span(0, 1, 0, steps.state("delta"))])
        ),
        "mix_attention": regions(lambda: steps.mix("attention", wide, [Span(0, 1, 0, short)])),
        "choosing blocks": regions(lambda: steps.mix("attention", wide, [Span(0, 1, 2000, long)])),
        "choose": regions(lambda: steps.choose(wide)),
    }
    choice = steps.choose(wide)
    found["mixture"] = regions(lambda: steps.ops.mixture(steps.shared, wide, choice, arrivals))
    most = {"mix_delta": 5, "mix_attention": 6, "choosing blocks": 7, "choose": 3, "mixture": 2}
    assert all(0 < found[name] <= most[name] for name in most), found


@needs_kernels
def test_the_pool_may_lie_on_huge_pages():
    """Not whether it does, which is the system's choice, but whether the system would."""
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists() or "[never]" in setting.read_text():
        pytest.skip("this system has no transparent huge pages")
    steps = Steps(start(""), SMALL)
    memory = steps.ops.pool(steps.layout, (16 << 20) // steps.layout.stride_bytes).memory
    address, found = memory.ctypes.data, ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()[0]
        if "-" in head:
            low, high = (int(end, 16) for end in head.split("-"))
            inside = low <= address < high
        elif inside and head == "THPeligible:":
            found = line.split()[1]
    if not found:
        pytest.skip("this system does not tell")
    assert found == "1"
