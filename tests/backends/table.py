"""A backend's whole table against the reference, on layers of every geometry, several sequences, several steps."""

import numpy as np

from cherenkov.backends.base import Span
from cherenkov.backends.reference import Reference
from tests.backends.layers import Arrivals, Layers

__all__ = ["Pair"]


class Pair:
    """The same layers on a backend and on the reference."""

    def __init__(self, ops, geometry, tolerance=2e-5, seed=0):
        self.g, self.tolerance = geometry, tolerance
        self.one, self.other = Layers(ops, geometry, seed), Layers(Reference(), geometry, seed)
        self.both = (self.one, self.other)
        self.random = np.random.default_rng(seed + 1)

    def values(self, *shape):
        values = self.random.normal(size=shape).astype(np.float32)
        return [layers.ops.array(values.copy()) for layers in self.both]

    def wide(self, rows):
        return self.values(rows, self.g.streams * self.g.hidden)

    def same(self, ours, theirs, what=""):
        ours, theirs = self.one.ops.host(ours), self.other.ops.host(theirs)
        assert ours.shape == theirs.shape, what
        assert ours.dtype == np.float32
        scale = max(1.0, float(np.abs(theirs).max(initial=0)))
        worst = float(np.abs(ours - theirs).max(initial=0)) / scale
        assert worst <= self.tolerance, (what, worst)

    def embed(self):
        tokens = np.array([self.g.vocab - 1, 0, 3], np.int32)
        self.same(*(layers.ops.embed(layers.embedding(), tokens) for layers in self.both))

    def residual(self, rows):
        wide = self.wide(rows)
        for injects in (True, False):
            made = [
                layers.ops.read_residual(layers.residual(injects=injects), wide[i])
                for i, layers in enumerate(self.both)
            ]
            self.same(made[0][0], made[1][0], "block")
            if not injects:
                assert made[0][1] is None
                continue
            self.same(made[0][1], made[1][1], "gain")
            target = self.wide(rows)
            self.same(
                *(
                    layers.ops.inject(target[i], made[i][0], made[i][1])
                    for i, layers in enumerate(self.both)
                ),
                "injected",
            )

    def sequences(self, turns):
        """For each turn: rows in all, and the spans of three sequences as (start, stop, position)."""
        lengths = [0, 0, 0]
        for counts in turns:
            stops = np.cumsum(counts).tolist()
            yield (
                stops[-1],
                [
                    (stop - count, stop, length)
                    for stop, count, length in zip(stops, counts, lengths, strict=True)
                    if count
                ],
                [i for i, count in enumerate(counts) if count],
            )
            lengths = [length + count for length, count in zip(lengths, counts, strict=True)]

    def delta(self, turns):
        weights = [layers.delta() for layers in self.both]
        states = [
            [layers.ops.delta_state(weights[i]) for _ in range(3)]
            for i, layers in enumerate(self.both)
        ]
        for rows, spans, which in self.sequences(turns):
            x = self.values(rows, self.g.hidden)
            self.same(
                *(
                    layers.ops.delta_net(
                        weights[i],
                        x[i],
                        [Span(*span, states[i][n]) for span, n in zip(spans, which, strict=True)],
                    )
                    for i, layers in enumerate(self.both)
                ),
                f"delta {rows}",
            )
        position = sum(np.array(turns)[:, 0])
        for n in range(3):
            self.same(states[0][n].history, states[1][n].history, "history")
            settled = [
                layers.ops.settled(weights[i], states[i][n], position)
                for i, layers in enumerate(self.both)
            ]
            self.same(*settled, "matrix")

    def attention(self, turns, biased=False, tokens=64):
        weights = [layers.attention(biased=biased) for layers in self.both]
        states = [[layers.attention_state(tokens) for _ in range(3)] for layers in self.both]
        for rows, spans, which in self.sequences(turns):
            x = self.values(rows, self.g.hidden)
            self.same(
                *(
                    layers.ops.sparse_attention(
                        weights[i],
                        x[i],
                        [Span(*span, states[i][n]) for span, n in zip(spans, which, strict=True)],
                    )
                    for i, layers in enumerate(self.both)
                ),
                f"attention {rows}",
            )
        for n in range(3):
            assert states[0][n].length == states[1][n].length
            for name in ("keys", "values", "index_keys", "block_keys"):
                self.same(getattr(states[0][n], name), getattr(states[1][n], name), name)

    def ple(self, turns):
        weights = [layers.ple() for layers in self.both]
        states = [[layers.ple_state() for _ in range(3)] for layers in self.both]
        for rows, spans, which in self.sequences(turns):
            wide, features = self.wide(rows), self.values(rows, self.g.features)
            self.same(
                *(
                    layers.ops.ple(
                        weights[i],
                        wide[i],
                        features[i],
                        [Span(*span, states[i][n]) for span, n in zip(spans, which, strict=True)],
                    )
                    for i, layers in enumerate(self.both)
                ),
                f"ple {rows}",
            )
        for n in range(3):
            self.same(states[0][n].history, states[1][n].history, "history")

    def mixture(self, rows, waves):
        read = [layers.residual() for layers in self.both]
        for normalise in (True, False):
            router = [layers.router(normalise=normalise) for layers in self.both]
            shared = [layers.shared() for layers in self.both]
            wide = self.wide(rows)
            choices = [
                layers.ops.choose(read[i], router[i], wide[i]) for i, layers in enumerate(self.both)
            ]
            np.testing.assert_array_equal(choices[0].ids, choices[1].ids)
            used = list(dict.fromkeys(choices[0].ids.ravel().tolist()))
            parts = [used[i::waves] for i in range(min(waves, len(used)))]
            layout, records = self.one.records()
            self.same(
                *(
                    layers.ops.mixture(
                        shared[i],
                        wide[i],
                        choices[i],
                        Arrivals(layers.ops, layout, records, parts),
                    )
                    for i, layers in enumerate(self.both)
                ),
                f"mixture {rows} {waves}",
            )

    def around(self):
        fuse = [layers.fuse() for layers in self.both]
        embedding = [layers.embedding() for layers in self.both]
        head = [layers.head() for layers in self.both]
        wide, tokens = self.wide(3), np.array([0, 5, 2], np.int32)
        self.same(
            *(
                layers.ops.fuse(fuse[i], embedding[i], tokens, wide[i])
                for i, layers in enumerate(self.both)
            ),
            "fuse",
        )
        self.same(
            *(layers.ops.logits(head[i], wide[i], [2, 0]) for i, layers in enumerate(self.both)),
            "logits",
        )
        if self.tolerance > 1e-3:
            return  # near is not the same token
        best = [
            layers.ops.argmax(head[i], wide[i], [2, 0, 1]) for i, layers in enumerate(self.both)
        ]
        np.testing.assert_array_equal(*best)
