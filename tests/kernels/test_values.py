"""What the table's comparison does not reach: ties, every row's state, mixed widths, draws from a vocabulary."""

import re
from pathlib import Path

import numpy as np
import pytest

mx = pytest.importorskip("mlx.core", reason="MLX is not installed")

from cherenkov.backends import kernel_calls as calls  # noqa: E402
from cherenkov.backends import product_calls as products  # noqa: E402
from cherenkov.backends import tile_calls as tiles  # noqa: E402
from cherenkov.backends.launches import EmulationLauncher  # noqa: E402
from cherenkov.backends.mlx_matrices import Matrix  # noqa: E402
from cherenkov.checkpoint.affine import dequantise  # noqa: E402
from cherenkov.packing.layout import ExpertLayout  # noqa: E402
from tests.backends.layers import Geometry, host_matrix, record  # noqa: E402
from tests.kernels.cases import cases  # noqa: E402
from tests.kernels.emulated import EMULATION  # noqa: E402

pytestmark = pytest.mark.timeout(600)
LAUNCH = EmulationLauncher(EMULATION)


def floats(*arrays):
    return [mx.array(np.asarray(a, np.float32)) for a in arrays]


def test_blocks_are_chosen_as_by_a_stable_sort():
    rng = np.random.default_rng(0)
    for keep, blocks in ((60, 700), (1, 300), (64, 70)):
        scores = rng.integers(0, 5, (3, blocks)).astype(np.float32) / 4
        scores[1, blocks // 2 :] = -1
        scores[2] = 0
        (chosen,) = LAUNCH(calls.select(mx.array(scores), keep))
        for row, found in zip(scores, np.array(chosen), strict=True):
            order = np.argsort(-row, kind="stable")[:keep]
            expected = np.sort(order[row[order] >= 0])
            np.testing.assert_array_equal(found[: len(expected)], expected)
            assert (found[len(expected) :] == -1).all()


def test_experts_are_chosen_as_by_a_stable_sort():
    scores = np.random.default_rng(1).integers(0, 3, (4, 70)).astype(np.float32)
    ids, weights, places = LAUNCH(calls.route(mx.array(scores), 70, 40, normalise=False))
    chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :40]
    np.testing.assert_array_equal(np.array(ids), expected)
    np.testing.assert_array_equal(np.array(places), expected)
    np.testing.assert_allclose(weights, np.take_along_axis(chances, expected, 1), rtol=1e-5)


def test_the_most_likely_token_ties_to_the_lowest():
    logits = np.random.default_rng(2).integers(0, 9, (3, 40_000)).astype(np.float32)
    logits[2] = -np.inf
    logits[2, 777] = -3
    best, places = LAUNCH(calls.argmax(mx.array(logits)))
    value, found = LAUNCH(calls.argmax(best, places))
    np.testing.assert_array_equal(np.array(found)[:, 0], logits.argmax(axis=1))
    np.testing.assert_array_equal(np.array(value)[:, 0], logits.max(axis=1))


def test_draws_follow_the_probabilities():
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(6, 5000)).astype(np.float32) * 3
    draws, by = rng.random(6), rng.uniform(0.5, 2, 6)
    arrays = floats(logits, logits.max(axis=1), draws, by)
    (token,) = LAUNCH(calls.sample(*arrays))
    weights = np.exp((logits.astype(np.float64) - logits.max(axis=1, keepdims=True)) * by[:, None])
    sums = np.cumsum(weights, axis=1) / weights.sum(axis=1, keepdims=True)
    for row, chosen, draw in zip(sums, np.array(token), draws, strict=True):
        before = row[chosen - 1] if chosen else 0.0
        assert before - 1e-5 <= draw <= row[chosen] + 1e-5


def test_the_state_after_every_row_is_that_of_single_steps():
    whole = cases()["delta-step-every"]
    y, states = LAUNCH(whole)
    one = cases()["delta-step"]
    conv, a, b, a_log, dt_bias, z, norm, state, params, dims = one.inputs
    dims = mx.array([1, *dims.tolist()[1:]], mx.int32)
    for n in range(conv.shape[0]):
        rows = [x[n : n + 1] for x in (conv, a, b)]
        step = type(one)(
            one.kernel,
            [*rows, a_log, dt_bias, z[n : n + 1], norm, state, params, dims],
            [("float32", (1, z.shape[1])), one.outputs[1]],
            one.grid,
            one.threads,
            one.template,
        )
        made, state = LAUNCH(step)
        np.testing.assert_array_equal(np.array(made)[0], np.array(y)[n])
        np.testing.assert_array_equal(np.array(state), np.array(states)[n])


