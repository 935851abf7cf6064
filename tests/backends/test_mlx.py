"""The `mlx` backend against the reference, and what it promises about threads, waves and memory."""

import signal
import threading
import time

import numpy as np
import pytest

from cherenkov.backends import available, create
from cherenkov.backends.base import Options
from cherenkov.errors import BackendError
from tests.backends.layers import ODD, PLAIN, SMALL, WIDE, Arrivals, Geometry, Layers
from tests.backends.table import Pair

MLX = next(a for a in available() if a.name == "mlx")
pytestmark = pytest.mark.skipif(not MLX.usable, reason=MLX.reason)
if MLX.usable:
    from cherenkov.backends.mlx_owner import OWNER

GEOMETRIES = {
    "small": SMALL,
    "wide": WIDE,
    "odd": ODD,
    "plain": PLAIN,
    "two-bit": Geometry(bits=2),
    "three-bit": Geometry(bits=3, group=64, inter=64),
    "eight-bit": Geometry(bits=8),
}
TURNS = [(1, 2, 5), (1, 1, 1), (7, 0, 9), (1, 1, 1), (2, 30, 1), (1, 1, 1)]


@pytest.fixture(scope="module")
def ops():
    made = create("mlx")
    yield made
    made.close()


@pytest.fixture(scope="module", params=GEOMETRIES)
def pair(request, ops):
    return Pair(ops, GEOMETRIES[request.param])


def test_residual(pair):
    pair.embed()
    for rows in (1, 2, 17):
        pair.residual(rows)


def test_delta_net(pair):
    pair.delta(TURNS)


@pytest.mark.parametrize("biased", [False, True])
def test_attention(pair, biased):
    pair.attention(TURNS, biased)


def test_ngram_features(pair):
    pair.ple(TURNS)


@pytest.mark.parametrize("rows", [1, 2, 40])
@pytest.mark.parametrize("waves", [1, 3])
def test_mixture(pair, rows, waves):
    pair.mixture(rows, waves)


def test_around_the_layers(pair):
    pair.around()


def test_bf16_products_are_near():
    ops = create("mlx", Options(precision="bf16"))
    pair = Pair(ops, WIDE, tolerance=5e-2)
    pair.delta(TURNS[:3])
    pair.around()
    assert "bf16" in ops.detail


def test_rows_of_one_group_are_not_left_to_quantized_matmul(monkeypatch):
    """On Hopper MLX gets those wrong; `quantized_matmul` is for the others."""
    import mlx.core as mx

    plain, seen = mx.quantized_matmul, []

    def watched(x, codes, scales, *rest, **how):
        seen.append(scales.shape[-1])
        return plain(x, codes, scales, *rest, **how)

    monkeypatch.setattr(mx, "quantized_matmul", watched)
    for precision in ("float32", "bf16"):
        pair = Pair(create("mlx", Options(precision=precision)), WIDE, tolerance=5e-2)
        pair.residual(3)
        pair.around()
    assert seen
    assert min(seen) > 1


def test_experts_are_copied_where_views_are_refused(monkeypatch):
    from cherenkov.backends import mlx_experts

    layers = Layers(create("mlx", Options(precision="bf16")), WIDE)
    ops, read, router, shared = layers.ops, layers.residual(), layers.router(), layers.shared()
    layout, records = layers.records()
    plain = mlx_experts.mx.gather_qmm

    def contiguous(x, codes, *rest, **how):
        stride, inside = OWNER.call(lambda: np.array(codes, copy=False).strides[0]), codes[0].nbytes
        assert mlx_experts._takes_views() == (stride != inside)
        return plain(x, codes, *rest, **how)

    monkeypatch.setattr(mlx_experts.mx, "gather_qmm", contiguous)
    for rows in (1, 3, 20):
        values = np.random.default_rng(rows).normal(size=(rows, WIDE.streams * WIDE.hidden))
        wide, found = ops.array(values.astype(np.float32)), []
        for views in (True, False):
            monkeypatch.setattr(mlx_experts, "_takes_views", lambda v=views: v)
            choice = ops.choose(read, router, wide)
            used = list(dict.fromkeys(choice.ids.ravel().tolist()))
            arrivals = Arrivals(ops, layout, records, [used])
            found.append(ops.host(ops.mixture(shared, wide, choice, arrivals)))
        np.testing.assert_array_equal(*found)


