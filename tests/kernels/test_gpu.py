"""The same on a GPU: `pytest -m metal` on Apple Silicon, `pytest -m cuda` on NVIDIA. Elsewhere these skip."""

import numpy as np
import pytest

from cherenkov.backends import create
from cherenkov.backends.base import Options
from tests.backends.layers import WIDE, Geometry
from tests.gpus import on

pytestmark = pytest.mark.timeout(900)  # the first run compiles
TURNS = [(1, 2, 5), (1, 1, 1), (7, 0, 9), (2, 30, 1), (1, 1, 1)]
GEOMETRIES = {
    "four-bit": Geometry(),
    "wide": WIDE,
    "two-bit": Geometry(bits=2, hidden=96, streams=2),
    "three-bit": Geometry(bits=3, group=64, inter=64, key_dim=32),
    "eight-bit": Geometry(bits=8, group=32, inter=96, gate="silu"),
}


@pytest.fixture(scope="module", params=[on("metal"), on("cuda")])
def name(request):
    return request.param


@pytest.fixture(scope="module", params=GEOMETRIES)
def pair(request, name):
    from tests.backends.table import Pair

    return Pair(create(name, Options(precision="float32")), GEOMETRIES[request.param], 2e-3)


def test_the_table(pair):
    pair.embed()
    for rows in (1, 3, 6):
        pair.residual(rows)
    pair.delta(TURNS)
    pair.attention(TURNS, biased=True)
    pair.ple(TURNS[:3])
    for rows in (1, 2, 12):
        for waves in (1, 3):
            pair.mixture(rows, waves)
    pair.around()


def test_every_kernel_is_what_the_emulator_says(name):
    from cherenkov.backends.launches import CudaLauncher, EmulationLauncher, MetalLauncher
    from cherenkov.backends.mlx_owner import OWNER
    from tests.kernels.cases import cases
    from tests.kernels.emulated import EMULATION

    launch = MetalLauncher() if name == "metal" else CudaLauncher()
    emulate = EmulationLauncher(EMULATION)

    def compare():
        for what, call in cases().items():
            for ours, theirs in zip(launch(call), emulate(call), strict=True):
                one, other = np.array(ours, np.float64), np.array(theirs, np.float64)
                largest = np.abs(other[np.isfinite(other)]).max(initial=0)
                apart = one != other  # where both are infinite they are not
                np.testing.assert_allclose(
                    one[apart], other[apart], rtol=2e-4, atol=2e-4 * largest, err_msg=what
                )

    OWNER.call(compare)


def test_auto_trusts_it(name):
    from cherenkov.backends import doubt_of

    made = create("auto")
    assert (made.name, doubt_of(made)) == (name, "")


def test_float32_products_are_not_rounded(name):
    """Of many rows too, which MLX multiplies; its default on NVIDIA is TF32."""
    import mlx.core as mx

    from cherenkov.backends.mlx_owner import OWNER

    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((64, 512)), rng.standard_normal((512, 512))

    def product():
        return np.array(mx.array(x.astype(np.float32)) @ mx.array(w.astype(np.float32)))

    np.testing.assert_allclose(OWNER.call(product), x @ w, atol=2e-4)


def test_experts_that_no_kernel_takes(name):
    """Those in BF16: stock operations take them."""
    from tests.backends.table import Pair

    pair = Pair(create(name), Geometry(bits=16), tolerance=2e-2)
    with pytest.warns(RuntimeWarning, match="experts: no kernel for 16 bits a value"):
        pair.mixture(2, 1)
    for rows, waves in ((2, 3), (20, 1)):
        pair.mixture(rows, waves)


def test_the_demo_model_answers_without_our_kernels(name):
    """On the same device: `name` only says which."""
    from cherenkov import Model

    with Model.load("demo", backend="mlx") as model:
        assert "on the GPU" in model.backend_name
        assert model.generate("What is the capital of France?") == "The capital of France is Paris."


def test_the_demo_model_answers(name):
    from cherenkov import Model

    with Model.load("demo", backend=name) as model:
        assert model.generate("What is the capital of France?") == "The capital of France is Paris."
        assert name in model.backend_name


def test_the_pool_does_not_show(name, glow_store):
    from tests.golden.engine import Engine

    prompt = list(b"The sun was setting and")
    with Engine(glow_store, name) as engine:
        records, whole = engine.experts.slots, engine.run(prompt).logits
        tokens = engine.greedy(prompt, 5)
    for slots in (1, 5, records // 4):
        with Engine(glow_store, name, slots=slots) as engine:
            for _ in range(2):
                np.testing.assert_array_equal(engine.run(prompt).logits, whole)
                assert engine.greedy(prompt, 5) == tokens
