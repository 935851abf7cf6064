"""The simulator and the store count the same: what is decided on traces holds where it matters."""

import numpy as np
import pytest

from cherenkov.backends.base import ExpertPool
from cherenkov.experts.policy import POLICIES
from cherenkov.experts.reader import RecordReader
from cherenkov.experts.simulator import Belady, simulate
from cherenkov.experts.store import ExpertStore
from cherenkov.experts.traces import Recorder
from cherenkov.packing.layout import ExpertLayout

LAYERS, EXPERTS, TOP_K, STEPS = 4, 24, 3, 150
LAYOUT = ExpertLayout(inter=32, hidden=32, group=32)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    path = tmp_path_factory.mktemp("records") / "experts.bin"
    path.write_bytes(bytes(LAYERS * EXPERTS * LAYOUT.stride_bytes))
    return path


def asked(seed):
    """Steps of one row, unevenly spread over the experts, which is what routers do."""
    rng = np.random.default_rng(seed)
    favour = rng.dirichlet(np.full(EXPERTS, 0.4), LAYERS) + 1e-3
    for step in range(STEPS):
        if step == STEPS // 2:  # the text turns to something else
            favour = rng.dirichlet(np.full(EXPERTS, 0.4), LAYERS) + 1e-3
        for layer in range(LAYERS):
            p = favour[layer] / favour[layer].sum()
            yield layer, rng.choice(EXPERTS, (1, TOP_K), replace=False, p=p).astype(np.int32)


def run(path, slots, policy):
    """Misses of a store, and the trace it was asked."""
    memory = np.zeros((slots, LAYOUT.stride_bytes), dtype=np.uint8)
    reader = RecordReader(path, LAYOUT.stride_bytes, EXPERTS, None)
    store = ExpertStore(ExpertPool(LAYOUT, memory), reader, LAYERS, EXPERTS, policy=policy)
    recorder = Recorder(LAYERS, EXPERTS)
    store.listener = recorder
    try:
        for layer, ids in asked(slots):
            with store.acquire(layer, ids) as lease:
                assert sum(len(wave.experts) for wave in lease) == TOP_K
        return store.stats.misses, store.stats.hits, recorder.trace()
    finally:
        store.close()


@pytest.mark.parametrize("slots", [16, 30, 60])
@pytest.mark.parametrize("name", POLICIES)
def test_a_store_reads_what_the_simulator_says(name, slots, records):
    policy = POLICIES[name]
    misses, hits, trace = run(records, slots, policy)
    simulated = simulate(trace, policy(slots, LAYERS, EXPERTS), slots)
    assert hits + misses == simulated.hits + simulated.misses == STEPS * LAYERS * TOP_K
    # The store ranks victims for a few decisions at a time, so it may know a little less than the simulator.
    assert misses == pytest.approx(simulated.misses, rel=0.08)
    assert misses >= simulate(trace, Belady(slots, trace), slots).misses
