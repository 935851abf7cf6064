"""Plain arithmetic in float64, to hold a backend against."""

import math

import numpy as np

__all__ = ["EPS", "close", "double", "norm", "random", "sigmoid", "silu"]

EPS = 1e-5


def random(seed):
    rng = np.random.default_rng(seed)

    def draw(*shape, scale=1.0):
        return (rng.normal(size=shape) * scale).astype(np.float32)

    return draw


def close(actual, expected, tolerance=2e-5):
    expected = np.asarray(expected)
    assert actual.dtype == np.float32
    assert actual.shape == expected.shape
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * scale)


def double(*arrays):
    return [np.asarray(a, dtype=np.float64) for a in arrays]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def norm(vector, weight):
    return vector / math.sqrt((vector**2).mean() + EPS) * weight