def test_waves_do_not_show(ops):
    """However experts arrive, the bits are the same."""
    layers = Layers(ops, WIDE)
    read, router, shared = layers.residual(), layers.router(), layers.shared()
    layout, records = layers.records()
    for rows in (1, 3, 20):
        values = np.random.default_rng(rows).normal(size=(rows, WIDE.streams * WIDE.hidden))
        wide = ops.array(values.astype(np.float32))
        found = []
        for waves in (1, 2, 5, 100):
            choice = ops.choose(read, router, wide)
            used = list(dict.fromkeys(choice.ids.ravel().tolist()))
            parts = [used[i::waves] for i in range(min(waves, len(used)))]
            out = ops.mixture(shared, wide, choice, Arrivals(ops, layout, records, parts))
            found.append(ops.host(out))
        for other in found[1:]:
            np.testing.assert_array_equal(other, found[0])


def test_a_slot_may_be_overwritten_when_the_next_wave_is_asked_for(ops):
    layers = Layers(ops, WIDE)
    read, router, shared = layers.residual(), layers.router(), layers.shared()
    layout, records = layers.records()
    wide = ops.array(np.random.default_rng(0).normal(size=(2, 768)).astype(np.float32))
    used = list(dict.fromkeys(ops.choose(read, router, wide).ids.ravel().tolist()))
    arrivals = Arrivals(ops, layout, records, [[one] for one in used])
    expected = ops.host(ops.mixture(shared, wide, ops.choose(read, router, wide), arrivals))

    class Overwriting:
        pool = arrivals.pool
        steady = False

        def __iter__(self):
            for wave in arrivals.waves:
                yield wave
                if wave is not arrivals.waves[-1]:
                    self.pool.memory[wave.slots] = 0xFF

    out = ops.mixture(shared, wide, ops.choose(read, router, wide), Overwriting())
    ops.choose(read, router, wide)  # whatever shows the host something ends the last wave
    arrivals.pool.memory[:] = 0xFF
    np.testing.assert_array_equal(ops.host(out), expected)


def test_not_every_expert_came(ops):
    layers = Layers(ops, SMALL)
    choice = ops.choose(layers.residual(), layers.router(), ops.zeros((1, 192)))
    layout, records = layers.records()
    arrivals = Arrivals(ops, layout, records, [choice.ids.ravel().tolist()[:1]])
    with pytest.raises(BackendError, match="not every expert"):
        ops.mixture(layers.shared(), ops.zeros((1, 192)), choice, arrivals)


def test_any_thread_may_call(ops):
    layers = Layers(ops, SMALL)
    head = layers.head()
    wide = ops.inject(
        ops.zeros((1, 192)), ops.zeros((1, 64)), ops.zeros((1, 3))
    )  # not computed yet
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(ops.host(ops.logits(head, wide, [0]))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


class Alarm(Exception):
    """What a signal raises."""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("raised", [Alarm, KeyboardInterrupt])
def test_what_a_signal_raises_waits_for_the_call(raised):
    """Else whoever was interrupted would tidy up what the owner is still writing to."""
    begun, go_on, ended = threading.Event(), threading.Event(), []

    def ring(_number, _frame):
        if go_on.is_set():
            return
        go_on.set()
        raise raised

    def work():
        begun.set()
        go_on.wait(60)
        time.sleep(0.05)  # by then whoever does not wait has gone on
        ended.append(True)

    def interrupt():
        begun.wait(60)
        # Not at once: the caller must have begun to wait. One that comes just before is heard only after it: sent again.
        while not go_on.wait(0.1):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, ring)
    try:
        other = threading.Thread(target=interrupt)
        other.start()
        with pytest.raises(raised):
            OWNER.call(work)
        assert ended
        other.join()
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.timeout(60)
def test_a_signal_that_is_heard_when_the_call_has_just_ended():
    """It came to another thread, so that waiting was not interrupted; it must not wait once more."""

    def ring(_number, _frame):
        raise Alarm

    def call():
        OWNER.call(lambda: signal.raise_signal(signal.SIGUSR1))
        time.sleep(1)  # it may be heard only after the call

    before = signal.signal(signal.SIGUSR1, ring)
    try:
        with pytest.raises(Alarm):
            call()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_the_pool_is_its_memory(ops):
    layers = Layers(ops, SMALL)
    pool = ops.pool(layers.records()[0], 3)
    pool.memory[1] = 7
    assert pool.memory.shape == (3, layers.records()[0].stride_bytes)
    assert ops.host(pool.words)[1, :4].tolist() == [float(np.float32(0x07070707))] * 4


