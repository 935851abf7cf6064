"""A rehearsal says what a layer would choose, and leaves no trace of having been: the next call finds everything as it was."""

from dataclasses import replace

import numpy as np
import pytest

from cherenkov.backends import native_weights
from cherenkov.backends.base import AttentionState
from tests.backends.choices import start
from tests.backends.layers import ODD, SMALL
from tests.backends.test_stretch import KINDS, Trunk, spans_of

pytestmark = pytest.mark.skipif(bool(native_weights.missing), reason="no native kernels here")
TOKENS = 64
LARGE = replace(SMALL, key_dim=64, value_dim=64, value_heads=8)  # whose heads are several chunks


def rehearse(trunk, layer, wide, spans, features, most=-1):
    """What a layer would choose; None if it was given up, as it is after so many chunks."""
    ops, wide = trunk.ops, wide.copy()
    ids = np.empty((len(wide), trunk.blocks[0].router.top_k), dtype=np.int32)
    held = ops._describe(trunk.blocks, ops._trunk)
    bound = [(s.start, s.stop, s.position, ops._bound(held, trunk.blocks, s.state)) for s in spans]
    given = [features.get(i) for i in range(len(KINDS))]
    return ids if ops._engine.rehearse(held, layer, bound, wide, given, ids, most) else None


def memory(sequence, block):
    """All that counts: of a cache, what lies before its end."""
    for state in (*sequence.layers, *sequence.ple.values()):
        if isinstance(state, AttentionState):
            yield from (
                getattr(state, part)[: state.length] for part in ("keys", "values", "index_keys")
            )
            yield state.block_keys[: state.length // block]
        else:
            yield from (
                getattr(state, part)
                for part in ("history", "matrix", "pending")
                if hasattr(state, part)
            )


def trunks(geometry, sequences):
    ops = start("", "", 2)
    trunk = Trunk(ops, geometry)
    return ops, trunk, *([trunk.sequence(TOKENS) for _ in range(sequences)] for _ in range(2))


@pytest.mark.parametrize("given_up", [False, True], ids=["whole", "given up"])
@pytest.mark.parametrize("geometry", [SMALL, ODD, LARGE], ids=["small", "odd", "large"])
def test_a_rehearsal_leaves_no_trace(geometry, given_up):
    """Before every step each layer is rehearsed on something else, by as many rows or as few, or half way."""
    ops, trunk, ours, theirs = trunks(geometry, 3)
    random = np.random.default_rng(1)
    ended = set()
    while max(s.position for s in ours) < TOKENS - 10:
        counts = random.integers(1, 5, 3).tolist()
        for layer in random.permutation(len(KINDS)).tolist() * 2:
            others = random.integers(1, 3, 3).tolist() if random.random() < 0.3 else counts
            wide, features = trunk.rows(sum(others), int(random.integers(1 << 30)))
            most = int(random.integers(40)) if given_up else -1
            said = rehearse(trunk, layer, wide, spans_of(ours, others), features, most)
            ended.add(said is not None)
        wide, features = trunk.rows(sum(counts), int(random.integers(1 << 30)))
        expected, *_ = trunk.run(ops.stretch, wide.copy(), spans_of(theirs, counts), features)
        found, *_ = trunk.run(ops.stretch, wide, spans_of(ours, counts), features)
        np.testing.assert_array_equal(found, expected)
        for one, other, count in zip(ours, theirs, counts, strict=True):
            for a, b in zip(
                memory(one, geometry.block), memory(other, geometry.block), strict=True
            ):
                np.testing.assert_array_equal(a, b)
            one.position += count - int(random.integers(count))  # some rows are taken back
            other.position = one.position
    assert ended == ({False, True} if given_up else {True})
    ops.close()


def test_what_it_says_is_what_the_layer_chooses():
    """Given the layer's true input, at every place in a chunk."""
    ops, trunk, ours, _ = trunks(SMALL, 1)
    for turn in range(40):
        wide, features = trunk.rows(1, turn)
        spans, said = spans_of(ours, [1]), []
        for layer in range(len(KINDS)):
            said.append(rehearse(trunk, layer, wide, spans, features))
            reach = range(layer, layer + 1)
            wide, ids, _ = ops.stretch(trunk.blocks, reach, wide, spans, features, trunk.here)
            np.testing.assert_array_equal(said[-1], ids[0])
        ours[0].position += 1
    ops.close()


def test_features_are_asked_for_when_a_layer_comes_to_them():
    ops, trunk, (ours,), (theirs,) = trunks(SMALL, 1)
    wide, features = trunk.rows(2, 3)
    asked = []

    class Awaited(dict):
        def __missing__(self, layer):
            asked.append(layer)
            self[layer] = features[layer]
            return self[layer]

    expected, *_ = trunk.run(ops.stretch, wide.copy(), spans_of([theirs], [2]), features)
    found, _, calls = trunk.run(ops.stretch, wide.copy(), spans_of([ours], [2]), Awaited())
    np.testing.assert_array_equal(found, expected)
    assert asked == sorted(features)
    assert calls == 1

    class Broken(dict):
        def __missing__(self, layer):
            raise OSError(f"layer {layer}")

    spans = spans_of([trunk.sequence()], [2])
    with pytest.raises(OSError, match="layer 3"):
        trunk.run(ops.stretch, wide, spans, Broken({0: features[0]}))
    ops.close()
