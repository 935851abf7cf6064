"""What the pool's size, the readers, predictions, the policy and the disk change is the speed: never a bit of the answer."""

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from cherenkov import prepare
from cherenkov.experts.policy import POLICIES
from cherenkov.experts.reader import RecordReader
from tests.faulty_disk import FaultyDisk
from tests.golden.engine import Engine
from tests.tiny import TINY, weights, write_hf

GREEDY = 5


class Subject:
    """A model with everything in memory, and what it answers."""

    def __init__(self, store, backend, prompt):
        self.store, self.backend, self.prompt = store, backend, prompt
        with Engine(store, backend) as engine:
            self.records = engine.experts.slots
            self.logits = engine.run(prompt).logits
            self.tokens = engine.greedy(prompt, GREEDY)

    def streamed(self, slots, **how):
        return Engine(self.store, self.backend, slots=slots, **how)

    def check(self, engine, chunks=()):
        """Twice: cold, and with what the first run left in memory."""
        for _ in range(2):
            run = engine.run(self.prompt, chunks)
            np.testing.assert_array_equal(run.logits, self.logits)
            assert engine.greedy(self.prompt, GREEDY) == self.tokens


@pytest.fixture(scope="module")
def subjects(tmp_path_factory, glow_store):
    made = [
        Subject(glow_store, "native", list(b"The sun was setting and")),
        Subject(glow_store, "reference", list(b"The sun")),
    ]
    for name, seed, backend in (
        ("plain", 7, "native"),
        ("many-experts", 8, "native"),
        ("two-streams", 9, "reference"),
    ):
        tiny, folder = TINY[name], tmp_path_factory.mktemp(name)
        source = write_hf(folder / "source", tiny.config, weights(tiny.text, seed))
        prompt = np.random.default_rng(seed).integers(0, 256, 20).tolist()
        made.append(Subject(prepare(source, folder / "store"), backend, prompt))
    return made


@settings(max_examples=40, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(data=st.data())
def test_streaming_does_not_show(subjects, data):
    subject = data.draw(st.sampled_from(subjects), "subject")
    slots = data.draw(st.integers(1, subject.records), "slots")
    readers = data.draw(st.integers(1, 8), "readers")
    lookahead = data.draw(st.sampled_from(["on", "off", "auto"]), "lookahead")
    disk = FaultyDisk(delay_s=0.0002, seed=data.draw(st.integers(0, 99), "seed"))
    make = data.draw(st.sampled_from([disk.reader, RecordReader]), "disk")
    length = len(subject.prompt)
    cut = length  # NumPy's products depend on how many rows there are; those of the kernels do not
    if subject.backend == "native":
        cut = data.draw(st.integers(1, length), "cut")
    chunks = [cut] * (length // cut) + [length % cut] * (length % cut > 0)
    how = {
        "readers": readers,
        "lookahead": lookahead,
        "policy": data.draw(st.sampled_from(sorted(POLICIES)), "policy"),
    }
    with subject.streamed(slots, make_reader=make, **how) as engine:
        subject.check(engine, chunks)
        stats = engine.experts.stats
        assert stats.misses > 0
        # With room for most, steps of few rows may lack nothing, and then nothing is predicted.
        if lookahead == "on" and 4 <= slots <= subject.records // 2:
            assert stats.predictions > 0


def test_every_pool_size(subjects):
    """From one slot to all, by the real reader."""
    subject = subjects[2]
    for slots in range(1, subject.records + 1):
        with subject.streamed(slots, readers=2, lookahead="on") as engine:
            subject.check(engine)
            assert engine.experts.resident <= slots