def test_what_mlx_refuses_names_the_operation(ops):
    with pytest.raises(BackendError, match="backend mlx: inject: "):
        ops.inject(ops.zeros((1, 192)), ops.zeros((1, 63)), ops.zeros((1, 3)))


def test_rows_are_taken_and_stacked_without_the_host(ops):
    values = np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32)
    wide = ops.array(values)
    np.testing.assert_array_equal(ops.host(ops.take(wide, [3, 0, 3])), values[[3, 0, 3]])
    np.testing.assert_array_equal(ops.host(ops.stack([wide, wide])), np.tile(values, (2, 1)))
    assert ops.stack([wide]) is wide


def test_traced_layers_answer_as_others_do(glow_store):
    """The parts that are traced on a GPU, here of stock operations: the same tokens, the same logits but for rounding."""
    from cherenkov.backends.mlx_traces import Traces
    from tests.golden.engine import Engine

    prompt = list(b"The sun")
    with Engine(glow_store, "mlx") as engine:
        expected = engine.run(prompt, [1] * len(prompt))
        engine.ops.traces = Traces()
        for slot in range(8):  # all experts into memory
            with engine.experts.acquire(slot, np.arange(64, dtype=np.int32)) as lease:
                list(lease)
        found = engine.run(prompt, [1] * len(prompt))
        assert len(engine.ops.traces._made) > 8
        again = engine.run(prompt, [1] * len(prompt))
    scale = np.abs(expected.logits).max()
    assert np.abs(found.logits - expected.logits).max() <= 1e-5 * scale
    np.testing.assert_array_equal(again.logits, found.logits)
    for name, state in expected.states.items():
        assert np.abs(found.states[name] - state).max() <= 1e-5 * max(1, np.abs(state).max()), name


def test_the_engine_serves_from_mlx(glow_store):
    """Requests in company, whose steps another thread than the caller's begins, say what each says alone."""
    from cherenkov import Model
    from cherenkov.chat.options import Settings
    from cherenkov.engine import ChatRequest, Engine

    asked = ["What is the capital of France?", "What is the capital of Spain?", "Who are you?"]
    chats = [[{"role": "user", "content": text}] for text in asked]
    settings = Settings().updated({"max_tokens": 8})
    with Model.load(glow_store, backend="mlx", context_tokens=256, sequences=3) as model:
        alone = [model.chat(chat, max_tokens=8).text for chat in chats]
        with Engine(model) as engine:
            tickets = [engine.submit(ChatRequest(chat, settings)) for chat in chats]
            found = [ticket.reply().text for ticket in tickets]
            assert engine.metrics().failed == 0
    assert found == alone
    assert "Paris" in found[0]


@pytest.mark.parametrize("asked", ["int8", "int16"])
def test_a_precision_that_mlx_lacks_is_said(asked):
    assert create("mlx", Options(precision=asked)).detail.endswith(
        f"float32 products (MLX offers no {asked})"
    )
    assert create("mlx", Options()).detail.endswith("float32 products")
