"""The kernels, in the backends that use them, against the reference: every operation, odd shapes, several sequences."""

import warnings

import pytest

from cherenkov.backends import available
from tests.backends.layers import ODD, WIDE, Geometry

MLX = next(a for a in available() if a.name == "mlx")
# The first run compiles; later ones find what it made.
pytestmark = [
    pytest.mark.skipif(not MLX.usable, reason=MLX.reason),
    pytest.mark.timeout(900),
]

GEOMETRIES = {
    "four-bit": Geometry(),
    "wide": WIDE,
    "two-bit": Geometry(bits=2, hidden=96, streams=2),
    "three-bit": Geometry(bits=3, group=64, inter=64, key_dim=32),
    "eight-bit": Geometry(bits=8, group=32, inter=96, gate="silu"),
    "tiles": Geometry(hidden=128, group=64, rank=64, inter=128, streams=4),
}
TURNS = [(1, 2, 5), (1, 1, 1), (7, 0, 9), (2, 30, 1), (1, 1, 1)]


@pytest.fixture(scope="module", params=GEOMETRIES)
def pair(request):
    from tests.backends.table import Pair
    from tests.kernels.emulated import Emulated

    return Pair(Emulated(tiles=request.param == "tiles"), GEOMETRIES[request.param])


def test_residual(pair):
    for rows in (1, 3, 6):
        pair.residual(rows)


def test_delta_net(pair):
    pair.delta(TURNS)


def test_attention(pair):
    pair.attention(TURNS, biased=True)


def test_ngram_features(pair):
    pair.ple(TURNS[:3])


@pytest.mark.parametrize("rows", [1, 2, 12])
def test_mixture(pair, rows):
    for waves in (1, 3):
        pair.mixture(rows, waves)


def test_around_the_layers(pair):
    pair.embed()
    pair.around()


def test_heads_that_no_kernel_takes_are_left_to_mlx_and_that_is_said_once():
    from tests.backends.table import Pair
    from tests.kernels.emulated import Emulated

    pair = Pair(Emulated(), ODD)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        pair.delta(TURNS[:1])
    texts = [str(one.message) for one in said]
    assert sum("delta_net: no kernel for value heads of 9" in text for text in texts) == 1
    assert sum("products: no kernel for 37 columns of values" in text for text in texts) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pair.delta(TURNS[:2])
        pair.attention(TURNS[:3])
    with pytest.warns(RuntimeWarning, match="experts: no kernel for 16 bits a value"):
        pair.mixture(2, 2)


def test_experts_that_no_kernel_takes_are_left_to_mlx_and_that_is_said_once():
    from tests.backends.table import Pair
    from tests.kernels.emulated import Emulated

    pair = Pair(Emulated(), Geometry(bits=16))
    with pytest.warns(RuntimeWarning, match="experts: no kernel for 16 bits a value"):
        pair.mixture(2, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pair.mixture(2, 2)