def test_slots_may_hold_records_of_different_widths():
    g = Geometry(hidden=96, inter=64)
    rng = np.random.default_rng(4)
    widths, x = (4, 2, 8, 3), rng.normal(size=(2, g.hidden)).astype(np.float32)
    stride = ExpertLayout(g.inter, g.hidden, 8, 32).stride_bytes
    memory, expected = np.zeros((4, stride), np.uint8), []
    for slot, bits in enumerate(widths):
        layout = ExpertLayout(g.inter, g.hidden, bits, 32)
        shapes = (g.inter, g.hidden), (g.inter, g.hidden), (g.hidden, g.inter)
        values = [rng.normal(size=s).astype(np.float32) * s[1] ** -0.5 for s in shapes]
        bytes_of = record(layout, values)
        memory[slot, : len(bytes_of)] = bytes_of
        gate, up, down = (dequantise(host_matrix(v, bits, 32)) for v in values)
        hidden = x @ gate.T
        expected.append((hidden / (1 + np.exp(-hidden)) * (x @ up.T)) @ down.T)
    layout = ExpertLayout(g.inter, g.hidden, 4, 32)
    pool, tags = mx.array(memory.view(np.uint32)), mx.array([*widths, *[4] * 4], mx.int32)
    slots, rows = mx.array([0, 1, 2, 3, 3, 0], mx.int32), mx.array([0, 0, 1, 1, 0, 1], mx.int32)
    (h,) = LAUNCH(products.expert_up(layout, pool, tags, slots, rows, mx.array(x), mixed=True))
    (y,) = LAUNCH(products.expert_down(layout, pool, tags, slots, h, mixed=True))
    for made, slot, row in zip(np.array(y), slots.tolist(), rows.tolist(), strict=True):
        np.testing.assert_allclose(made, expected[slot][row], atol=2e-5)


@pytest.mark.parametrize(("bits", "shape"), [(2, (33, 384)), (4, (40, 1280)), (8, (20, 256))])
def test_matrix_units_multiply_as_exactly_as_float_and_each_row_by_itself(bits, shape):
    rng = np.random.default_rng(bits)
    values = mx.array(rng.normal(size=shape).astype(np.float32)).astype(mx.bfloat16)
    parts = mx.quantize(values, group_size=64, bits=bits)
    exact = np.array(
        mx.dequantize(*(parts[0], *(p.astype(mx.float32) for p in parts[1:])), 64, bits)
    )
    # rows of very different size, numbers within a row too
    x = rng.normal(size=(4, shape[1])) * 10.0 ** rng.integers(-3, 4, (4, shape[1]))
    x = (x * [[1e-20], [1.0], [1e15], [0.0]]).astype(np.float32)
    matrix = Matrix(shape, bits, 64, *parts)
    for cut in (tiles.tiling_of(shape), tiles.Tiling(2, 1, 1, 2, 2)):
        (whole,) = LAUNCH(tiles.product(mx.array(x), matrix, tiling=cut))
        expected = x.astype(np.float64) @ exact.astype(np.float64).T
        scale = np.abs(x).astype(np.float64) @ np.abs(exact).astype(np.float64).T
        assert (np.abs(np.array(whole) - expected) <= 1e-6 * scale).all()
        for row in range(4):
            (one,) = LAUNCH(tiles.product(mx.array(x[row : row + 1]), matrix, tiling=cut))
            np.testing.assert_array_equal(np.array(one)[0], np.array(whole)[row])


def test_the_example_of_the_page(capsys):
    page = (Path(__file__).parents[2] / "docs/kernels.md").read_text("utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    ours = example.replace("EmulationLauncher()", "EmulationLauncher(EMULATION)")
    exec(compile(ours, "docs/kernels.md", "exec"), {"EMULATION": EMULATION})
    out = capsys.readouterr().out
    assert out.startswith(example.split("[]\n")[0].rsplit("# ", 1)[1])
    assert "[[kernel]] void custom_kernel_scaled_sum_float_float_float_int32_t_float(" in out
